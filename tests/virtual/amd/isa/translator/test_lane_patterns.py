"""Loads and stores of every width, for patterns of lanes' addresses that have ways of their own.

Consecutive lanes, runs of four and rows of eight lanes in several pages, lanes 16..31 that repeat
lanes 0..15, lanes that follow the one eight before, all lanes at one place, and what is none of
these: each must give what a loop over lanes gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa import gfx_encode as asm
from tests.support.amd.isa.gfx_run import FIRST, SECOND, version_alone
from tests.support.shader_memory import PAGE, ArrayMemory
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Dispatch, Ending
from ugpu.virtual.shader.memory import Abort

LANES = 32
CODE, OFFSETS, TARGET, RESULT = (0x7E00_0000_0000 + 0x20_0000 * k for k in range(4))
_RSRC1 = 0xF0 << 12 | 1 << 21  # denormals, DX10 clamp
FEW, BOTH = (32,), (32, 72)  # vector registers: of many, some stay in the wave state
LOCAL_BYTES = 2048
_RSRC2 = 8 << 1 | LOCAL_BYTES // 512 << 15  # eight user registers
REGION = 16 * PAGE  # of global memory
ADDRESSES, OWN, DATA = 2, 3, 8  # vector registers: the pattern; 16 x lane; what is moved
MARK = 0x5A5A5A5A
EVERY, SOME = 0xFFFF_FFFF, 0x7F3C_A5D9
SIZES = (1, 2, 4, 8, 12, 16)

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
Pattern = Callable[[int, int], Offsets]


def _lanes() -> Offsets:
    return np.arange(LANES, dtype=np.int64)


def consecutive(size: int, space: int) -> Offsets:
    return 48 + _lanes() * size


def backwards(size: int, space: int) -> Offsets:
    return (LANES - 1 - _lanes()) * 20


def runs_of_four(size: int, space: int) -> Offsets:
    """Each four lanes in a row of their own, far from the others where there is room."""
    row = space // 8
    return _lanes() // 4 * row + _lanes() % 4 * size + 16


def runs_over_page_ends(size: int, space: int) -> Offsets:
    end = (_lanes() // 4 + 1) * (space // 16)
    return end + _lanes() % 4 * size - 8 - 2 * size


def rows_of_eight(size: int, space: int) -> Offsets:
    """Each eight lanes in a row of their own: a tile of an array."""
    return _lanes() // 8 * (space // 4) + _lanes() % 8 * size + 32


def rows_over_page_ends(size: int, space: int) -> Offsets:
    end = (_lanes() // 8 + 1) * (space // 8)
    return end + _lanes() % 8 * size - 3 * size - 4


def halves_alike(size: int, space: int) -> Offsets:
    return _lanes() % 16 * 36 + 4


def fragment(size: int, space: int) -> Offsets:
    """Rows at two distances, as of a matrix operand whose columns are dealt out."""
    return _lanes() // 2 % 8 * 144 + _lanes() % 2 * 48 + 16


def turned_tile(size: int, space: int) -> Offsets:
    """Each four lanes that are eight apart make a piece of a row."""
    return _lanes() % 8 * 144 + _lanes() // 8 * size + 16


def turned_backwards(size: int, space: int) -> Offsets:
    return (7 - _lanes() % 8) * 144 + _lanes() // 8 * size + 16


def turned_overlapping(size: int, space: int) -> Offsets:
    """Pieces that reach into the next: of two lanes at one place, the later one's data stay."""
    return _lanes() % 8 * 2 * size + _lanes() // 8 * size + 16


def runs_overlapping(size: int, space: int) -> Offsets:
    return _lanes() // 4 * 2 * size + _lanes() % 4 * size + 16


def at_one_place(size: int, space: int) -> Offsets:
    return np.full(LANES, 64, np.int64)


def anywhere(size: int, space: int) -> Offsets:
    chosen = np.random.default_rng(size).permutation(space // 16)[:LANES]
    return chosen.astype(np.int64) * 16


def shuffled_block(size: int, space: int) -> Offsets:
    """Dwords of the same 128 bytes in no order: each lane's own, or two lanes' at one place."""
    order = np.random.default_rng(size).permutation(LANES)
    order[5] = order[20] if size == 1 else order[5]
    return 256 + order.astype(np.int64) * min(size, 4)


def about_a_block(size: int, space: int) -> Offsets:
    """Four bytes apart in no order, over the end of 128 bytes, and not at multiples of four."""
    return 300 + np.random.default_rng(size).permutation(LANES).astype(np.int64) * 4 + size % 4


def odd_places(size: int, space: int) -> Offsets:
    """Within 128 bytes, at odd places, some of them at the end of a dword."""
    return 385 + np.random.default_rng(size).permutation(LANES).astype(np.int64) * 2


PATTERNS = (
    consecutive, backwards, runs_of_four, runs_over_page_ends, rows_of_eight,
    rows_over_page_ends, halves_alike, fragment, turned_tile, turned_backwards, turned_overlapping,
    runs_overlapping, at_one_place, anywhere, shuffled_block, about_a_block,
    odd_places,
)  # fmt: skip


@pytest.fixture(scope="module", params=[FIRST, SECOND])
def core(request: pytest.FixtureRequest) -> Iterator[GfxCore]:
    with version_alone(request.param):
        made = GfxCore(workers=1)
        yield made
        made.close()


def _run(
    core: GfxCore,
    body: list[asm.Encoded],
    offsets: Offsets,
    target: Bytes,
    mask: int,
    counts: tuple[int, ...] = BOTH,
) -> tuple[Bytes, Bytes]:
    """Run one wave, with each number of vector registers, which must give the same; return what
    lies at TARGET and RESULT afterwards."""
    found = [_run_once(core, body, offsets, target, mask, count) for count in counts]
    for other in found[1:]:
        assert all(np.array_equal(*pair) for pair in zip(found[0], other, strict=True))
    return found[0]


def _run_once(
    core: GfxCore,
    body: list[asm.Encoded],
    offsets: Offsets,
    target: Bytes,
    mask: int,
    registers: int,
) -> tuple[Bytes, Bytes]:
    words: list[int] = []
    for encoded in (
        asm.vop2("v_lshlrev_b32", 1, asm.integer(2), 0),
        asm.vop2("v_lshlrev_b32", OWN, asm.integer(4), 0),
        asm.global_access("load_b32", addr=1, saddr=0, dst=ADDRESSES),
        *body,
        asm.sopp("s_endpgm"),
    ):
        words.extend(encoded)
    memory = ArrayMemory()
    code = np.array(words, np.uint32)
    memory.map(CODE, code.view(np.uint8), False, executable=True)
    memory.map(OFFSETS, offsets.astype(np.uint32))
    seen = memory.map(TARGET, target)
    result = memory.map(RESULT, np.zeros(max(LOCAL_BYTES, 16 * LANES), np.uint8))
    pointers = [part for at in (OFFSETS, TARGET, RESULT) for part in (at & 0xFFFFFFFF, at >> 32)]
    dispatch = Dispatch(
        code_address=CODE, groups=(1, 1, 1), threads=(LANES, 1, 1),
        rsrc1=_RSRC1 | registers // 8 - 1, rsrc2=_RSRC2, rsrc3=0,
        user_data=[*pointers, mask, 0] + [0] * 8, wave32=True,
    )  # fmt: skip
    outcome = core.run(dispatch, memory, Abort())
    assert outcome.ending is Ending.DONE, outcome
    assert not memory.faults
    return seen, result


def _masked(mask: int, operation: asm.Encoded) -> list[asm.Encoded]:
    """An operation in some lanes. That all take part the core is to find out for itself."""
    if mask == EVERY:
        return [operation]
    whole = asm.sop1("s_mov_b32", asm.EXEC, asm.integer(-1))
    return [asm.sop1("s_mov_b32", asm.EXEC, 6), operation, whole]


def _random(count: int) -> Bytes:
    return np.random.default_rng(count).integers(0, 256, count).astype(np.uint8)


def _marks() -> list[asm.Encoded]:
    return [asm.vop1("v_mov_b32", DATA + k, asm.LITERAL, MARK) for k in range(4)]


def _loaded(memory: Bytes, offsets: Offsets, size: int, mask: int, limit: int) -> Bytes:
    """What a loop over lanes loads into four registers, as rows of 16 bytes."""
    rows = np.full((LANES, 4), MARK, np.uint32).view(np.uint8)
    for lane, offset in enumerate(offsets):
        if mask >> lane & 1:
            rows[lane, : max(size, 4)] = 0
            if offset + size <= limit:
                rows[lane, :size] = memory[offset : offset + size]
    return rows.reshape(-1)


def _stored(
    memory: Bytes, rows: Bytes, offsets: Offsets, size: int, mask: int, limit: int
) -> Bytes:
    """What a loop over lanes leaves in memory."""
    left = memory.copy()
    for lane, offset in enumerate(offsets):
        if mask >> lane & 1 and offset + size <= limit:
            left[offset : offset + size] = rows[16 * lane : 16 * lane + size]
    return left


def _counts(size: int) -> tuple[int, ...]:
    return BOTH if size > 8 else FEW


def _name(verb: str, size: int) -> str:
    narrow = "u" if verb == "load" else "b"
    return f"{verb}_{narrow if size < 4 else 'b'}{8 * size}"


@pytest.mark.parametrize("mask", [EVERY, SOME])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_global_loads(core: GfxCore, pattern: Pattern, size: int, mask: int) -> None:
    offsets, target = pattern(size, REGION), _random(REGION)
    load = asm.global_access(_name("load", size), addr=ADDRESSES, saddr=2, dst=DATA)
    store = asm.global_access("store_b128", addr=OWN, saddr=4, data=DATA)
    again = _masked(mask, load) * 2  # once without translations at hand, and once with them
    _, found = _run(core, [*_marks(), *again, store], offsets, target, mask, _counts(size))
    assert np.array_equal(found[: 16 * LANES], _loaded(target, offsets, size, mask, REGION))


@pytest.mark.parametrize("mask", [EVERY, SOME])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_global_stores(core: GfxCore, pattern: Pattern, size: int, mask: int) -> None:
    offsets, target = pattern(size, REGION - 512) + 512, _random(REGION)
    load = asm.global_access("load_b128", addr=OWN, saddr=2, dst=DATA)
    store = asm.global_access(_name("store", size), addr=ADDRESSES, saddr=2, data=DATA)
    found, _ = _run(core, [load, *_masked(mask, store) * 2], offsets, target, mask, _counts(size))
    assert np.array_equal(found, _stored(target, target, offsets, size, mask, REGION))


def _fill_local() -> list[asm.Encoded]:
    filling = []
    for place in range(0, LOCAL_BYTES, 512):
        filling.append(asm.global_access("load_b128", addr=OWN, saddr=2, dst=16, offset=place))
        filling.append(asm.ds("ds_store_b128", addr=OWN, data=16, offset=place))
    return filling


def _read_local() -> list[asm.Encoded]:
    reading = []
    for place in range(0, LOCAL_BYTES, 512):
        reading.append(asm.ds("ds_load_b128", addr=OWN, dst=20, offset=place))
        reading.append(asm.global_access("store_b128", addr=OWN, saddr=4, data=20, offset=place))
    return reading


def _some_outside(offsets: Offsets) -> Offsets:
    """Send a few lanes beyond the allocation: they read zero, and write nothing."""
    moved = offsets.copy()
    moved[[3, 17, 30]] = LOCAL_BYTES - 3, LOCAL_BYTES, 60000
    return moved


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("mask", [EVERY, SOME])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_local_loads(core: GfxCore, pattern: Pattern, size: int, mask: int, outside: bool) -> None:
    offsets, target = pattern(size, LOCAL_BYTES), _random(LOCAL_BYTES)
    if outside:
        offsets = _some_outside(offsets)
    load = asm.ds("ds_" + _name("load", size), addr=ADDRESSES, dst=DATA)
    store = asm.global_access("store_b128", addr=OWN, saddr=4, data=DATA)
    body = [*_fill_local(), *_marks(), *_masked(mask, load), store]
    _, found = _run(core, body, offsets, target, mask, _counts(size))
    assert np.array_equal(found[: 16 * LANES], _loaded(target, offsets, size, mask, LOCAL_BYTES))


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("mask", [EVERY, SOME])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_local_stores(core: GfxCore, pattern: Pattern, size: int, mask: int, outside: bool) -> None:
    offsets, target = pattern(size, LOCAL_BYTES), _random(LOCAL_BYTES)
    if outside:
        offsets = _some_outside(offsets)
    load = asm.global_access("load_b128", addr=OWN, saddr=2, dst=DATA)
    store = asm.ds("ds_" + _name("store", size), addr=ADDRESSES, data=DATA)
    body = [*_fill_local(), load, *_masked(mask, store), *_read_local()]
    _, found = _run(core, body, offsets, target, mask)
    assert np.array_equal(found, _stored(target, target, offsets, size, mask, LOCAL_BYTES))


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("mask", [EVERY, SOME])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_two_local_loads_side_by_side(
    core: GfxCore, pattern: Pattern, mask: int, swapped: bool, outside: bool
) -> None:
    offsets, target = pattern(16, LOCAL_BYTES - 32), _random(LOCAL_BYTES)
    if outside:
        offsets = _some_outside(offsets)
        offsets[5] = LOCAL_BYTES - 16  # the first load is inside, the second is not
    loads = [
        asm.ds("ds_load_b128", addr=ADDRESSES, dst=DATA + 4 * k, offset=16 * k) for k in range(2)
    ]
    both = [*loads[1], *loads[0]] if swapped else [*loads[0], *loads[1]]
    marks = [asm.vop1("v_mov_b32", DATA + k, asm.LITERAL, MARK) for k in range(8)]
    stores = [
        asm.global_access("store_b128", addr=OWN, saddr=4, data=DATA + 4 * k, offset=512 * k)
        for k in range(2)
    ]
    body = [*_fill_local(), *marks, *_masked(mask, tuple(both)), *stores]
    _, found = _run(core, body, offsets, target, mask)
    for k in range(2):
        wanted = _loaded(target, offsets + 16 * k, 16, mask, LOCAL_BYTES)
        assert np.array_equal(found[512 * k : 512 * k + 512], wanted)


def test_the_second_load_uses_what_the_first_has_read(core: GfxCore) -> None:
    """Its address register is written by the first: they are not done at once."""
    target = _random(LOCAL_BYTES)
    target.view(np.uint32)[:] = np.arange(LOCAL_BYTES // 4) % 64 * 16
    first = asm.ds("ds_load_b128", addr=DATA, dst=DATA)
    second = asm.ds("ds_load_b128", addr=DATA, dst=12, offset=16)
    copied = asm.vop1("v_mov_b32", DATA, asm.v(ADDRESSES))
    store = asm.global_access("store_b128", addr=OWN, saddr=4, data=12)
    offsets = halves_alike(16, LOCAL_BYTES) // 4 * 4
    _, found = _run(core, [*_fill_local(), copied, first, second, store], offsets, target, EVERY)
    seen = target.view(np.uint32)[offsets // 4].astype(np.int64) + 16
    assert np.array_equal(found[: 16 * LANES], _loaded(target, seen, 16, EVERY, LOCAL_BYTES))


TOTALS = 40  # vector registers of a matrix product


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("pattern", [fragment, halves_alike, anywhere, consecutive])
def test_a_fragment_is_whole_where_all_its_lanes_are_read(
    core: GfxCore, pattern: Pattern, outside: bool
) -> None:
    """A product of a fragment reads half of its lanes: it is the same whether others are read."""
    offsets, target = pattern(16, LOCAL_BYTES - 32), _random(LOCAL_BYTES)
    halves = np.random.default_rng(3).standard_normal(LOCAL_BYTES // 2).astype(np.float16)
    target[:] = halves.view(np.uint8)
    if outside:
        offsets = _some_outside(offsets)
    marks = [asm.vop1("v_mov_b32", DATA + k, asm.LITERAL, MARK) for k in range(8)]
    loads = [
        asm.ds("ds_load_b128", addr=ADDRESSES, dst=DATA + 4 * k, offset=16 * k) for k in range(2)
    ]
    factor = asm.v(DATA)
    sources = [factor, factor, asm.integer(0)]
    product = asm.vop3p("v_wmma_f32_16x16x16_f16", TOTALS, sources)
    body = [*_fill_local(), *marks, *loads, product, asm.sopp("s_nop")]
    shown = [
        asm.global_access("store_b128", addr=OWN, saddr=4, data=TOTALS + 4 * k, offset=512 * k)
        for k in range(2)
    ]
    rows = [
        asm.global_access("store_b128", addr=OWN, saddr=4, data=DATA + 4 * k, offset=1024 + 512 * k)
        for k in range(2)
    ]
    _, alone = _run(core, [*body, *shown], offsets, target, EVERY, (72,))
    _, both = _run(core, [*body, *shown, *rows], offsets, target, EVERY, (72,))
    assert alone[:1024].any()
    assert np.array_equal(alone[:1024], both[:1024])
    for k in range(2):
        wanted = _loaded(target, offsets + 16 * k, 16, EVERY, LOCAL_BYTES)
        assert np.array_equal(both[1024 + 512 * k : 1536 + 512 * k], wanted)
