"""Numbers that come for an operation, new each time, and those that kernels get by value.

The first numbers of a series are parts of recipes and of kernels, which makes them as fast as
possible. For others an operation has one recipe, whose kernel gets the number as an argument.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType, float32
from ugpu.compiler.graph.node import ByValue, Node, Recipe

HELD_FROM = 8  # numbers that recipes contain, of each series
KEPT = 1024  # series kept
# Operations on a narrow float that read a Python number in float32; others read it in that type. As
# PyTorch's for GPUs (ATen/native/cuda: opmath_gpu_kernel_with_scalars, BinaryDivFloorKernel.cu).
EXACT = frozenset(("add", "sub", "mul", "div", "floordiv"))
# Of narrow floats, numbers are given as float32 (compiler.graph.elements.number).
FORMS = {
    name: struct.Struct(f"<{form}")
    for name, form in (
        ("float32", "f"), ("float64", "d"), ("int64", "q"), ("int32", "i"),
        ("int16", "h"), ("int8", "b"), ("uint64", "Q"), ("uint32", "I"), ("uint16", "H"),
        ("uint8", "B"),
    )
}  # fmt: skip

T = TypeVar("T")
Numbers = tuple[int | float, ...]  # of one operation
known: dict[tuple[object, ...], Series] = {}  # by operation and operands


def begun(like: tuple[object, ...], series: Series) -> Series:
    """Keep a new series by its key; return it."""
    if len(known) >= KEPT:
        known.clear()
    known[like] = series
    return series


def by_value(dtype: DType, number: int | float) -> Node | None:
    """Return a node whose element is the number, which each launch carries. None if the type cannot
    hold the number."""
    form = FORMS.get(dtype.name)
    if form is None:
        return None
    try:
        bits = form.pack(number)
    except (OverflowError, struct.error):
        return None
    node = Node("buffer", dtype, ())
    node.storage = ByValue(int.from_bytes(bits, "little"))
    return node


class Series:
    """The numbers that come for one operation on operands of one type and shape.

    Attributes:
        dtype: the type in which the operation reads them.
        exact: whether it reads them in float32 if that type is narrow.
        first: those that recipes contain.
        recipe: for other numbers, by value, and stored operands; None before its first use.
    """

    __slots__ = ("dtype", "exact", "first", "recipe")

    def __init__(self, dtype: DType, numbers: Numbers, op: object) -> None:
        """dtype: of the operands. numbers: those of one operation. op: the operation."""
        self.dtype = dtypes.float_dtype(dtype) if op == "div" else dtype
        self.exact = op in EXACT
        self.first = {numbers}
        self.recipe: Recipe | None = None

    def node(self, number: int | float) -> Node | None:
        """Return a number by value, as the operation reads it; None if it has to be part of the
        kernel."""
        dtype = self.dtype
        if dtype.kind != "f":
            if not dtypes.lowest(dtype) <= number <= dtypes.highest(dtype):
                return None  # the method has an error, or an answer
        elif dtype.itemsize < 4:
            if not self.exact:
                number = dtypes.rounded(number, dtype)
            dtype = float32
        return by_value(dtype, number)

    def begins(self, numbers: Numbers) -> bool:
        """Return whether numbers are among the first."""
        if numbers in self.first:
            return True
        begins = len(self.first) < HELD_FROM
        if begins:
            self.first.add(numbers)
        return begins


class HeldInt(int):
    """A number that comes by value: with each launch, as the element of `node`."""

    def __new__(cls, number: int, node: Node) -> Self:
        made = super().__new__(cls, number)
        made.node = node
        return made

    node: Node


class HeldFloat(float):
    """A number that comes by value: with each launch, as the element of `node`."""

    def __new__(cls, number: float, node: Node) -> Self:
        made = super().__new__(cls, number)
        made.node = node
        return made

    node: Node


def with_held(method: Callable[..., T], numbers: Numbers, nodes: Sequence[Node]) -> T:
    """Return the result of a method with numbers that come by value."""
    return method(*map(_held, numbers, nodes))


def _held(number: int | float, node: Node) -> HeldInt | HeldFloat:
    return HeldInt(number, node) if isinstance(number, int) else HeldFloat(number, node)
