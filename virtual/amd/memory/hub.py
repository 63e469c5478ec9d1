"""A memory hub, as seen by its parts: the walker, the fault unit, the shader cores' memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from ugpu.virtual.amd.block import Block
from ugpu.virtual.amd.memory.access import Fault
from ugpu.virtual.amd.memory.tlb import Caches
from ugpu.virtual.shader.memory import Access

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board


class Piece(NamedTuple):
    """Addresses [start, end), stored from host address `host` on.

    host 0: nothing answers, and reads give all ones.
    """

    start: int
    end: int
    host: int
    permissions: int


class HubState(Block, ABC):
    """Registers, caches and accesses of a hub; `memory.gmc.Hub` is the hub itself.

    vm, mc: prefixes of its register names, as in GCVM_CONTEXT0_CNTL. fault_status: the register
    that describes a fault, without its prefix.
    """

    fault_status = "L2_PROTECTION_FAULT_STATUS"

    def __init__(self, chip: Board, block: str, prefix: str) -> None:
        super().__init__(chip, block)
        self.vm = f"{prefix}VM_"
        self.mc = f"{prefix}MC_VM_"
        self.caches = Caches()

    @abstractmethod
    def resolve(self, vmid: int, address: int, access: Access, client: int) -> Piece | Fault:
        """Translate one address and the contiguous range around it. The lock is held."""

    @abstractmethod
    def pieces(
        self, vmid: int, address: int, size: int, access: Access, client: int
    ) -> tuple[list[tuple[int, int]], Fault | None]:
        """Translate [address, address + size) into (host address, bytes) runs, in order."""

    @abstractmethod
    def mapped(self, vmid: int, address: int, size: int, permissions: int = 0) -> int:
        """Return how many bytes from `address` on are mapped with these permissions."""

    @abstractmethod
    def read(self, vmid: int, address: int, size: int, client: int) -> tuple[bytes, Fault | None]:
        """Read memory; bytes that fault read as zeros."""
