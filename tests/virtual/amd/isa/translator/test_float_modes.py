"""What MODE does to results on the core and on the oracle; 53 bits of 2/pi."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lab.oracles.gfx11.execute import Mode
from tests.support.amd.isa import gfx_encode as asm
from tests.support.amd.isa.gfx_case_makers import registers
from tests.support.amd.isa.gfx_cases import Case, Registers, run_core, run_oracle
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.runtime.launch import MXCSR_DEFAULT, denormal_control
from ugpu.virtual.amd.isa.translator.arithmetic.trig import two_over_pi

IEEE, KEEPS_RESULTS = 1 << 23, 0b10
NUMBERS = {"f16": 0x4000, "f32": 0x4000_0000, "f64": 0x4000_0000_0000_0000}  # 2.0
RESULTS = {
    "f16": (0x4400, 0x4800, 0x4C00, 0x4000),
    "f32": (0x4080_0000, 0x4100_0000, 0x4180_0000, 0x4000_0000),
    "f64": (4 << 60 | 1 << 52, 4 << 60 | 2 << 52, 4 << 60 | 3 << 52, 4 << 60),
}  # 4.0, and it times 2, times 4, divided by 2


@pytest.fixture(scope="module")
def core() -> Iterator[GfxCore]:
    made = GfxCore(workers=1)
    yield made
    made.close()


def filled(kind: str) -> Registers:
    """Make registers that all hold 2.0."""
    given = registers(1, groups=1)
    words = (NUMBERS[kind] & 0xFFFFFFFF, NUMBERS[kind] >> 32)
    given.vectors[:, 0::2], given.vectors[:, 1::2] = words if kind == "f64" else words[:1] * 2
    given.scalars[0, 9] = 0xFFFF_FFFF  # EXEC
    return given


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("ieee", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_omod_is_ignored_in_ieee_mode_and_where_denormals_are_kept(
    core: GfxCore, kind: str, ieee: bool, keeps: bool
) -> None:
    cases = [
        Case(
            f"v_add_{kind} omod {omod}",
            asm.vop3(f"v_add_{kind}", 16, [asm.v(8), asm.v(10)], omod=omod),
        )
        for omod in range(4)
    ]
    denormals = (3 if keeps else 0) << (0 if kind == "f32" else 2)
    rsrc1 = 3 | denormals << 16 | 1 << 21 | (IEEE if ieee else 0)
    data = [filled(kind)] * 4
    for number, found in enumerate(run_core(core, cases, data, rsrc1)):
        expected = RESULTS[kind][0 if ieee or keeps else number]
        oracle = run_oracle(cases[number], data[number], Mode(denormals << 4, ieee=ieee))
        for result in (found, oracle):
            low, high = (int(result.vectors[0, k, 0]) for k in (8, 9))
            got = low | high << 32 if kind == "f64" else low & (0xFFFF if kind == "f16" else -1)
            assert got == expected, (cases[number].label, hex(got), hex(expected))


def test_omod_is_ignored_behind_a_switch_that_keeps_denormals(core: GfxCore) -> None:
    add = asm.vop3("v_add_f32", 16, [asm.v(8), asm.v(10)], omod=1)
    switched = (*asm.sopp("s_denorm_mode", 0xF), *add, *asm.sopp("s_denorm_mode", 0))
    cases = [Case("switched", switched), Case("plain", add)]
    found = run_core(core, cases, [filled("f32")] * 2, 3 | 1 << 21)
    assert [int(result.vectors[0, 8, 0]) for result in found] == list(RESULTS["f32"][:2])


def test_denormal_fields_name_sources_and_results() -> None:
    """LLVM AMDGPUUsage: 0 flushes both, 1 results, 2 sources, 3 none. MXCSR: FTZ 15, DAZ 6."""
    flushes = [denormal_control(mode) & ~MXCSR_DEFAULT for mode in range(4)]
    assert flushes == [1 << 15 | 1 << 6, 1 << 15, 1 << 6, 0]


@pytest.mark.parametrize(
    ("name", "largest", "lowest"),
    [("v_mad_u16", 0xFFFF, 0), ("v_mad_i16", 0x7FFF, 0x8000)],
)
def test_products_saturate_with_clamp(core: GfxCore, name: str, largest: int, lowest: int) -> None:
    given = filled("f16")
    given.vectors[0, 0:3, 0] = (0x1234, 0x7FFF, 0x10)
    given.vectors[0, 0:3, 1] = (0x8000, 0x7FFF, 0x10)
    given.vectors[0, 0:3, 2] = (3, 5, 7)
    words = asm.vop3(name, 16, [asm.v(8), asm.v(9), asm.v(10)], clamp=True)
    (found,) = run_core(core, [Case(name, words)], [given])
    expected = run_oracle(Case(name, words), given)
    assert np.array_equal(found.vectors, expected.vectors)
    row = [int(value) & 0xFFFF for value in found.vectors[0, 8, :3]]
    assert row == [largest, largest if name == "v_mad_u16" else lowest, 22]


def test_two_over_pi() -> None:
    words = two_over_pi()
    assert len(words) == 37
    assert words[:3] == (0xA2F9836E, 0x4E441529, 0xFC2757D1) and words[-1] == 0x56033046


def test_trig_preop_gives_pieces_of_two_over_pi(core: GfxCore) -> None:
    """The first three segments of a small angle add up to 2/pi; a huge angle's are raised."""
    given = filled("f64")
    angle = np.array([1.0, 1.0, 1.0, 2.0**1000, 2.0**1000, 2.0**60], np.float64).view(np.uint32)
    given.vectors[0, 0, :6], given.vectors[0, 1, :6] = angle[0::2], angle[1::2]
    given.vectors[0, 2, :6] = (0, 1, 2, 0, 31, 0)
    words = asm.vop3("v_trig_preop_f64", 16, [asm.v(8), asm.v(10)])
    (found,) = run_core(core, [Case("v_trig_preop_f64", words)], [given])
    pairs = np.ascontiguousarray(found.vectors[0, 8:10].T).view(np.float64)[:, 0]
    assert pairs[0] == (0xA2F9836E4E441529 >> 11) / 2**53
    assert pairs[0] + pairs[1] == float.fromhex("0x1.45f306dc9c883p-1")
    assert 0 < pairs[2] < pairs[1] * 2.0**-50
    assert 2.0**-850 < pairs[3] < 2.0**-780  # 946 bits further on, raised by 128
    assert pairs[4] == 0, "behind the table"
    assert 0 < pairs[5] < 2.0**-4


SPECIAL = {
    "f16": (0x7C01, 0xFDFF, 0x7E00, 0xFE01, 0x8000, 0, 0x7C00, 0xFC00, 0x3C00, 0xBC00, 0x8001, 1),
    "f32": (0x7F80_0001, 0xFFBF_FFFF, 0x7FC0_0000, 0xFFC0_0001, 1 << 31, 0, 0x7F80_0000,
            0xFF80_0000, 0x3F80_0000, 0xBF80_0000, 1 << 31 | 1, 1),
    "f64": (0x7FF0 << 48 | 1, 0xFFF7 << 48, 0x7FF8 << 48, 0xFFF8 << 48 | 1, 1 << 63, 0,
            0x7FF0 << 48, 0xFFF0 << 48, 0x3FF0 << 48, 0xBFF0 << 48, 1 << 63 | 1, 1),
}  # fmt: skip
"""Signalling and quiet NaNs, zeros, infinities, ones and the least denormals."""
EXTREMES = [f"v_{name}_{kind}" for kind in ("f16", "f32", "f64") for name in ("min", "max")]
EXTREMES += [
    f"v_{name}_{kind}"
    for kind in ("f16", "f32")
    for name in ("min3", "max3", "minmax", "maxmin", "med3")
]


def drawn(kind: str, seed: int) -> Registers:
    """Make registers whose vectors hold special values of a kind."""
    random = np.random.default_rng(seed)
    given = registers(1, groups=1)
    values = random.choice(np.array(SPECIAL[kind], np.uint64), (6, 32))
    shift = np.uint64(16 if kind == "f16" else 32)
    given.vectors[0, 0::2] = (values & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    given.vectors[0, 1::2] = (values >> shift).astype(np.uint32)
    if kind == "f16":  # halves beside each other, for packed instructions
        pairs = random.choice(np.array(SPECIAL[kind], np.uint32), (2, 12, 32))
        given.vectors[0] = pairs[0] | pairs[1] << np.uint32(16)
    elif kind == "f32":
        given.vectors[0] = random.choice(np.array(SPECIAL[kind], np.uint32), (12, 32))
    given.scalars[0, 9] = 0xFFFF_FFFF  # EXEC
    return given


@pytest.mark.parametrize("ieee", [False, True])
def test_minima_and_maxima_of_nans(core: GfxCore, ieee: bool) -> None:
    """RDNA3 ISA document, V_MIN_F32: in IEEE mode a signalling NaN is the result, made quiet;
    else a number wins over every NaN, and the other source is returned as it is."""
    sources = [asm.v(8), asm.v(10), asm.v(12)]
    cases = [Case(name, asm.vop3(name, 16, sources)) for name in EXTREMES]
    cases += [
        Case(name, asm.vop3p(name, 16, sources[:2])) for name in ("v_pk_min_f16", "v_pk_max_f16")
    ]
    data = [drawn(case.label[-3:], number) for number, case in enumerate(cases)]
    found = run_core(core, cases, data, 3 | 0xF0 << 12 | 1 << 21 | (IEEE if ieee else 0))
    for case, given, result in zip(cases, data, found, strict=True):
        expected = run_oracle(case, given, Mode(ieee=ieee))
        assert np.array_equal(result.vectors, expected.vectors), case.label


@pytest.mark.parametrize("single", range(4))
@pytest.mark.parametrize("double", range(4))
def test_denormals_of_doubles_have_a_mode_of_their_own(
    core: GfxCore, single: int, double: int
) -> None:
    """LLVM AMDGPUUsage, FLOAT_DENORM_MODE_32 and _16_64; a load, operations of both, a load."""
    mode = single << 4 | double << 6
    sources = [asm.v(8), asm.v(10), asm.v(12)]
    names = ("v_add_f64", "v_mul_f64", "v_fma_f64", "v_ldexp_f64", "v_cmp_lt_f64", "v_max_f64",
             "v_max_f32", "v_min_f32", "v_add_f32")  # fmt: skip
    words = {
        name: asm.vop3(name, 16 if "cmp" not in name else 40, sources[: 3 if "fma" in name else 2])
        for name in names
    }
    words |= {name: asm.vop1(name, 16, asm.v(8)) for name in ("v_cvt_f32_f64", "v_cvt_f64_f32")}
    add = asm.vop3("v_add_f32", 18, sources[:2])
    words["mixed"] = (*add, *words["v_add_f64"], *asm.vop3("v_add_f32", 19, sources[1:]))
    cases = [Case(name, each) for name, each in words.items()]
    random = np.random.default_rng(mode)
    data = []
    for _ in cases:
        given = drawn("f64", 0)
        tiny = random.integers(-(1 << 51), 1 << 51, (6, 32)).astype(np.float64) * 2.0**-1074
        tiny[:, ::4] = random.choice((2.0**-1022, 2.0**-140, 2.0**-126, -(2.0**-150)), (6, 8))
        pairs = tiny.view(np.uint64)
        given.vectors[0, 0::2] = (pairs & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        given.vectors[0, 1::2] = (pairs >> np.uint64(32)).astype(np.uint32)
        data.append(given)
    found = run_core(core, cases, data, 3 | mode << 12 | 1 << 21)
    for case, given, result in zip(cases, data, found, strict=True):
        expected = run_oracle(case, given, Mode(mode, ieee=False))
        assert np.array_equal(result.vectors, expected.vectors), case.label
        assert np.array_equal(result.scalars, expected.scalars), case.label


def test_the_sine_of_minus_zero(core: GfxCore) -> None:
    """RDNA ISA documents, functional examples of V_SIN_F32: minus zero stays; whole turns are 0."""
    given = drawn("f32", 0)
    given.vectors[0, 0, :4] = (0x8000_0000, 0, 0xFF7F_FFFF, 0xBF80_0000)
    case = Case("v_sin_f32", asm.vop1("v_sin_f32", 16, asm.v(8)))
    (found,) = run_core(core, [case], [given])
    expected = run_oracle(case, given)
    for result in (found, expected):
        assert [int(value) for value in result.vectors[0, 8, :4]] == [0x8000_0000, 0, 0, 0]
