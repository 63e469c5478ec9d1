"""A session: one client, one UVM address space and one map of addresses, for one or several GPUs.

GPUs that share memory share a session. The session owns the node and closes it with the last GPU.
"""

from __future__ import annotations

import enum
import threading

from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.transport.node import Node
from ugpu.nv.rm.client import RmClient
from ugpu.nv.rm.events import FaultEvents
from ugpu.nv.rm.uvm import Uvm


class Region(enum.Enum):
    """Parts of the address space, by the number of address bits in references to the memory.

    COMMANDS: pushbuffers (40 bits in a GPFIFO entry), launch descriptors (40 bits) and constant
    banks (38 bits keep the upper word of their address constant). HOST: semaphores (40 bits before
    Hopper). DEVICE: everything else, 47 bits. Sources: open-gpu-doc clc56f.h GP_ENTRY1_GET_HI and
    SEM_ADDR_HI, clc6c0.h SEND_PCAS_A, clcbc0qmd.h CONSTANT_BUFFER_ADDR_UPPER_SHIFTED6.
    """

    COMMANDS = (1 << 36, 1 << 38)
    HOST = (1 << 38, 1 << 40)
    DEVICE = (1 << 40, 1 << 46)


# Where generic addresses reach shared and local memory: 4 GiB each, beyond every region.
SHARED_WINDOW = 0x7294_0000_0000
LOCAL_WINDOW = 0x7293_0000_0000


class Session:
    """See the module. `lock` protects `addresses`: GPUs of a session are used by many threads.

    isolated: see Uvm.
    """

    def __init__(self, node: Node, *, isolated: bool = False) -> None:
        self.node = node
        self.users: list[object] = []
        self.lock = threading.Lock()
        self.uvm: Uvm | None = None
        self.client = RmClient(node)
        try:
            self.uvm = Uvm(self.client, isolated=isolated)
        except BaseException:
            self.client.close()
            raise
        self.events = FaultEvents(self.client, self.uvm.file)
        self.addresses = {
            region: RangeAllocator(
                region.value[0], region.value[1] - region.value[0], 4096, name=region.name.lower()
            )
            for region in Region
        }

    @property
    def space(self) -> Uvm:
        assert self.uvm is not None
        return self.uvm

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

    def take(self, user: object) -> Session:
        """Register a GPU that uses the session."""
        with self.lock:
            self.users.append(user)
        return self

    def leave(self, user: object) -> None:
        """Unregister a GPU; the last one closes everything, including the node. Can be repeated."""
        with self.lock:
            self.users[:] = [each for each in self.users if each is not user]
        if not self.users:
            self.close()

    def close(self) -> None:
        """Release all objects and files; idempotent."""
        self.events.close()
        if self.uvm is not None:
            self.uvm.close()
        self.client.close()
        self.node.close()
