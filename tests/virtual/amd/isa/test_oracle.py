"""The oracle against NumPy, on what LLVM makes of ordinary operations, and the ISA document."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.oracles.gfx11.execute import WaveState, execute, run, run_group
from tests.support.amd.isa import gfx_encode as asm
from tests.support.amd.isa.gfx_corpus import compile_ir, corpus
from tests.support.amd.isa.oracle_run import PageWalker
from tests.support.shader_memory import ArrayMemory
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.amd.isa.decoder.decode import decode

THREADS = 64
OUT, FIRST, SECOND, ARGUMENTS = 0x10000, 0x20000, 0x30000, 0x40000

Lanes = NDArray[Any]


def run_kernel(name: str, first: Lanes, second: Lanes, result: type[np.generic]) -> Lanes:
    """Run a corpus kernel on two waves whose kernel arguments are in s[0:1]."""
    memory = ArrayMemory()
    out = memory.map(OUT, np.zeros(THREADS * 8, np.uint8))
    memory.map(FIRST, first, False)
    memory.map(SECOND, second, False)
    memory.map(ARGUMENTS, np.frombuffer(struct.pack("<QQQI", OUT, FIRST, SECOND, 9), np.uint8))
    walker = PageWalker(memory)
    waves = []
    for wave in (0, 1):
        state = WaveState(memory=walker)
        state.sgprs[0] = ARGUMENTS
        state.vgprs[0] = np.arange(32) + 32 * wave
        waves.append(state)
    run_group(compile_ir(corpus()[name]).text, waves)
    assert not memory.faults
    return out.view(result)[:THREADS]


def _numbers(kind: type[np.generic], seed: int) -> Lanes:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, THREADS * np.dtype(kind).itemsize, np.uint8)
    values: Lanes = bits.view(kind).copy()
    if np.issubdtype(kind, np.floating):
        info = np.finfo(kind)
        special = [0, -0.0, 1, -1, info.max, info.tiny, info.smallest_subnormal, np.inf, -np.inf,
                   np.nan, 3, 1 / 3, info.max / 2, info.tiny * 3]  # fmt: skip
    else:
        limits = np.iinfo(kind)
        special = [0, 1, limits.max, limits.min, limits.max - 1, 2, 3, 7]
    chosen = rng.random(THREADS) < 0.5
    picks = np.array(special).astype(kind)[rng.integers(0, len(special), THREADS)]
    return np.where(chosen, picks, values).astype(kind)


FLOATS = {"float": np.float32, "half": np.float16, "double": np.float64}
INTEGERS = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}


def _agree(found: Lanes, expected: Lanes) -> None:
    both_nan = np.isnan(found) & np.isnan(expected) if found.dtype.kind == "f" else False
    equal = (found.view(f"u{found.itemsize}") == expected.view(f"u{found.itemsize}")) | both_nan
    assert np.all(equal), (found[~equal][:4], expected[~equal][:4], np.nonzero(~equal)[0][:4])


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    ("name", "operation"),
    [("fadd", np.add), ("fsub", np.subtract), ("fmul", np.multiply), ("fdiv", np.divide)],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_float_arithmetic_is_correctly_rounded(
    kind: str, name: str, operation: Callable[[Lanes, Lanes], Lanes], seed: int
) -> None:
    first, second = _numbers(FLOATS[kind], seed), _numbers(FLOATS[kind], seed + 10)
    with np.errstate(all="ignore"):
        if kind == "half":  # in f64 each of them is exact, or rounds to the same half
            expected = operation(first.astype(np.float64), second.astype(np.float64))
        else:
            expected = operation(first, second)
        expected = expected.astype(FLOATS[kind])
    _agree(run_kernel(f"{name} {kind}", first, second, FLOATS[kind]), expected)


INTEGER_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "sdiv": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "srem": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}
UNSIGNED_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "udiv": lambda a, b: a // b,
    "urem": lambda a, b: a % b,
    "lshr": lambda a, b: a >> b,
    "shl": lambda a, b: a << b,
}


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", [*INTEGER_OPERATIONS, *UNSIGNED_OPERATIONS, "ashr"])
def test_integer_arithmetic(kind: str, name: str) -> None:
    bits = np.dtype(INTEGERS[kind]).itemsize * 8
    first, second = _numbers(INTEGERS[kind], 4), _numbers(INTEGERS[kind], 5)
    if name in ("shl", "lshr", "ashr"):
        second = (second & (bits - 1)).astype(INTEGERS[kind])
    else:
        second = np.where(second == 0, 5, second).astype(INTEGERS[kind])
    mask = (1 << bits) - 1
    expected = []
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        if name in INTEGER_OPERATIONS:
            expected.append(INTEGER_OPERATIONS[name](a, b) & mask)
        elif name == "ashr":
            expected.append(a >> b & mask)
        else:
            expected.append(UNSIGNED_OPERATIONS[name](a & mask, b & mask) & mask)
    unsigned = np.dtype(f"u{bits // 8}").type
    found = run_kernel(f"{name} {kind}", first, second, unsigned)
    _agree(found, np.array(expected, unsigned))


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    ("name", "operation"), [("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc),
                            ("rint", np.rint), ("fabs", np.abs)],
)  # fmt: skip
def test_rounding(kind: str, name: str, operation: Callable[[Lanes], Lanes]) -> None:
    suffix = {"float": "f32", "half": "f16", "double": "f64"}[kind]
    values = _numbers(FLOATS[kind], 6)
    with np.errstate(all="ignore"):
        expected = operation(values)
    _agree(run_kernel(f"{name} {suffix}", values, values, FLOATS[kind]), expected)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_square_root_is_correctly_rounded(kind: str) -> None:
    number = {"f32": np.float32, "f64": np.float64}[kind]
    values = _numbers(number, 7)
    with np.errstate(all="ignore"):
        expected = np.sqrt(values)
    _agree(run_kernel(f"sqrt {kind}", values, values, number), expected)


@pytest.mark.parametrize(
    ("source", "target"),
    [("float", "half"), ("double", "float"), ("half", "float"), ("float", "double")],
)
def test_conversion_between_floats(source: str, target: str) -> None:
    values = _numbers(FLOATS[source], 8)
    operation = "fptrunc" if np.dtype(FLOATS[source]).itemsize > np.dtype(
        FLOATS[target]
    ).itemsize else "fpext"  # fmt: skip
    with np.errstate(all="ignore"):
        expected = values.astype(FLOATS[target])
    _agree(run_kernel(f"{operation} {source} {target}", values, values, FLOATS[target]), expected)


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", ["float", "double"])
def test_conversion_from_integers(source: str, target: str) -> None:
    values = _numbers(INTEGERS[source], 9)
    found = run_kernel(f"sitofp {source} {target}", values, values, FLOATS[target])
    _agree(found, values.astype(FLOATS[target]))


def test_fused_multiply_add_rounds_once() -> None:
    first = np.full(THREADS, 1 + 2.0**-12, np.float32)
    second = np.full(THREADS, 1 - 2.0**-12, np.float32)
    found = run_kernel("fma f32", first, second, np.float32)  # x * y + x
    exact = 1 - 2.0**-24 + 1 + 2.0**-12
    _agree(found, np.full(THREADS, exact, np.float32))


# Single instructions ---------------------------------------------------------------------------


def one(words: asm.Encoded, state: WaveState) -> WaveState:
    execute(decode(np.array(words, np.uint32).tobytes()), state)
    return state


def counting() -> WaveState:
    state = WaveState()
    state.vgprs[1] = np.arange(32)
    state.vgprs[2] = 100
    return state


def moved(control: int, **options: Any) -> list[int]:
    words = asm.dpp16(asm.vop1("v_mov_b32", 2, asm.DPP16), 1, control, **options)
    return one(words, counting()).vgprs[2].tolist()


def test_dpp_moves_lanes() -> None:
    assert moved(0x1B)[:5] == [3, 2, 1, 0, 7]
    assert moved(0x101)[:2] == [1, 2]
    assert moved(0x101)[14:17] == [15, 100, 17]
    assert moved(0x101, bound_ctrl=True)[15] == 0
    assert moved(0x111)[:3] == [100, 0, 1]
    assert moved(0x121)[:3] == [15, 0, 1]
    assert moved(0x140)[:2] == [15, 14]
    assert moved(0x141)[6:10] == [1, 0, 15, 14]
    assert moved(0x153)[15:17] == [3, 19]
    assert moved(0x161)[:4] == [1, 0, 3, 2]
    assert moved(0x1B, row_mask=2)[15:17] == [100, 19]
    assert moved(0x1B, bank_mask=1)[3:5] == [0, 100]


def test_dpp_does_not_read_inactive_lanes_unless_told() -> None:
    for fetch, expected in ((False, 100), (True, 1)):
        state = counting()
        state.exec = 0b1101
        words = asm.vop1("v_mov_b32", 2, asm.DPP16)
        one(asm.dpp16(words, 1, 0xB1, fetch_inactive=fetch), state)
        assert state.vgprs[2, 0] == expected
        assert state.vgprs[2, 1] == 100


def test_dpp8_moves_within_eight_lanes() -> None:
    words = asm.dpp8(asm.vop1("v_mov_b32", 2, asm.DPP8), 1, (7, 6, 5, 4, 3, 2, 1, 0))
    assert one(words, counting()).vgprs[2].tolist()[7:10] == [0, 15, 14]


def test_permlane_and_swizzle() -> None:
    state = counting()
    state.sgprs[0], state.sgprs[1] = 0x89ABCDEF, 0x01234567
    one(asm.vop3("v_permlanex16_b32", 2, [asm.v(1), 0, 1]), state)
    assert state.vgprs[2].tolist()[:3] == [31, 30, 29]
    assert state.vgprs[2].tolist()[16:18] == [15, 14]
    state = counting()
    one(asm.ds("ds_swizzle_b32", addr=1, dst=2, offset=0x041F), state)  # xor with 1
    assert state.vgprs[2].tolist()[:4] == [1, 0, 3, 2]


def test_permute_pushes_and_pulls() -> None:
    state = counting()
    state.vgprs[3] = (np.arange(32, dtype=np.uint32) + 1) % 32 * 4
    one(asm.ds("ds_bpermute_b32", addr=3, data=1, dst=4), state)
    one(asm.ds("ds_permute_b32", addr=3, data=1, dst=5), state)
    assert state.vgprs[4].tolist()[:2] == [1, 2]
    assert state.vgprs[5].tolist()[:2] == [31, 0]


def test_comparison_clears_the_bits_of_inactive_lanes() -> None:
    state = counting()
    state.exec, state.vcc = 0x0000FFFF, 0xFFFFFFFF
    one(asm.vopc("v_cmp_gt_u32", asm.integer(4), 1), state)
    assert state.vcc == 0b1111
    one(asm.vopc("v_cmpx_lt_u32", asm.integer(1), 1), state)
    assert state.exec == 0xFFFC


def test_carry_chain() -> None:
    state = WaveState()
    state.vgprs[1], state.vgprs[2] = 0xFFFFFFFF, 1
    one(asm.vop3("v_add_co_u32", 3, [asm.v(1), asm.v(2)], sdst=asm.VCC), state)
    assert state.vcc == 0xFFFFFFFF
    one(asm.vop2("v_add_co_ci_u32", 4, asm.integer(0), 5), state)
    assert (state.vgprs[3, 0], state.vgprs[4, 0], state.vcc) == (0, 1, 0)


def test_sixteen_bit_results_keep_the_other_half() -> None:
    state = WaveState()
    state.vgprs[1], state.vgprs[2], state.vgprs[3] = 0x3C004000, 0x3C00, 0xAAAABBBB
    one(asm.vop2("v_add_f16", 3 | 0x80, asm.v(1), 2), state)  # v3.h = v1.l + v2.l
    assert state.vgprs[3, 0] == 0x4200BBBB


def test_min_and_max_order_zeros_and_prefer_numbers() -> None:
    state = WaveState()
    state.vgprs[1], state.vgprs[2], state.vgprs[3] = 0, 0x80000000, 0x7FC00000
    one(asm.vop2("v_min_f32", 4, asm.v(1), 2), state)
    one(asm.vop2("v_max_f32", 5, asm.v(2), 1), state)
    one(asm.vop2("v_max_f32", 6, asm.v(3), 2), state)
    assert [int(state.vgprs[number, 0]) for number in (4, 5, 6)] == [0x80000000, 0, 0x80000000]


def test_lds_beyond_its_size_reads_zero_and_drops_writes() -> None:
    state = WaveState(lds=np.full(8, 0xEE, np.uint8))
    state.vgprs[1] = np.arange(32) * 4
    state.vgprs[2] = 0x12345678
    one(asm.ds("ds_store_b32", addr=1, data=2), state)
    one(asm.ds("ds_load_b32", addr=1, dst=3), state)
    assert state.lds.tobytes() == struct.pack("<II", 0x12345678, 0x12345678)
    assert state.vgprs[3].tolist()[:3] == [0x12345678, 0x12345678, 0]


def test_matrix_product() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-4, 5, (16, 16)).astype(np.float32) for _ in range(3))
    state = WaveState()
    for lane in range(32):
        state.vgprs[8:16, lane] = a[lane % 16].astype(np.float16).view(np.uint32)
        state.vgprs[16:24, lane] = b[:, lane % 16].astype(np.float16).copy().view(np.uint32)
        for register in range(8):
            state.vgprs[24 + register, lane] = c[2 * register + lane // 16, lane % 16].view(
                np.uint32
            )
    words = asm.vop3p("v_wmma_f32_16x16x16_f16", 32, [asm.v(8), asm.v(16), asm.v(24)])
    one(words, state)
    for lane in range(32):
        for register in range(8):
            found = state.vgprs[32 + register, lane : lane + 1].view(np.float32)[0]
            assert found == (a @ b + c)[2 * register + lane // 16, lane % 16]


# Programs --------------------------------------------------------------------------------------


def program(*instructions: asm.Encoded) -> bytes:
    return np.array([word for words in instructions for word in words], np.uint32).tobytes()


def test_barrier_orders_the_waves_of_a_group() -> None:
    code = program(
        asm.ds("ds_store_b32", addr=1, data=2),
        asm.sopp("s_barrier"),
        asm.ds("ds_load_b32", addr=3, dst=4),
        asm.sopp("s_endpgm"),
    )
    lds = np.zeros(1024, np.uint8)
    waves = [WaveState(lds=lds) for _ in range(2)]
    for number, wave in enumerate(waves):
        wave.vgprs[1] = np.arange(32) * 4 + 128 * number
        wave.vgprs[2] = np.arange(32) + 1000 * number
        wave.vgprs[3] = np.arange(32) * 4 + 128 * (1 - number)
    run_group(code, waves)
    assert waves[0].vgprs[4].tolist() == (np.arange(32) + 1000).tolist()
    assert waves[1].vgprs[4].tolist() == np.arange(32).tolist()


def test_a_loop_that_does_not_end_is_reported() -> None:
    with pytest.raises(NotSupported, match="more instructions"):
        run(program(asm.sopp("s_branch", 0xFFFF)), WaveState(), limit=100)


def test_what_is_not_modelled_says_so() -> None:
    with pytest.raises(NotSupported, match="s_setkill"):
        one(asm.sopp("s_setkill", 0), WaveState())
    with pytest.raises(NotSupported, match="rounding"):
        state = WaveState()
        one(asm.sopp("s_round_mode", 3), state)
        one(asm.vop2("v_add_f32", 1, asm.v(2), 3), state)
