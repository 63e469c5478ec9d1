"""Vector ALU instructions for the oracle: operands, DPP, comparisons, lane traffic, results.

Source: RDNA3 ISA document, chapters "Vector ALU operations" and "Data parallel processing (DPP)".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.oracles.gfx11 import float as fp
from lab.oracles.gfx11 import integer as integers
from lab.oracles.gfx11 import number as numbers
from lab.oracles.gfx11.packed import dot_pairs, execute_matrix, execute_packed
from lab.oracles.gfx11.state import LANE, LANES, Lanes, WaveState, flush, to_lanes
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.amd.isa.decoder.formats import Dpp8, Dpp16, Format, Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand, Type

_FLOAT_TYPES = (Type.F16, Type.F32, Type.F64)
_RELATIVE = {
    "v_movrels_b32", "v_movreld_b32", "v_movrelsd_b32", "v_movrelsd_2_b32", "v_swaprel_b32",
}  # fmt: skip
_LANE_MOVES = _RELATIVE | {
    "v_readlane_b32", "v_readfirstlane_b32", "v_writelane_b32", "v_permlane16_b32",
    "v_permlanex16_b32", "v_permlane64_b32", "v_swap_b16", "v_swap_b32",
}  # fmt: skip


def execute_vector(instruction: Instruction, state: WaveState) -> None:
    """Execute one vector ALU instruction."""
    state.mode.check()
    with np.errstate(all="ignore"):
        if instruction.x is not None and instruction.y is not None:
            results = [_result(half, state) for half in (instruction.x, instruction.y)]
            for half, (values, _, active) in zip(
                (instruction.x, instruction.y), results, strict=True
            ):
                if half.dst is not None:
                    state.write_lanes(half.dst, values, active)
        elif instruction.name in ("v_nop", "v_pipeflush"):
            return
        elif instruction.name.startswith("v_cmp"):
            _compare(instruction, state)
        elif instruction.name in _LANE_MOVES:
            _move_lanes(instruction, state)
        elif instruction.name.startswith("v_wmma"):
            execute_matrix(instruction, state)
        else:
            values, flags, active = _result(instruction, state)
            if instruction.dst is not None:
                state.write_lanes(instruction.dst, values, active)
            if instruction.sdst is not None and flags is not None:
                state.write_mask(instruction.sdst, flags & active)


# Sources -------------------------------------------------------------------------------------


def _sources(
    instruction: Instruction, state: WaveState, raw: bool = False
) -> tuple[list[Lanes], Lanes]:
    """Return the sources and the lanes that execute (fewer than EXEC's when DPP disables some)."""
    active = state.active
    values: list[Lanes] = []
    for number, operand in enumerate(instruction.srcs):
        if operand.type is Type.MASK:
            values.append(state.read_lanes(operand))
            continue
        bits = state.read_bits(operand)
        if number == 0 and instruction.dpp is not None:
            bits, active = permute(instruction.dpp, bits, state.active)
        values.append(bits if raw else state.as_type(operand, bits))
    return values, active


def permute(dpp: Dpp16 | Dpp8, bits: Lanes, active: Lanes) -> tuple[Lanes, Lanes]:
    """Move a source between lanes as DPP says; return it and the lanes that are written."""
    if isinstance(dpp, Dpp8):
        origin = LANE // 8 * 8 + np.array(dpp.selectors)[LANE % 8]
        readable = active[origin] | dpp.fetch_inactive
        return np.where(readable, bits[origin], bits.dtype.type(0)), active
    origin, inside = _dpp16_origin(dpp.control)
    readable = inside & (active[origin] | dpp.fetch_inactive)
    moved = np.where(readable, bits[origin], bits.dtype.type(0))
    enabled = (dpp.row_mask >> LANE // 16 & 1) & (dpp.bank_mask >> LANE % 16 // 4 & 1)
    return moved, active & enabled.astype(bool) & (readable | dpp.bound_ctrl)


def _dpp16_origin(control: int) -> tuple[Lanes, Lanes]:
    """Return the source lane of each lane, and whether it lies within the row."""
    row, place, count = LANE // 16 * 16, LANE % 16, control & 0xF
    if control < 0x100:
        quad = np.array([control >> 2 * lane & 3 for lane in range(4)])
        origin = place // 4 * 4 + quad[place % 4]
    elif control >> 4 == 0x10:  # row_shl: data moves towards lane 0
        origin = place + count
    elif control >> 4 == 0x11:  # row_shr
        origin = place - count
    elif control >> 4 == 0x12:  # row_ror
        origin = (place - count) % 16
    elif control == 0x140:
        origin = 15 - place
    elif control == 0x141:
        origin = place ^ 7
    elif control >> 4 == 0x15:
        origin = np.full(LANES, count)
    else:
        origin = place ^ count
    inside = (origin >= 0) & (origin < 16)
    return row + np.clip(origin, 0, 15), inside


# Results -------------------------------------------------------------------------------------


def _result(instruction: Instruction, state: WaveState) -> tuple[Lanes, Lanes | None, Lanes]:
    """Return the values for dst, the lane flags for sdst (or None), and the lanes to write."""
    name = instruction.name.replace("v_dual_", "v_")
    if instruction.format is Format.VOP3P and "_mix" not in name:
        raw, active = _sources(instruction, state, raw=True)
        return execute_packed(instruction, state, raw), None, active
    sources, active = _sources(instruction, state)
    flags: Lanes | None = None
    if name.startswith(("v_add_co", "v_sub_co", "v_subrev_co", "v_mad_u64", "v_mad_i64")):
        values, flags = integers.with_carry(name, sources)
        return values, flags, active
    if name.startswith("v_div_scale"):
        values, flags = numbers.div_scale(*sources)
    else:
        values = _values(name, instruction, state, sources)
    return _finished(instruction, state, values), flags, active


def _values(name: str, instruction: Instruction, state: WaveState, sources: list[Lanes]) -> Lanes:
    found = integers.saturating(name, sources, instruction.clamp)
    if found is not None:
        return found
    if name in integers.operations():
        return integers.operations()[name](*sources)
    if name in numbers.operations():
        return numbers.operations(state.mode.ieee)[name](*sources)
    if name.startswith("v_cndmask"):
        return np.where(sources[2], sources[1], sources[0])
    if name.startswith("v_div_fmas"):
        first, second, third = sources
        return numbers.div_fmas(first, second, third, to_lanes(state.vcc))
    if name.startswith(("v_fmac", "v_pk_fmac", "v_dot2acc")):
        return _accumulated(name, instruction, state, sources)
    if name.startswith("v_fmamk"):
        return fp.fma(sources[0], sources[1], sources[2])
    if name.startswith("v_fmaak"):
        return fp.fma(sources[0], sources[1], sources[2])
    if name.startswith("v_fma_mix"):
        exact = fp.fma(*(source.astype(np.float32) for source in sources))
        return exact if name == "v_fma_mix_f32" else exact.astype(np.float16)
    if name == "v_dot2_f16_f16":
        total = dot_pairs(
            sources[0],
            sources[1],
            sources[2],
            False,
            lambda x: x.astype(np.float16).astype(np.float32),
        )
        return total.astype(np.float16)
    if name == "v_dot2_bf16_bf16":
        total = fp.bf16_to_f32(sources[2])
        brains = dot_pairs(*sources[:2], total, True, lambda x: fp.bf16_to_f32(fp.f32_to_bf16(x)))
        return fp.f32_to_bf16(brains)
    raise NotSupported("the oracle does not execute", instruction=instruction.name)


def _accumulated(
    name: str, instruction: Instruction, state: WaveState, sources: list[Lanes]
) -> Lanes:
    if instruction.dst is None:
        raise NotSupported("no destination to accumulate into", instruction=name)
    old = state.read_lanes(instruction.dst)
    if name.startswith("v_dot2acc"):
        return dot_pairs(sources[0], sources[1], old, name.endswith("bf16"), lambda x: x)
    if name.startswith("v_pk_fmac"):
        pairs = [words.view(np.float16).reshape(LANES, 2) for words in (*sources, old)]
        halves = [fp.fma(*(pair[:, half].copy() for pair in pairs)) for half in (0, 1)]
        return np.ascontiguousarray(np.stack(halves, axis=1)).view(np.uint32).reshape(LANES)
    if name == "v_fmac_dx9_zero_f32":
        return numbers.operations()["v_fma_dx9_zero_f32"](*sources, old)
    return fp.fma(sources[0], sources[1], old)


def _finished(instruction: Instruction, state: WaveState, values: Lanes) -> Lanes:
    """Apply output modifiers and the flushing of denormals to a floating-point result."""
    dst = instruction.dst
    if dst is None or dst.type not in _FLOAT_TYPES:
        return values
    keeps = state.mode.denormals(dst.type) & 2
    if instruction.omod and not keeps and not state.mode.ieee:  # else it is ignored
        factor = (1, 2, 4, 0.5)[instruction.omod]
        values = flush(fp.multiply(values, np.full(LANES, factor, values.dtype)))
        values = np.where(values == 0, np.zeros_like(values), values)  # -0 becomes +0 too
    if instruction.clamp:
        values = fp.clamped(values, state.mode.dx10_clamp)
    moves = ("v_cndmask", "v_mov", "v_writelane")
    return values if keeps or instruction.name.startswith(moves) else flush(values)


# Comparisons ---------------------------------------------------------------------------------


def _compare(instruction: Instruction, state: WaveState) -> None:
    sources, active = _sources(instruction, state)
    _, condition, kind = instruction.name.split("_")[1:]
    if condition == "class":
        found = fp.classify(sources[0], sources[1])
    elif kind[0] == "f":
        found = _float_condition(condition, sources[0], sources[1])
    else:
        bits = int(kind[1:])
        if kind[0] == "i":
            first, second = (source.view(f"int{bits}") for source in sources)
        else:
            first, second = sources
        found = _condition(condition, first, second)
    if instruction.sdst is not None:
        state.write_mask(instruction.sdst, found & active)


def _condition(condition: str, first: Lanes, second: Lanes) -> Lanes:
    table: dict[str, Lanes] = {
        "f": np.zeros(LANES, bool),
        "t": np.ones(LANES, bool),
        "lt": first < second,
        "eq": first == second,
        "le": first <= second,
        "gt": first > second,
        "ne": first != second,
        "ge": first >= second,
    }
    return table[condition]


def _float_condition(condition: str, first: Lanes, second: Lanes) -> Lanes:
    unordered = np.isnan(first) | np.isnan(second)
    if condition in ("o", "u"):
        return np.array(unordered == (condition == "u"))
    if condition == "lg":
        return np.array(~(unordered | (first == second)))
    negated = {"nge": "ge", "nlg": "lg", "ngt": "gt", "nle": "le", "neq": "eq", "nlt": "lt"}
    if condition in negated:
        return np.logical_not(_float_condition(negated[condition], first, second))
    return _condition(condition, first, second)


# Traffic between lanes -----------------------------------------------------------------------


def _first_lane(state: WaveState) -> int:
    return (state.exec & -state.exec).bit_length() - 1 if state.exec else 0


def _move_lanes(instruction: Instruction, state: WaveState) -> None:
    name, dst = instruction.name, instruction.dst
    if dst is None:
        raise NotSupported("no destination", instruction=name)
    source = state.read_bits(instruction.srcs[0])
    if name == "v_readfirstlane_b32":
        state.write_scalar(dst, int(source[_first_lane(state)]))
    elif name == "v_readlane_b32":
        lane = int(state.read_bits(instruction.srcs[1])[0]) & (LANES - 1)
        state.write_scalar(dst, int(source[lane]))
    elif name == "v_writelane_b32":
        lane = int(state.read_bits(instruction.srcs[1])[0]) & (LANES - 1)
        state.write_lanes(dst, source, np.equal(LANE, lane))
    elif name in ("v_swap_b16", "v_swap_b32"):
        old = state.read_bits(dst)
        state.write_lanes(dst, source)
        state.write_lanes(replace(instruction.srcs[0]), old)
    elif name in _RELATIVE:
        _move_relative(instruction, state, dst)
    elif name != "v_permlane64_b32":  # that one does nothing in wave32
        _permlane(instruction, state, source)


def _move_relative(instruction: Instruction, state: WaveState, dst: Operand) -> None:
    """Move between registers whose numbers M0 is added to, wholly or by two 10-bit fields."""
    both = instruction.name in ("v_movrelsd_2_b32", "v_swaprel_b32")
    from_offset = state.m0 & 0x3FF if both else state.m0
    to_offset = state.m0 >> 16 & 0x3FF if both else state.m0
    source = instruction.srcs[0]
    if instruction.name != "v_movreld_b32":
        source = _relative(source, from_offset)
    target = dst if instruction.name == "v_movrels_b32" else _relative(dst, to_offset)
    old, values = state.read_bits(target), state.read_bits(source)
    state.write_lanes(target, values)
    if instruction.name == "v_swaprel_b32":
        state.write_lanes(source, old)


def _relative(operand: Operand, offset: int) -> Operand:
    index = operand.index + offset
    if operand.kind is not Kind.VGPR or not 0 <= index < 256:
        raise NotSupported("a relative register beyond v255", index=index)
    return replace(operand, index=index)


def _permlane(instruction: Instruction, state: WaveState, source: Lanes) -> None:
    selectors = [int(state.read_bits(operand)[0]) for operand in instruction.srcs[1:]]
    chosen = selectors[0] | selectors[1] << 32
    place = np.array([chosen >> 4 * lane & 15 for lane in range(16)])[LANE % 16]
    row = LANE // 16 ^ (1 if instruction.name == "v_permlanex16_b32" else 0)
    origin = row * 16 + place
    fetch_inactive, bound_ctrl = bool(instruction.op_sel[0]), bool(instruction.op_sel[1])
    readable = state.active[origin] | fetch_inactive
    if instruction.dst is not None:
        values = np.where(readable, source[origin], np.uint32(0))
        state.write_lanes(instruction.dst, values, state.active & (readable | bound_ctrl))
