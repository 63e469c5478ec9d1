"""Native TLBs as the model fills and clears them."""

from __future__ import annotations

import pytest

from ugpu.virtual.shader.memory import PAGE_SHIFT, READ_TAG, TLB_SETS, WRITE_TAG, tlb_set
from ugpu.virtual.shader.table import WINDOW, clear, fill, new_table

START = (5 << 40) + (3 << 20)


@pytest.mark.parametrize("first", [0, TLB_SETS, START >> PAGE_SHIFT])
@pytest.mark.parametrize("pages", [1, WINDOW])
@pytest.mark.parametrize("writable", [False, True])
def test_a_row_translates_its_page_until_it_is_cleared(
    first: int, pages: int, writable: bool
) -> None:
    """Also page 0, whose tag is that of rows which were never filled."""
    table = new_table()

    def translated(column: int) -> set[int]:
        """The pages that a look-up finds."""
        near = {0, 1, TLB_SETS, *range(first, first + pages + 1)}
        return {page for page in near if table[tlb_set(page), column] == page}

    assert not translated(READ_TAG) | translated(WRITE_TAG)
    start, end = first << PAGE_SHIFT, first + pages << PAGE_SHIFT
    fill(table, start, start, end, 0x7000_0000_0000, readable=True, writable=writable)
    assert translated(READ_TAG) == set(range(first, first + pages))
    assert translated(WRITE_TAG) == (translated(READ_TAG) if writable else set())
    clear([table])
    assert not translated(READ_TAG) | translated(WRITE_TAG)
