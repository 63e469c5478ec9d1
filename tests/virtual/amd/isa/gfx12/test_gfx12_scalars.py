"""Instructions of gfx12 for which no compiler was needed to show what they do: scalar floats, bytes
rounded by chance, lanes permuted by a register. Results by hand from the RDNA4 ISA document."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.targets.target import target
from ugpu.virtual.amd.shader import Dispatch, Ending
from ugpu.virtual.shader.memory import Abort

CODE, OUT, SCRATCH = (0x7E00_0000_0000 + 0x20_0000_0000 * k for k in range(3))
NAN, SIGNALLING = 0x7FC0_0001, 0x7F80_0001
V0, S8 = 256, 8


@pytest.fixture(scope="module")
def core() -> GfxCore:
    return GfxCore(workers=1, target=target("gfx12"))


def _number(encoding: str, name: str) -> int:
    rows = target("gfx12").table(encoding)
    return next(number for number, row in rows.items() if row.name == name)


def _scalar(name: str, first: int, second: int, before: int = 0) -> list[int]:
    """s8 = name(first, second), s8 holding `before`; then v1 = s8."""
    move = 0xBE800000 | 255  # s_mov_b32 with a literal
    operation = 0x80000000 | _number("SOP2", name) << 23 | S8 << 16 | 10 << 8 | 9
    return [
        move | 8 << 16, before, move | 9 << 16, first, move | 10 << 16, second, operation,
        0x7E000000 | 1 << 17 | _number("VOP1", "v_mov_b32") << 9 | S8,
    ]  # fmt: skip


def _vector(name: str, first: int = 0, op_sel: int = 0) -> list[int]:
    """v1 = name(v<first>, v2)."""
    word = 0xD4000000 | _number("VOP3", name) << 16 | op_sel << 11 | 1
    return [word, V0 + first | (V0 + 2) << 9]


def _run(core: GfxCore, words: list[int], rsrc1: int = 0) -> list[int]:
    """Run code in 32 lanes, v0 the lane; return v1 of each. rsrc1: further bits."""
    store = [0xEE068000, 1 << 23, 3]  # global_store_b32 v3, v1, s[0:1]
    shift = 0x30000000 | 3 << 17 | 0 << 9 | 130  # v_lshlrev_b32 v3, 2, v0
    code = struct.pack(f"<{len(words) + 5}I", *words, shift, *store, 0xBFB00000)
    memory = ArrayMemory()
    memory.map(CODE, np.frombuffer(code.ljust(4096, b"\0"), np.uint8), False, executable=True)
    out = memory.map(OUT, np.zeros(32, np.uint32))
    memory.map(SCRATCH, np.zeros(1024, np.uint32))
    dispatch = Dispatch(
        code_address=CODE, groups=(1, 1, 1), threads=(32, 1, 1), rsrc1=3 | 0xF0 << 12 | rsrc1,
        rsrc2=2 << 1 | 1, rsrc3=0, user_data=[OUT & 0xFFFFFFFF, OUT >> 32, *[0] * 14], wave32=True,
        scratch_base=SCRATCH, scratch_wave_size=4096, scratch_waves=1,
    )  # fmt: skip
    outcome = core.run(dispatch, memory, Abort())
    assert outcome.ending is Ending.DONE, outcome
    return [int(value) for value in out]


@pytest.mark.parametrize(
    ("name", "first", "second", "result"),
    [
        ("s_min_num_f32", SIGNALLING, 0x40000000, 0x40000000),
        ("s_max_num_f32", SIGNALLING, 0xFFC00001, NAN),
        ("s_min_num_f32", 0, 1 << 31, 1 << 31),
        ("s_minimum_f32", 0x40000000, SIGNALLING, NAN),
        ("s_maximum_f32", 0xFFC00000, SIGNALLING, NAN),
        ("s_maximum_f16", 0x3C00, 0x7D00, 0x7F00),
        ("s_cvt_pk_rtz_f16_f32", 0x477FEFFF, 0xC77FF000, 0xFBFF7BFF),
        ("s_cvt_pk_rtz_f16_f32", 0x7F800000, 0x3F801FFF, 0x3C007C00),
    ],
)
def test_scalar_operations(core: GfxCore, name: str, first: int, second: int, result: int) -> None:
    assert _run(core, _scalar(name, first, second))[0] == result


def test_fused_halves_are_rounded_once(core: GfxCore) -> None:
    """1 + 2^-10 times itself, minus 1 + 2^-9, is 2^-20: gone if the product were rounded."""
    assert _run(core, _scalar("s_fmac_f16", 0x3C01, 0x3C01, 0xBC02))[0] == 0x0010


def test_bytes_rounded_by_chance(core: GfxCore) -> None:
    """Bits 31 to 12 of the second source are added to the mantissa of 1.0, here a bit more than
    half of what an e4m3 tells apart; the other bytes stay."""
    move = 0x7E000000 | _number("VOP1", "v_mov_b32") << 9
    words = [move | 2 << 17 | 255, 0x8000_1000, move | 4 << 17 | 242]  # v4 = 1.0
    words += [move | 1 << 17 | 255, 0x1122_3344]
    for byte in range(4):
        found = _run(core, words + _vector("v_cvt_sr_fp8_f32", 4, op_sel=byte << 2))
        expected = 0x11223344 & ~(0xFF << 8 * byte) | 0x39 << 8 * byte
        assert found == [expected] * 32


@pytest.mark.parametrize(
    ("name", "turn"), [("v_permlane16_var_b32", 0), ("v_permlanex16_var_b32", 16)]
)
def test_lanes_permuted_by_a_register(core: GfxCore, name: str, turn: int) -> None:
    reverse = 0x7E000000 | 2 << 17 | _number("VOP1", "v_not_b32") << 9 | V0  # v2 = ~v0
    found = _run(core, [reverse, *_vector(name)])
    assert found == [(lane & 16 | ~lane & 15) ^ turn for lane in range(32)]


@pytest.mark.parametrize(
    ("omod", "first", "result"),
    [
        (1, 0x3FC00000, 0x40400000),  # 1.5
        (2, 0xC0400000, 0xC1400000),  # -3
        (3, 0x3FC00000, 0x3F400000),
        (1, 1 << 31, 0),  # -0
        (3, 0x80800000, 0),  # minus the least normal number
        (2, 0x7F000000, 0x7F800000),
    ],
)
def test_output_modifiers_work_where_denormals_are_kept(
    core: GfxCore, omod: int, first: int, result: int
) -> None:
    """RDNA4 ISA document, 7.2.3.1: in any mode, with denormals flushed, and -0 as +0."""
    add = _vector("v_add_f32", first=2)
    add[1] = V0 + 2 | 128 << 9 | omod << 27  # v1 = v2 + 0
    if first == 1 << 31:
        add[1] = V0 + 2 | (V0 + 2) << 9 | omod << 27  # -0 + -0 is -0
    assert _run(core, [0x7E000000 | 2 << 17 | 1 << 9 | 255, first, *add])[0] == result


@pytest.mark.parametrize(("overflow", "half", "byte"), [(0, 0x7C00, 0x7F), (1, 0x7BFF, 0x7E)])
@pytest.mark.parametrize("omod", [0, 1, 3])
def test_the_descriptor_limits_too_large_numbers(
    core: GfxCore, overflow: int, half: int, byte: int, omod: int
) -> None:
    """FP16_OVFL, bit 26 of RSRC1: 60000 + 60000 as halves, scaled behind that; 1e9 as e4m3."""
    move = 0x7E000000 | _number("VOP1", "v_mov_b32") << 9
    halves = [move | 2 << 17 | 255, 0x7B53, *_vector("v_add_f16", first=2)]
    halves[-1] |= omod << 27
    limit = half if omod < 3 or not overflow else 0x77FF  # half of the largest
    found = _run(core, [move | 1 << 17 | 128, *halves], overflow << 26)
    assert found == [limit] * 32
    bytes_ = [move | 2 << 17 | 255, 0x4E6E6B28, *_vector("v_cvt_pk_fp8_f32", first=2)]
    found = _run(core, [move | 1 << 17 | 128, *bytes_], overflow << 26)
    assert found == [byte * 0x101] * 32


@pytest.mark.parametrize("first", [4, 28])
@pytest.mark.parametrize("space", ["global", "scratch"])
def test_blocks_of_registers_skip_holes(core: GfxCore, first: int, space: str) -> None:
    """The pseudocode of GLOBAL_LOAD_BLOCK: register i moves if bit i of M0 is set. Of 32 registers
    the wave has what is left behind `first`."""
    move = 0x7E000000 | _number("VOP1", "v_mov_b32") << 9
    fill = [word for k in range(4) for word in (move | first + k << 17 | 255, 0x100 + k)]
    place = 0x30000000 | 3 << 17 | 0 << 9 | 128 + 7  # v_lshlrev_b32 v3, 7, v0
    m0 = 0xBE800000 | 125 << 16 | 128  # s_mov_b32 m0, inline constant
    store = [0xEE150000, first << 23, 3]  # global_store_block v[first...], v3, s[0:1]
    load = [0xEE14C000, first, 3]
    if space == "scratch":  # without an address
        store, load = [0xED15007C, first << 23, 0], [0xED14C07C, first, 0]
    again = [word for k in range(4) for word in (move | first + k << 17 | 255, 0x10 << 4 * k)]
    add = _number("VOP2", "v_add_nc_u32") << 25 | 1 << 17 | 1 << 9
    words = [
        *fill, place, m0 | 0b1101, *store, 0xBFC20000, *again, m0 | 0b0110, *load, 0xBFC00000,
        move | 1 << 17 | 128, *(add | V0 + first + k for k in range(4)),
    ]  # fmt: skip
    # Loaded: register 1, which was not stored and reads zero, and register 2.
    assert _run(core, words) == [0x10 + 0 + 0x102 + 0x10000] * 32
