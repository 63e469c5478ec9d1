"""The instruction behind a fault, which models know and chips do not tell.

A chip reports the page of an access that faulted, not who made it. A model in this process knows:
its transport or node then has a method `culprit`, which real ones do not have, and the driver puts
what it answers into the error. A driver never needs it, and never asks what kind of way it was
given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

PAGE = 4096  # bytes: what a chip tells of an address


@dataclass(frozen=True)
class Culprit:
    """address: that was accessed. pc: GPU address of the instruction. text: the instruction in the
    chip's assembly. source: "file:line" where the program says so. line: of the program's text,
    from 1, where the chip runs text."""

    address: int
    pc: int
    text: str
    source: str = ""
    line: int = 0


class Witness(Protocol):
    """A source of information about who made an access."""

    def culprit(self, *, address: int | None = None, pc: int | None = None) -> Culprit | None:
        """The last instruction whose fault was reported, that accessed the page of `address` or
        lies at `pc`, and is not asked for yet; or None. What was reported before it is forgotten:
        a kernel goes on after a fault, and may meet more than anybody asks about."""
        ...


class Culprits:
    """The accesses that a model saw recently, in the order in which they were reported. Guarded by
    its owner's lock."""

    def __init__(self) -> None:
        self._seen: list[Culprit] = []

    def add(self, culprit: Culprit) -> None:
        self._seen = [*self._seen[-15:], culprit]

    def take(self, address: int | None, pc: int | None) -> Culprit | None:
        """See Witness.culprit."""
        for number, found in reversed(list(enumerate(self._seen))):
            if found.pc == pc or (address is not None and found.address // PAGE == address // PAGE):
                del self._seen[: number + 1]
                return found
        return None


def take_culprit(
    way: object, *, address: int | None = None, pc: int | None = None
) -> Culprit | None:
    """The instruction behind a fault that was reported by `way`, a transport or a node; None where
    that is unknown, as on all real chips."""
    ask = getattr(way, "culprit", None)
    found: Culprit | None = ask(address=address, pc=pc) if ask is not None else None
    return found
