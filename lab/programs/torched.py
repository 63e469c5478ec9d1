"""The second judge: the same text computed by PyTorch, where it is installed.

Types are PyTorch's own wherever it has the type and agrees with compiler/dtype.py; what it does
otherwise is a stated rule and written here as such. uint16, uint32 and uint64, for which PyTorch
has few operations, are kept in int64 and cut to their width. What PyTorch does not compute, or
leaves undefined, raises Refused: it is not judged here.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.programs.judge import INTEGERS, WIDTH, Array, promote

INSTALLED = importlib.util.find_spec("torch") is not None
torch: Any = importlib.import_module("torch") if INSTALLED else None
KEPT = ("uint16", "uint32", "uint64")  # in int64
Index = slice | list[int] | int | None


class Refused(Exception):
    """PyTorch does not compute this, or leaves it undefined."""


# what stops PyTorch, and our refusals of what then has no value
REFUSED = (Refused, RuntimeError, TypeError, ValueError, IndexError, NameError, AttributeError)


def native(kind: str) -> Any:
    """Return the PyTorch type that holds a type."""
    return torch.int64 if kind in KEPT else getattr(torch, kind)


def common(one: str, two: str) -> str:
    """Return the type of an operation on two types; PyTorch has to agree where it has both."""
    kind = promote(one, two)
    if not {one, two} & {*KEPT}:
        found = torch.promote_types(native(one), native(two))
        if found != native(kind):
            raise AssertionError(f"{one} with {two}: {kind}, PyTorch {found}")
    return kind


class Torched:
    """A tensor of PyTorch with the methods of Tensor that random programs use. kind: our type."""

    def __init__(self, data: Any, kind: str) -> None:
        wanted = native(kind)
        if kind in KEPT and kind != "uint64":
            data = data & ((1 << int(kind[4:])) - 1)
        if data.dtype != wanted:
            raise AssertionError(f"PyTorch gave {data.dtype} for {kind}")
        self.data, self.kind = data, kind

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def is_float(self) -> bool:
        return self.kind in WIDTH

    def _like(self, data: Any) -> Torched:
        return Torched(data.clone(), self.kind)

    def _float(self) -> Torched:
        return self if self.is_float else self.cast("float32")

    def _ordered(self) -> Torched:
        """Return the tensor if int64 orders its numbers as its type does."""
        if self.kind == "uint64" and bool((self.data < 0).any()):
            raise Refused("order of large uint64")
        return self

    def numpy(self) -> NDArray[Any]:
        """Return the elements; bfloat16 as float32."""
        data = self.data.to(torch.float32) if self.kind == "bfloat16" else self.data
        found: NDArray[Any] = data.numpy()
        return found.astype(self.kind) if self.kind in KEPT else found

    # ---- types -------------------------------------------------------------------------------

    def cast(self, kind: str) -> Torched:
        data = self.data
        if kind == self.kind:
            return self._like(data)
        if self.is_float and kind in INTEGERS:
            limits = np.iinfo(kind)
            if bool(
                ((data.double() < float(limits.min)) | (data.double() >= float(limits.max))).any()
            ):
                raise Refused("a number outside the type")  # ours is the nearest
        if kind in WIDTH:
            self._ordered()
        return Torched(data.to(native(kind)), kind)

    def _pair(self, other: Any) -> tuple[Any, Any, str]:
        """Return both operands, and the type of the result."""
        if isinstance(other, Torched):
            kind = common(self.kind, other.kind)
            return self.cast(kind).data, other.cast(kind).data, kind
        kind = self.kind
        if isinstance(other, float) and not self.is_float:
            kind = "float32"
        elif kind == "bool" and not isinstance(other, bool):
            kind = "int64"
        return self.cast(kind).data, other, kind

    def _both(self, other: Any, function: Any, kinds: Sequence[str] | None = None) -> Torched:
        one, two, kind = self._pair(other)
        if kinds is not None and kind not in kinds:
            raise Refused(kind)
        return Torched(function(one, two), kind)

    # ---- arithmetic --------------------------------------------------------------------------

    def __add__(self, other: Any) -> Torched:
        return self._both(other, torch.add)

    def __sub__(self, other: Any) -> Torched:
        return self._both(other, torch.sub)

    def __mul__(self, other: Any) -> Torched:
        return self._both(other, torch.mul)

    def __neg__(self) -> Torched:
        return Torched(-self.data, self.kind)

    def abs(self) -> Torched:
        return self._like(self.data) if self.kind in KEPT else Torched(self.data.abs(), self.kind)

    def _extreme(self, other: Any, function: Any) -> Torched:
        one, two, kind = self._pair(other)
        Torched(one, kind)._ordered()
        two = two if isinstance(other, Torched) else torch.tensor(two, dtype=native(kind))
        Torched(two, kind)._ordered()
        return Torched(function(one, two), kind)

    def maximum(self, other: Any) -> Torched:
        return self._extreme(other, torch.maximum)

    def minimum(self, other: Any) -> Torched:
        return self._extreme(other, torch.minimum)

    def clamp(self, low: Any, high: Any) -> Torched:
        return Torched(torch.clamp(self._ordered().data, low, high), self._pair(low)[2])

    def relu(self) -> Torched:
        return Torched(torch.relu(self._ordered().data), self.kind)

    def square(self) -> Torched:
        return Torched(self.data.square(), "int64" if self.kind == "bool" else self.kind)

    def __floordiv__(self, other: Any) -> Torched:
        return self._divided(other, torch.floor_divide)

    def __mod__(self, other: Any) -> Torched:
        return self._divided(other, torch.remainder)

    def _divided(self, other: Any, function: Any) -> Torched:
        """Rule: a quotient and a remainder by zero are 0 (PyTorch raises)."""
        one, two, kind = self._pair(other)
        if kind not in INTEGERS:
            raise Refused("integers only")
        two = two if isinstance(other, Torched) else torch.tensor(two, dtype=native(kind))
        Torched(one, kind)._ordered(), Torched(two, kind)._ordered()
        zero = two == 0
        found = function(one, torch.where(zero, torch.ones_like(two), two))
        return Torched(torch.where(zero, torch.zeros_like(found), found), kind)

    def __truediv__(self, other: Any) -> Torched:
        one, two, kind = self._pair(other)
        if kind not in WIDTH:
            kind = "float32"
            one = self.cast(kind).data
            two = other.cast(kind).data if isinstance(other, Torched) else two
        return Torched(torch.true_divide(one, two), kind)

    # ---- functions ---------------------------------------------------------------------------

    def _smooth(self, function: Any) -> Torched:
        given = self._float()
        return Torched(function(given.data), given.kind)

    def tanh(self) -> Torched:
        return self._smooth(torch.tanh)

    def sigmoid(self) -> Torched:
        return self._smooth(torch.sigmoid)

    def sin(self) -> Torched:
        return self._smooth(torch.sin)

    def exp(self) -> Torched:
        return self._smooth(torch.exp)

    def softmax(self, axis: int) -> Torched:
        return self._smooth(lambda data: torch.softmax(data, axis))

    # ---- comparisons, bits -------------------------------------------------------------------

    def _compared(self, other: Any, function: Any) -> Torched:
        one, two, kind = self._pair(other)
        Torched(one, kind)._ordered()
        if isinstance(other, Torched):
            Torched(two, kind)._ordered()
        return Torched(function(one, two), "bool")

    def __lt__(self, other: Any) -> Torched:
        return self._compared(other, torch.lt)

    def __ge__(self, other: Any) -> Torched:
        return self._compared(other, torch.ge)

    def __eq__(self, other: Any) -> Any:
        return self._compared(other, torch.eq)

    __hash__ = object.__hash__

    def __and__(self, other: Any) -> Torched:
        return self._both(other, torch.bitwise_and)

    def __or__(self, other: Any) -> Torched:
        return self._both(other, torch.bitwise_or)

    def __xor__(self, other: Any) -> Torched:
        return self._both(other, torch.bitwise_xor)

    def __invert__(self) -> Torched:
        return Torched(torch.bitwise_not(self.data), self.kind)

    def __lshift__(self, count: int) -> Torched:
        return self._both(count, torch.bitwise_left_shift, INTEGERS)

    def __rshift__(self, count: int) -> Torched:
        self._ordered()
        return self._both(count, torch.bitwise_right_shift, INTEGERS)

    def where(self, yes: Torched, no: Any) -> Torched:
        if self.kind != "bool":
            raise Refused("no condition")
        return yes._both(no, lambda one, two: torch.where(self.data, one, two))

    # ---- reductions, scans, orders, products -------------------------------------------------

    def _total_kind(self) -> str:
        """Rule: a total of unsigned integers is uint64 (PyTorch: int64)."""
        if self.is_float:
            return self.kind
        return "uint64" if self.kind.startswith("u") else "int64"

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Torched:
        return Torched(torch.sum(self.data, axis, keepdims), self._total_kind())

    def cumsum(self, axis: int) -> Torched:
        return Torched(torch.cumsum(self.data, axis), self._total_kind())

    def mean(self, axis: int | None = None) -> Torched:
        return self._smooth(lambda data: torch.mean(data, axis))

    def max(self, axis: int | None = None, keepdims: bool = False) -> Torched:
        return self._most(torch.amax, axis, keepdims)

    def min(self, axis: int | None = None, keepdims: bool = False) -> Torched:
        return self._most(torch.amin, axis, keepdims)

    def _most(self, function: Any, axis: int | None, keepdims: bool) -> Torched:
        axes = range(len(self.shape)) if axis is None else (axis,)
        return Torched(function(self._ordered().data, tuple(axes), keepdims), self.kind)

    def any(self, axis: int | None = None) -> Torched:
        truth = self.data != 0
        return Torched(truth.any() if axis is None else truth.any(axis), "bool")

    def argmax(self, axis: int) -> Torched:
        data = self.data.to(torch.uint8) if self.kind == "bool" else self._ordered().data
        return Torched(torch.argmax(data, axis), "int64")

    def cummax(self, axis: int) -> Torched:
        return Torched(torch.cummax(self._ordered().data, axis)[0], self.kind)

    def sort(self, axis: int) -> tuple[Torched, Torched]:
        values, order = torch.sort(self._ordered().data, dim=axis, stable=True)
        return Torched(values, self.kind), Torched(order, "int64")

    def argsort(self, axis: int) -> Torched:
        return self.sort(axis)[1]

    def __matmul__(self, other: Torched) -> Torched:
        return self._both(other, torch.matmul, (*INTEGERS, *WIDTH))

    # ---- movement ----------------------------------------------------------------------------

    def reshape(self, *shape: int) -> Torched:
        return self._like(self.data.reshape(shape))

    def permute(self, *axes: int) -> Torched:
        return self._like(self.data.permute(axes))

    def transpose(self, one: int, two: int) -> Torched:
        return self._like(self.data.transpose(one, two))

    def flip(self, *axes: int) -> Torched:
        return self._like(self.data.flip(axes))

    def roll(self, shift: int, axis: int) -> Torched:
        return self._like(self.data.roll(shift, axis))

    def expand(self, *shape: int) -> Torched:
        return self._like(self.data.expand(shape))

    def pad(self, pairs: Sequence[tuple[int, int]], value: Any = 0) -> Torched:
        listed = [each for pair in reversed(pairs) for each in pair]
        return self._like(torch.nn.functional.pad(self.data, listed, value=value))

    def unsqueeze(self, axis: int) -> Torched:
        return self._like(self.data.unsqueeze(axis))

    def repeat(self, *counts: int) -> Torched:
        return self._like(self.data.tile(counts))

    def tril(self, diagonal: int) -> Torched:
        return self._like(self.data.tril(diagonal))

    def contiguous(self) -> Torched:
        return self._like(self.data)

    def realize(self) -> Torched:
        return self

    # ---- indexing ----------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Torched:
        return self._like(taken(self.data, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Rule: where indices repeat, the last value stays."""
        places = taken(torch.arange(self.data.numel()).reshape(self.shape), key)
        given = value.cast(self.kind).data if isinstance(value, Torched) else torch.tensor(value)
        flat = self.data.flatten().clone()  # other tensors keep their values
        given = given.to(flat.dtype).broadcast_to(places.shape).flatten()
        for place, each in zip(places.flatten().tolist(), given, strict=True):
            flat[place] = each
        self.data = Torched(flat.reshape(self.shape), self.kind).data

    def assign(self, value: Any) -> Torched:
        self[...] = value
        return self


def taken(data: Any, key: Any) -> Any:
    """Return the elements of an index. PyTorch has no steps below zero: axes are flipped first.
    Rule: beside a list a number counts as a list too, as in NumPy (PyTorch: before the list)."""
    given = key if isinstance(key, tuple) else (key,)
    listed = any(isinstance(each, list | Torched) for each in given)
    entries: list[Any] = []
    axis = 0
    for each in given:
        if isinstance(each, slice) and (each.step or 1) < 0:
            places = range(*each.indices(data.shape[axis]))
            first = data.shape[axis] - 1 - places[0] if len(places) else 0
            last = data.shape[axis] - places[-1] if len(places) else 0
            data, each = data.flip(axis), slice(first, last, -each.step)
        elif isinstance(each, Torched):
            each = each.data if each.kind == "bool" else each.data.long()
        elif isinstance(each, list) or (listed and isinstance(each, int)):
            each = torch.tensor(each if isinstance(each, list) else [each])
        axis += 0 if each is None else (each.ndim if _is_mask(each) else 1)
        entries.append(each)
    return data[tuple(entries)]


def _is_mask(entry: Any) -> bool:
    return getattr(entry, "dtype", None) is torch.bool


class Functions:
    """The class Tensor: its constructor and functions."""

    def __call__(self, data: NDArray[Any], dtype: str) -> Torched:
        return made(data, dtype)

    @staticmethod
    def cat(tensors: Sequence[Torched], axis: int) -> Torched:
        kind = tensors[0].kind
        for each in tensors[1:]:
            kind = common(kind, each.kind)
        return Torched(torch.cat([each.cast(kind).data for each in tensors], axis), kind)

    @staticmethod
    def stack(tensors: Sequence[Torched], axis: int) -> Torched:
        return Functions.cat([each.unsqueeze(axis) for each in tensors], axis)


def fault(wanted: Array, second: Torched | None, found: NDArray[Any]) -> str | None:
    """Return how a result differs from PyTorch's. wanted: the first judge's, with the error."""
    if second is None:
        return None
    other = second.numpy()
    if second.kind != wanted.kind or other.shape != wanted.shape:
        return (
            f"PyTorch: {second.kind}{list(other.shape)}, NumPy: {wanted.kind}{list(wanted.shape)}"
        )
    text = wanted.differs(found, other)
    return None if text is None else f"PyTorch: {text}"


def made(data: NDArray[Any], kind: str) -> Torched:
    """Return a tensor with the elements of an array."""
    array = np.array(data).astype("int64" if kind in KEPT else data.dtype)
    return Torched(torch.from_numpy(array).to(native(kind)), kind)
