"""Minima and maxima of gfx12, translated to LLVM IR.

The two families of IEEE 754-2019: `min_num` prefers a number to a NaN, `minimum` prefers a NaN;
both give quiet NaNs, and -0 is below +0. Source: RDNA4 ISA document, V_MAX_NUM_F32 and
V_MAXIMUM_F32.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.arithmetic.float import (
    QUIET,
    SUFFIXES,
    Function,
    chosen_of,
    extreme,
    signals,
)
from ugpu.virtual.amd.isa.translator.arithmetic.packed import packed
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.text import constant, integer_of

_Pair = Callable[[Registers, str, str, str], str]  # kind, a, b


def _quiet(e: Registers, kind: str, value: str) -> str:
    integer = integer_of(kind)
    bits = e.convert("bitcast", kind, integer, value)
    bits = e.binary("or", integer, bits, constant(integer, QUIET[kind]))
    return e.convert("bitcast", integer, kind, bits)


def _number(name: str) -> _Pair:
    """Return an emitter of min_num or max_num. name: "min" or "max"."""

    def function(e: Registers, kind: str, a: str, b: str) -> str:
        result = extreme(e, kind, name, a, b)
        unordered = e.compare("uno", kind, result, result)
        return e.select(unordered, kind, _quiet(e, kind, result), result)

    return function


def _strict(name: str) -> _Pair:
    """Return an emitter of minimum or maximum: a NaN wins, signalling ones first, then the first.

    name: "min" or "max".
    """

    def function(e: Registers, kind: str, a: str, b: str) -> str:
        result = extreme(e, kind, name, a, b)
        integer = integer_of(kind)
        bits = [e.convert("bitcast", kind, integer, value) for value in (a, b)]
        signalling = [signals(e, kind, each) for each in bits]
        unordered = [e.compare("uno", kind, value, value) for value in (a, b)]
        for condition, value in (
            (unordered[1], b), (unordered[0], a), (signalling[1], b), (signalling[0], a),
        ):  # fmt: skip
            result = e.select(condition, kind, _quiet(e, kind, value), result)
        return result

    return function


def _two(pair: _Pair) -> Function:
    return lambda e, kind, v: pair(e, kind, v[0], v[1])


def _three(first: _Pair, second: _Pair) -> Function:
    return lambda e, kind, v: second(e, kind, first(e, kind, v[0], v[1]), v[2])


def _packed_pair(pair: _Pair) -> Callable[[Registers, tuple[str, ...]], str]:
    return lambda e, v: pair(e, "half", v[0], v[1])


def _median(e: Registers, kind: str, v: tuple[str, ...]) -> str:
    """Return the median of three; if one is NaN, the smallest number of the others."""
    low, high = _number("min"), _number("max")
    least, most = low(e, kind, v[0], v[1]), high(e, kind, v[0], v[1])
    middle = high(e, kind, least, low(e, kind, most, v[2]))
    unordered = e.binary(
        "or", "i1", e.compare("uno", kind, v[0], v[1]), e.compare("uno", kind, v[2], v[2])
    )
    return e.select(unordered, kind, low(e, kind, least, v[2]), middle)


def _scalar(name: str, strict: bool, kind: str, bits: int) -> Handler:
    """Create an emitter of a scalar extreme. name: "min" or "max". strict: a NaN wins, signalling
    ones first; otherwise a number does. Of two NaNs the first wins, made quiet."""
    integer = f"i{bits}"
    quiet, largest = QUIET[kind], (1 << bits - 1) - 1

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        words = [e.scalar(operand) for operand in i.srcs]
        if bits == 16:
            words = [e.value(f"trunc i32 {word} to i16") for word in words]
        values = [e.value(f"bitcast {integer} {word} to {kind}") for word in words]
        intrinsic = f"llvm.{name}imumnum.f{bits}"  # of numbers, -0 below +0
        result = e.call(kind, intrinsic, *((kind, value) for value in values))
        chosen = e.value(f"bitcast {kind} {result} to {integer}")
        nans = [e.value(f"fcmp uno {kind} {value}, {value}") for value in values]
        quieted = [e.value(f"or {integer} {word}, {quiet}") for word in words]
        if strict:
            signalling = []
            for word in words:
                turned = e.value(
                    f"and {integer} {e.value(f'xor {integer} {word}, {quiet}')}, {largest}"
                )
                signalling.append(e.value(f"icmp ugt {integer} {turned}, {largest + 1 - quiet}"))
            order = [(nans[1], 1), (nans[0], 0), (signalling[1], 1), (signalling[0], 0)]
        else:
            order = [(e.value(f"and i1 {nans[0]}, {nans[1]}"), 0)]
        for condition, which in order:
            chosen = e.value(
                f"select i1 {condition}, {integer} {quieted[which]}, {integer} {chosen}"
            )
        e.set_scalar(i.dst, e.value(f"zext i16 {chosen} to i32") if bits == 16 else chosen)

    return emit


def handlers() -> dict[str, Handler]:
    """Return this module's handlers by instruction name."""
    found: dict[str, Handler] = {}
    low, high = _number("min"), _number("max")
    minimum, maximum = _strict("min"), _strict("max")
    for suffix, kind in SUFFIXES.items():
        for name, pair in (("min", low), ("max", high)):
            found[f"v_{name}_num_{suffix}"] = chosen_of(kind, 2, _two(pair))
            found[f"v_{name}3_num_{suffix}"] = chosen_of(kind, 3, _three(pair, pair))
        for name, pair in (("minimum", minimum), ("maximum", maximum)):
            found[f"v_{name}_{suffix}"] = chosen_of(kind, 2, _two(pair))
            found[f"v_{name}3_{suffix}"] = chosen_of(kind, 3, _three(pair, pair))
        found[f"v_minmax_num_{suffix}"] = chosen_of(kind, 3, _three(low, high))
        found[f"v_maxmin_num_{suffix}"] = chosen_of(kind, 3, _three(high, low))
        found[f"v_minimummaximum_{suffix}"] = chosen_of(kind, 3, _three(minimum, maximum))
        found[f"v_maximumminimum_{suffix}"] = chosen_of(kind, 3, _three(maximum, minimum))
        found[f"v_med3_num_{suffix}"] = chosen_of(kind, 3, _median)
    pairs = {"min_num": low, "max_num": high, "minimum": minimum, "maximum": maximum}
    for name, pair in pairs.items():
        found[f"v_pk_{name}_f16"] = packed("half", _packed_pair(pair))
    for bits, kind in ((32, "float"), (16, "half")):
        for name in ("min", "max"):
            found[f"s_{name}_num_f{bits}"] = _scalar(name, False, kind, bits)
            found[f"s_{name}imum_f{bits}"] = _scalar(name, True, kind, bits)
    return found
