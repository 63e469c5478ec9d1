"""Reports of the MMU: types, accesses, clients.

Source: open-gpu-kernel-modules 580.142, kernel-open/nvidia-uvm/hwref/turing/tu102/dev_fault.h, and
uvm_volta_fault_buffer.c: an entry of the fault buffer holds no address below 4 KiB.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class FaultType(enum.IntEnum):
    """NV_PFAULT_FAULT_TYPE."""

    PDE = 0
    PDE_SIZE = 1
    PTE = 2
    VA_LIMIT_VIOLATION = 3
    UNBOUND_INST_BLOCK = 4
    PRIV_VIOLATION = 5
    RO_VIOLATION = 6
    WO_VIOLATION = 7
    PITCH_MASK_VIOLATION = 8
    WORK_CREATION = 9
    UNSUPPORTED_APERTURE = 10
    COMPRESSION_FAILURE = 11
    UNSUPPORTED_KIND = 12
    REGION_VIOLATION = 13
    POISONED = 14
    ATOMIC_VIOLATION = 15


class FaultAccess(enum.IntEnum):
    """NV_PFAULT_ACCESS_TYPE, of virtual addresses."""

    READ = 0
    WRITE = 1
    ATOMIC_STRONG = 2
    PREFETCH = 3
    ATOMIC_WEAK = 4

    @property
    def writes(self) -> bool:
        """Whether the page must be writable."""
        return self not in (FaultAccess.READ, FaultAccess.PREFETCH)


class Client(enum.Enum):
    """Unit that made the request: a unit of the GPCs or of the hub."""

    SM = "GPC T1"
    SKED = "HUB SKED"  # fetches launch descriptors
    HOST = "HUB HOST"  # rings, push buffers and semaphores
    FRONT_END = "HUB FE"
    COPY = "HUB CE"


@dataclass(frozen=True)
class MmuFault:
    """One fault. address: of the access, in bytes, known to the model only."""

    kind: FaultType
    access: FaultAccess
    address: int
    client: Client

    @property
    def page(self) -> int:
        """The address as reported in the fault buffer and to all listeners."""
        return self.address & ~0xFFF

    def __str__(self) -> str:
        return (
            f"MMU fault at {self.page:#x}: {self.kind.name}, {self.access.name},"
            f" {self.client.value}"
        )


class Stall(enum.Enum):
    """How the wait of an access that faulted has ended."""

    RETRY = "its fault was replayed"
    FINAL = "its fault is not replayable, or was cancelled"
    ENDING = "its grid ends for another reason"


class Faulting(Protocol):
    """A channel, as reports of its faults need it. instance: address of its instance block in
    video memory. subcontext: its number in its group. runlist_engine: NV2080_ENGINE_TYPE."""

    instance: int
    subcontext: int
    runlist_engine: int

    @property
    def ending(self) -> bool:
        """Whether its grid must end."""
        ...

    @property
    def may_replay(self) -> bool:
        """Whether its address space allows page faults."""
        ...


class FaultUnit(Protocol):
    """A chip's fault buffers; see memory.fault_buffers."""

    def report(self, channel: Faulting, fault: MmuFault) -> bytes: ...
    def stall(self, channel: Faulting, directory: int, fault: MmuFault) -> Stall: ...
    def replay(self, how: int, directory: int = 0, address: int = 0, access: int = 7) -> None: ...
