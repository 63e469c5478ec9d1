"""Objects of the resource manager: handles, parents, children, and what happens on free."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.files import Program
from ugpu.virtual.nvidia.memory.physical import Backing
from ugpu.virtual.nvidia.options import MachineOptions
from ugpu.virtual.nvidia.state import MachineState
from ugpu.virtual.nvidia.status import RmError, Status, require

_FIRST_CLIENT = 0xC1D0_0001  # RS_CLIENT_HANDLE_BASE, open-gpu-kernel-modules 580.142 rs_server.h


class RmObject:
    """One object. `internal` is the resource manager's own class, by which parents are named."""

    internal = ""
    # Free channels before the objects they use, as RS_FREE_PRIORITY_HIGH does (resource_list.h).
    first_to_go = False

    def __init__(self, request: Allocation) -> None:
        self.client = request.client
        self.parent: RmObject | None = request.parent
        self.handle = request.handle
        self.class_id = request.class_id
        self.children: dict[int, RmObject] = {}

    @property
    def machine(self) -> DriverState:
        """The kernel driver's whole state."""
        return self.client.machine

    def stop(self) -> None:
        """End the object's activity; called before its children are freed."""

    def release(self) -> None:
        """Free the object's resources; its children have been freed by then."""

    def ancestor(self, kind: type[RmObject]) -> RmObject | None:
        """Return this object or the nearest one above it that is of a Python class."""
        found: RmObject | None = self
        while found is not None and not isinstance(found, kind):
            found = found.parent
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.handle:#x} class {self.class_id:#x}>"


class Client(RmObject):
    """A root: the namespace of one program's handles. owner: the program that allocated it."""

    internal = "RmClientResource"

    def __init__(self, machine: DriverState, handle: int, owner: Program, file: int) -> None:
        self._machine = machine
        self.client = self
        self.parent = None
        self.handle = handle
        self.class_id = 0x41
        self.children = {}
        self.owner = owner
        self.file = file
        self.objects: dict[int, RmObject] = {handle: self}
        self.boosts: dict[int, int] = {}  # by GPU: NV2080_CTRL_PERF_BOOST_FLAGS_CMD
        self._next = 0xCAF0_0000  # start of the resource manager's own handles

    @property
    def machine(self) -> DriverState:
        return self._machine

    def find(self, handle: int, status: Status = Status.OBJECT_NOT_FOUND) -> RmObject:
        """Return the object of a handle. Raises RmError with `status` if there is none."""
        found = self.objects.get(handle)
        if found is None:
            raise RmError(status, f"no object {handle:#x}")
        return found

    def new_handle(self, asked: int) -> int:
        """Check a handle chosen by the caller; for 0 return a new one, which is never reused
        (handleGenIdx in src/nvidia/inc/libraries/resserv/rs_client.h)."""
        if asked == 0:
            while self._next in self.objects:
                self._next += 1
            self._next += 1
            return self._next - 1
        require(asked != self.handle, Status.INVALID_OBJECT_HANDLE, "the client's own handle")
        require(asked not in self.objects, Status.INSERT_DUPLICATE_NAME, f"{asked:#x} is taken")
        return asked

    def add(self, made: RmObject) -> None:
        """Add a new object."""
        self.objects[made.handle] = made
        if made.parent is not None:
            made.parent.children[made.handle] = made

    def free(self, found: RmObject) -> None:
        """Free an object and all below it: children first, channels before the rest."""
        found.stop()
        for child in sorted(found.children.values(), key=lambda child: not child.first_to_go):
            if child.handle in found.children:
                self.free(child)
        found.release()
        del self.objects[found.handle]
        if found.parent is not None:
            del found.parent.children[found.handle]


@dataclass(frozen=True)
class Place:
    """Where an object is to be created. handle: 0 for a new one of the resource manager's."""

    client: Client
    parent: int
    handle: int


@dataclass(frozen=True)
class Allocation:
    """A request for an object that has passed the rules of its class."""

    machine: DriverState
    client: Client
    parent: RmObject
    handle: int
    class_id: int
    params: Struct | None

    @property
    def block(self) -> Struct:
        """Return the parameters, for a class that requires them."""
        assert self.params is not None
        return self.params


Builder = Callable[[Allocation], RmObject]


def walk(found: RmObject) -> Iterator[RmObject]:
    """Yield an object and all below it."""
    yield found
    for child in found.children.values():
        yield from walk(child)


class DriverState(MachineState):
    """The resource manager's state: GPUs, clients by root handle, and their memory."""

    gpus: list[VirtualGpu]

    def __init__(self, options: MachineOptions) -> None:
        super().__init__(options)
        self.clients: dict[int, Client] = {}
        self._client_handles = itertools.count(_FIRST_CLIENT)

    @property
    def gpu(self) -> VirtualGpu:
        """The first GPU."""
        return self.gpus[0]

    def new_client_handle(self) -> int:
        """Return an unused root handle."""
        return next(h for h in self._client_handles if h not in self.clients)

    def live_objects(self) -> list[RmObject]:
        """Return every allocated object, of all clients."""
        with self.lock:
            return [found for client in self.clients.values() for found in client.objects.values()]

    def free_backing(self, backing: Backing) -> None:
        """Drop one reference to memory; the last one frees it."""
        backing.users -= 1
        if backing.users:
            return
        if self.coherence is not None:
            self.coherence.freed(backing.host, backing.size)
        if backing.gpu is not None:
            owner = self.gpus[backing.gpu]
            with owner.lock:
                owner.memory.free(backing.physical)
        elif backing.pages is not None:
            self.system_used -= backing.pages.size
            for gpu in self.gpus:
                gpu.bury(backing.pages)
