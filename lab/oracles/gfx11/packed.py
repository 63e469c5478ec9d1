"""Packed, mixed, dot-product and matrix operations (VOP3P and their relatives) for the oracle.

Source: RDNA3 ISA document, chapters "Vector ALU operations" and "Wave matrix multiply accumulate".
Sums of products of matrices are made in double precision and rounded once, where the document
leaves order and intermediate rounding open; those of pairs are rounded step by step, as in its
pseudocode; integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lab.oracles.gfx11 import float as fp
from lab.oracles.gfx11 import integer as integers
from lab.oracles.gfx11.state import LANES, Lanes, WaveState
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand, Type

_SIGN = np.uint16(0x8000)


def _half(words: Lanes, upper: int) -> Lanes:
    found: Lanes = (words >> np.uint32(16 if upper else 0)).astype(np.uint16)
    return found


def _join(low: Lanes, high: Lanes) -> Lanes:
    low_bits, high_bits = low.view(np.uint16), high.view(np.uint16)
    found: Lanes = low_bits.astype(np.uint32) | high_bits.astype(np.uint32) << np.uint32(16)
    return found


def execute_packed(instruction: Instruction, state: WaveState, sources: list[Lanes]) -> Lanes:
    """Return what a VOP3P instruction (no matrix, no mix) writes; sources are raw 32-bit words."""
    name = instruction.name
    if name.startswith("v_pk_"):
        halves = [_packed_half(instruction, state, sources, upper) for upper in (0, 1)]
        return _join(*halves)
    if name in ("v_dot4_i32_iu8", "v_dot4_u32_u8"):
        return _integer_dot(instruction, sources, 8)
    if name in ("v_dot8_i32_iu4", "v_dot8_u32_u4"):
        return _integer_dot(instruction, sources, 4)
    if name in ("v_dot2_f32_f16", "v_dot2_f32_bf16"):
        return _float_dot(instruction, state, sources)
    raise NotSupported("the oracle does not execute", instruction=name)


def _packed_half(
    instruction: Instruction, state: WaveState, sources: list[Lanes], upper: int
) -> Lanes:
    selectors = instruction.op_sel_hi if upper else instruction.op_sel
    negated = instruction.neg_hi if upper else instruction.neg_lo
    halves = [_half(words, selectors[number]) for number, words in enumerate(sources)]
    stem, kind = instruction.name[len("v_pk_") :].rsplit("_", 1)
    if kind == "f16":
        numbers = []
        for number, bits in enumerate(halves):
            if negated[number]:
                bits = bits ^ _SIGN
            numbers.append(_flushed(bits.view(np.float16), state))
        if stem in ("min", "max"):
            extreme = fp.minimum if stem == "min" else fp.maximum
            result = extreme(numbers[0], numbers[1], state.mode.ieee)
        else:
            result = _FLOATS[stem](*numbers)
        if instruction.clamp:
            result = fp.clamped(result, state.mode.dx10_clamp)
        return _flushed(result, state, result=True)
    saturated = {"mad": f"v_mad_{kind}", "add": f"v_add_nc_{kind}", "sub": f"v_sub_nc_{kind}"}
    if stem in saturated:
        exact = integers.saturating(saturated[stem], halves, instruction.clamp)
        if exact is not None:
            return exact
    return integers.operations()[f"v_{stem}_{kind}"](*halves)


_FLOATS: dict[str, Callable[..., Lanes]] = {
    "add": fp.add,
    "mul": fp.multiply,
    "fma": fp.fma,
}


def _flushed(values: Lanes, state: WaveState, result: bool = False) -> Lanes:
    """Flush half-precision denormals where MODE asks for it."""
    if state.mode.denormals(Type.F16) & (2 if result else 1):
        return values
    tiny = fp.is_denormal(values)
    return np.where(tiny, np.copysign(np.float16(0), values), values)


def _nibbles(words: Lanes, bits: int, sign: bool) -> list[Lanes]:
    read = integers.signed if sign else (lambda values, _bits: integers.wide(values))
    mask = np.uint32((1 << bits) - 1)
    return [read(words >> np.uint32(shift) & mask, bits) for shift in range(0, 32, bits)]


def _integer_dot(instruction: Instruction, sources: list[Lanes], bits: int) -> Lanes:
    mixed = "_iu" in instruction.name
    first = _nibbles(sources[0], bits, mixed and bool(instruction.neg_lo[0]))
    second = _nibbles(sources[1], bits, mixed and bool(instruction.neg_lo[1]))
    total = integers.signed(sources[2]) if mixed else integers.wide(sources[2])
    for one, other in zip(first, second, strict=True):
        total = total + one * other
    if instruction.clamp:
        limits = (-0x8000_0000, 0x7FFF_FFFF) if mixed else (0, 0xFFFF_FFFF)
        total = np.clip(total, *limits)
    return integers.u32(total)


def _widen(bits: Lanes, brain: bool) -> Lanes:
    return fp.bf16_to_f32(bits) if brain else bits.view(np.float16).astype(np.float32)


def _float_dot(instruction: Instruction, state: WaveState, sources: list[Lanes]) -> Lanes:
    brain = instruction.name.endswith("bf16")
    total = state.as_type(instruction.srcs[2], sources[2]).astype(np.float32)
    if instruction.neg_lo[2]:
        total = -total
    for upper in (0, 1):
        selectors = instruction.op_sel_hi if upper else instruction.op_sel
        negated = instruction.neg_hi if upper else instruction.neg_lo
        product = np.ones(LANES, np.float32)
        for number in (0, 1):
            value = _widen(_half(sources[number], selectors[number]), brain).astype(np.float32)
            product = product * (-value if negated[number] else value)
        total = total + product
    return fp.clamped(total, state.mode.dx10_clamp) if instruction.clamp else total


def dot_pairs(
    first: Lanes, second: Lanes, total: Lanes, brain: bool, rounded: Callable[[Lanes], Lanes]
) -> Lanes:
    """Return total + the products of two packed pairs, in f32, for the shorter dot forms.

    rounded: rounds f32 to the type of the result; it is applied to each product and each sum.
    """
    result = total.astype(np.float32)
    with np.errstate(all="ignore"):
        for upper in (0, 1):
            one = _widen(_half(first, upper), brain).astype(np.float32)
            other = _widen(_half(second, upper), brain).astype(np.float32)
            result = rounded(result + rounded(one * other))
    return result


# Matrices ------------------------------------------------------------------------------------


def execute_matrix(instruction: Instruction, state: WaveState) -> None:
    """Execute v_wmma_*: D = A x B + C on 16 x 16 matrices, for the whole wave whatever EXEC is.

    Lane l holds row l % 16 of A and column l % 16 of B, its 16 elements packed into consecutive
    registers; both halves of the wave hold the same. Element (row, column) of C and D: with 8
    32-bit registers, register r of lane l is row 2r + l // 16, column l % 16; 16-bit results use
    the half of the register that op_sel of source 2 picks.
    """
    if instruction.dst is None:
        raise NotSupported("a matrix instruction without destination", name=instruction.name)
    result_kind, source_kind = instruction.name.split("_")[2], instruction.name.split("_")[4]
    first = _matrix(state, instruction, 0, source_kind)
    second = _matrix(state, instruction, 1, source_kind)
    total = _accumulator(state, instruction, result_kind)
    if result_kind == "i32":
        product = first.astype(np.int64) @ second.astype(np.int64).T + total.astype(np.int64)
        if instruction.clamp:
            product = np.clip(product, -0x8000_0000, 0x7FFF_FFFF)
        bits = integers.u32(product)
    else:
        exact = first.astype(np.float64) @ second.astype(np.float64).T + total.astype(np.float64)
        bits = _matrix_bits(exact, result_kind)
    _store_matrix(state, instruction, bits, result_kind)


def _matrix_bits(exact: Lanes, kind: str) -> Lanes:
    if kind == "f32":
        return exact.astype(np.float32).view(np.uint32)
    if kind == "f16":
        return exact.astype(np.float16).view(np.uint16)
    return fp.f32_to_bf16(exact.astype(np.float32))


def _registers(state: WaveState, operand: Operand) -> Lanes:
    """Return [register, lane] words of a source of several registers."""
    if operand.kind is Kind.VGPR:
        return state.vgprs[operand.index : operand.index + operand.width].copy()
    word = np.uint32(state.read_scalar(operand) & 0xFFFF_FFFF)
    return np.full((operand.width, LANES), word, np.uint32)


def _matrix(state: WaveState, instruction: Instruction, number: int, kind: str) -> Lanes:
    """Return A (or B transposed) as [row, element]."""
    words = _registers(state, instruction.srcs[number])[:, :16]
    if kind in ("iu8", "iu4"):
        bits = int(kind[2:])
        sign = bool(instruction.neg_lo[number])
        columns = [field for word in words for field in _nibbles(word, bits, sign)]
        return np.stack(columns, axis=1)
    halves = []
    for word in words:
        for upper in (0, 1):
            negated = (instruction.neg_hi if upper else instruction.neg_lo)[number]
            half = _half(word, upper) ^ (_SIGN if negated else np.uint16(0))
            halves.append(_widen(half, kind == "bf16"))
    return np.stack(halves, axis=1)


def _accumulator(state: WaveState, instruction: Instruction, kind: str) -> Lanes:
    """Return C as [row, column]."""
    operand = instruction.srcs[2]
    words = _registers(state, operand)
    total = np.zeros((16, 16), np.int64 if kind == "i32" else np.float64)
    for register in range(8):
        for lane in range(LANES):
            word = words[register, lane : lane + 1]
            if kind == "i32":
                value = integers.signed(word)[0]
            elif kind == "f32":
                value = word.view(np.float32)[0]
                value = abs(value) if instruction.neg_hi[2] else value
                value = -value if instruction.neg_lo[2] else value
            else:
                value = _widen(_half(word, instruction.op_sel[2]), kind == "bf16")[0]
            total[2 * register + lane // 16, lane % 16] = value
    return total


def _store_matrix(state: WaveState, instruction: Instruction, bits: Lanes, kind: str) -> None:
    if instruction.dst is None:
        return
    for register in range(8):
        words = state.vgprs[instruction.dst.index + register]
        for lane in range(LANES):
            value = np.uint32(bits[2 * register + lane // 16, lane % 16])
            if kind in ("f32", "i32"):
                words[lane] = value
            elif instruction.op_sel[2]:
                words[lane] = words[lane] & np.uint32(0xFFFF) | value << np.uint32(16)
            else:
                words[lane] = words[lane] & np.uint32(0xFFFF0000) | value
