"""The decoder's fields, held against words assembled by hand from the ISA document."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ugpu.virtual.amd.isa.decoder.decode import LONGEST, decode
from ugpu.virtual.amd.isa.decoder.disassembly import text
from ugpu.virtual.amd.isa.decoder.formats import (
    Dpp8,
    Dpp16,
    Format,
    Instruction,
    UnknownInstruction,
)
from ugpu.virtual.amd.isa.decoder.operands import Kind, Type


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


@pytest.mark.parametrize(
    ("encoded", "shown"),
    [
        ((0xBFB00000,), "s_endpgm"),
        ((0x7E0002F2,), "v_mov_b32_e32 v0, 1.0"),
        ((0x7E0002FF, 0x12345678), "v_mov_b32_e32 v0, 0x12345678"),
        ((0x060A0401,), "v_add_f32_e32 v5, s1, v2"),
        ((0x650A0481,), "v_add_f16_e32 v5.h, 1, v2.l"),
        ((0xD5010000, 0x01AA0501), "v_cndmask_b32_e64 v0, v1, v2, vcc_lo"),
        ((0xD6130005, 0x20000503), "v_fma_f32 v5, -v3, s2, s0"),
        ((0xCC0E4005, 0x1C0E0503), "v_pk_fma_f16 v5, v3, v2, v3"),
        ((0xF4040002, 0xF8000008), "s_load_b64 s[0:1], s[4:5], 0x8"),
        ((0xF4040002, 0x08000008), "s_load_b64 s[0:1], s[4:5], s4 offset:0x8"),
        ((0xDC521FF8, 0x057C0003), "global_load_b32 v5, v[3:4], off offset:-8"),
        ((0xDC520010, 0x05020003), "global_load_b32 v5, v3, s[2:3] offset:16"),
        ((0xD8DC0302, 0x05000003), "ds_load_2addr_b32 v[5:6], v3 offset0:2 offset1:3"),
        ((0xBE8004FD,), "s_brev_b32 s0, src_scc"),
        ((0xB0008000,), "s_movk_i32 s0, 0x8000"),
    ],
)
def test_hand_assembled_words(encoded: tuple[int, ...], shown: str) -> None:
    found = decode(words(*encoded))
    assert text(found) == shown
    assert found.size == 4 * len(encoded)


def test_constants_take_the_type_of_their_operand() -> None:
    def bits(*encoded: int) -> int:
        return decode(words(*encoded)).srcs[0].value

    assert bits(0x7E0002F2) == 0x3F800000  # v_mov_b32 1.0
    assert bits(0x7E00A8F2) == 0x3C00  # v_rcp_f16 1.0
    assert bits(0x7E0030F2) == 0x3FF0000000000000  # v_ceil_f64 1.0
    assert bits(0x7E0030C1) == 0xFFFF_FFFF_FFFF_FFFF  # v_ceil_f64 -1
    assert bits(0x7E0002C1) == 0xFFFF_FFFF  # v_mov_b32 -1
    assert bits(0x7E0030FF, 0x40490FDB) == 0x40490FDB_00000000  # v_ceil_f64 literal
    assert bits(0xBE8001FF, 0x80000000) == 0x80000000  # s_mov_b64 literal


def test_dpp16_fields() -> None:
    found = decode(words(0x020202FA, 0xA5641B01))
    assert found.name == "v_cndmask_b32"
    assert found.dpp == Dpp16(0x01B, 0xA, 0x5, bound_ctrl=False, fetch_inactive=True)
    assert found.srcs[0].index == 1
    assert (found.srcs[0].absolute, found.srcs[1].neg) == (True, True)
    assert found.srcs[2].kind is Kind.VCC


def test_dpp8_fields() -> None:
    found = decode(words(0x060202EA, 0xFAC68805))
    assert found.dpp == Dpp8((0, 1, 2, 3, 4, 5, 6, 7), fetch_inactive=True)
    assert found.srcs[0].index == 5


def test_branch_target_is_a_byte_offset() -> None:
    code = words(0xBF800000, 0xBF800000, 0xBFA0FFFD)
    assert decode(code, 8).branch_target == 0
    assert decode(words(0xBFA10003)).branch_target == 16


def test_vopd_halves() -> None:
    # v_dual_fmac_f32 v4, v1, v0 :: v_dual_mul_f32 v3, v3, v2
    found = decode(words(0xC8060101, 0x04020503))
    assert found.format is Format.VOPD
    assert found.name == "v_dual_fmac_f32::v_dual_mul_f32"
    assert found.x is not None and found.y is not None
    assert (found.x.dst, found.y.dst) != (None, None)
    assert found.x.dst is not None and found.x.dst.index == 4
    assert found.y.dst is not None and found.y.dst.index == 3
    assert [source.index for source in found.y.srcs] == [3, 2]


def test_flat_atomic_returns_only_with_glc() -> None:
    assert decode(words(0xDCD60000, 0x057C0203)).dst is None
    returned = decode(words(0xDCD64000, 0x057C0203)).dst
    assert returned is not None and returned.index == 5


@pytest.mark.parametrize(
    "encoded",
    [
        (0xFFFFFFFF,),
        (0x7E0002FF,),  # the literal is missing
        (0xD5010000,),
        (0xF40C0000 | 105 << 6, 0xF8000000),  # s[105:112]
        (0x7E0002D1,),  # unknown source
        (0xBF860000,),  # no such SOPP
    ],
)
def test_what_is_no_instruction_is_refused(encoded: tuple[int, ...]) -> None:
    with pytest.raises(UnknownInstruction) as caught:
        decode(words(*encoded))
    assert caught.value.pc == 0
    assert caught.value.words[0] == encoded[0]


def _check(code: bytes) -> None:
    try:
        found = decode(code)
    except UnknownInstruction as error:
        assert error.pc == 0
        return
    assert isinstance(found, Instruction)
    assert 4 <= found.size <= min(LONGEST, len(code))
    assert found.words == struct.unpack(f"<{found.size // 4}I", code[: found.size])
    assert text(found).startswith(found.name.split("::")[0])
    for operand in (found.dst, found.sdst, *found.srcs, found.addr, found.data, found.data1):
        if operand is not None and operand.kind in (Kind.VGPR, Kind.SGPR):
            limit = 256 if operand.kind is Kind.VGPR else 106
            assert operand.index >= 0
            assert operand.index + operand.width <= limit
        if operand is not None and operand.is_constant:
            assert 0 <= operand.value < 1 << max(32, operand.type.bits)
        if operand is not None and operand.high:
            assert operand.type.bits == 16 or operand.type is Type.F16


@given(st.binary(max_size=20))
@example(b"")
@example(b"\x00")
def test_any_bytes_decode_or_are_refused(code: bytes) -> None:
    _check(code)


TOPS = (
    0x7E,
    0x7C,
    0x00,
    0xD4,
    0xD5,
    0xD6,
    0xD7,
    0xCC,
    0xC8,
    0xC9,
    0xD8,
    0xDC,
    0xE0,
    0xF4,
    0xBE,
    0xB0,
)


@given(st.sampled_from(TOPS), st.binary(min_size=19, max_size=19))
def test_any_bytes_of_each_encoding_decode_or_are_refused(top: int, rest: bytes) -> None:
    _check(rest[:3] + bytes([top]) + rest[3:])
