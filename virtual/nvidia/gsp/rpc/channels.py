"""Channels and graphics objects as the CPU's half of the resource manager asks the GSP for them:
memory by physical address, channel numbers chosen by the CPU.

Source: open-gpu-kernel-modules 570.144 alloc_channel.h, nvos.h (NVOS04_FLAGS), kernel_channel.c,
rpc.c (rpcRmApiAlloc_GSP); Linux 7.3.4 nouveau nvkm/subdev/gsp/rm/r535/fifo.c.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, cast

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.chip import ENGINE_GR0
from ugpu.virtual.nvidia.engines.graphics import TABLES, GraphicsEngine, UnmodelledEngine
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.gsp.apertures import directory_of
from ugpu.virtual.nvidia.gsp.rpc.spaces import space_of
from ugpu.virtual.nvidia.host.channel import USERD_SIZE
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.memory.faults import Client, MmuFault
from ugpu.virtual.nvidia.memory.physical import Backing
from ugpu.virtual.nvidia.rm.channels import ChannelObject, ComputeObject, EngineObject
from ugpu.virtual.nvidia.rm.objects import Allocation, RmObject
from ugpu.virtual.nvidia.rm.resources import Device, VaSpace
from ugpu.virtual.nvidia.status import RmError, Status, require

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.rpc.server import GspServer

_SYSTEM, _VIDEO = 1, 2  # NV_MEMORY_DESC_PARAMS.addressSpace
_PRIVILEGED = 1 << 5
_PAGE_FIXED, _INDEX_FIXED = 1 << 21, 1 << 11
_INSTANCE_SIZE, _RAMFC_SIZE = 0x1000, 0x200
_KERNEL_LEVELS = (1, 2)  # NV_KERNELCHANNEL_ALLOC_INTERNALFLAGS_PRIVILEGE: ADMIN, KERNEL


class GspChannel(ChannelObject):
    """A GPFIFO channel whose instance block, USERD and notifier are the CPU's."""

    reserved = ()

    def __init__(self, request: Allocation) -> None:
        self._server = cast("GspServer", request.client.owner)
        params = request.block
        level = params.internalFlags & 3
        self.privileged = bool(params.flags & _PRIVILEGED) or level in _KERNEL_LEVELS
        notifier = params.errorNotifierMem
        self._notifier_at = (int(notifier.addressSpace), int(notifier.base))
        self._instance = int(params.instanceMem.base)
        super().__init__(request)
        self.channel.privileged = self.privileged
        self.channel.on_fault = self._ask
        self._fault: MmuFault | None = None  # the last one that UVM was asked about
        self.channel.instance = self._instance

    @property
    def token(self) -> int:
        """The channel's number alone: the CPU adds the runlist."""
        return self.channel.number

    def _check(self, params: Struct) -> None:
        super()._check(params)
        for name, size in (("instanceMem", _INSTANCE_SIZE), ("ramfcMem", _RAMFC_SIZE)):
            memory = params[name]
            require(memory.addressSpace == _VIDEO, Status.NOT_SUPPORTED, f"{name} in host memory")
            require(memory.size >= size, Status.INVALID_ARGUMENT, f"{name}: {memory.size} bytes")
            require(memory.base % _RAMFC_SIZE == 0, Status.INVALID_ARGUMENT, f"{name} alignment")
            self._need(memory, name)
        # Only a fault uses the method buffer. Linux 7.3.4 gives the golden context's channel one in
        # video memory and calls it system memory, which boards accept.
        buffer = params.mthdbufMem
        known = buffer.addressSpace in (_SYSTEM, _VIDEO)
        require(known, Status.INVALID_ARGUMENT, f"mthdbufMem of kind {buffer.addressSpace}")

    def _need(self, memory: Struct, name: str) -> int:
        kind, base, size = int(memory.addressSpace), int(memory.base), int(memory.size)
        host = self._server.board.address_of(kind, base, size)
        if host is None:
            raise _missing(memory, name)
        return host

    def _number(self, params: Struct) -> int:
        flags = params.flags
        if not flags & (_PAGE_FIXED | _INDEX_FIXED):
            return super()._number(params)
        number = int((flags >> 12 & 0x1FF) * 8 + (flags >> 8 & 7))
        if not self.gpu.take_channel_number(self.runlist, number):
            raise RmError(Status.INSUFFICIENT_RESOURCES, f"channel {number} is taken")
        return number

    def _userd_backing(self, params: Struct) -> Backing:
        userd = params.userdMem
        host = self._need(userd, "userdMem") & ~(USERD_SIZE - 1)
        own = self.gpu.index if userd.addressSpace == _VIDEO else None
        return Backing(USERD_SIZE, USERD_SIZE, int(userd.base), host, own, None, users=1 << 30)

    def _userd_offset(self, params: Struct) -> int:
        return 0

    def _notifier_backing(self, params: Struct) -> Backing | None:
        return None

    def _vaspace(self, params: Struct) -> VaSpace:
        device = self.ancestor(Device)
        assert isinstance(device, Device)
        if self.group is not None and self.group.space is None:
            self.group.space = space_of(device)
        if self.group is not None or params.hVASpace:
            return super()._vaspace(params)
        space = space_of(device)
        self._check_space(space)
        return space

    def _check_space(self, space: VaSpace) -> None:
        if space.space.has_directory:
            return
        found = directory_of(self.gpu, self._instance)
        require(found, Status.INVALID_STATE, "the address space has no page directory yet")
        space.space.set_directory(found)

    def fail(self, error: ChannelError) -> None:
        super().fail(error)
        self.channel.faulted = 0
        kind, base = self._notifier_at
        if base:
            content = struct.pack("<QIHH", self.gpu.time_ns(), int(error.xid), 0, 0xFFFF)
            self._server.board.write_memory(kind, base, content)

    @property
    def rests(self) -> bool:
        """See memory.shadow_buffer.Resting."""
        return bool(self.channel.faulted)

    def end_fault(self) -> None:
        """See memory.shadow_buffer.Resting."""
        if self._fault is not None and self.rests:
            self._end(ChannelError(Xid.MMU_FAULT, str(self._fault), self._fault))

    def _ask(self, fault: MmuFault) -> bool:
        """Ask UVM to serve a fault; return whether it may do so."""
        served = fault.client in (Client.COPY, Client.HOST) and self.channel.may_replay
        unit, shadow = self.gpu.fault_unit, self._server.shadow
        if unit is None or not served or not shadow.registered:
            return False
        self._fault = fault
        return shadow.ask(unit.report(self.channel, fault), self)

    def _recover(self, error: ChannelError) -> None:
        fault, unit = error.fault, self.gpu.fault_unit
        if fault is not None and unit is not None and fault is not self._fault:
            unit.report(self.channel, fault)
        self._end(error)

    def _end(self, error: ChannelError) -> None:
        if not self.channel.stopped:
            super()._recover(error)
            self._server.channel_failed(self, error)


def _missing(memory: Struct, name: str) -> RmError:
    text = f"{name}: {memory.size:#x} bytes at {memory.base:#x} of kind {memory.addressSpace}"
    return RmError(Status.INVALID_ADDRESS, text)


class GraphicsObject(EngineObject):
    """An object of a 3D class, or of another class on the graphics engine that makes the context.
    Methods of 3D classes are modelled up to drawings; those of other classes are not."""

    internal = "KernelGraphicsObject"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        graphics = self.owner.runlist is self.owner.gpu.runlist_of(ENGINE_GR0)
        text = "a graphics object on a channel of a copy engine"
        require(graphics, Status.INVALID_ARGUMENT, text)
        self.execute(GraphicsEngine if self.class_id in TABLES else UnmodelledEngine)


class UvmSoftware(EngineObject):
    """GP100_UVM_SW: UVM binds it to a subchannel of its channels."""

    internal = "UvmSwObject"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        self.execute(UnmodelledEngine)


def graphics_object(request: Allocation) -> RmObject:
    """Create a compute or a 3D object, by its class."""
    if request.class_id & 0xFF == 0xC0:
        return ComputeObject(request)
    return GraphicsObject(request)


def cpu_memory(request: Allocation) -> RmObject:
    """Refuse a memory object: the CPU's half of the resource manager has those."""
    raise RmError(Status.NOT_SUPPORTED, f"memory of class {request.class_id:#x} is the CPU's")
