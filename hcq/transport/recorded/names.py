"""Names of the registers that a recording accesses, by tables and where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ugpu.hcq.registers.fields import Register, RegisterMap

Names = Callable[[int, int], Register | None]
Blocks = Sequence[tuple[RegisterMap, Sequence[int]]]


def names_in(bar: int, blocks: Blocks) -> Names:
    """Return a function from (BAR, offset in bytes) to the register there, None if there is none.

    bar: the one with registers. blocks: tables, and the bases of their segments in dwords. Of
    several registers at a place the function returns the first block's.
    """

    def find(window: int, offset: int) -> Register | None:
        if window != bar or offset % 4:
            return None
        index = offset // 4
        for table, bases in blocks:
            for segment, base in enumerate(bases):
                found = table.find(index - base, segment) if index >= base else None
                if found is not None:
                    return found
        return None

    return find
