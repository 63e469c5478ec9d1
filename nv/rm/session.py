"""A session: one client of the resource manager and one map of addresses, for one or several GPUs.

GPUs that share memory share a session. It closes with the last GPU.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from typing import Protocol, Self

from ugpu.hcq.errors import NotSupported
from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.node import Node, Reopenable
from ugpu.nv.rm.client import RmClient
from ugpu.nv.rm.events import FatalFault, FaultEvents
from ugpu.nv.rm.requests import Requests
from ugpu.nv.rm.uvm import Uvm


class Region(enum.Enum):
    """Parts of the address space, by the number of address bits in references to the memory.

    COMMANDS: pushbuffers (40 bits in a GPFIFO entry), launch descriptors (40 bits) and constant
    banks (38 bits keep the upper word of their address constant). HOST: semaphores, and buffers of
    contexts (40 bits before Hopper). DEVICE: everything else, 47 bits. Sources: open-gpu-doc
    clc56f.h GP_ENTRY1_GET_HI and SEM_ADDR_HI, clc6c0.h SEND_PCAS_A, clcbc0qmd.h
    CONSTANT_BUFFER_ADDR_UPPER_SHIFTED6; contexts.py.
    """

    COMMANDS = (1 << 36, 1 << 38)
    HOST = (1 << 38, 1 << 40)
    DEVICE = (1 << 40, 1 << 46)


# Where generic addresses reach shared and local memory: 4 GiB each, beyond every region.
SHARED_WINDOW = 0x7294_0000_0000
LOCAL_WINDOW = 0x7293_0000_0000


class FaultSource(Protocol):
    """Reports of faults that ended a channel, with their addresses."""

    @property
    def works(self) -> bool:
        """Return whether anything reports them."""
        ...

    def take(self, address: int | None) -> FatalFault | None:
        """The newest fault in an address's page, or in any page for None; each is returned once."""
        ...

    def forget(self) -> None:
        """Discard all reports so far."""
        ...


class Session(ABC):
    """See the module. `lock` protects `addresses`: GPUs of a session are used by many threads.

    name: of what leads to the resource manager. gaps, code: of a model, see hcq.transport.node.
    """

    client: Requests
    events: FaultSource

    def __init__(self) -> None:
        self.users: list[object] = []
        self.lock = threading.Lock()
        self.addresses = {
            region: RangeAllocator(
                region.value[0], region.value[1] - region.value[0], 4096, name=region.name.lower()
            )
            for region in Region
        }

    @property
    @abstractmethod
    def source(self) -> object:
        """Return what leads to the GPU: a node, or a transport. Models add facts to it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of `source`."""

    @property
    def clock(self) -> Clock:
        """Return the clock that all waits use."""
        return self.client.clock

    def reserve(self, region: Region, size: int, align: int, owner: object = None) -> int:
        """Take addresses; OutOfMemory when a region is used up. owner: see RangeAllocator.free."""
        with self.lock:
            return self.addresses[region].allocate(size, align, owner)

    def give_back(self, region: Region, address: int, owner: object = None) -> None:
        with self.lock:
            self.addresses[region].free(address, owner)

    def owns(self, region: Region, address: int, owner: object) -> bool:
        with self.lock:
            return self.addresses[region].owns(address, owner)

    def take(self, user: object) -> Self:
        """Register a GPU that uses the session."""
        with self.lock:
            self.users.append(user)
        return self

    def leave(self, user: object) -> None:
        """Unregister a GPU; the last one closes everything. Can be repeated."""
        with self.lock:
            self.users[:] = [each for each in self.users if each is not user]
        if not self.users:
            self.close()

    @abstractmethod
    def sole_holder(self) -> str:
        """Return why the GPU cannot be opened a second time, as a clause; empty if it can."""

    def another(self) -> Session:
        """Return a session for another holder of the same GPU, isolated from this one. The caller
        closes it. NotSupported if `sole_holder` returns a reason."""
        raise NotSupported(f"the GPU cannot have a second holder: {self.sole_holder()}")

    @abstractmethod
    def close(self) -> None:
        """Release all objects and files; idempotent."""


class NodeSession(Session):
    """A session through the stock driver: a client, and one address space of UVM. Owns the node.

    isolated: see Uvm.
    """

    client: RmClient

    def __init__(self, node: Node, *, isolated: bool = False) -> None:
        super().__init__()
        self.node = node
        self.uvm: Uvm | None = None
        self.client = RmClient(node)
        try:
            self.uvm = Uvm(self.client, isolated=isolated)
        except BaseException:
            self.client.close()
            raise
        self.events: FaultEvents = FaultEvents(self.client, self.uvm.file)

    @property
    def source(self) -> object:
        return self.node

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def space(self) -> Uvm:
        assert self.uvm is not None
        return self.uvm

    def sole_holder(self) -> str:
        return (
            ""
            if isinstance(self.node, Reopenable)
            else (f"{self.node.name} cannot be opened a second time")
        )

    def another(self) -> Session:
        if not isinstance(self.node, Reopenable):
            return super().another()
        node = self.node.another()
        try:
            return NodeSession(node, isolated=True)
        except BaseException:
            node.close()
            raise

    def close(self) -> None:
        self.events.close()
        if self.uvm is not None:
            self.uvm.close()
        self.client.close()
        self.node.close()


class GpuObjects(Protocol):
    """The objects of one GPU in the resource manager; see nv.rm.gpu.Gpu."""

    device: int  # handle
    subdevice: int  # handle
    index: int  # of the GPU's node
    path: str  # of its node, or the card's name
    uuid: bytes

    @property
    def session(self) -> Session: ...
    @property
    def client(self) -> Requests: ...
    @property
    def sm_count(self) -> int: ...


class NodeObjects(GpuObjects, Protocol):
    """The same through the stock driver; see nv.rm.node_gpu.NodeGpu."""

    @property
    def session(self) -> NodeSession: ...
    @property
    def client(self) -> RmClient: ...
