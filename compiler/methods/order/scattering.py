"""Tensor: reading and writing elements by indices along one axis; names as in PyTorch."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ugpu.compiler.dtype import bool_, int64
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.region import Region, Scatter
from ugpu.compiler.methods.core import Scalar, TensorCore, broadcast
from ugpu.compiler.methods.operations import Operations
from ugpu.hcq.errors import BadArgument, NotSupported

_MODES = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


class Scattering(Operations):
    """Writing elements by an index, with the shape rules of `gather`; indices out of range are
    ignored. Results are new tensors; values with the same index are combined in order."""

    __slots__ = ()

    def scatter(self, axis: int, index: TensorCore, source: Any, reduce: str | None = None) -> Self:
        """Return a copy with result[index[i, j], j] = source[i, j] for axis 0, and so on; of equal
        indices, the last value is kept.

        reduce: "add" or "multiply" combines values with the existing element. source: a number, or
        a tensor at least as long as the index along each axis.
        """
        modes = {None: "set", "add": "add", "multiply": "mul"}
        if reduce not in modes:
            raise BadArgument(f"scatter: reduce must be 'add', 'multiply' or None, got {reduce!r}")
        return self._scattered("scatter", axis, index, source, modes[reduce])

    def scatter_add(self, axis: int, index: TensorCore, source: Any) -> Self:
        """Return a copy as in `scatter`, with the sources added to the existing elements."""
        return self._scattered("scatter_add", axis, index, source, "add")

    def scatter_reduce(
        self,
        axis: int,
        index: TensorCore,
        source: Any,
        reduce: str,
        include_self: bool = True,
    ) -> Self:
        """Return a copy as in `scatter`, with the sources combined by "sum", "prod", "mean", "amax"
        or "amin".

        include_self: combine with the existing element too; otherwise only elements without a
        source keep their value.
        """
        if reduce not in _MODES:
            raise BadArgument(
                f"scatter_reduce: reduce must be one of {list(_MODES)}, got {reduce!r}"
            )
        name, mode = "scatter_reduce", _MODES[reduce]
        if self.dtype is bool_:
            raise NotSupported(f"{name}: bools are not supported; cast them to integers")
        base = self
        if not include_self:
            false = self._new(self._constant(name, False, bool_, self.shape))
            met = false._scattered(name, axis, index, True, "set")
            start = self._new(self._constant(name, self._start(mode), self.dtype, self.shape))
            base = met.where(start, self)
        result = base._scattered(name, axis, index, source, mode)
        if reduce != "mean":
            return result
        ones = self._new(self._constant(name, int(include_self), int64, self.shape))
        count = ones._scattered(name, axis, index, 1, "add").maximum(1)
        if self.dtype.is_integer:
            return result.floor_divide(count.cast(self.dtype))
        return (result / count).cast(self.dtype)

    def _start(self, mode: str) -> Scalar:
        """Return the initial value of a join."""
        if mode in ("add", "mul"):
            return int(mode == "mul")
        if self.dtype.is_float:
            return float("-inf" if mode == "max" else "inf")
        limits = np.iinfo(self.dtype.name)
        return int(limits.min if mode == "max" else limits.max)

    def index_add(
        self, axis: int, index: TensorCore, source: TensorCore, *, alpha: Scalar = 1
    ) -> Self:
        """Return a copy with alpha * source[i] added at index[i] along an axis; the index has one
        axis."""
        scaled = source if alpha == 1 else self._tensor("index_add", source) * alpha
        return self._along("index_add", axis, index, scaled, "add")

    def index_copy(self, axis: int, index: TensorCore, source: TensorCore) -> Self:
        """Return a copy with source[i] at index[i] along an axis; the index has one axis."""
        return self._along("index_copy", axis, index, source, "set")

    def index_fill(self, axis: int, index: TensorCore, value: Any) -> Self:
        """Return a copy with a number, or a tensor of one, at the indices along an axis; the index
        has one axis."""
        given = self._lift("index_fill", value)
        if not isinstance(given, TensorCore):
            return self._along("index_fill", axis, index, given, "set")
        if given.ndim:
            raise BadArgument(f"index_fill: expected one number, got shape {given._shown}")
        false = self._new(self._constant("index_fill", False, bool_, self.shape))
        met = false._along("index_fill", axis, index, True, "set")
        return met.where(self._new(given.node), self).cast(self.dtype)

    def masked_fill(self, mask: TensorCore, value: Any) -> Self:
        """Return `value` where the mask is true, otherwise self; both are broadcast to this
        shape."""
        lifted = self._lift("masked_fill", mask)
        if not isinstance(lifted, TensorCore) or lifted.dtype is not bool_:
            raise BadArgument("masked_fill: the mask must be a tensor of bools")
        given = self._lift("masked_fill", value)
        if isinstance(given, TensorCore):
            filling = self._new(graph.cast(given.node, self.dtype))
        else:
            filling = self._new(self._constant("masked_fill", given, self.dtype, ()))
        return self._new(lifted.node).where(filling, self)

    # ---- how -----------------------------------------------------------------------------------

    def _scattered(
        self, operation: str, axis: int, index: TensorCore, source: Any, mode: str
    ) -> Self:
        given = self._lift(operation, source)
        if not self.ndim:  # counts as having one axis, as in PyTorch
            self._axes(operation, axis)
            line = self._tensor(operation, index).reshape((self._tensor(operation, index).numel(),))
            if isinstance(given, TensorCore):
                given = self._new(given.node).reshape((given.numel(),))
            return self.reshape(1)._scattered(operation, 0, line, given, mode).reshape(())
        place, node = self._indices(operation, axis, index)
        if isinstance(given, TensorCore):
            if given.ndim != self.ndim or any(
                own < size for own, size in zip(given.shape, node.shape, strict=True)
            ):
                raise BadArgument(
                    f"{operation}: the index's shape {index._shown} does not fit the source's "
                    f"shape {given._shown}"
                )
            box = [(0, size) for size in node.shape]
            values = graph.cast(graph.shrink(given.node, box), self.dtype)
        else:
            values = self._constant(operation, given, self.dtype, node.shape)
        return self._written(operation, place, node, values, mode)

    def _along(self, operation: str, axis: int, index: TensorCore, source: Any, mode: str) -> Self:
        lifted, given = self._lift(operation, index), self._lift(operation, source)
        if not self.ndim:  # counts as having one axis, as in PyTorch
            self._axes(operation, axis)
            if isinstance(given, TensorCore):
                given = self._new(given.node).reshape((given.numel(),))
            line = self._tensor(operation, index).reshape((self._tensor(operation, index).numel(),))
            return self.reshape(1)._along(operation, 0, line, given, mode).reshape(())
        place = self._axis(operation, axis)
        if isinstance(lifted, TensorCore) and not lifted.ndim:  # one index, as in PyTorch
            lifted = self._new(lifted.node).reshape(1)
        if not isinstance(lifted, TensorCore) or not lifted.dtype.is_integer or lifted.ndim != 1:
            raise BadArgument(f"{operation}: the index must be a tensor of integers with one axis")
        count = lifted.shape[0]
        shape = (*self.shape[:place], count, *self.shape[place + 1 :])
        if isinstance(given, TensorCore) and given.shape != shape:
            raise BadArgument(f"{operation}: expected shape {list(shape)}, got {given._shown}")
        ones = [count if each == place else 1 for each in range(self.ndim)]
        node = broadcast(graph.reshape(lifted.node, tuple(ones)), shape)
        if isinstance(given, TensorCore):
            values = graph.cast(given.node, self.dtype)
        else:
            values = self._constant(operation, given, self.dtype, shape)
        return self._written(operation, place, node, values, mode)

    def _written(self, operation: str, place: int, index: Node, values: Node, mode: str) -> Self:
        """Scatter values. The index's axis goes first: elements may repeat only along it."""
        if mode != "set" and self.dtype is bool_:
            raise NotSupported(f"{operation}: bools are not supported; cast them to integers")
        if not values.size:
            return self._new(self.node)
        order = (place, *(axis for axis in range(self.ndim) if axis != place))
        sizes = values.shape
        box = tuple(
            (0, own if axis == place else sizes[axis]) for axis, own in enumerate(self.shape)
        )
        counts = tuple(stop for _, stop in box)
        region = Region(box, (1,) * self.ndim, (), counts)
        ordered = 0 if sizes[place] == 1 else 1
        choice = Scatter(region, (place,), ordered, mode)
        sources = (self.node, graph.permute(values, order), graph.permute(index, order))
        return self._new(Node("scatter", self.dtype, self.shape, sources, choice))
