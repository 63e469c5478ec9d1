"""Numbers of the order of elements, for sorts on the host.

An element's key is one from which the element can be computed again: floats and short integers are
floats, since processors exchange these faster, others signed integers. NaN has the key of infinity,
and zeros of different sign have equal keys: where a row has a negative zero or NaN, its zeros and
NaN are written once more, as they follow each other in the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ugpu.compiler.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint16,
    uint32,
    uint64,
)
from ugpu.compiler.expression.algebra import Index, Range, Validity, at_least_zero, constant
from ugpu.compiler.expression.lookup import lookup
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    broadcast,
    cast,
    const,
    load,
    value,
)
from ugpu.compiler.kernel.ir import If, Loop, Statement, Store

WHOLE, WHOLE_BITS = 3 << 22, 0x4B400000  # a float whose last bit is 1, as those nearby; its bits
SOME = Memory("some", int32, 1, "register")  # whether there are zeros or NaN to restore
TOTAL = Memory("total", int64, 1, "register")


def ordered(descending: bool, x: Value) -> Value:
    """Return the unsigned integer of an element's order, equal for both zeros, and for all NaN."""
    dtype = x.dtype
    key = uint64 if dtype.itemsize == 8 else uint32
    bits = 1 if dtype is bool_ else dtype.bits
    most, sign = ((1 << count) - 1 for count in (bits, bits - 1))
    sign += 1

    def with_(op: str, one: Value, number: int) -> Value:
        return binary(op, one, const(number, key))

    if dtype.is_float:
        plain = {16: uint16, 32: uint32, 64: uint64}[bits]
        number = cast(value("bitcast", plain, (x,)), key)
        magnitude = with_("and", number, sign - 1)
        infinity = sign - (1 << {float16: 10, bfloat16: 7, float32: 23, float64: 52}[dtype])
        negative = binary("lt", const(sign, key), number)  # not of -0
        turned = value(
            "where", key, (negative, with_("xor", number, most), with_("or", number, sign))
        )
        found = value(
            "where", key, (binary("lt", const(infinity, key), magnitude), const(most, key), turned)
        )
    else:
        found = with_("and", cast(x, key), most)
        if dtype.kind == "i":
            found = with_("xor", found, sign)
    return with_("xor", found, most) if descending else found


class Keys:
    """Keys of elements of a type, and elements of keys.

    Attributes:
        key: the type of keys.
        watched: of floats, unsigned integers of as many bits; of other types None.
    """

    def __init__(self, dtype: DType, descending: bool) -> None:
        self.dtype, self.descending = dtype, descending
        long, short = dtype.itemsize == 8, dtype.itemsize < 4
        if dtype.is_float or short:
            self.key = float64 if long else float32
        else:
            self.key = int64 if long else int32
        self.watched = (uint64 if long else uint32) if dtype.is_float else None
        self.sign = 1 << self.key.bits - 1
        self.most: float = math.inf if self.key.is_float else self.sign - 1  # the largest key
        self.infinity = self.sign - (1 << (52 if long else 23))  # its bits

    def of(self, x: Value) -> Value:
        """Return the keys of a vector, or of one element, but for NaN."""
        if not self.key.is_float:
            key = cast(x, self.key)
            key = self._with("xor", key, -self.sign) if self.dtype.kind == "u" else key
            return self._with("xor", key, -1) if self.descending else key
        key = cast(x, self.key)
        return value("neg", self.key, (key,), lanes=key.lanes) if self.descending else key

    def finite(self, key: Value) -> Value:
        """Return keys, with NaN become infinity. (Of rows before they are transposed, LLVM would
        transpose the results of the comparisons.)"""
        if self.watched is None:
            return key
        end = broadcast(const(-self.most if self.descending else self.most, self.key), key.lanes)
        inside = binary("lt", end, key) if self.descending else binary("lt", key, end)
        return value("where", self.key, (inside, key, end), lanes=key.lanes)

    def element(self, key: Value) -> Value:
        """Return the element of a key."""
        if self.key.is_float:
            number = value("neg", self.key, (key,), lanes=key.lanes) if self.descending else key
            if self.dtype is bool_:
                return self._with("ne", number, 0)
            if self.dtype.is_float:
                return cast(number, self.dtype)
            bits = value("bitcast", int32, (self._with("add", number, WHOLE),), lanes=key.lanes)
            return cast(self._with("sub", bits, WHOLE_BITS), self.dtype)
        key = self._with("xor", key, -1) if self.descending else key
        key = self._with("xor", key, -self.sign) if self.dtype.kind == "u" else key
        return cast(key, self.dtype)

    def magnitude(self, x: Value) -> Value:
        """Return the bits of floats without their signs: above `infinity` for NaN."""
        return self._with("and", self._bits(x), self.sign - 1)

    def from_negative_zero(self, x: Value) -> Value:
        """Return 0 for -0, else another number."""
        return self._with("xor", self._bits(x), self.sign)

    def _bits(self, x: Value) -> Value:
        assert self.watched is not None
        return value("bitcast", self.watched, (cast(x, self.key),), lanes=x.lanes)

    def _with(self, op: str, x: Value, number: int) -> Value:
        return binary(op, x, broadcast(const(number, x.dtype), x.lanes))

    def met(self, largest: Value, nearest: Value) -> Store:
        """Remember in SOME whether any element is NaN or -0. largest: of the magnitudes; nearest:
        the least of `from_negative_zero`."""
        nan = binary("lt", const(self.infinity, largest.dtype), largest)
        zero = binary("eq", nearest, const(0, nearest.dtype))
        some = cast(binary("or", nan, zero), int32)
        return Store(SOME, constant(0), binary("or", load(SOME, constant(0)), some))

    def restored(
        self, size: int, element: Callable[[Index], Value], output: Memory, first: Index
    ) -> list[Statement]:
        """Return the steps that write a row's zeros and NaN once more, with their own bits.
        element: of the row as it was, at a place. first: where the sorted row begins."""
        zero = constant(0)
        total = load(TOTAL, zero)
        steps: list[Statement] = []
        for nan, name in ((False, "zero"), (True, "nan")):
            below, place = Range(f"below_{name}", size), Range(f"each_{name}", size)
            other = cast(element(below.index()), self.key)
            before = self._before_nan(other) if nan else self._before_zero(other)
            more = binary("add", total, cast(before, int64))
            there = cast(element(place.index()), self.key)
            within = binary("ne", there, there) if nan else binary("eq", there, const(0, self.key))
            write = (
                Store(output, first + lookup(total, size), element(place.index())),
                Store(TOTAL, zero, binary("add", total, const(1, int64))),
            )
            steps += [
                Store(TOTAL, zero, const(0, int64)),
                Loop(below, (Store(TOTAL, zero, more),)),
                Loop(place, (If(holds(cast(within, int32)), write),)),
            ]
        return steps

    def _before_nan(self, element: Value) -> Value:
        """Return whether an element comes before NaN."""
        if self.descending:
            return const(False, bool_)
        return binary("eq", element, element)

    def _before_zero(self, element: Value) -> Value:
        """Return whether an element comes before zeros; the largest come first if descending."""
        zero = const(0, element.dtype)
        if not self.descending:
            return binary("lt", element, zero)
        return binary("or", binary("lt", zero, element), binary("ne", element, element))


def holds(flag: Value) -> Validity:
    """Return the validity that a number is 1, not 0."""
    return at_least_zero(lookup(flag, 2) - 1)
