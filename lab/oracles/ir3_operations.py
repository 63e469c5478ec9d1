"""Arithmetic, comparisons and conversions of ir3 on NumPy arrays; lab.oracles.ir3 says by what
sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
U32, I32, F32, U16, I16, F16 = np.uint32, np.int32, np.float32, np.uint16, np.int16, np.float16
TYPES: Mapping[str, Any] = {
    "f16": F16, "f32": F32, "u16": U16, "u32": U32, "s16": I16, "s32": I32, "u8": np.uint8,
}  # fmt: skip


class NotKnown(AssertionError):
    """The oracle has no meaning for an instruction."""


def signed(width: int) -> Any:
    return I32 if width == 4 else I16


def held(name: str) -> Any:
    """The type that a register holds a value of some type as."""
    return U16 if name == "u8" else TYPES[name]


def converted(value: Array, source: str, target: str) -> Array:
    """mov and cov: from a type to another. Floats to integers go towards zero, to the nearest end
    of the range, NaN to zero. u8 is the low byte; into a wider integer it extends the sign, and
    Mesa masks where it wants zeros (ir3_compiler_nir.c, create_cov)."""
    if source == "u8":
        value = value & U16(0xFF)
        if target != "u8":
            value = value.astype(np.uint8).view(np.int8).astype(I16)
    if source == target:
        return value
    kind = np.dtype(held(target))
    if value.dtype.kind == "f" and kind.kind != "f":
        info = np.iinfo(np.uint8 if target == "u8" else kind)
        whole = np.trunc(np.where(np.isnan(value), 0, value.astype(np.float64)))
        return np.clip(whole, float(info.min), float(info.max)).astype(np.int64).astype(kind)
    found = value.astype(kind)
    return found & U16(0xFF) if target == "u8" else found


def saturated(name: str, result: Array, values: Sequence[Array]) -> Array:
    """What (sat) makes of a result."""
    if result.dtype.kind == "f":
        return np.clip(result, 0, 1)
    if name == "add" and result.dtype.kind == "u":
        return np.where(result < values[0], np.iinfo(result.dtype).max, result).astype(result.dtype)
    raise NotKnown(f"(sat) of {name}")


def _shift(value: Array) -> Array:
    amount: Array = value & value.dtype.type(8 * value.dtype.itemsize - 1)
    return amount


def _as_signed(value: Array) -> Array:
    return value.view(signed(value.dtype.itemsize))


def _fused(a: Array, b: Array, c: Array) -> Array:
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(a.dtype)


def _leading(a: Array) -> Array:
    """Leading zeros; -1 of zero, which Mesa's lowering of find_msb relies on."""
    return np.array([32 - int(x).bit_length() if x else 0xFFFFFFFF for x in a], U32)


def _low(a: Array, b: Array) -> Array:
    product: Array = (a & a.dtype.type(0xFFFF)) * (b & b.dtype.type(0xFFFF))
    return product


def _precise(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda a: function(a.astype(np.float64)).astype(a.dtype)


COMPARISONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
OPERATIONS: Mapping[str, Callable[..., Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.f": lambda a, b: a * b,
    "mul.s24": lambda a, b: a * b,
    "mull": _low,
    "min.f": np.fmin, "max.f": np.fmax,
    "min": np.minimum, "max": np.maximum,
    "absneg": lambda a: a,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "shl": lambda a, b: a << _shift(b),
    "shr": lambda a, b: a >> _shift(b),
    "ashr": lambda a, b: (_as_signed(a) >> _as_signed(_shift(b))).view(a.dtype),
    "clz.b": _leading,
    "cmps": lambda a, b: a,
    "sign": lambda a: np.where(np.isnan(a) | (a == 0), np.where(np.isnan(a), a.dtype.type(0), a),
                               np.copysign(a.dtype.type(1), a)),
    "rndne": np.rint, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "mad.f32": _fused, "mad.f16": _fused,
    "mad.s24": lambda a, b, c: a * b + c, "mad.u24": lambda a, b, c: a * b + c,
    "mad.u16": lambda a, b, c: a * b + c, "mad.s16": lambda a, b, c: a * b + c,
    "madsh.m16": lambda a, b, c: ((a & U32(0xFFFF)) * (b >> U32(16)) << U32(16)) + c,
    "sel": lambda a, b, c: np.choose(b != 0, (c, a)),
    "sad": lambda a, b, c: a + b + c,
    "shrm": lambda a, b, c: b >> _shift(a) & c,
    "shlm": lambda a, b, c: b << _shift(a) & c,
    "shrg": lambda a, b, c: b >> _shift(a) | c,
    "shlg": lambda a, b, c: b << _shift(a) | c,
    "andg": lambda a, b, c: b & a | c,
    "rcp": _precise(lambda a: 1 / a), "rsq": _precise(lambda a: 1 / np.sqrt(a)),
    "sqrt": _precise(np.sqrt), "exp2": _precise(np.exp2), "log2": _precise(np.log2),
}  # fmt: skip
