"""Comparisons of halves and pairs of halves (set, setp), and elements of arrays as operands."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.nvidia.sm.sm_run import HEAD, Bench
from ugpu.hcq.errors import BadCodeObject
from ugpu.virtual.nvidia.sm.ptx.parser import parse

HALVES = (0x0000, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x0001)
BRAINS = (0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x0001)
COMPARE = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b),
    "lt": lambda a, b: a < b, "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b), "neu": lambda a, b: a != b,
}  # fmt: skip


def _pairs(kind: str) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    numbers = HALVES if kind.startswith("f16") else BRAINS
    both = np.array(list(itertools.product(numbers, numbers)), np.uint32)
    a = both[:, 0] | both[::-1, 0] << 16
    b = both[:, 1] | both[:, 0] << 16
    return a.astype(np.uint32), b.astype(np.uint32)


def _floats(kind: str, bits: NDArray[np.uint32]) -> NDArray[np.float32]:
    if kind.startswith("bf16"):
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def _run(
    body: str, a: NDArray[np.uint32], b: NDArray[np.uint32], shared: int = 0
) -> NDArray[np.uint32]:
    bench = Bench()
    addresses = [bench.array(each) for each in (a, b, np.zeros(len(a), np.uint32))]
    text = f"""
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out) {{
.reg .b64 %a, %b, %out, %w; .reg .b32 %t, %x, %y, %r, %s; .reg .pred %p, %q, %odd;
.reg .b16 %hx, %hy, %hr;
ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x;
mul.wide.u32 %w, %t, 4; add.s64 %a, %a, %w; add.s64 %b, %b, %w; add.s64 %out, %out, %w;
ld.global.b32 %x, [%a]; ld.global.b32 %y, [%b]; cvt.u16.u32 %hx, %x; cvt.u16.u32 %hy, %y;
and.b32 %s, %t, 1; setp.eq.u32 %odd, %s, 1;
{body}
st.global.b32 [%out], %r;
ret;
}}"""
    bench.good(text, *(address for address, _ in addresses), block=(len(a),), shared=shared)
    return addresses[2][1]


def _true(kind: str, comparison: str, a: NDArray[np.uint32], b: NDArray[np.uint32]) -> list[
    NDArray[np.bool_]
]:  # fmt: skip
    found = []
    for shift in (0, 16) if kind.endswith("x2") else (0,):
        x, y = (_floats(kind, each >> shift & 0xFFFF) for each in (a, b))
        with np.errstate(invalid="ignore"):
            found.append(np.asarray(COMPARE[comparison](x, y)))
    return found


@pytest.mark.parametrize("comparison", sorted(COMPARE))
@pytest.mark.parametrize(
    ("target", "kind", "true"),
    [("f16x2", "f16x2", 0x3C00), ("u32", "f16x2", 0xFFFF), ("bf16x2", "bf16x2", 0x3F80),
     ("s32", "bf16x2", 0xFFFF)],
)  # fmt: skip
def test_set_of_pairs_compares_each_half(
    comparison: str, target: str, kind: str, true: int
) -> None:
    a, b = _pairs(kind)
    found = _run(f"set.{comparison}.{target}.{kind} %r, %x, %y;", a, b)
    low, high = _true(kind, comparison, a, b)
    assert np.array_equal(found, low * true | high * (true << 16))


@pytest.mark.parametrize(
    ("target", "kind", "true"),
    [("f16", "f16", 0x3C00), ("u16", "f16", 0xFFFF), ("bf16", "bf16", 0x3F80),
     ("s16", "bf16", 0xFFFF)],
)  # fmt: skip
def test_set_of_halves(target: str, kind: str, true: int) -> None:
    a, b = _pairs(kind)
    found = _run(f"set.lt.{target}.{kind} %hr, %hx, %hy; cvt.u32.u16 %r, %hr;", a, b)
    assert np.array_equal(found, _true(kind, "lt", a, b)[0] * true)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_setp_of_pairs_gives_two_predicates_joined_with_a_third(kind: str) -> None:
    a, b = _pairs(kind)
    body = (
        f"setp.geu.and.{kind} %p|%q, %x, %y, %odd;"
        "selp.u32 %r, 1, 0, %p; selp.u32 %s, 2, 0, %q; or.b32 %r, %r, %s;"
    )
    low, high = _true(kind, "geu", a, b)
    odd = np.arange(len(a)) % 2 == 1
    assert np.array_equal(_run(body, a, b), (low & odd) * 1 | (high & odd) * 2)


def test_elements_of_arrays_are_operands() -> None:
    a, b = _pairs("f16x2")
    body = (
        ".shared .align 4 .b32 table[16]; .reg .b64 %at, %begin; .reg .b32 %low, %v;"
        "mov.u32 %v, 77; st.shared.u32 [table+8], %v; bar.sync 0;"
        "mov.u64 %begin, table[0]; mov.u64 %at, table[2]; sub.s64 %at, %at, %begin;"
        "cvt.u32.u64 %r, %at; mov.u64 %at, table[2]; cvt.u32.u64 %low, %at;"
        "ld.shared.u32 %v, [%low]; add.u32 %r, %r, %v;"
    )
    assert np.array_equal(_run(body, a, b, shared=64), np.full(len(a), 8 + 77))


@pytest.mark.parametrize("operand", ["table[16]", "table[-1]", "nothing[0]"])
def test_an_element_outside_of_its_array_is_refused(operand: str) -> None:
    text = (
        f"{HEAD}\n.visible .entry k() {{ .shared .b32 table[16]; .reg .b64 %r;\n"
        f"mov.u64 %r, {operand};\nret; }}"
    )
    with pytest.raises(BadCodeObject, match="line"):
        parse(text)
