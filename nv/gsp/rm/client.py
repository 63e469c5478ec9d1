"""A client of the resource manager in the GSP's firmware: requests as messages.

Sources: open-gpu-kernel-modules 570.144 rpc.c (rpcRmApiAlloc_GSP, rpcRmApiControl_GSP,
rpcRmApiFree_GSP); Linux 7.3 nouveau rm/r535/{alloc,client,ctrl}.c.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Sequence
from typing import Any

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.state.clock import Clock
from ugpu.nv.gsp.rpc.calls import Calls, require_size
from ugpu.nv.rm.requests import Requests

_FIRST_ROOT = 0xC1D0_0000  # of clients; nouveau's base
_MEMORY_LIST = 0x81  # NV01_MEMORY_LIST_SYSTEM
_SCATTERED = 1 << 30 | 1 << 4  # NVOS02_FLAGS: not mapped, not contiguous, of the host
_PAGE = 4096
_FIRST_OBJECT = 0xCAF0_0000  # of other objects; handles of a client are the driver's to choose


class GspClient(Requests):
    """See Requests. calls: to the firmware; they outlive the client. device, subdevice: handles of
    the GPU's objects, 0 before `open_device`."""

    speaker = "the GSP's resource manager"
    device = subdevice = 0

    def __init__(self, calls: Calls, clock: Clock) -> None:
        self.calls = calls
        self._clock = clock
        self.abi = calls.abi
        self.version = calls.abi.version
        self.structs, self.constants = self.abi.structs, self.abi.constants
        self.closed = False
        self._handles = itertools.count(_FIRST_OBJECT)
        self.root = _FIRST_ROOT | calls.next_client()
        parameters = self.structs.NV0000_ALLOC_PARAMETERS.new(
            hClient=self.root, processID=0xFFFF_FFFF
        )
        status, _ = self._create(
            self.root, self.root, self.constants.NV01_ROOT, parameters, "NV01_ROOT"
        )
        if status:
            raise self._error(status, "allocate NV01_ROOT")

    @property
    def clock(self) -> Clock:
        return self._clock

    def _allocate(
        self, parent: int, number: int, parameters: Struct | None, name: str
    ) -> tuple[int, int]:
        return self._create(parent, next(self._handles), number, parameters, name)

    def _create(
        self, parent: int, handle: int, number: int, parameters: Struct | None, name: str
    ) -> tuple[int, int]:
        head = self.structs.rpc_gsp_rm_alloc_v03_00.new(
            hClient=self.root, hParent=parent, hObject=handle, hClass=number
        )
        function = self.constants.NV_VGPU_MSG_FUNCTION_GSP_RM_ALLOC
        return self._send(function, head, parameters, f"allocate {name}"), handle

    def _send(self, function: int, head: Struct, parameters: Struct | None, what: str) -> int:
        """Send a request; update `parameters` from the reply, and return the status in it."""
        head["paramsSize"] = 0 if parameters is None else len(parameters)
        payload = bytes(head.raw) + (b"" if parameters is None else bytes(parameters.raw))
        reply = self.calls.call(function, payload, what=what)
        size = len(head.raw)
        require_size(reply, size, f"reply to {what}")
        status = int(head.layout.view(reply[:size]).status)
        if parameters is not None and not status:
            require_size(reply, size + len(parameters), f"reply to {what}")
            parameters.raw[:] = reply[size : size + len(parameters)]
        return status

    def list_memory(self, pages: Sequence[int]) -> int:
        """Describe pages of host memory to the firmware; return the object's handle."""
        handle = next(self._handles)
        block = self.structs.rpc_alloc_memory_v13_01.new(
            hClient=self.root, hDevice=self.device, hMemory=handle, hClass=_MEMORY_LIST,
            flags=_SCATTERED, length=len(pages) * _PAGE, pageCount=len(pages),
        )  # fmt: skip
        block.pteDesc.length = len(pages)
        numbers = struct.pack(f"<{len(pages)}Q", *(page // _PAGE for page in pages))
        function = self.constants.NV_VGPU_MSG_FUNCTION_ALLOC_MEMORY
        self.calls.call(function, bytes(block.raw) + numbers, what="allocate a memory list")
        return handle

    def _free(self, parent: int, handle: int) -> int:
        block = self.structs.rpc_free_v03_00.new()
        block.params.hRoot = self.root
        block.params.hObjectParent = parent
        block.params.hObjectOld = handle
        reply = self.calls.call(
            self.constants.NV_VGPU_MSG_FUNCTION_FREE, bytes(block.raw), what=f"free {handle:#x}"
        )
        require_size(reply, len(block), "reply to a free")
        return int(block.layout.view(reply[: len(block.raw)]).params.status)

    def _control(self, handle: int, command: int, parameters: Struct | None, name: str) -> int:
        head = self.structs.rpc_gsp_rm_control_v03_00.new(
            hClient=self.root, hObject=handle, cmd=command
        )
        function = self.constants.NV_VGPU_MSG_FUNCTION_GSP_RM_CONTROL
        return self._send(function, head, parameters, name)

    def open_device(self) -> None:
        """Create the objects of the GPU."""
        parameters = self.structs.NV0080_ALLOC_PARAMETERS.new(hClientShare=self.root)
        self.device = self.allocate(self.root, "NV01_DEVICE_0", parameters)
        parameters = self.structs.NV2080_ALLOC_PARAMETERS.new()
        self.subdevice = self.allocate(self.device, "NV20_SUBDEVICE_0", parameters)

    def ask_gpu(self, command: str, **values: int) -> Any:
        """Call `ask` for a control of the subdevice."""
        return self.ask(self.subdevice, command, **values)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(UgpuError):
            self.free(self.root, self.root)

    def __repr__(self) -> str:
        return f"<GspClient {self.root:#x} of firmware {self.version}>"
