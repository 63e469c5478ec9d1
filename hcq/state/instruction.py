"""The faulting instruction; available on models only.

A chip reports the page of an access that faulted, not the instruction. The transport or node of a
model in this process has a method `culprit`, which returns the instruction; real ones lack it. The
driver adds the result to the error. A driver never depends on it, and never checks what kind of
transport or node it was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

PAGE = 4096  # bytes: the granularity at which a chip reports an address


@dataclass(frozen=True)
class Culprit:
    """An instruction that faulted.

    Attributes:
        address: the address that it accessed.
        pc: GPU address of the instruction.
        text: the instruction in the chip's assembly.
        source: "file:line" if the program contains it.
        line: in the program's text, from 1, if the chip runs text.
    """

    address: int
    pc: int
    text: str
    source: str = ""
    line: int = 0


class Witness(Protocol):
    """A source of information about the instruction behind an access."""

    def culprit(self, *, address: int | None = None, pc: int | None = None) -> Culprit | None:
        """Return the last instruction with a reported fault that accessed the page of `address` or
        lies at `pc`, and was not returned before; None without one. Earlier reports are dropped: a
        kernel continues after a fault, and may cause more faults than are ever queried."""
        ...


class Culprits:
    """The accesses that a model saw recently, in the order in which they were reported. Protected
    by its owner's lock."""

    def __init__(self) -> None:
        self._seen: list[Culprit] = []

    def add(self, culprit: Culprit) -> None:
        self._seen = [*self._seen[-15:], culprit]

    def take(self, address: int | None, pc: int | None) -> Culprit | None:
        """See Witness.culprit."""
        for number, culprit in reversed(list(enumerate(self._seen))):
            if culprit.pc == pc or (
                address is not None and culprit.address // PAGE == address // PAGE
            ):
                del self._seen[: number + 1]
                return culprit
        return None


def take_culprit(
    way: object, *, address: int | None = None, pc: int | None = None
) -> Culprit | None:
    """Return the faulting instruction of a fault that was reported by `way`, a transport or a node;
    None if it is unknown, as on all real chips."""
    ask = getattr(way, "culprit", None)
    culprit: Culprit | None = ask(address=address, pc=pc) if ask is not None else None
    return culprit
