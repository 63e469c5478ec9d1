"""Tensor: parts of tensors, replacing them, and order statistics, composed of other methods. Names
and meanings as in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ugpu.compiler.dtype import bool_, int64
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.methods.core import (
    TensorCore,
    broadcast_shape,
    integer_of,
    integers_of,
    shape_of,
)
from ugpu.compiler.methods.groups import Groups
from ugpu.hcq.errors import BadArgument, BadIndex


class Parts(Groups):
    """Parts and order statistics."""

    __slots__ = ()

    # ---- reading -------------------------------------------------------------------------------

    def narrow(self, axis: int, start: Any, length: int) -> Self:
        """Return `length` parts from `start` on along an axis; a start in a tensor waits for the
        device."""
        place = self._axis("narrow", axis)
        whole = self._tensor("narrow", start) if isinstance(start, TensorCore) else None
        first = integer_of("narrow", "start", start) if whole is None else self._whole("", whole)
        first += self.shape[place] if first < 0 else 0
        count = integer_of("narrow", "length", length)
        if not 0 <= first <= first + count <= self.shape[place]:
            raise BadIndex(
                f"narrow: {count} parts from {start} are outside axis {axis} of shape {self._shown}"
            )
        return self[(*[slice(None)] * place, slice(first, first + count))]

    def select(self, axis: int, index: int) -> Self:
        """Return the part at an index along an axis, without the axis."""
        place = self._axis("select", axis)
        return self[(*[slice(None)] * place, integer_of("select", "index", index))]

    def tensor_split(self, sections: Any, axis: int = 0) -> tuple[Self, ...]:
        """Split into a number of parts, the first of them one longer where it does not divide, or
        before each of several indices."""
        place = self._axis("tensor_split", axis)
        size = self.shape[place]
        given = sections.tolist() if hasattr(sections, "tolist") else sections
        if isinstance(given, list | tuple):
            cuts = list(integers_of("tensor_split", "indices", given))
        else:
            count = integer_of("tensor_split", "sections", given)
            if count <= 0:
                raise BadArgument(f"tensor_split: expected sections > 0, got {count}")
            cuts = [size // count * i + min(i, size % count) for i in range(1, count)]
        bounds = [0, *cuts, size]
        before = [slice(None)] * place
        return tuple(
            self[(*before, slice(None if not i else bounds[i], None if i == len(cuts) else end))]
            for i, end in enumerate(bounds[1:])
        )

    def hsplit(self, sections: Any) -> tuple[Self, ...]:
        """Split along the second axis, or the only one, see `tensor_split`."""
        return self._even("hsplit", sections, min(1, self.ndim - 1), 1)

    def vsplit(self, sections: Any) -> tuple[Self, ...]:
        """Split along the first axis of at least two, see `tensor_split`."""
        return self._even("vsplit", sections, 0, 2)

    def dsplit(self, sections: Any) -> tuple[Self, ...]:
        """Split along the third axis, see `tensor_split`."""
        return self._even("dsplit", sections, 2, 3)

    def _even(self, operation: str, sections: Any, axis: int, axes: int) -> tuple[Self, ...]:
        if self.ndim < axes:
            raise BadArgument(f"{operation}: expected {axes} axes, got shape {self._shown}")
        if isinstance(sections, int) and (sections <= 0 or self.shape[axis] % sections):
            raise BadArgument(
                f"{operation}: axis {axis} of shape {self._shown} has no {sections} equal parts"
            )
        return self.tensor_split(sections, axis)

    def split_with_sizes(self, split_sizes: Sequence[int], axis: int = 0) -> tuple[Self, ...]:
        """Split into parts of given sizes, see `split`."""
        return self.split(split_sizes, axis)

    # ---- repeating and placing -----------------------------------------------------------------

    def tile(self, *repeats: Any) -> Self:
        """Repeat along the axes; counts for the last axes, more add axes in front."""
        counts = shape_of("tile", repeats)
        return self.repeat((*[1] * (self.ndim - len(counts)), *counts))

    def diag_embed(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Self:
        """Return matrices, on axes dim1 and dim2, with the last axis on a diagonal."""
        above = integer_of("diag_embed", "offset", offset)
        if not self.ndim:
            raise BadArgument("diag_embed: expected at least one axis, got shape []")
        size, count = self.shape[-1] + abs(above), self.ndim + 1
        one, two = (self._axis("diag_embed", each, extra=1) for each in (dim1, dim2))
        if one == two:
            raise BadArgument(f"diag_embed: expected two axes, got {dim1} and {dim2}")
        pairs = [(0, 0)] * (self.ndim - 1)
        padded = self.pad([*pairs, (max(0, -above), max(0, above))])
        down = padded._counted(size, self.ndim - 1).reshape((size, 1))
        matrix = (down + above)._compare("eq", down.reshape((1, size)))
        placed = matrix.where(padded.unsqueeze(-1), 0).cast(self.dtype)
        rest = iter(range(count - 2))
        order = [count - 2 if at == one else count - 1 if at == two else next(rest)
                 for at in range(count)]  # fmt: skip
        return placed.permute(*order)

    def diagflat(self, offset: int = 0) -> Self:
        """Return a matrix with all elements on a diagonal."""
        return self.reshape(self.numel()).diag(offset)

    def slice_scatter(
        self,
        source: Any,
        axis: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> Self:
        """Return a copy with the source at [start:end:step] along an axis."""
        place = self._axis("slice_scatter", axis)
        at = (*[slice(None)] * place, slice(start, end, step))
        return self._with("slice_scatter", at, source)

    def select_scatter(self, source: Any, axis: int, index: int) -> Self:
        """Return a copy with the source at an index along an axis."""
        place = self._axis("select_scatter", axis)
        number = integer_of("select_scatter", "index", index)
        return self._with("select_scatter", (*[slice(None)] * place, number), source)

    def _with(self, operation: str, key: Any, source: Any) -> Self:
        given = self._tensor(operation, source)
        result = self.contiguous() * 1 if self.node.tracked else self._same()
        result[key] = given
        return result

    def diagonal_scatter(self, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """Return a copy with the source on a diagonal of two axes (see `diagonal`)."""
        given = self._tensor("diagonal_scatter", source)
        one, two = self._axes("diagonal_scatter", (dim1, dim2))
        rest = [axis for axis in range(self.ndim) if axis not in (one, two)]
        order = [*rest, one, two]
        rows, columns = self.shape[one], self.shape[two]
        placed = given.diag_embed(offset)  # may be smaller than the matrix
        pairs = [(0, 0)] * len(rest)
        placed = placed.pad([*pairs, (0, max(0, rows - placed.shape[-2])),
                             (0, max(0, columns - placed.shape[-1]))])  # fmt: skip
        placed = placed[..., :rows, :columns]
        down = placed._counted(rows, 0).reshape((rows, 1))
        across = placed._counted(columns, 0).reshape((1, columns))
        on = (down + integer_of("diagonal_scatter", "offset", offset))._compare("eq", across)
        back = sorted(range(self.ndim), key=order.__getitem__)
        return on.where(placed, self.permute(*order)).cast(self.dtype).permute(*back)

    def masked_scatter(self, mask: Any, source: Any) -> Self:
        """Return a copy with the first elements of the source, in order, where the mask is true."""
        chosen = self._tensor("masked_scatter", mask)
        given = self._tensor("masked_scatter", source).cast(self.dtype)
        if chosen.dtype is not bool_:
            raise BadArgument(f"masked_scatter: expected bools, got {chosen.dtype.name}")
        shape = broadcast_shape("masked_scatter", self.node, chosen.node)
        flat = chosen.expand(shape).reshape(-1)
        if not given.numel() or not flat.numel():
            return self.expand(shape)
        place = (flat.cast(int64).cumsum(0) - 1).clamp(0, given.numel() - 1)
        moved = given.reshape(given.numel()).gather(0, place)
        return flat.where(moved, self.expand(shape).reshape(-1)).reshape(shape)

    def index_put(self, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Self:
        """Return a copy with values at [indices]; accumulate: added, in order, to what is there."""
        key = tuple(indices)
        if not accumulate:
            return self._with("index_put", key if len(key) > 1 else key[0], values)
        places = self._new(graph.iota(self.numel())).reshape(self.shape)[key]
        given = self._tensor("index_put", values).cast(self.dtype).broadcast_to(places.shape)
        flat = self.reshape(self.numel())
        added = flat.scatter_add(0, places.reshape(-1).cast(int64), given.reshape(-1))
        return added.reshape(self.shape)

    def put(self, index: Any, source: Any, accumulate: bool = False) -> Self:
        """Return a copy with the source at places among the flattened elements."""
        places, given = self._tensor("put", index), self._tensor("put", source)
        flat = self.reshape(self.numel())
        where, values = places.reshape(places.numel()), given.reshape(given.numel())
        kind = "add" if accumulate else None
        return flat.scatter(0, where.cast(int64), values, kind).reshape(self.shape)

    # ---- order statistics ----------------------------------------------------------------------

    def msort(self) -> Self:
        """Return the elements in order along the first axis."""
        return self.sort(0)[0]

    def kthvalue(
        self, count: int, axis: int = -1, keepdims: bool = False
    ) -> tuple[Self, Self]:  # fmt: skip
        """Return the element that is `count`th (from 1) in order along an axis, and its place."""
        if not self.ndim:
            value, place = self.reshape(1).kthvalue(count, 0)
            return value.reshape(()), place.reshape(())
        at = self._axis("kthvalue", axis)
        number = integer_of("kthvalue", "count", count)
        if not 1 <= number <= self.shape[at]:
            raise BadArgument(
                f"kthvalue: expected 1 to {self.shape[at]} for axis {axis} of shape {self._shown}, "
                f"got {count}"
            )
        place = self._place_of(number - 1, at)
        value = self.gather(at, place)
        return (value, place) if keepdims else (value.squeeze(at), place.squeeze(at))

    def mode(self, axis: int = -1, keepdims: bool = False) -> tuple[Self, Self]:
        """Return the most frequent element along an axis, of several the smallest, and the place of
        the last of it."""
        if not self.ndim:
            return self._same(), self._new(self._constant("mode", 0, int64, ()))
        at = self._axis("mode", axis)
        if not self.shape[at]:
            raise BadArgument(f"mode: axis {axis} of shape {self._shown} is empty")
        last = self.transpose(at, -1)
        ordered, places = last.detach().sort(-1)
        alike = ordered.unsqueeze(-1)._compare("eq", ordered.unsqueeze(-2))
        first = alike.sum(-1).argmax(-1, keepdims=True)
        equal = ordered._compare("eq", ordered.gather(-1, first))
        place = equal.where(places, -1).max(-1, keepdims=True).transpose(at, -1)
        value = self.gather(at, place)
        return (value, place) if keepdims else (value.squeeze(at), place.squeeze(at))

    def nanmedian(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Return the median, the lower of two, of the elements that are not NaN; with an axis also
        its place. NaN where all are."""
        if axis is None:
            found = self.reshape(self.numel()).nanmedian(0)[0]
            return found.reshape((1,) * self.ndim) if keepdims else found
        if not self.dtype.is_float or not self.ndim:
            return self.median(axis, keepdims)
        at = self._axis("nanmedian", axis)
        count = (~self.isnan()).sum(at, keepdims=True)
        middle = (count - 1).clamp(min=0) // 2
        place = self._place_of(middle, at)
        value = self.gather(at, place)
        return (value, place) if keepdims else (value.squeeze(at), place.squeeze(at))

    # ---- sums ----------------------------------------------------------------------------------

    def sum_to_size(self, *size: Any) -> Self:
        """Sum broadcast axes, so that the result has a shape that broadcasts to this one; types as
        in `sum`."""
        wanted = shape_of("sum_to_size", size)
        if broadcast_shape("sum_to_size", self.node, wanted) != self.shape:
            raise BadArgument(
                f"sum_to_size: {list(wanted)} does not broadcast to shape {self._shown}"
            )
        front = self.ndim - len(wanted)
        axes = [*range(front), *(front + i for i, n in enumerate(wanted)
                                 if n == 1 != self.shape[front + i])]  # fmt: skip
        if not wanted:
            return self.sum()
        return self.sum(axes).reshape(wanted) if axes else self._same()
