"""Page tables against a dictionary, as the hardware would walk them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pci.pageformat import VALID, PlainMemory, ThreeLevels, WideDirectory
from ugpu.hcq.errors import BadArgument, OutOfMemory
from ugpu.hcq.paging.page_table import Level, PageTable

PAGE = 4096
MB = 1 << 20


def table(*, wide: bool = False, **options: int) -> tuple[PageTable, PlainMemory, ThreeLevels]:
    page_format, memory = WideDirectory() if wide else ThreeLevels(), PlainMemory(**options)
    return PageTable(page_format, memory), memory, page_format


segments = st.lists(
    st.tuples(
        st.integers(0, 3 * 512).map(lambda page: page * PAGE),
        st.one_of(st.integers(1, 40), st.sampled_from([512, 513, 1024, 1600])),
    ),
    min_size=1,
    max_size=6,
)
operations = st.lists(st.tuples(st.integers(0, 4 * 512), segments, st.booleans()), max_size=8)


@given(operations, st.booleans(), st.booleans())
@settings(max_examples=50, deadline=None)
def test_every_page_translates_as_in_the_model(
    steps: list[tuple[int, list, bool]], zeroed: bool, wide: bool
) -> None:
    pages, memory, page_format = table(zeroed=zeroed, wide=wide)
    model: dict[int, int] = {}
    mapped: list[tuple[int, int]] = []
    for first, parts, then_unmap in steps:
        va = first * PAGE
        wanted = [physical + page * PAGE for physical, count in parts for page in range(count)]
        taken = any(first + number in model for number in range(len(wanted)))
        pairs = [(physical, count * PAGE) for physical, count in parts]
        if taken:
            with pytest.raises(BadArgument):
                pages.map(va, pairs, 0)
        else:
            pages.map(va, pairs, 0)
            model.update({first + number: physical for number, physical in enumerate(wanted)})
            mapped.append((first, len(wanted)))
        if then_unmap and mapped:
            start, count = mapped.pop(0)
            pages.unmap(start * PAGE, count * PAGE)
            for number in range(count):
                del model[start + number]
    for page in range(0, 20000, 7):
        check(pages, memory, page_format, model, page)
    for page in model:
        check(pages, memory, page_format, model, page)
    for start, count in mapped:
        pages.unmap(start * PAGE, count * PAGE)
    assert pages.tables == len(memory.tables) == 1, "emptied tables are freed"
    pages.close()
    assert not memory.tables


def check(
    pages: PageTable,
    memory: PlainMemory,
    page_format: ThreeLevels,
    model: dict[int, int],
    page: int,
) -> None:
    va = page * PAGE + 5
    walked = memory.walk(pages.root, page_format, va) if va < pages.reach else None
    looked_up = pages.lookup(page * PAGE + 5)
    if page not in model:
        assert walked is None and looked_up is None
        return
    assert walked is not None and looked_up is not None
    assert walked[0] == looked_up.physical == model[page] + 5
    # A fragment promises that its whole aligned block is contiguous in both address spaces.
    fragment = walked[1] >> 48
    block = page >> fragment << fragment
    base = model[page] - (page - block) * PAGE
    assert base % (PAGE << fragment) == 0
    for other in (block, block + (1 << fragment) - 1):
        assert model.get(other) == base + (other - block) * PAGE


def test_large_leaves_and_fragments_where_alignment_allows() -> None:
    pages, memory, page_format = table()
    pages.map(2 * MB - 2 * PAGE, [(6 * MB - 2 * PAGE, 4 * MB + 2 * PAGE)], 0)
    small = pages.lookup(2 * MB - PAGE)
    large = pages.lookup(3 * MB)
    assert small is not None and small.size == PAGE and small.entry >> 48 == 1
    assert large is not None and large.size == 2 * MB and large.physical == 7 * MB
    assert pages.tables == 3
    pages.map(1 << 30, [(1 << 30, 1 << 30)], 0)
    huge = pages.lookup((1 << 30) + 12345)
    assert huge is not None and huge.level == 0 and huge.physical == (1 << 30) + 12345
    walked = memory.walk(pages.root, page_format, 64 * MB)
    assert walked is None


def test_scattered_pages_get_no_fragment_and_pairs_get_one() -> None:
    pages, _, _ = table()
    scattered = np.array([[0x100000, 8192], [0x300000, 4096], [0x500000, 4096]], np.uint64)
    pages.map(0x10000, scattered, 0)
    found = [pages.lookup(0x10000 + number * PAGE) for number in range(4)]
    assert [entry.entry >> 48 for entry in found if entry] == [1, 1, 0, 0]
    assert [entry.physical for entry in found if entry] == [0x100000, 0x101000, 0x300000, 0x500000]


def test_a_run_takes_few_writes() -> None:
    pages, memory, _ = table()
    pages.map(0, [(PAGE, 64 * MB)], 0)  # misaligned: pages only
    assert memory.writes <= 64 * MB // (2 * MB) + 3


def test_tables_are_written_as_far_as_addresses_were_mapped() -> None:
    """Nothing beyond, and nothing twice; another table below the reach is written whole."""
    pages, memory, page_format = table(zeroed=False)
    assert pages.reach == memory.written == 0
    pages.map(PAGE, [(5 * PAGE, 2 * PAGE)], 0)
    assert pages.reach == 3 * PAGE and memory.written == 1 + 1 + 3 + 2
    before = memory.written
    pages.map(4 * PAGE, [(0, PAGE)], 0)
    assert pages.reach == 5 * PAGE and memory.written == before + 2
    pages.map(6 * MB, [(0, 2 * MB)], 0)
    assert memory.written == before + 2 + 507 + 3
    before = memory.written
    pages.map(3 * MB, [(0, PAGE)], 0)
    assert pages.reach == 8 * MB and memory.written == before + 512 + 1
    assert memory.walk(pages.root, page_format, 5 * MB) is None
    pages.rewrite()
    assert memory.walk(pages.root, page_format, 2 * PAGE) == (6 * PAGE, 6 * PAGE | VALID)


def test_an_error_while_tables_are_extended_maps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for failing in range(1, 4):
        pages, memory, page_format = table(zeroed=False)
        write, left = memory.write, failing

        def fail(physical: int, entries: np.ndarray, write: Any = write) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt
            write(physical, entries)

        with monkeypatch.context() as patch:
            patch.setattr(memory, "write", fail)
            with pytest.raises(KeyboardInterrupt):
                pages.map(PAGE, [(5 * PAGE, PAGE)], 0)
        assert pages.reach == 0 and len(memory.tables) == 1
        pages.map(3 * PAGE, [(0, PAGE)], 0)
        assert memory.walk(pages.root, page_format, PAGE) is None
        assert memory.walk(pages.root, page_format, 3 * PAGE) == (0, VALID)


def test_running_out_of_table_memory_maps_nothing() -> None:
    pages, memory, page_format = table(limit=4)
    with pytest.raises(OutOfMemory):
        pages.map(PAGE, [(0, 64 * MB)], 0)
    assert len(memory.tables) == pages.tables == 1
    assert memory.walk(pages.root, page_format, PAGE) is None
    assert not memory.tables[pages.root].any()


@pytest.mark.parametrize(
    ("va", "size"),
    [(0, PAGE), (8 * PAGE, 2 * PAGE), (2 * MB, MB), (3 * MB, MB), (0, 1 << 40),
     (9 * PAGE, PAGE - 1), (9 * PAGE, 1), (9 * PAGE, 0), (9 * PAGE, -PAGE),
     (9 * PAGE, PAGE + 1), (9 * PAGE, 2 * PAGE - 1), (9 * PAGE + 1, PAGE)],
)  # fmt: skip
def test_unmapping_what_is_not_there_changes_nothing(va: int, size: int) -> None:
    pages, _, _ = table()
    pages.map(9 * PAGE, [(0, PAGE)], 0)
    pages.map(2 * MB, [(2 * MB, 2 * MB)], 0)
    with pytest.raises(BadArgument):
        pages.unmap(va, size)
    assert pages.lookup(9 * PAGE) is not None
    assert pages.lookup(2 * MB) is not None


def test_what_ends_beyond_the_address_space_is_refused() -> None:
    pages, memory, _ = table()
    for va in (pages.size - PAGE, pages.size, -PAGE):
        with pytest.raises(BadArgument):
            pages.map(va, [(0, 2 * PAGE)], 0)
    assert memory.writes == 0
    pages.map(pages.size - 2 * PAGE, [(0, 2 * PAGE)], 0)
    assert pages.lookup(pages.size - 1) is not None


@pytest.mark.parametrize(
    ("va", "pairs"), [(1, [(0, PAGE)]), (0, [(1, PAGE)]), (0, [(0, 5)]), (0, [(0, 0)])]
)
def test_odd_addresses_are_refused(va: int, pairs: list[tuple[int, int]]) -> None:
    pages, memory, _ = table()
    with pytest.raises(BadArgument):
        pages.map(va, pairs, 0)
    assert memory.writes == 0


def test_formats_without_large_leaves_work() -> None:
    page_format = ThreeLevels(levels=(Level(21, 9), Level(12, 9)), leaf_levels=(1,), max_fragment=0)
    memory = PlainMemory()
    pages = PageTable(page_format, memory)
    pages.map(0, [(4 * MB, 4 * MB)], 0)
    assert memory.walk(pages.root, page_format, 3 * MB) == (7 * MB, 7 * MB | 1)
