"""The range allocator against a model: no overlap, right alignment, everything comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.errors import BadArgument, OutOfMemory
from ugpu.hcq.paging.allocator import RangeAllocator

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("allocate"), st.integers(1, 5000), st.sampled_from([1, 8, 64, 1024, 4096])
        ),
        st.tuples(st.just("free"), st.integers(0, 50), st.just(0)),
    ),
    max_size=60,
)


def test_the_lowest_address_that_is_wanted() -> None:
    allocator = RangeAllocator(0x1000, 0x8000, 0x1000)
    assert allocator.allocate(0x1000, least=0x3000) == 0x3000
    assert allocator.allocate(0x1000, 0x2000, least=0x3000) == 0x4000
    assert [allocator.allocate(0x1000) for _ in range(3)] == [0x1000, 0x2000, 0x5000]
    with pytest.raises(OutOfMemory):
        allocator.allocate(0x1000, least=0x9000)


@given(steps, st.sampled_from([1, 16, 256]), st.sampled_from([0, 0x1000, 0x7000]))
def test_ranges_never_overlap_and_all_come_back(
    operations: list[tuple[str, int, int]], granule: int, base: int
) -> None:
    size = 0x8000
    allocator = RangeAllocator(base, size, granule)
    live: dict[int, int] = {}
    for what, number, align in operations:
        if what == "free":
            if live:
                address = sorted(live)[number % len(live)]
                allocator.free(address)
                del live[address]
            continue
        need = -(-number // granule) * granule
        try:
            address = allocator.allocate(number, align)
        except OutOfMemory:
            points = {base} | {start + length for start, length in live.items()}
            tries = (-(-point // max(align, granule)) * max(align, granule) for point in points)
            assert not any(fits(live, start, need, base + size) for start in tries)
            continue
        assert address % align == 0 and address % granule == 0
        assert fits(live, address, need, base + size) and address >= base
        live[address] = need
    assert allocator.used == sum(live.values())
    for address in live:
        allocator.free(address)
    assert allocator.largest == allocator.free_size == size


def fits(live: dict[int, int], start: int, need: int, end: int) -> bool:
    if start + need > end:
        return False
    return all(start + need <= low or start >= low + length for low, length in live.items())


def test_a_range_is_freed_once() -> None:
    allocator = RangeAllocator(0, 4096)
    address = allocator.allocate(100)
    allocator.free(address)
    with pytest.raises(BadArgument):
        allocator.free(address)
    with pytest.raises(BadArgument):
        allocator.free(50)


def test_reserving_takes_exactly_that_range() -> None:
    allocator = RangeAllocator(0, 4096, 16)
    allocator.reserve(100, 10)
    assert allocator.allocate(96) == 0
    assert allocator.allocate(16) == 112
    with pytest.raises(BadArgument):
        allocator.reserve(96, 1)
    allocator.free(96)
    allocator.reserve(96, 16)


@pytest.mark.parametrize(("address", "size"), [(4090, 10), (4096, 1), (-8, 4), (96, 32), (0, 0)])
def test_what_is_not_all_free_is_not_reserved(address: int, size: int) -> None:
    allocator = RangeAllocator(0, 4096, 16)
    allocator.reserve(112, 16)
    with pytest.raises(BadArgument):
        allocator.reserve(address, size)
    assert allocator.used == 16 and allocator.largest == 4096 - 128


@pytest.mark.parametrize("granule", [0, -4, 3, 24])
def test_a_granule_is_a_power_of_two(granule: int) -> None:
    with pytest.raises(BadArgument):
        RangeAllocator(0, 24 * 24, granule)


@pytest.mark.parametrize(("size", "align"), [(0, 1), (-1, 1), (1, 3), (1, 0)])
def test_bad_sizes_are_refused(size: int, align: int) -> None:
    with pytest.raises(BadArgument):
        RangeAllocator(0, 4096).allocate(size, align)


def test_out_of_memory_says_how_much_is_left() -> None:
    allocator = RangeAllocator(0, 4096, name="vram")
    allocator.allocate(1024)
    with pytest.raises(OutOfMemory, match="vram") as caught:
        allocator.allocate(4096)
    assert caught.value.facts == {"align": 1, "free": 3072, "largest": 3072}
