"""Conversions from and to floats of 8, 6 and 4 bits and scales, limited results, cvt.pack."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.nvidia.number_codes import BITS, decode, table
from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.nv.code.assemble import assemble, find_library

FORMS = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_AWKWARD = [0.0, -0.0, 1.0, 6.0, 7.0, 28.0, 7.5, 448.0, 464.0, 465.0, 57344.0, 61440.0, 65536.0,
            1e30, float("inf"), float("nan"), 2.0**-16, 2.0**-17, 2.0**-10, 0.25, 0.75, 1e-40,
            2.0**-127, 2.0**-126, 1.7e38, 1.71e38, 3.4e38]  # fmt: skip


def _inputs() -> NDArray[np.float32]:
    """Awkward numbers of both signs, all numbers of the formats, and those between neighbours."""
    known = np.concatenate([table(form)[np.isfinite(table(form))] for form in FORMS])
    known = np.unique(known)
    middle = (known[1:] + known[:-1]) / 2
    rough = np.random.default_rng(4).standard_normal(64) * 10.0 ** np.arange(-32, 32)
    found = np.concatenate([_AWKWARD, [-x for x in _AWKWARD], known, middle, rough])
    with np.errstate(over="ignore"):
        found = found.astype(np.float32)
    return np.resize(found, -(-len(found) // 64) * 64)


def _nearest(form: str, x: float) -> int:
    """The code of the nearest number, of two the even one; the largest beyond, NaN's own."""
    bits = BITS[form]
    numbers = table(form)[: 1 << bits - 1]
    most = int(np.flatnonzero(np.isfinite(numbers))[-1])
    if np.isnan(x):
        return {"e4m3": 0x7F, "e5m2": 0x7F}.get(form, most)
    sign = 1 << bits - 1 if np.signbit(x) else 0
    distances = np.abs(numbers[: most + 1] - min(abs(x), numbers[most]))
    best = np.flatnonzero(distances == distances.min())
    return sign | int(next((n for n in best if n % 2 == 0), best[0]))


def _run(
    text: str, inputs: NDArray[np.uint32], results: int, assembles: bool = True
) -> NDArray[np.uint32]:
    """Run `text` on %f1, %f2 (%r1, %r2 the same bits), results in %r10 ...; a row a result."""
    lines = f"""
    mov.u32 %r40, %ctaid.x; mad.lo.u32 %r40, %r40, 32, %t;
    mul.wide.u32 %rd40, %r40, 8; add.s64 %rd41, %rd0, %rd40;
    mul.wide.u32 %rd42, %r40, {4 * results}; add.s64 %rd42, %rd1, %rd42;
    .reg .b8 %b<8>;
    ld.global.v2.b32 {{%r1, %r2}}, [%rd41]; mov.b32 %f1, %r1; mov.b32 %f2, %r2;
    mov.b32 {{%h1, %h2}}, %r1;
    {text}
    """
    lines += "\n".join(f"st.global.b32 [%rd42+{4 * n}], %r{10 + n};" for n in range(results))
    bench = Bench()
    source, _ = bench.array(inputs)
    target, out = bench.array(np.zeros((len(inputs) // 2, results), np.uint32))
    bench.good(body(2, lines), source, target, grid=(len(inputs) // 64,), target="sm_120a")
    if assembles and find_library() is not None:  # what we take for PTX is PTX to NVIDIA too
        assert assemble((HEAD.format(target="sm_120a") + body(2, lines)).encode(), "sm_120a")
    return out.T


def _to_small(source: str, operands: str, relu: str = "") -> str:
    lines = []
    for n, form in enumerate(FORMS):
        small = form == "e2m1"
        register = "%b1" if small else "%h3"
        lines.append(f"cvt.rn.satfinite{relu}.{form}x2.{source} {register}, {operands};")
        if small:
            lines.append("mov.b16 %h3, {%b1, 0};")
        lines.append(f"cvt.u32.u16 %r{10 + n}, %h3;")
    return "\n".join(lines)


@pytest.mark.parametrize("relu", ["", ".relu"])
def test_floats_become_the_nearest_small_ones(relu: str) -> None:
    inputs = _inputs()
    found = _run(_to_small("f32", "%f1, %f2", relu), inputs.view(np.uint32), len(FORMS))
    for form, row in zip(FORMS, found, strict=True):
        room = 4 if form == "e2m1" else 8
        for n, word in enumerate(row):
            pair = [float(x) for x in inputs[2 * n : 2 * n + 2]]
            if relu:
                pair = [0.0 if x <= 0 else x for x in pair]
            upper, lower = (_nearest(form, x) for x in pair)
            assert int(word) == upper << room | lower, (form, pair, hex(word))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_become_the_nearest_small_ones(kind: str) -> None:
    inputs = _inputs()
    with np.errstate(over="ignore"):
        halves = (
            inputs.astype(np.float16).view(np.uint16) if kind == "f16"
            else (inputs.view(np.uint32) >> 16).astype(np.uint16)
        )  # fmt: skip
    words = np.repeat(halves.view(np.uint32), 2)
    # Of ISA 9.1, which not all assemblers know.
    found = _run(_to_small(f"{kind}x2", "%r1"), words, len(FORMS), assembles=False)
    for form, row in zip(FORMS, found, strict=True):
        room = 4 if form == "e2m1" else 8
        for n, word in enumerate(row):
            lower, upper = decode(kind, halves[2 * n : 2 * n + 2])
            wanted = _nearest(form, upper) << room | _nearest(form, lower)
            assert int(word) == wanted, (form, upper, lower, hex(word))


def test_small_floats_become_halves() -> None:
    text = """
    cvt.rn.f16x2.e4m3x2 %r10, %h1; cvt.rn.f16x2.e5m2x2 %r11, %h1;
    and.b16 %h4, %h1, 0x3F3F;
    cvt.rn.f16x2.e3m2x2 %r12, %h4; cvt.rn.relu.f16x2.e2m3x2 %r13, %h4;
    mov.b16 {%b1, %b2}, %h1; cvt.rn.f16x2.e2m1x2 %r14, %b1; cvt.rn.bf16x2.ue8m0x2 %r15, %h1;
    """
    words = np.zeros(512, np.uint32)
    words[::2] = np.arange(256) | (np.arange(256)[::-1] << 8)
    found = _run(text, words, 6)
    for n in range(256):
        low, high = int(words[2 * n]) & 0xFF, int(words[2 * n]) >> 8
        for row, form in enumerate((*FORMS, "ue8m0")):
            mask = (1 << BITS[form]) - 1
            codes = (low & 15, low >> 4) if form == "e2m1" else (low & mask, high & mask)
            for half, code in enumerate(codes):
                word = int(found[row, n]) >> 16 * half & 0xFFFF
                kind = "bf16" if form == "ue8m0" else "f16"
                number = float(decode(kind, np.array([word], np.uint64))[0])
                wanted = float(table(form)[code])
                if form == "e2m3" and wanted <= 0:
                    wanted = 0.0
                assert number == wanted or (np.isnan(number) and np.isnan(wanted)), (form, code)


def test_scales_are_the_powers_of_two_below_and_above() -> None:
    inputs = _inputs()
    text = "\n".join(
        f"cvt.{mode}{limit}.ue8m0x2.f32 %h3, %f1, %f2; cvt.u32.u16 %r{10 + n}, %h3;"
        for n, (mode, limit) in enumerate(
            (("rz", ""), ("rp", ""), ("rz", ".satfinite"), ("rp", ".satfinite"))
        )
    )
    found = _run(text, inputs.view(np.uint32), 4)
    powers = table("ue8m0")[:255]
    for row, (up, limited) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1))):
        for n, word in enumerate(found[row]):
            for half, x in enumerate(reversed(inputs[2 * n : 2 * n + 2].astype(np.float64))):
                code = int(word) >> 8 * half & 0xFF
                size = abs(x)
                if np.isnan(x) or (np.isinf(x) and not limited):
                    wanted = 0xFF
                elif up:
                    above = np.flatnonzero(powers >= size)
                    wanted = int(above[0]) if len(above) else (0xFE if limited else 0xFF)
                else:
                    below = np.flatnonzero(powers <= size)
                    wanted = int(below[-1]) if len(below) else 0
                assert code == wanted, (up, limited, x, hex(code))


def test_limited_results_are_finite() -> None:
    inputs = _inputs()
    text = """
    cvt.rn.satfinite.f16.f32 %h3, %f1; cvt.u32.u16 %r10, %h3;
    cvt.rn.satfinite.bf16.f32 %h3, %f1; cvt.u32.u16 %r11, %h3;
    cvt.rn.satfinite.tf32.f32 %r12, %f1; cvt.rna.satfinite.tf32.f32 %r13, %f1;
    """
    found = _run(text, inputs.view(np.uint32), 4)
    for row, (kind, most) in enumerate(
        (("f16", 65504.0), ("bf16", 2.0**128 - 2.0**120), ("tf32", 2.0**128 - 2.0**117),
         ("tf32", 2.0**128 - 2.0**117))
    ):  # fmt: skip
        numbers = decode(kind, found[row].astype(np.uint64))
        given = inputs[::2].astype(np.float64)
        assert np.array_equal(np.isnan(numbers), np.isnan(given))
        assert not np.isinf(numbers).any()
        large = abs(given) >= most
        assert large.any() and (numbers[large] == np.copysign(most, given[large])).all()


def test_integers_are_limited_and_packed() -> None:
    draw = np.random.default_rng(6)
    words = np.concatenate([draw.integers(0, 1 << 32, 64), draw.integers(-9, 9, 64) & 0xFFFFFFFF])
    kinds = ("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2")
    third = 0xA5C3F00D
    text = "\n".join(
        f"cvt.pack.sat.{kind}.s32{'' if '16' in kind else '.b32'} %r{10 + n}, %r1, %r2"
        + (";" if "16" in kind else f", {third};")
        for n, kind in enumerate(kinds)
    )
    found = _run(text, words.astype(np.uint32), len(kinds))
    signed = words.astype(np.uint32).view(np.int32).astype(int)
    for row, kind in enumerate(kinds):
        bits = int(kind[1:])
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (
            0, (1 << bits) - 1)  # fmt: skip
        for n, word in enumerate(found[row]):
            a, b = (
                max(low, min(high, int(x))) & (1 << bits) - 1 for x in signed[2 * n : 2 * n + 2]
            )
            upper = 0 if bits == 16 else third << 2 * bits
            assert int(word) == (a << bits | b | upper) & 0xFFFFFFFF, (kind, n)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cvt.rn.e3m2x2.f32 %h1, %f1, %f2;", BadCodeObject),
        ("cvt.rn.ue8m0x2.f32 %h1, %f1, %f2;", NotSupported),
        ("cvt.rs.f16x2.f32 %r1, %f1, %f2, %r2;", NotSupported),
    ],
)
def test_conversions_that_are_not_there_are_named(text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"PTX line \d+"):
        Bench().launch(body(1, text), 0x1000, target="sm_120a")
