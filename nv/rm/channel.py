"""Channels: a ring of entries for the GPU's host engine, in a group that serves one engine.

Sources: open-gpu-kernel-modules 580.142 alloc/alloc_channel.h (NV_CHANNEL_ALLOC_PARAMS), class/
cla06c.h, cl9067.h, clc36f.h (work submit token), cla06fsubch.h; src/nvidia/src/kernel/gpu/fifo/
kernel_channel.c; open-gpu-doc clc56f.h (entries), dev_ram.ref.txt (USERD). The error notifier:
nvtypes' NvNotification, alloc_channel.h NV_CHANNELGPFIFO_NOTIFICATION_TYPE_ERROR.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.node import NodeMapping
from ugpu.nv import abi
from ugpu.nv.rm.gpu import ChannelParts, Gpu
from ugpu.nv.rm.memory import Memory, allocate
from ugpu.nv.rm.session import Region

ENTRIES = 1024  # of the ring; a power of two
# Newest first, as in the driver's own clients (nvidia-push-init.c, gpFifoDmaClasses): of the two
# Blackwell classes that a GB202 offers, they take B.
GPFIFO_CLASSES = (
    "BLACKWELL_CHANNEL_GPFIFO_B",
    "BLACKWELL_CHANNEL_GPFIFO_A",
    "HOPPER_CHANNEL_GPFIFO_A",
    "AMPERE_CHANNEL_GPFIFO_A",
    "TURING_CHANNEL_GPFIFO_A",
)
_NOTIFICATION = struct.Struct("<QIHH")  # timeStamp, info32, info16, status
_ERROR_STATUS = 0xFFFF


@dataclass(frozen=True)
class ChannelError:
    """Error record that the resource manager wrote when it stopped the channel: an Xid, see
    nv.failure.faults."""

    xid: int
    engine: int

    @property
    def name(self) -> str:
        return abi.xid_name(self.xid)


class Group:
    """A channel group: one address space, one engine. `close` frees its channels too."""

    def __init__(self, gpu: Gpu, engine: int, *, context_share: bool) -> None:
        client, number = gpu.client, gpu.client.constants
        self.gpu = gpu
        self.engine = engine
        self.share = 0
        self.handle = client.allocate(
            gpu.device,
            "KEPLER_CHANNEL_GROUP_A",
            client.structs.NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS.new(
                engineType=engine, hVASpace=gpu.address_space
            ),
        )
        try:
            if context_share:
                flags = number.NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT_ASYNC
                self.share = client.allocate(
                    self.handle,
                    "FERMI_CONTEXT_SHARE_A",
                    client.structs.NV_CTXSHARE_ALLOCATION_PARAMETERS.new(
                        hVASpace=gpu.address_space, flags=flags
                    ),
                )
        except BaseException:
            self.close()
            raise

    def schedule(self) -> None:
        """Let the group's channels run."""
        client = self.gpu.client
        block = client.structs.NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS.new(bEnable=1)
        client.control(self.handle, "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE", block)

    def close(self) -> None:
        with contextlib.suppress(UgpuError):
            self.gpu.client.free(self.gpu.device, self.handle)


class _Words:
    """32-bit words of memory that the host does not map."""

    def __init__(self, mapping: NodeMapping) -> None:
        self._mapping = mapping

    def __getitem__(self, index: int) -> int:
        return self._mapping.read32(4 * index)

    def __setitem__(self, index: int, value: int) -> None:
        self._mapping.write32(4 * index, value)


def _words(mapping: NodeMapping) -> memoryview | _Words:
    """Return USERD as words."""
    view = mapping.view
    return _Words(mapping) if view is None else view[: abi.userd().size].cast("I")


class ChannelMemory:
    """Memory of a channel; outlives the channel, so that a new channel can be created in it."""

    def __init__(self, gpu: Gpu) -> None:
        self.parts: list[Memory] = []
        try:
            self.ring = self._take(gpu, ENTRIES * 8, Placement.HOST, Region.COMMANDS)
            self.userd = gpu.new_userd(abi.userd().size)
            self.parts.append(self.userd)
            self.notifier = self._take(gpu, 4096, Placement.HOST, Region.HOST, notifier=True)
        except BaseException:
            self.close()
            raise
        self.entries = self.ring.view.cast("Q")
        assert self.userd.mapping is not None
        self._userd = _words(self.userd.mapping)

    def _take(
        self,
        gpu: Gpu,
        size: int,
        placement: Placement,
        region: Region,
        *,
        notifier: bool = False,
    ) -> Memory:
        memory = allocate(gpu, size, placement, region, notifier=notifier)
        self.parts.append(memory)
        return memory

    def clear(self) -> None:
        """Reset the memory for a new channel: no entries, no error."""
        self.ring.view[:] = bytes(self.ring.size)
        for index in range(abi.userd().size // 4):
            self._userd[index] = 0
        self.notifier.view[:] = bytes(self.notifier.size)

    def put(self, index: int) -> None:
        """Write GP_PUT: entries before `index` are ready."""
        self._userd[_PUT] = index

    def settle(self) -> None:
        """Return once earlier writes to USERD have arrived. Reads over the bus."""
        mapping = self.userd.mapping
        assert mapping is not None  # it is reachable
        mapping.read32(4 * _PUT)

    @property
    def got(self) -> int:
        """GP_GET: the next entry that the host engine fetches. Reads over the bus."""
        return self._userd[_GET]

    def error(self) -> ChannelError | None:
        """Return the error that stopped the channel, if any. Reads host memory."""
        _, xid, engine, status = _NOTIFICATION.unpack_from(self.notifier.view)
        return ChannelError(xid, engine) if status == _ERROR_STATUS else None

    def close(self) -> None:
        if hasattr(self, "entries"):
            self.entries.release()
            if isinstance(self._userd, memoryview):
                self._userd.release()
        for memory in self.parts:
            memory.close()
        self.parts = []


# Words of USERD, dev_ram.ref.txt NV_RAMUSERD.
_GET, _PUT = 0x88 // 4, 0x8C // 4


class Channel:
    """A channel and its engine objects. It runs once its group is scheduled; then call `start`.

    objects: handles by class number. token: value to write to the doorbell.
    """

    def __init__(
        self, gpu: Gpu, group: Group, memory: ChannelMemory, objects: Sequence[int]
    ) -> None:
        client = gpu.client
        self.gpu = gpu
        self.memory = memory
        memory.clear()
        parts = ChannelParts(
            memory.ring, memory.userd, memory.notifier, ENTRIES, group.engine, group.share
        )
        parameters = gpu.channel_block(parts)
        self.handle = client.allocate(group.handle, gpu.choose(GPFIFO_CLASSES), parameters)
        self.registration: object | None = None
        gpu.prepare_channel(self.handle, group.engine)
        self.objects = {number: self._object(number, group) for number in objects}
        self.token = 0
        self.registration = gpu.register_channel(self.handle, group.engine, memory.notifier)

    def start(self) -> None:
        """Query the doorbell's token; call it once the group is scheduled.

        The token names the runlist, which a channel has by then at the latest
        (kernel_fifo_tu102.c).
        """
        found = self.gpu.client.ask(
            self.handle,
            "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN",
            workSubmitToken=0xFFFF_FFFF,
        )
        self.token = self.gpu.doorbell_of(self.registration, int(found.workSubmitToken))

    def _object(self, number: int, group: Group) -> int:
        """Create an engine's object; the group's engine identifies a separate copy engine."""
        client = self.gpu.client
        block = None
        rule = client.abi.parameters_of_class(number)
        graphics = client.constants.NV2080_ENGINE_TYPE_GRAPHICS
        if rule == "NVB0B5_ALLOCATION_PARAMETERS" and group.engine != graphics:
            version = client.constants.NVB0B5_ALLOCATION_PARAMETERS_VERSION_1
            block = client.structs.NVB0B5_ALLOCATION_PARAMETERS.new(
                version=version, engineType=group.engine
            )
        return client.allocate(self.handle, number, block)

    def close(self) -> None:
        """Unregister; the group frees the object. Errors of the driver are not raised."""
        registration, self.registration = self.registration, None
        if registration is not None:
            self.gpu.leave_channel(self.handle, registration)
