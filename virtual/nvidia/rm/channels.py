"""Channel groups, context shares, channels, and the engine objects on them.

Source: open-gpu-kernel-modules 580.142 src/nvidia/src/kernel/gpu/fifo/kernel_channel.c
(kchannelConstruct), kernel_channel_group_api.c, kernel_ctxshare.c, gr/kernel_graphics_object.c,
gr/kernel_sm_debugger_session.c; src/common/sdk/nvidia/inc/alloc/alloc_channel.h.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from typing import cast

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.chip import ENGINE_COPY0, ENGINE_GR0, VirtualGpu
from ugpu.virtual.nvidia.engines.compute import ComputeEngine
from ugpu.virtual.nvidia.engines.copy import CopyEngine
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.host.channel import USERD_SIZE, Channel
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.host.group import DEFAULT_TIMESLICE_US, TimeSliceGroup
from ugpu.virtual.nvidia.host.runlist import Runlist
from ugpu.virtual.nvidia.host.state import Engine
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess, FaultType, MmuFault
from ugpu.virtual.nvidia.memory.physical import Backing
from ugpu.virtual.nvidia.rm.memory import Memory
from ugpu.virtual.nvidia.rm.mig import need_instance
from ugpu.virtual.nvidia.rm.objects import Allocation, RmObject
from ugpu.virtual.nvidia.rm.resources import VaSpace, need_gpu
from ugpu.virtual.nvidia.status import RmError, Status, require

_NOTIFIER = struct.Struct("<QIHH")  # NvNotification: time in ns, info32, info16, status
NOTIFIER_SIZE = 16
# Every chip offers Volta's channels. That class has the methods of Turing's, with the same names
# and bits, except CLEAR_FAULTED, which takes a channel's number (open-gpu-kernel-modules 580.142
# clc36f.h, clc46f.h). Only UVM itself writes CLEAR_FAULTED.
_VOLTA, _TURING = 0xC36F, 0xC46F
_ENGINE_FIFO = 0  # info16 of a notifier if no engine is at fault


def _methods_of(class_id: int) -> int:
    """Return the class whose table contains the methods of a channel class."""
    return _TURING if class_id == _VOLTA else class_id


def space_of_handle(client: RmObject, handle: int) -> VaSpace:
    """Return the address space that a handle names. Raises RmError."""
    found = client.client.find(handle, Status.INVALID_OBJECT_HANDLE)
    if not isinstance(found, VaSpace):
        raise RmError(Status.INVALID_OBJECT, f"expected an address space, got {found!r}")
    return found


class Group:
    """Channels of one engine that are scheduled, and fail, together: what the handles of a channel
    group share. number: the group's, for reports."""

    def __init__(self, gpu: VirtualGpu, engine_type: int, number: int) -> None:
        runlist = gpu.runlist_of(engine_type)
        if runlist is None:
            raise RmError(Status.INVALID_ARGUMENT, f"no engine of type {engine_type:#x}")
        self.runlist: Runlist = runlist
        self.engine_type = engine_type
        self.number = number
        self.space: VaSpace | None = None
        self.error_handle = 0
        self.scheduled = False
        self.uses_shares: bool | None = None  # whether all, or none, of its channels do
        self.timeslice_us = DEFAULT_TIMESLICE_US
        self.slices = TimeSliceGroup()
        self.channels: list[ChannelObject] = []
        self.subcontexts: set[int] = set()

    def set_timeslice(self, microseconds: int) -> None:
        """Set the time for which the group keeps the engine while others wait for it."""
        self.timeslice_us = microseconds
        self.slices.timeslice_s = microseconds * 1e-6

    def schedule(self, enable: bool) -> None:
        """Put all channels on the runlist, or remove them from it."""
        self.scheduled = enable
        for channel in self.channels:
            channel.schedule(enable)


class ChannelGroup(RmObject):
    """KEPLER_CHANNEL_GROUP_A: a handle to a group of channels."""

    internal = "KernelChannelGroupApi"
    first_to_go = True

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        params = request.block
        self.gpu: VirtualGpu = need_gpu(request.parent)
        need_instance(request.parent, self.gpu)
        self.group = Group(self.gpu, params.engineType, request.handle & 0xFFFF)
        self.group.space = space_of_handle(self, params.hVASpace) if params.hVASpace else None
        self.group.error_handle = params.hObjectError

    @property
    def runlist(self) -> Runlist:
        """The runlist of the group's engine."""
        return self.group.runlist

    @property
    def slices(self) -> TimeSliceGroup:
        """The group, as host schedules it."""
        return self.group.slices


class ContextShare(RmObject):
    """FERMI_CONTEXT_SHARE_A: a subcontext, with its address space."""

    internal = "KernelCtxShareApi"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        params = request.block
        self.group = group = cast(ChannelGroup, request.parent).group
        require(params.flags <= 2, Status.INVALID_ARGUMENT, f"flags {params.flags}")
        space = space_of_handle(self, params.hVASpace) if params.hVASpace else group.space
        if space is None:
            raise RmError(
                Status.INVALID_ARGUMENT,
                "expected an address space from the share or the group, found none",
            )
        self.space: VaSpace = space
        taken = group.subcontexts
        self.number: int = params.subctxId
        if params.flags == 2:  # SUBCONTEXT_SPECIFIED
            require(self.number not in taken, Status.STATE_IN_USE, "subctxId")
        else:  # 0 is for synchronous subcontexts, the rest for asynchronous ones
            # RM takes the highest free one for those (kernel_ctxshare.c).
            order = (*range(63, -1, -1),) if params.flags == 1 else (0,)
            self.number = next((i for i in order if i not in taken), 64)
        require(self.number < 64, Status.INSUFFICIENT_RESOURCES, "64 subcontexts")
        params.subctxId = self.number
        taken.add(self.number)
        self.users = 1

    def release(self) -> None:
        self.drop()

    def hold(self) -> None:
        """Count a user: a duplicate keeps the subcontext's number."""
        self.users += 1

    def drop(self) -> None:
        """Drop a user; the last one frees the number."""
        self.users -= 1
        if not self.users:
            self.group.subcontexts.discard(self.number)


class ChannelObject(RmObject):
    """A GPFIFO channel. reserved: parameters that must be 0."""

    internal = "KernelChannel"
    first_to_go = True
    reserved: tuple[str, ...] = ("hPhysChannelGroup", "internalFlags", "ProcessID", "SubProcessID")

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        params = request.block
        self.gpu: VirtualGpu = need_gpu(request.parent)
        parent = request.parent
        self.group: Group | None = parent.group if isinstance(parent, ChannelGroup) else None
        self.subcontext = 0
        self.vaspace = self._vaspace(params)
        self.runlist = self._runlist(params.engineType)
        self._check(params)
        self._userd = self._userd_backing(params)
        self._notifier = self._notifier_backing(params)
        self.bound = self.gpu.facts.family != "turing"
        self.users: Counter[int] = Counter()  # objects of each class that has methods
        self.contexts_mapped = False  # UVM has mapped the buffers of its graphics context
        self.mmu_fault: MmuFault | None = None
        self.on_fault: Callable[[MmuFault], None] | None = None  # UVM's, once it is registered
        if self.machine.faults.take(Fault.NO_CHANNELS, self.gpu.index):
            raise RmError(Status.INSUFFICIENT_RESOURCES, "planted")
        number = self._number(params)
        channel = Channel(
            self.gpu,
            number,
            _methods_of(request.class_id),
            self.vaspace.space,
            self._userd.host + self._userd_offset(params),
            late=self.machine.options.doorbell_overtakes and self._userd.gpu is not None,
        )
        channel.ring_address, channel.ring_entries = params.gpFifoOffset, params.gpFifoEntries
        channel.runlist_engine = self._engine_type(params)
        channel.subcontext = self.subcontext
        channel.copies_only = self.runlist.number != 0
        channel.on_error = self._recover
        channel.check_context = self._check_context
        channel.enabled = self.group.scheduled if self.group is not None else False
        self.channel = channel
        for held in (self._userd, self._notifier):
            if held is not None:
                held.users += 1
        self.vaspace.hold()
        # A channel without a group gets its own.
        self.slices = TimeSliceGroup() if self.group is None else self.group.slices
        self.gpu.add_channel(self.runlist, self.slices, channel)
        if self.group is not None:
            self.group.channels.append(self)
        params.cid = number

    def _number(self, params: Struct) -> int:
        number = self.gpu.new_channel_number(self.runlist)
        if number is None:
            raise RmError(Status.INSUFFICIENT_RESOURCES, "no free channel")
        return number

    def _engine_type(self, params: Struct) -> int:
        own = self.group.engine_type if self.group is not None else ENGINE_GR0
        return int(params.engineType) or own

    def _userd_offset(self, params: Struct) -> int:
        """Return where USERD is in the memory that `_userd_backing` returned."""
        return int(params.userdOffset[0])

    def _vaspace(self, params: Struct) -> VaSpace:
        share_handle, space_handle = params.hContextShare, params.hVASpace
        require(not (share_handle and space_handle), Status.INVALID_ARGUMENT, "share and space")
        if self.group is None:
            require(not share_handle, Status.INVALID_ARGUMENT, "a context share without a group")
            require(space_handle, Status.NOT_SUPPORTED, "the device's own address space")
            space = space_of_handle(self, space_handle)
        else:
            require(not space_handle, Status.INVALID_ARGUMENT, "a group's channel names no space")
            with_share = bool(share_handle)
            if self.group.channels and self.group.uses_shares != with_share:
                raise RmError(
                    Status.INVALID_ARGUMENT,
                    "either all channels of a group use a context share or none",
                )
            self.group.uses_shares = with_share
            if share_handle:
                share = self.client.find(share_handle)
                if not isinstance(share, ContextShare):
                    raise RmError(Status.INVALID_OBJECT, repr(share))
                require(share.group is self.group, Status.INVALID_OBJECT_PARENT, repr(share))
                space, self.subcontext = share.space, share.number
            elif self.group.space is None:
                raise RmError(Status.INVALID_STATE, "the group has no address space")
            else:
                space = self.group.space
        self._check_space(space)
        return space

    def _check_space(self, space: VaSpace) -> None:
        if space.external and not space.registered:
            raise RmError(Status.INVALID_STATE, "UVM has not set the space's page directory yet")

    def _runlist(self, engine_type: int) -> Runlist:
        if self.group is not None:
            if engine_type not in (0, self.group.engine_type):
                raise RmError(Status.INVALID_ARGUMENT, f"engine type {engine_type:#x}")
            return self.group.runlist
        runlist = self.gpu.runlist_of(engine_type or ENGINE_GR0)
        if runlist is None:
            raise RmError(Status.INVALID_ARGUMENT, f"no engine of type {engine_type:#x}")
        return runlist

    def _check(self, params: Struct) -> None:
        entries = params.gpFifoEntries
        require(entries > 1 and entries & (entries - 1) == 0, Status.INVALID_ARGUMENT, "entries")
        require(params.gpFifoOffset % 8 == 0, Status.INVALID_ARGUMENT, "ring alignment")
        for name in self.reserved:
            require(params[name] == 0, Status.INVALID_ARGUMENT, f"{name} is reserved")

    def _userd_backing(self, params: Struct) -> Backing:
        handle, offset = params.hUserdMemory[0], params.userdOffset[0]
        require(handle, Status.NOT_SUPPORTED, "USERD that the driver allocates")
        memory = self.client.find(handle, Status.INVALID_OBJECT_HANDLE)
        if not isinstance(memory, Memory):
            raise RmError(Status.INVALID_OBJECT, f"expected memory, got {memory!r}")
        require(offset % USERD_SIZE == 0, Status.INVALID_ARGUMENT, f"USERD at {offset:#x}")
        require(
            offset + USERD_SIZE <= memory.size, Status.INVALID_ARGUMENT, "USERD past its memory"
        )
        return memory.backing

    def _notifier_backing(self, params: Struct) -> Backing | None:
        handle = params.hObjectError or (self.group.error_handle if self.group is not None else 0)
        if not handle:
            return None
        memory = self.client.find(handle, Status.INVALID_OBJECT_HANDLE)
        if not isinstance(memory, Memory):
            raise RmError(Status.INVALID_OBJECT, f"expected memory, got {memory!r}")
        require(memory.size >= NOTIFIER_SIZE, Status.INVALID_LIMIT, "a notifier has 16 bytes")
        return memory.backing

    def schedule(self, enable: bool) -> None:
        """Put the channel on its runlist, or remove it."""
        self.channel.enabled = enable
        self.bound = self.bound or enable
        if enable and self.channel.pending:
            self.runlist.kick()

    @property
    def has_context(self) -> bool:
        """Return whether there is a graphics context for the channel: one for its group, created by
        the first object of a graphics class (kernel_graphics_context.c)."""
        members = [self] if self.group is None else self.group.channels
        return self.runlist.number == 0 and any(
            isinstance(child, ComputeObject)
            for channel in members
            for child in channel.children.values()
        )

    @property
    def token(self) -> int:
        """Return the work submit token: the value to write to the doorbell."""
        return self.gpu.token(self.runlist, self.channel.number)

    def _check_context(self) -> None:
        """Raise if the channel has graphics work and UVM has not mapped the context buffers, in an
        address space that UVM owns."""
        graphics = any(isinstance(e, ComputeEngine) for e in self.channel.engines.values())
        if graphics and self.vaspace.external and not self.contexts_mapped:
            fault = MmuFault(FaultType.PDE, FaultAccess.READ, 0, Client.FRONT_END)
            raise ChannelError(
                Xid.MMU_FAULT,
                "the context buffers are not mapped: UVM_REGISTER_CHANNEL comes after the compute"
                f" object and before work; {fault}",
                fault,
            )

    def _recover(self, error: ChannelError) -> None:
        """Perform robust channel recovery: end the whole group and write all error notifiers."""
        self.gpu.report(error.xid, error.text, self.channel.number)
        if error.gap is not None:
            self.client.owner.gaps.append(error.gap)
        if error.culprit is not None:
            self.client.owner.culprits.add(error.culprit)
        if error.fault is not None and self.on_fault is not None:
            self.on_fault(error.fault)  # ORDER: before the notifiers report the error
        victims = [self] if self.group is None else list(self.group.channels)
        for victim in victims:
            victim.mmu_fault = error.fault or victim.mmu_fault
            victim.fail(error)

    def fail(self, error: ChannelError) -> None:
        """Stop the channel and write its error notifier."""
        if self.channel.error is None:
            self.channel.error = error
        self.channel.pending = False
        if self._notifier is not None and self._notifier.view is not None:
            _NOTIFIER.pack_into(
                self._notifier.view, 0, self.gpu.time_ns(), int(error.xid), _ENGINE_FIFO, 0xFFFF
            )

    def stop(self) -> None:
        self.channel.stop()

    def release(self) -> None:
        self.gpu.remove_channel(self.runlist, self.channel)
        if self.group is not None:
            self.group.channels.remove(self)
        for engine in self.channel.engines.values():
            engine.close()
        self.gpu.exceptions = [
            found for found in self.gpu.exceptions if found.channel != self.channel.number
        ]
        for held in (self._userd, self._notifier):
            if held is not None:
                self.machine.free_backing(held)
        self.vaspace.drop()


class EngineObject(RmObject):
    """A compute or copy object on a channel. Several of a class share what executes its methods."""

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        self.owner = cast(ChannelObject, request.parent)
        self.owner.bound = True  # an object puts its channel on the engine's runlist

    def execute(self, engine: Callable[[Channel, int], Engine]) -> None:
        """Give the channel what executes methods of this class, if no earlier object did."""
        channel = self.owner.channel
        if self.class_id not in channel.engines:
            channel.engines[self.class_id] = engine(channel, self.class_id)
        self.owner.users[self.class_id] += 1

    def release(self) -> None:
        users = self.owner.users
        if not users[self.class_id]:
            return
        users[self.class_id] -= 1
        if not users[self.class_id]:
            engine = self.owner.channel.engines.pop(self.class_id)
            self.owner.gpu.remove_engine(self.owner.runlist, self.owner.channel, engine)


class ComputeObject(EngineObject):
    """A compute class."""

    internal = "KernelGraphicsObject"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        require(
            self.owner.runlist.number == 0,
            Status.INVALID_ARGUMENT,
            "a compute object on a channel of a copy engine",
        )
        self.execute(ComputeEngine)


class CopyObject(EngineObject):
    """A copy class: on a channel of a copy engine, or beside compute on the graphics engine."""

    internal = "KernelCeContext"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        params = request.params
        owner = self.owner
        if params is not None:
            require(params.version <= 1, Status.INVALID_ARGUMENT, f"version {params.version}")
            instance = 0 if params.version else ENGINE_COPY0  # version 0: engine number, 1: type
            runlist = owner.gpu.runlist_of(params.engineType + instance)
            require(runlist is not None, Status.INVALID_ARGUMENT, f"type {params.engineType:#x}")
            if runlist is not owner.runlist:
                raise RmError(
                    Status.INVALID_STATE,
                    f"copy engine of type {params.engineType:#x} does not match the channel's "
                    "engine",
                )
        self.execute(CopyEngine)


class Debugger(RmObject):
    """GT200_DEBUGGER: reads exceptions that the SMs latched for a compute object."""

    internal = "KernelSMDebuggerSession"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        params = request.block
        require(not params.hDebuggerClient_Obsolete, Status.INVALID_ARGUMENT, "obsolete field")
        client = request.machine.clients.get(params.hAppClient or request.client.handle)
        if client is None or client.owner is not request.client.owner:
            raise RmError(Status.INVALID_CLIENT, f"hAppClient {params.hAppClient:#x}")
        target = client.find(params.hClass3dObject, Status.INVALID_OBJECT_PARENT)
        if not isinstance(target, ComputeObject):
            raise RmError(Status.INVALID_OBJECT, f"expected a compute object, got {target!r}")
        require(target.owner.gpu is need_gpu(request.parent), Status.INVALID_ARGUMENT, "other GPU")
        self.target = target
