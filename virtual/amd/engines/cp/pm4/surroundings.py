"""The interface between the packet executor and the chip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Surroundings(Protocol):
    """Units and memory that a queue's packets act on. Addresses are virtual, in the given VMID."""

    sh: list[int]  # SH registers 0x2C00..0x2FFF of this queue
    undefined_sh: list[int]  # for each of them, the bits that must be written as zero
    vmid: int
    may_choose_vmid: bool  # a kernel queue, where INDIRECT_BUFFER selects the VMID of its contents
    privileged: bool

    def fetch(self, vmid: int, address: int, dwords: int) -> tuple[int, ...]:
        """Read packets. Raises Hang after a fault."""
        ...

    def load(self, vmid: int, address: int, size: int) -> bytes:
        """Read memory; a fault reads as zeros."""
        ...

    def store(self, vmid: int, address: int, data: bytes) -> None:
        """Write memory; after a fault the data is lost."""
        ...

    def copy(self, vmid: int, source: int, destination: int, size: int) -> None:
        """Copy memory."""
        ...

    def fill(self, vmid: int, destination: int, pattern: bytes, size: int) -> None:
        """Fill memory with a repeated pattern."""
        ...

    def read_register(self, index: int) -> int:
        """Read a register outside SH space by absolute dword index."""
        ...

    def write_register(self, index: int, value: int) -> None:
        """Write a register outside SH space."""
        ...

    def dispatch(self, vmid: int, dims: Sequence[int], initiator: int) -> None:
        """Queue a launch."""
        ...

    def forgive(self, text: str, accepted: bool) -> None:
        """Record packet contents that the MEC ignores.

        A note if proven drivers write them (`accepted`), else a violation.
        """
        ...

    def unacquired(self, since: str) -> None:
        """Record a launch whose waves may read stale caches."""
        ...

    def drain(self) -> bool:
        """Wait for all waves of this queue; return whether there were any. Raises Hang."""
        ...

    def end_of_pipe(self, address: int, data: bytes) -> None:
        """Write an end-of-pipe event to the EOP buffer."""
        ...

    def end_of_pipe_interrupt(self, context: int) -> None:
        """Raise the interrupt of an end-of-pipe event."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait `seconds`, or until another engine writes memory. Raises Stopped."""
        ...

    def check_sh(self, offset: int, values: Sequence[int]) -> None:
        """Record writes to undefined SH registers or bits."""
        ...
