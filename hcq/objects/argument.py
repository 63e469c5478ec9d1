"""A kernel's argument as a code object declares it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """One explicit kernel argument as the code object declares it.

    Attributes:
        offset: in the argument block, in bytes.
        size: in bytes.
        name: empty if unknown.
        is_address: None if the code object does not distinguish addresses from numbers.
        kind: "integer" (signed, unsigned or boolean) or "float"; empty if the code object does not
            declare it.
    """

    offset: int
    size: int
    name: str = ""
    is_address: bool | None = False
    kind: str = ""
