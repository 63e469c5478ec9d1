"""DUP_OBJECT: another client's handle to an object, which shares it and its lifetime.

Source: open-gpu-kernel-modules 550.163.01 src/nvidia/src/libraries/resserv/src/rs_server.c
(serverCopyResource), rs_client.c (clientCopyResource); the objects' CanCopy and CopyConstruct in
vaspace_api.c, kernel_channel_group_api.c, kernel_ctxshare.c; uvm_channel_retainer.c for channels,
which cannot be duplicated; nvos.h for flags.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.nvidia.rm.channels import ChannelGroup, ChannelObject, ContextShare
from ugpu.virtual.nvidia.rm.memory import Memory
from ugpu.virtual.nvidia.rm.mig import ComputeInstance, GpuInstance
from ugpu.virtual.nvidia.rm.objects import Allocation, Client, Place, RmObject
from ugpu.virtual.nvidia.rm.resources import UserMode, VaSpace, need_gpu
from ugpu.virtual.nvidia.rm.shared_data import UserSharedData
from ugpu.virtual.nvidia.status import RmError, Status, require

_OBEY_RIGHTS = 1  # NV04_DUP_HANDLE_FLAGS_REJECT_KERNEL_DUP_PRIVILEGE
# The resource manager duplicates these, the model does not.
_FURTHER = (Memory, UserMode, UserSharedData, GpuInstance, ComputeInstance)


@dataclass(frozen=True)
class Source:
    """The object to duplicate. flags: NV04_DUP_HANDLE_FLAGS."""

    client: Client
    handle: int
    flags: int = 0


class SharedSpace(VaSpace):
    """Another handle to an address space. The tables live as long as either."""

    def __init__(self, request: Allocation, source: VaSpace) -> None:
        RmObject.__init__(self, request)
        self.gpu, self.flags, self.base, self.size = (
            source.gpu, source.flags, source.base, source.size,
        )  # fmt: skip
        self.external, self.registered, self.users = source.external, source.registered, 1
        self.space = source.space
        self._source = source
        source.hold()

    def drop(self) -> None:
        """Drop a user; the last one drops the source."""
        self.users -= 1
        if not self.users:
            self._source.drop()


class SharedGroup(ChannelGroup):
    """Another handle to a group of channels: what it is asked, the group is asked."""

    def __init__(self, request: Allocation, source: ChannelGroup) -> None:
        RmObject.__init__(self, request)
        self.gpu, self.group = source.gpu, source.group


class SharedContext(ContextShare):
    """Another handle to a context share, which keeps the subcontext's number."""

    def __init__(self, request: Allocation, source: ContextShare) -> None:
        RmObject.__init__(self, request)
        self.group, self.space, self.number = source.group, source.space, source.number
        self.users = 1
        self._source = source
        source.hold()

    def drop(self) -> None:
        """Drop a user; the last one drops the source."""
        self.users -= 1
        if not self.users:
            self._source.drop()


class ChannelRetainer(RmObject):
    """UVM_CHANNEL_RETAINER: keeps a channel's number from being used again."""

    internal = "UvmChannelRetainer"
    first_to_go = True

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        params = request.block
        client = request.machine.clients.get(params.hClient)
        if client is None:
            raise RmError(Status.INVALID_CLIENT, f"hClient {params.hClient:#x}")
        channel = client.find(params.hChannel)
        if not isinstance(channel, ChannelObject):
            raise RmError(Status.INVALID_CHANNEL, f"expected a channel, got {channel!r}")
        self._gpu = need_gpu(request.parent)
        require(channel.gpu is self._gpu, Status.INVALID_CHANNEL, "a channel of another GPU")
        self._runlist, self._number = channel.runlist, channel.channel.number
        self._gpu.hold_channel_number(self._runlist, self._number)

    def release(self) -> None:
        self._gpu.drop_channel_number(self._runlist, self._number)


def duplicate(place: Place, source: Source) -> RmObject:
    """Create another handle to an object. Raises RmError.

    UNSURE: that a context share's parent must be a handle to its own group; no source has the
    firmware's check.
    """
    client = place.client
    shown = source.client.find(source.handle)
    if not isinstance(shown, VaSpace | ChannelGroup | ContextShare):
        known = isinstance(shown, _FURTHER)
        status = Status.NOT_SUPPORTED if known else Status.INVALID_ARGUMENT
        raise RmError(status, f"a duplicate of {shown!r} is not {'modelled' if known else 'known'}")
    handle = client.new_handle(place.handle)
    parent = client.find(place.parent)
    require(not source.flags & ~_OBEY_RIGHTS, Status.INVALID_ARGUMENT, f"flags {source.flags:#x}")
    if source.flags & _OBEY_RIGHTS and source.client is not client:
        text = f"client {client.handle:#x} may not duplicate what client {source.client.handle:#x}"
        raise RmError(Status.INSUFFICIENT_PERMISSIONS, f"{text} has not shared")
    rule = client.machine.abi.classes[shown.class_id]
    if parent.internal not in rule.parents:
        raise RmError(
            Status.INVALID_OBJECT_PARENT,
            f"parent of {rule.name} must be {', '.join(rule.parents)}, got {parent!r}",
        )
    request = Allocation(client.machine, client, parent, handle, shown.class_id, None)
    made = _share(request, shown)
    client.add(made)
    return made


def _share(request: Allocation, shown: VaSpace | ChannelGroup | ContextShare) -> RmObject:
    if isinstance(shown, VaSpace):
        return SharedSpace(request, shown)
    if isinstance(shown, ChannelGroup):
        return SharedGroup(request, shown)
    parent = request.parent
    own = isinstance(parent, ChannelGroup) and parent.group is shown.group
    require(own, Status.INVALID_OBJECT_PARENT, f"{parent!r} is not the group of {shown!r}")
    return SharedContext(request, shown)
