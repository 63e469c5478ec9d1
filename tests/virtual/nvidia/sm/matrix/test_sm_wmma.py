"""wmma.load, wmma.mma, wmma.store against NumPy: matrices in memory in, matrices in memory out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.nvidia.number_codes import BITS, decode, encode_whole, random_codes
from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.nv.code.assemble import assemble, find_library


@dataclass(frozen=True)
class Case:
    """kind: of A and B; result: of D; added: of C. layouts: of A, B, C, D. more: elements between
    rows (or columns) beyond the least. registers: of A, B, C, D."""

    shape: str
    kind: str
    result: str
    added: str
    layouts: tuple[str, str, str, str]
    registers: tuple[int, int, int, int]
    more: tuple[int, int, int, int] = (0, 0, 0, 0)
    space: str = "global"
    tail: str = ""

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, rest = self.shape[1:].split("n")
        n, k = rest.split("k")
        return int(m), int(n), int(k)


def _case(shape: str, kind: str, result: str, layouts: str, registers: tuple[int, ...], **more: Any
          ) -> Case:  # fmt: skip
    names = {"r": "row", "c": "col"}
    a, b, c, d = (names[x] for x in layouts)
    result, added = (*result.split("/"), result)[:2]
    r1, r2, r3, *rest = registers
    return Case(shape, kind, result, added, (a, b, c, d), (r1, r2, r3, (*rest, r3)[0]), **more)


CASES = [
    _case("m16n16k16", "f16", "f32", "rcrr", (8, 8, 8)),
    _case("m16n16k16", "f16", "f32", "crcr", (8, 8, 8), more=(8, 16, 8, 24)),
    _case("m16n16k16", "f16", "f16", "rrrc", (8, 8, 4), more=(16, 0, 0, 8)),
    _case("m16n16k16", "f16", "f32/f16", "ccrr", (8, 8, 4, 8), space="shared::cta"),
    _case("m16n16k16", "f16", "f16/f32", "rccc", (8, 8, 8, 4), space="shared"),
    _case("m8n32k16", "f16", "f32", "rcrr", (8, 8, 8), space=""),
    _case("m8n32k16", "f16", "f16", "crcr", (8, 8, 4), more=(8, 8, 8, 8)),
    _case("m32n8k16", "f16", "f32", "rrrc", (8, 8, 8)),
    _case("m32n8k16", "f16", "f16", "ccrr", (8, 8, 4), more=(0, 8, 0, 8)),
    _case("m16n16k16", "bf16", "f32", "rcrr", (4, 4, 8)),
    _case("m8n32k16", "bf16", "f32", "crrc", (2, 8, 8), more=(8, 8, 8, 8)),
    _case("m32n8k16", "bf16", "f32", "rrcr", (8, 2, 8)),
    _case("m16n16k16", "s8", "s32", "rcrr", (2, 2, 8)),
    _case("m16n16k16", "u8", "s32", "crcc", (2, 2, 8), more=(16, 0, 16, 8)),
    _case("m8n32k16", "s8", "s32", "ccrr", (1, 4, 8)),
    _case("m32n8k16", "u8", "s32", "rrrr", (4, 1, 8), space="shared"),
    _case("m32n8k16", "s8", "s32", "rcrr", (4, 1, 8), tail=".satfinite"),
    _case("m16n16k8", "tf32", "f32", "rcrr", (4, 4, 8)),
    _case("m16n16k8", "tf32", "f32", "crcc", (4, 4, 8), more=(4, 8, 4, 4)),
    _case("m8n8k4", "f64", "f64", "rcrr", (1, 1, 2)),
    _case("m8n8k4", "f64", "f64", "crcc", (1, 1, 2), more=(2, 4, 2, 6), tail=".rn"),
    _case("m8n8k32", "s4", "s32", "rcrr", (1, 1, 2)),
    _case("m8n8k32", "u4", "s32", "rccr", (1, 1, 2), more=(32, 64, 4, 0)),
    _case("m8n8k32", "s4", "s32", "rcrc", (1, 1, 2), tail=".satfinite"),
    _case("m8n8k128", "b1.xor", "s32", "rcrr", (1, 1, 2)),
    _case("m8n8k128", "b1.and", "s32", "rccc", (1, 1, 2), more=(128, 256, 4, 4)),
]


def _packed(codes: NDArray[np.uint64], bits: int, layout: str, more: int) -> NDArray[np.uint8]:
    """The bytes of a matrix in memory; what lies between is all ones."""
    lines = codes if layout == "row" else codes.T
    wide = np.full((lines.shape[0], lines.shape[1] + more), (1 << bits) - 1, np.uint64)
    wide[:, : lines.shape[1]] = lines
    if bits >= 8:
        return wide.astype(f"u{bits // 8}").reshape(-1).view(np.uint8).copy()
    shifts = np.arange(bits, dtype=np.uint64)
    one_by_one = (wide.reshape(-1, 1) >> shifts & np.uint64(1)).astype(np.uint8).reshape(-1)
    return np.packbits(one_by_one, bitorder="little")


def _registers(stem: str, count: int) -> str:
    return "{" + ", ".join(f"%m{stem}{n}" for n in range(count)) + "}"


def _kernel(case: Case) -> str:
    """A kernel that reads its matrices through shared memory where the case says so."""
    kind, _, operation = case.kind.partition(".")
    wide = kind == "f64"
    m, n, k = case.sizes
    lead = {"a": (k, m), "b": (n, k), "c": (n, m), "d": (n, m)}
    lines = []
    for stem, count in zip("abcd", case.registers, strict=True):
        lines.append(f".reg .{'f64' if wide else 'b32'} %m{stem}<{count}>;")
    shared = case.space.startswith("shared")
    places = {stem: f"%rd{n}" for n, stem in enumerate("abcd")}
    head = ""
    if shared:
        lines.append("shl.b32 %r2, %t, 4; cvt.u64.u32 %rd20, %r2;")
        head = "".join(f".shared .align 32 .b8 s{stem}[4096];\n" for stem in "abcd")
        lines.append(".reg .b64 %s<4>;")
        for n_, stem in enumerate("abcd"):
            lines.append(f"mov.u64 %s{n_}, s{stem}; add.s64 %rd21, %s{n_}, %rd20;")
            lines.append(f"add.s64 %rd22, %rd{n_}, %rd20;")
            for row in range(8):
                lines.append(f"ld.global.v2.b64 {{%rd24, %rd25}}, [%rd22+{512 * row}];")
                lines.append(f"st.shared.v2.b64 [%rd21+{512 * row}], {{%rd24, %rd25}};")
            places[stem] = f"%s{n_}"
        lines.append("bar.sync 0;")
    space = f".{case.space}" if case.space else ""
    strides = {}
    for stem, layout, more in zip("abcd", case.layouts, case.more, strict=True):
        least = lead[stem][0 if layout == "row" else 1]
        strides[stem] = f", {least + more}" if more else ""
    types = {"a": kind, "b": kind, "c": case.added, "d": case.result}
    for stem, layout, count in list(zip("abc", case.layouts, case.registers, strict=False)):
        lines.append(
            f"wmma.load.{stem}.sync.aligned.{layout}.{case.shape}{space}.{types[stem]}"
            f" {_registers(stem, count)}, [{places[stem]}]{strides[stem]};"
        )
    a, b, c, d = (_registers(s, n) for s, n in zip("abcd", case.registers, strict=True))
    kinds = f"{case.result}.{kind}.{kind}.{case.added}"
    if kind == "f16":
        kinds = f"{case.result}.{case.added}"
    first, second = case.layouts[:2]
    bits = f"{operation}.popc." if operation else ""
    lines.append(
        f"wmma.mma.{bits}sync.aligned.{first}.{second}.{case.shape}.{kinds}{case.tail}"
        f" {d}, {a}, {b}, {c};"
    )
    lines.append(
        f"wmma.store.d.sync.aligned.{case.layouts[3]}.{case.shape}{space}.{case.result}"
        f" [{places['d']}], {d}{strides['d']};"
    )
    if shared:
        lines.append("bar.sync 0; add.s64 %rd21, %s3, %rd20; add.s64 %rd22, %rd3, %rd20;")
        for row in range(8):
            lines.append(f"ld.shared.v2.b64 {{%rd24, %rd25}}, [%rd21+{512 * row}];")
            lines.append(f"st.global.v2.b64 [%rd22+{512 * row}], {{%rd24, %rd25}};")
    return body(4, "\n".join(lines), head)


def _run(case: Case, codes: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return D's codes; all that the kernel must not write is checked."""
    kind = case.kind.partition(".")[0]
    bench = Bench()
    addresses, views = [], []
    kinds = (kind, kind, case.added, case.result)
    for number, layout, more, matrix in zip(range(4), case.layouts, case.more, codes, strict=True):
        content = _packed(matrix, BITS[kinds[number]], layout, more)
        room = np.full(4096, 0xFF, np.uint8)
        room[: len(content)] = content
        address, view = bench.array(room)
        addresses.append(address)
        views.append(view)
    shared = 4 * 4096 if case.space.startswith("shared") else 0
    bench.good(_kernel(case), *addresses, shared=shared)
    m, n, _ = case.sizes
    bits, more = BITS[case.result], case.more[3]
    lines, length = (m, n) if case.layouts[3] == "row" else (n, m)
    found = views[3].view(f"u{bits // 8}").astype(np.uint64)
    inside = found[: lines * (length + more)].reshape(lines, length + more)
    assert (inside[:, length:] == (1 << bits) - 1).all()
    assert (found[lines * (length + more) :] == (1 << bits) - 1).all()
    inside = inside[:, :length]
    return inside if case.layouts[3] == "row" else inside.T


def _product(case: Case, a: NDArray[np.uint64], b: NDArray[np.uint64], c: NDArray[np.uint64]
             ) -> NDArray[np.float64]:  # fmt: skip
    kind, _, operation = case.kind.partition(".")
    if kind == "b1":
        meets = a[:, :, None] ^ b[None] if operation == "xor" else a[:, :, None] & b[None]
        sums = meets.sum(axis=1).astype(np.float64)
    else:
        with np.errstate(all="ignore"):
            sums = (decode(kind, a)[:, :, None] * decode(kind, b)[None]).sum(axis=1)
    wanted: NDArray[np.float64] = sums + decode(case.added, c)
    return wanted


def _names(case: Case) -> str:
    letters = "".join(layout[0] for layout in case.layouts)
    return f"{case.shape}.{case.result}.{case.kind}.{case.added}.{letters}{case.tail}{case.space}"


@pytest.mark.parametrize("case", CASES, ids=_names)
def test_matrices_are_loaded_multiplied_and_stored(case: Case) -> None:
    random = np.random.default_rng(5)
    m, n, k = case.sizes
    kind = case.kind.partition(".")[0]
    a, b = random_codes(random, kind, (m, k)), random_codes(random, kind, (k, n))
    c = encode_whole(case.added, random.integers(-90, 90, (m, n)))
    if case.tail == ".satfinite":  # sums beyond the range of 32 bits
        c = encode_whole(case.added, random.choice([-(1 << 31), (1 << 31) - 1, 5], (m, n)))
    found = _run(case, [a, b, c, np.full((m, n), (1 << BITS[case.result]) - 1, np.uint64)])
    wanted = _product(case, a, b, c)
    if case.tail == ".satfinite":
        wanted = np.clip(wanted, -(1 << 31), (1 << 31) - 1)
        assert (wanted == (1 << 31) - 1).any() and (wanted == -(1 << 31)).any()
    assert np.array_equal(decode(case.result, found), wanted)


@pytest.mark.parametrize(
    "case", [CASES[n] for n in (0, 6, 8, 9, 17, 19)], ids=_names
)  # of each kind of reals
def test_awkward_numbers_keep_their_meaning(case: Case) -> None:
    """NaN, infinities, denormals: sums are within the error of any order of f32 (or f64) sums."""
    random = np.random.default_rng(8)
    m, n, k = case.sizes
    if case.kind == "f64":
        a, b, c = (random.standard_normal(s).view(np.uint64) for s in ((m, k), (k, n), (m, n)))
        a[0, 0], b[1, 1], c[2, 2] = 0x7FF8 << 48, 0x7FF << 52, 1
    else:
        a, b = (random_codes(random, case.kind, s, True) for s in ((m, k), (k, n)))
        c = random_codes(random, case.added, (m, n), True)
    found = decode(case.result, _run(case, [a, b, c, np.zeros((m, n), np.uint64)]))
    with np.errstate(all="ignore"):
        wanted = _product(case, a, b, c)
        parts = abs(decode(case.kind, a))[:, :, None] * abs(decode(case.kind, b))[None]
        size = parts.sum(axis=1) + abs(decode(case.added, c))
    most, step = {"f32": (3.4e38, 2.0**-20), "f16": (65504, 2.0**-10), "f64": (1.7e308, 2.0**-50)}[
        case.result
    ]
    safe = size < most  # where no order of the sum overflows
    assert np.array_equal(np.isnan(found[safe]), np.isnan(wanted[safe]))
    never = np.isnan(size)
    assert np.isnan(found[never]).all() and never.any() and safe.any()
    least = {"f32": 2.0**-126, "f16": 2.0**-24, "f64": 0.0}[case.result]
    assert (abs(found[safe] - wanted[safe]) <= step * size[safe] + least).all()


def test_fragments_of_a_and_of_sums_are_changed_element_by_element() -> None:
    """nvcc's code scales every register of a fragment, also those that hold nothing new."""
    case = CASES[0]
    text = _kernel(case).replace(
        "wmma.mma", "\n".join(
            [*(f"add.f16x2 %ma{n}, %ma{n}, %ma{n};" for n in range(8)),
             *(f"add.f32 %mc{n}, %mc{n}, %mc{n};" for n in range(8)), "wmma.mma"]
        ), 1,
    )  # fmt: skip
    random = np.random.default_rng(1)
    a, b = random_codes(random, "f16", (16, 16)), random_codes(random, "f16", (16, 16))
    c = encode_whole("f32", random.integers(-9, 9, (16, 16)))
    bench = Bench()
    given = [_packed(a, 16, "row", 0), _packed(b, 16, "col", 0), _packed(c, 32, "row", 0)]
    addresses = [bench.array(one)[0] for one in given]
    target, out = bench.array(np.zeros((16, 16), np.float32))
    bench.good(text, *addresses, target)
    wanted = 2 * decode("f16", a) @ decode("f16", b) + 2 * decode("f32", c)
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1, %r2}, [%rd0];", BadCodeObject),
        ("wmma.load.a.sync.aligned.row.m16n16k8.global.f16 {%r1}, [%rd0];", NotSupported),
        ("wmma.load.a.sync.aligned.col.m8n8k32.global.s4 {%r1}, [%rd0];", NotSupported),
        ("wmma.load.a.sync.aligned.row.m16n16k16.local.f16"
         " {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, [%rd0];", BadCodeObject),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f16"
         " {%f1,%f2,%f3,%f4,%f5,%f6,%f7,%f8}, {%r1,%r2,%r3,%r4}, {%r1,%r2,%r3,%r4},"
         " {%r1,%r2,%r3,%r4};", NotSupported),
        ("wmma.store.d.sync.aligned.row.m16n16k16.global.bf16 [%rd0], {%r1,%r2,%r3,%r4};",
         NotSupported),
    ],
)  # fmt: skip
def test_kinds_that_do_not_exist_are_named(text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"PTX line \d+.*wmma"):
        Bench().launch(body(1, text), 0x1000)


def test_the_kernels_of_these_tests_are_ptx_that_assembles() -> None:
    if find_library() is None:
        pytest.skip("needs the nvidia-nvjitlink package")
    text = HEAD.format(target="sm_90")
    for number, case in enumerate(CASES):
        kernel = _kernel(case).replace("entry k(", f"entry k{number}(")
        for stem in "abcd":
            kernel = kernel.replace(f"s{stem}[4096]", f"s{stem}{number}[4096]")
            kernel = kernel.replace(f", s{stem};", f", s{stem}{number};")
        text += kernel
    assert assemble(text.encode(), "sm_90")
