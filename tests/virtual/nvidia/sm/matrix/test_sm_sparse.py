"""mma with sparse A, with scales of blocks, of f6 and f4, and of single bits.

Fragments are laid out by the formulas of the PTX ISA. Metadata lie as CUTLASS's host_reorder.h puts
them for ldmatrix: written here from that rule, for which the ISA has figures alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.nvidia.number_codes import BITS, decode, encode_whole, random_codes, table
from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.nv.code.assemble import assemble, find_library

Codes = NDArray[np.uint64]


@dataclass(frozen=True)
class Case:
    """An mma.m16n8k<depth>. kinds: of A and B. scale: its type, and how many a row has."""

    depth: int
    result: str
    kinds: tuple[str, str]
    sparse: str = ""
    selector: int = 0
    kind: str = ""
    scale: str = ""
    chunks: int = 0
    pick: tuple[int, int, int, int] = (0, 0, 0, 0)
    tail: str = ""

    @property
    def room(self) -> int:
        """Bits that an element has in a register."""
        bits = BITS[self.kinds[0]]
        return 8 if 4 <= bits <= 8 and self.kind not in ("mxf4", "mxf4nvf4") and (
            self.kinds[0] not in ("s4", "u4")) else bits  # fmt: skip

    @property
    def per(self) -> int:
        return 32 // self.room

    @property
    def width(self) -> int:
        """Columns of a chunk of a sparse row."""
        return {32: 2, 16: 4, 8: 4, 4: 8}.get(self.room, 1)

    @property
    def opcode(self) -> str:
        kind = f".kind::{self.kind}" if self.kind else ""
        if self.scale:
            kind += f".block_scale.scale_vec::{self.chunks}X"
        types = ".".join((self.result, *self.kinds, self.result))
        scale = f".{self.scale}" if self.scale else ""
        sparse = f".{self.sparse}" if self.sparse else ""
        bits = self.tail if "popc" in self.tail else ""
        saturates = self.tail if not bits else ""
        return (f"mma{sparse}.sync.aligned.m16n8k{self.depth}.row.col{kind}{saturates}.{types}"
                f"{scale}{bits}")  # fmt: skip


ORDERED = "sp::ordered_metadata"
SPARSE = [
    Case(16, "f32", ("f16", "f16"), "sp", 0), Case(16, "f16", ("f16", "f16"), ORDERED, 3),
    Case(16, "f32", ("bf16", "bf16"), ORDERED, 2), Case(32, "f32", ("f16", "f16"), ORDERED, 1),
    Case(32, "f16", ("f16", "f16"), "sp", 0), Case(32, "f32", ("bf16", "bf16"), "sp", 1),
    Case(8, "f32", ("tf32", "tf32"), "sp", 1), Case(8, "f32", ("tf32", "tf32"), ORDERED, 3),
    Case(16, "f32", ("tf32", "tf32"), ORDERED, 1), Case(16, "f32", ("tf32", "tf32"), "sp", 0),
    Case(32, "s32", ("s8", "u8"), ORDERED, 1), Case(32, "s32", ("u8", "s8"), "sp", 0),
    Case(64, "s32", ("s8", "s8"), ORDERED), Case(64, "s32", ("u8", "u8"), "sp", tail=".satfinite"),
    Case(64, "s32", ("s4", "u4"), ORDERED, 1), Case(128, "s32", ("s4", "s4"), ORDERED),
    Case(128, "s32", ("u4", "u4"), "sp", tail=".satfinite"),
    Case(64, "f32", ("e4m3", "e5m2"), "sp"), Case(64, "f32", ("e5m2", "e4m3"), ORDERED),
]  # fmt: skip
DENSE_BITS = [
    Case(128, "s32", ("b1", "b1"), tail=".xor.popc"), Case(256, "s32", ("b1", "b1"),
                                                           tail=".and.popc"),
]  # fmt: skip
NEW = [
    Case(32, "f32", ("e3m2", "e2m3"), kind="f8f6f4"), Case(32, "f16", ("e2m1", "e5m2"),
                                                           kind="f8f6f4"),
    Case(64, "f32", ("e2m3", "e2m1"), ORDERED, kind="f8f6f4"),
    Case(64, "f16", ("e2m1", "e3m2"), ORDERED, kind="f8f6f4"),
    Case(32, "f32", ("e4m3", "e2m1"), kind="mxf8f6f4", scale="ue8m0", chunks=1, pick=(1, 1, 3, 2)),
    Case(32, "f32", ("e3m2", "e5m2"), kind="mxf8f6f4", scale="ue8m0", chunks=1, pick=(3, 0, 0, 3)),
    Case(64, "f32", ("e2m1", "e2m1"), kind="mxf4", scale="ue8m0", chunks=2, pick=(2, 1, 0, 1)),
    Case(64, "f32", ("e2m1", "e2m1"), kind="mxf4nvf4", scale="ue8m0", chunks=2, pick=(0, 0, 2, 3)),
    Case(64, "f32", ("e2m1", "e2m1"), kind="mxf4nvf4", scale="ue4m3", chunks=4, pick=(0, 1, 0, 2)),
    Case(64, "f32", ("e5m2", "e2m3"), ORDERED, kind="mxf8f6f4", scale="ue8m0", chunks=1,
         pick=(2, 0, 1, 1)),
    Case(128, "f32", ("e2m1", "e2m1"), ORDERED, kind="mxf4", scale="ue8m0", chunks=2,
         pick=(0, 1, 2, 0)),
    Case(128, "f32", ("e2m1", "e2m1"), ORDERED, kind="mxf4nvf4", scale="ue4m3", chunks=4,
         pick=(0, 0, 0, 3)),
]  # fmt: skip
LATEST = [
    Case(64, "f32", ("e2m1", "e2m1"), kind="mxf4nvf4", scale="ue8m0", chunks=4, pick=(0, 1, 0, 1)),
]


def _names(case: Case) -> str:
    return f"{case.opcode}.{case.selector}"


# -- fragments, by the ISA's formulas ------------------------------------------------------------


def _in_registers(count: int, per: int, room: int, element: Callable[[int, int, int], int]
                  ) -> Codes:  # fmt: skip
    """Return [register][lane]. element: its code, by group, thread in the group, number."""
    found = np.zeros((count, 32), np.uint64)
    for lane in range(32):
        for i in range(count * per):
            code = np.uint64(element(lane >> 2, lane % 4, i)) << np.uint64(room * (i % per))
            found[i // per, lane] |= code
    return found


def _container(case: Case, kind: str, code: int) -> int:
    """f4 lies in the middle of the byte it has, with zeros around."""
    return code << 2 if kind == "e2m1" and case.room == 8 else code


def _first(case: Case, stored: Codes) -> Codes:
    """A, as it is stored: 16 rows of half the depth where it is sparse."""
    per = case.per
    count = stored.shape[1] // (4 * per) * 2

    def element(group: int, thread: int, i: int) -> int:
        row = group + (8 if i // per % 2 else 0)
        column = thread * per + i % per + 4 * per * (i // (2 * per))
        return _container(case, case.kinds[0], int(stored[row, column]))

    return _in_registers(count, per, case.room, element)


def _second(case: Case, b: Codes) -> Codes:
    per = case.per

    def element(group: int, thread: int, i: int) -> int:
        row = thread * per + i % per + 4 * per * (i // per)
        return _container(case, case.kinds[1], int(b[row, group]))

    return _in_registers(case.depth // (4 * per), per, case.room, element)


def _sums(kind: str, c: Codes) -> Codes:
    halves = kind == "f16"
    return _in_registers(
        2 if halves else 4, 2 if halves else 1, 16 if halves else 32,
        lambda group, thread, i: int(c[group + 8 * (i // 2), 2 * thread + i % 2]),
    )  # fmt: skip


def _from_sums(kind: str, found: Codes) -> Codes:
    out = np.zeros((16, 8), np.uint64)
    for lane in range(32):
        for i in range(4):
            place = lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2
            word = int(found[i // 2 if kind == "f16" else i, lane])
            out[place] = word >> 16 * (i % 2) & 0xFFFF if kind == "f16" else word & 0xFFFFFFFF
    return out


def _metadata(case: Case, nibbles: NDArray[np.int64]) -> Codes:
    """Return the registers of 32 lanes. nibbles: [row][chunk].

    host_reorder.h: units of 16 bits (factors of 16 and 32 bits) or 32 are moved to row
    (row % 8) * interweave + (row % group) / 8; then of each two rows and two columns the unit at
    (0, 1) and that at (1, 0) change places; then the units of two columns lie side by side.
    """
    in_unit = 4 if case.room >= 16 else 8
    group, interweave = (32, 4) if case.room >= 16 else (16, 2)
    rows, chunks = 2 * 16, nibbles.shape[1]
    whole = np.zeros((rows, max(chunks, 2 * in_unit)), np.int64)
    whole[:16, :chunks] = nibbles
    units = np.zeros((rows, whole.shape[1] // in_unit), np.uint64)
    for chunk in range(whole.shape[1]):
        units[:, chunk // in_unit] |= whole[:, chunk].astype(np.uint64) << np.uint64(
            4 * (chunk % in_unit))  # fmt: skip
    moved = np.zeros_like(units)
    for row in range(rows):
        for column in range(units.shape[1]):
            to_row = row // group * group + row % 8 * interweave + row % group // 8
            to_column = column
            if to_row % 2 == 0 and column % 2 == 1:
                to_row, to_column = to_row + 1, column - 1
            elif to_row % 2 == 1 and column % 2 == 0:
                to_row, to_column = to_row - 1, column + 1
            moved[to_row, to_column] = units[row, column]
    found = np.full((1, 32), 0xDEADBEEF, np.uint64)  # what other threads hold is of no matter
    for quad in range(8):
        if case.room >= 16:  # a row of four has the words of a quad
            words = [int(moved[4 * quad + n, 0]) | int(moved[4 * quad + n, 1]) << 16
                     for n in range(4)]  # fmt: skip
            used = 2 if chunks > 4 else 1
        else:
            words = [int(moved[2 * quad + n // 2, n % 2]) for n in range(4)]
            used = 4 if chunks > 8 else 2
        for n in range(used):
            found[0, 4 * quad + used * case.selector + n] = words[n]
    return found


# -- running -------------------------------------------------------------------------------------


def _kernel(case: Case, counts: list[int]) -> str:
    lines = ["mul.wide.u32 %rd40, %t, 4; add.s64 %rd41, %rd0, %rd40; add.s64 %rd42, %rd1, %rd40;"]
    total = 0
    for stem, count in zip("abcexy", counts, strict=True):
        if count:
            lines.append(f".reg .b32 %m{stem}<{count}>;")
        for n in range(count):
            lines.append(f"ld.global.b32 %m{stem}{n}, [%rd41+{128 * total}];")
            total += 1
    lines.append(f".reg .b32 %md<{counts[2]}>;")

    def names(stem: str, count: int) -> str:
        return "{" + ", ".join(f"%m{stem}{n}" for n in range(count)) + "}"

    operands = [names("d", counts[2]), names("a", counts[0]), names("b", counts[1]),
                names("c", counts[2])]  # fmt: skip
    if case.sparse:
        operands += ["%me0", str(case.selector)]
    if case.scale:
        byte_a, thread_a, byte_b, thread_b = case.pick
        lines.append(f"mov.u16 %h1, {byte_a}; mov.u16 %h2, {thread_a};")
        operands += ["%mx0", "{%h1, %h2}", "%my0", f"{{{byte_b}, {thread_b}}}"]
    lines.append(f"{case.opcode} {', '.join(operands)};")
    for n in range(counts[2]):
        lines.append(f"st.global.b32 [%rd42+{128 * n}], %md{n};")
    return body(2, "\n".join(lines))


@dataclass
class _Input:
    a: Codes
    b: Codes
    c: Codes
    nibbles: NDArray[np.int64]
    columns: NDArray[np.int64]  # of the stored elements of each row
    scale_a: Codes
    scale_b: Codes


def _inputs(case: Case, specials: bool = False) -> _Input:
    random = np.random.default_rng(case.depth + len(case.opcode))
    depth = case.depth
    stored = depth // 2 if case.sparse else depth
    a = random_codes(random, case.kinds[0], (16, stored), specials)
    b = random_codes(random, case.kinds[1], (depth, 8), specials)
    c = encode_whole(case.result, random.integers(-50, 50, (16, 8)))
    if specials:
        c = random_codes(random, case.result, (16, 8), True)
    if case.tail == ".satfinite":
        c = encode_whole("s32", random.choice([(1 << 31) - 1, -(1 << 31), 7], (16, 8)))
    chunks = depth // case.width
    nibbles = np.zeros((16, chunks), np.int64)
    columns = np.tile(np.arange(stored), (16, 1))
    if case.sparse:
        both = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
        per = case.width // 2
        for row in range(16):
            for chunk in range(chunks):
                low, high = both[random.integers(6)]
                if case.width == 2:  # of two columns one: two neighbours of four
                    low, high = [(0, 1), (2, 3)][random.integers(2)]
                nibbles[row, chunk] = low | high << 2
                start = chunk * case.width
                places = {2: [start + low // 2], 4: [start + low, start + high],
                          8: [start + 2 * n + m for n in (low, high) for m in (0, 1)]}  # fmt: skip
                columns[row, per * chunk : per * (chunk + 1)] = places[case.width]
    least, most = {"ue8m0": (117, 137), "ue4m3": (1, 127), "": (0, 1)}[case.scale]
    scale_a, scale_b = (
        random.integers(least, most, shape, np.uint64)
        for shape in ((16, max(case.chunks, 1)), (max(case.chunks, 1), 8))
    )
    return _Input(a, b, c, nibbles, columns, scale_a, scale_b)


def _scale_registers(case: Case, given: _Input) -> list[Codes]:
    """Scales in the bytes and threads that the selectors name; noise elsewhere."""
    byte_a, thread_a, byte_b, thread_b = case.pick
    x, y = np.full((1, 32), 0x55AA1234, np.uint64), np.full((1, 32), 0x99887766, np.uint64)

    def put(words: Codes, lane: int, byte: int, code: int) -> None:
        cleared = int(words[0, lane]) & ~(0xFF << 8 * byte)
        words[0, lane] = cleared | code << 8 * byte

    for n in range(case.chunks):
        for row in range(16):
            put(x, 4 * (row % 8) + 2 * thread_a + row // 8, byte_a + n, int(given.scale_a[row, n]))
        for column in range(8):
            put(y, 4 * column + thread_b, byte_b + n, int(given.scale_b[n, column]))
    return [x, y]


def _registers(case: Case, given: _Input) -> list[Codes]:
    """A, B, C, metadata, scales of A and B; empty where the kind has none."""
    none = np.zeros((0, 32), np.uint64)
    return [
        _first(case, given.a), _second(case, given.b), _sums(case.result, given.c),
        _metadata(case, given.nibbles) if case.sparse else none,
        *(_scale_registers(case, given) if case.scale else [none, none]),
    ]  # fmt: skip


def _run(case: Case, given: _Input) -> NDArray[np.float64]:
    registers = _registers(case, given)
    bench = Bench()
    source, _ = bench.array(np.concatenate(registers).astype(np.uint32))
    target, out = bench.array(np.zeros((4, 32), np.uint32))
    newest = "sm_120a" if case in NEW + LATEST else "sm_90"
    bench.good(_kernel(case, [len(r) for r in registers]), source, target, target=newest)
    return decode(case.result, _from_sums(case.result, out.astype(np.uint64)))


def _terms(case: Case, given: _Input) -> Iterator[tuple[int, int, NDArray[np.float64]]]:
    """Yield row, column and what is added there: only where A has a factor."""
    a, b = decode(case.kinds[0], given.a), decode(case.kinds[1], given.b)
    if case.scale:
        step = case.depth // case.chunks
        a = a * np.take_along_axis(table(case.scale)[given.scale_a.astype(np.int64)],
                                   given.columns // step, 1)  # fmt: skip
        b = b * table(case.scale)[given.scale_b.astype(np.int64)][np.arange(case.depth) // step]
    for row in range(16):
        for column in range(8):
            with np.errstate(all="ignore"):
                yield row, column, a[row] * b[given.columns[row], column]


def _wanted(case: Case, given: _Input) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums, and the sums of the sizes of their terms that are not infinite."""
    c = decode(case.result, given.c)
    total, size = c.copy(), np.where(np.isinf(c), 0, abs(c))
    for row, column, terms in _terms(case, given):
        with np.errstate(all="ignore"):
            total[row, column] += terms.sum()
            size[row, column] += np.where(np.isinf(terms), 0, abs(terms)).sum()
    return total, size


@pytest.mark.parametrize("case", SPARSE + NEW + LATEST, ids=_names)
def test_products(case: Case) -> None:
    given = _inputs(case)
    found, (wanted, size) = _run(case, given), _wanted(case, given)
    if case.tail:
        wanted = np.clip(wanted, -(1 << 31), (1 << 31) - 1)
    if case.result == "s32":
        assert np.array_equal(found, wanted)
        return
    step, most = {"f32": (2.0**-21, 3.4e38), "f16": (2.0**-10, 65504)}[case.result]
    safe = size < most
    assert safe.any() and (abs(found - wanted)[safe] <= step * size[safe]).all()


@pytest.mark.parametrize(
    "case", [SPARSE[3], SPARSE[5], SPARSE[8], SPARSE[17], NEW[2], NEW[5], NEW[9]], ids=_names
)
def test_what_is_no_number_reaches_only_the_sums_it_belongs_to(case: Case) -> None:
    given = _inputs(case, specials=True)
    if case.scale:
        given.scale_a[3, 0] = 0xFF  # NaN
    found, (wanted, size) = _run(case, given), _wanted(case, given)
    sure = ~(size >= (3.0e38 if case.result == "f32" else 65504))  # no order of sums overflows
    assert np.isnan(wanted[sure]).any() and np.isfinite(wanted[sure]).any()
    for kind in (np.isnan, np.isposinf, np.isneginf):
        assert np.array_equal(kind(found[sure]), kind(wanted[sure]))


def test_an_infinity_that_meets_no_factor_does_not_count() -> None:
    case = SPARSE[0]
    given = _inputs(case)
    used = set(given.columns[5].tolist())
    free = next(n for n in range(case.depth) if n not in used)
    given.b[free, 2] = 0x7C00
    found, (wanted, _) = _run(case, given), _wanted(case, given)
    assert np.isfinite(wanted[5, 2]) and found[5, 2] == wanted[5, 2]
    assert np.array_equal(np.isnan(found), np.isnan(wanted))


@pytest.mark.parametrize("case", DENSE_BITS, ids=_names)
def test_single_bits_are_counted(case: Case) -> None:
    given = _inputs(case)
    a, b = given.a.astype(bool), given.b.astype(bool)
    meets = a[:, :, None] ^ b[None] if "xor" in case.tail else a[:, :, None] & b[None]
    assert np.array_equal(_run(case, given), meets.sum(axis=1) + decode("s32", given.c))


# -- what is PTX, and what is not ----------------------------------------------------------------


@pytest.mark.parametrize(("cases", "target"), [(SPARSE + DENSE_BITS, "sm_90"), (NEW, "sm_120a")])
def test_the_kernels_of_these_tests_are_ptx_that_assembles(cases: list[Case], target: str) -> None:
    if find_library() is None:
        pytest.skip("needs the nvidia-nvjitlink package")
    text = HEAD.format(target=target)
    for number, case in enumerate(cases):
        counts = [len(r) for r in _registers(case, _inputs(case))]
        text += _kernel(case, counts).replace("entry k(", f"entry k{number}(")
    assert assemble(text.encode(), target)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2},"
         " {%r3,%r4}, {%f1,%f2,%f3,%f4}, %r5, 4;", BadCodeObject),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4},"
         " {%r1,%r2,%r6,%r7}, {%r3,%r4,%r8,%r9}, {%f1,%f2,%f3,%f4}, %r5, 2;", BadCodeObject),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2},"
         " {%r3,%r4}, {%f1,%f2,%f3,%f4}, %r5, 0;", NotSupported),
        ("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.f32.e2m1.e2m1.f32.ue4m3"
         " {%f1,%f2,%f3,%f4}, {%r1,%r2,%r6,%r7}, {%r3,%r4}, {%f1,%f2,%f3,%f4}, %r5, {0,0}, %r5,"
         " {0,0};", NotSupported),
    ],
)  # fmt: skip
def test_kinds_that_do_not_exist_are_named(text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"PTX line \d+.*mma"):
        Bench().launch(body(1, text), 0x1000, target="sm_120a")
