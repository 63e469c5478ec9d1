"""RM_USER_SHARED_DATA: a page with measurements of the GPU's system processor, for programs.

Source: open-gpu-kernel-modules 580.142 src/nvidia/src/kernel/gpu/gpu_user_shared_data.c (which data
can be requested, and for which drivers), src/nvidia/src/kernel/rmapi/resource_list.h.
"""

from __future__ import annotations

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.publisher import Publisher
from ugpu.virtual.nvidia.rm.memory import Memory
from ugpu.virtual.nvidia.rm.objects import Allocation
from ugpu.virtual.nvidia.rm.resources import need_gpu
from ugpu.virtual.nvidia.status import Status, require


class UserSharedData(Memory):
    """RM_USER_SHARED_DATA: read-only for programs."""

    internal = "GpuUserSharedData"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        self.publisher: Publisher = need_gpu(request.parent).publisher
        fields = request.block.layout.fields
        if "polledDataMask" in fields:
            self._ask(request.block.polledDataMask)
        else:
            require(request.block.reserved == 0, Status.INVALID_ARGUMENT, "reserved")
        self.backing = self.publisher.backing
        self.backing.users += 1

    def poll(self, mask: int) -> None:
        """NV00DE_CTRL_CMD_REQUEST_DATA_POLL: set the data that this object requests."""
        self._ask(mask)

    def _ask(self, mask: int) -> None:
        require(
            not mask or self.machine.options.open_module,
            Status.NOT_SUPPORTED,
            "polling, without the GPU's system processor",
        )
        self.publisher.ask(self, mask)

    def release(self) -> None:
        self.publisher.ask(self, 0)
        super().release()


def request_poll(shared: UserSharedData, params: Struct) -> None:
    """Set the data to be published from now on."""
    shared.poll(params.polledDataMask)


HANDLERS = {"NV00DE_CTRL_CMD_REQUEST_DATA_POLL": request_poll}
