"""Tensor: which elements there are, how many and where. Names and meanings as in PyTorch.

Results whose size depends on the elements wait for the device.
"""

from __future__ import annotations

from typing import Any, Self

from ugpu.compiler.dtype import bool_, float32, int32, int64
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.methods.core import TensorCore, integer_of
from ugpu.compiler.methods.groups import Groups
from ugpu.compiler.methods.reductions import Axis
from ugpu.hcq.errors import BadArgument


class Counting(Groups):
    """Sets of elements, counts and places."""

    __slots__ = ()

    def count_nonzero(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return how many elements along the axes are not zero, as int64."""
        return self.cast(bool_).sum(axis, keepdims)

    def nonzero(self, as_tuple: bool = False) -> Any:
        """Return the indices of the elements that are not zero, in rows of int64, in row-major
        order; as_tuple: a tensor for each axis. Waits for the device."""
        if as_tuple and not self.ndim:
            return self.reshape(1).nonzero(as_tuple=True)
        flat = self.cast(bool_).reshape(self.numel())
        places = self._new(graph.iota(self.numel())).cast(int64).masked_select(flat)
        columns = []
        for size in reversed(self.shape):
            columns.append(places.remainder(size))
            places = places.floor_divide(size)
        columns.reverse()
        if as_tuple:
            return tuple(columns)
        if not columns:
            return places.reshape((places.shape[0], 1))[:, :0]
        return self._stacked(columns, -1)

    def argwhere(self) -> Self:
        """Return the indices of the elements that are not zero, in rows. Waits for the device."""
        rows: Self = self.nonzero()
        return rows

    def _stacked(self, parts: list[Self], axis: int) -> Self:
        nodes = [part.unsqueeze(axis).node for part in parts]
        return self._new(graph.cat(nodes, axis % (parts[0].ndim + 1)))

    def unique(
        self,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        axis: int | None = None,
    ) -> Any:
        """Return the different elements in order, or, along an axis, the different parts, in the
        order of their first elements that differ; then, if asked for, the place in them of each
        element or part, and how often each occurs, as int64. Waits for the device. `sorted` changes
        nothing: the result is sorted."""
        rows = self._parts_along("unique", axis)
        order = rows._lexicographic()
        ordered = rows[order]
        first = _changes(ordered)
        outcome = [self._parts_back(ordered, first, axis)]
        number = first.cast(int64).cumsum(0) - 1
        if return_inverse:
            inverse = number._filled(0).scatter(0, order, number)
            outcome.append(inverse.reshape(self.shape) if axis is None else inverse)
        if return_counts:
            outcome.append(self._run_lengths(first))
        return outcome[0] if len(outcome) == 1 else tuple(outcome)

    def unique_consecutive(
        self, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None
    ) -> Any:
        """Return the first element of each run of equal ones, or, along an axis, the first part;
        then, if asked for, the number of the run of each, and the lengths of the runs. Waits for
        the device."""
        rows = self._parts_along("unique_consecutive", axis)
        first = _changes(rows)
        outcome = [self._parts_back(rows, first, axis)]
        if return_inverse:
            number = first.cast(int64).cumsum(0) - 1
            outcome.append(number.reshape(self.shape) if axis is None else number)
        if return_counts:
            outcome.append(self._run_lengths(first))
        return outcome[0] if len(outcome) == 1 else tuple(outcome)

    def _parts_along(self, operation: str, axis: int | None) -> Self:
        """Return the elements, or the parts along an axis, as rows of a matrix."""
        if axis is None:
            return self.reshape((self.numel(), 1))
        place = self._axis(operation, axis)
        size = self.shape[place]
        order = [place, *(each for each in range(self.ndim) if each != place)]
        return self.permute(order).reshape((size, self.numel() // max(1, size)))

    def _parts_back(self, rows: Self, first: Self, axis: int | None) -> Self:
        """Return the chosen rows of `_parts_along` in the form of this tensor."""
        places = self._new(graph.iota(rows.shape[0])).cast(int64).masked_select(first)
        chosen = rows[places]
        if axis is None:
            return chosen.reshape((chosen.shape[0],))
        place = self._axis("unique", axis)
        others = self.shape[:place] + self.shape[place + 1 :]
        order = [*range(1, place + 1), 0, *range(place + 1, self.ndim)]
        return chosen.reshape((chosen.shape[0], *others)).permute(order)

    def _lexicographic(self) -> Self:
        """Return the order of rows: by the last column first, each sort keeps the one before."""
        order = self._new(graph.iota(self.shape[0])).cast(int64)
        for column in reversed(range(self.shape[1])):
            order = order.gather(0, self[order, column].argsort(0)).contiguous()  # used twice
        return order

    def _run_lengths(self, first: Self) -> Self:
        """Return the lengths of runs that start where `first` is true."""
        count = first.shape[0]
        starts = self._new(graph.iota(count)).cast(int64).masked_select(first)
        end = self._new(self._constant("unique", count, int64, (1,)))
        ends = self._new(graph.cat([starts[1:].node, end.node], 0)) if count else starts
        return ends - starts

    def isin(self, elements: Any, *, invert: bool = False) -> Self:
        """Return whether each element is one of `elements`."""
        known = self._tensor("isin", elements)
        flat = known.reshape(known.numel())
        if not flat.numel():
            return self._new(self._constant("isin", invert, bool_, self.shape))
        ordered = flat.sort(0)[0] if flat.numel() > 16 else flat
        if flat.numel() <= 16:
            member = self.unsqueeze(-1)._compare("eq", ordered).any(-1)
        else:
            place = ordered.searchsorted(self).minimum(flat.numel() - 1)
            near = ordered.gather(0, place.reshape(place.numel())).reshape(self.shape)
            member = self._compare("eq", near)
        return ~member if invert else member

    def searchsorted(
        self, values: Any, *, right: bool = False, side: str | None = None,
        out_int32: bool = False, sorter: Any = None,
    ) -> Self:  # fmt: skip
        """Return for each value the place in this sorted tensor where it would be inserted, before
        (right, or side "right": behind) those that are equal, as int64 (out_int32: as int32).
        sorter: the order of a tensor that is not sorted, of `argsort`.

        Rows of the last axis are searched each by the values of that row; a tensor of one axis is
        searched by values of any shape.
        """
        if side not in (None, "left", "right") or (right and side == "left"):
            raise BadArgument(f"searchsorted: side {side!r} and right {right} do not agree")
        if sorter is not None:
            ordered = self.gather(-1, self._tensor("searchsorted", sorter))
            return ordered.searchsorted(values, right=right, side=side, out_int32=out_int32)
        if side == "right":
            right = True
        if out_int32:
            return self.searchsorted(values, right=right).cast(int32)
        lifted = self._lift("searchsorted", values)
        if not isinstance(lifted, TensorCore):
            number = self._constant("searchsorted", lifted, self.dtype, (1,))
            return self.searchsorted(self._new(number), right=right).reshape(())
        sought = self._new(lifted.node)
        if self.ndim == 1:
            flat = sought.reshape((1, sought.numel()))
            return self.unsqueeze(0)._searched(flat, right).reshape(sought.shape)
        if not self.ndim or self.shape[:-1] != sought.shape[:-1]:
            raise BadArgument(
                f"searchsorted: rows of shape {self._shown} and values of shape {sought._shown} "
                "must agree in all axes but the last"
            )
        return self._searched(sought, right)

    def _searched(self, sought: Self, right: bool) -> Self:
        """Halve the range of places until one is left: as many gathers as the length has bits."""
        size = self.shape[-1]
        low = sought._new(self._constant("searchsorted", 0, int64, sought.shape))
        high = low + size
        for _ in range(size.bit_length()):
            middle = (low + high).floor_divide(2)
            known = self.gather(-1, middle.minimum(max(0, size - 1)))
            nan = sought.isnan() if sought.dtype.is_float else None
            before = known._compare("le" if right else "lt", sought)
            if nan is not None:  # NaN is the largest, as in sort
                numbers = ~known.isnan() if known.dtype.is_float else True
                before = before | (nan if right else nan & numbers)
            go = before & (low < high)
            low, high = go.where(middle + 1, low), (before | ~(low < high)).where(high, middle)
        return low.cast(int64)

    def bucketize(self, boundaries: Any, *, right: bool = False, out_int32: bool = False) -> Self:
        """Return for each element its place among sorted boundaries (see `searchsorted`)."""
        known = self._tensor("bucketize", boundaries)
        if known.ndim != 1:
            raise BadArgument(f"bucketize: expected boundaries of one axis, got {known._shown}")
        return known.searchsorted(self, right=right, out_int32=out_int32)

    def bincount(self, weights: Any = None, minlength: int = 0) -> Self:
        """Return how often each number from 0 on occurs in a tensor of integers of one axis, or the
        sum of their weights. Waits for the device, for the largest."""
        if self.ndim != 1 or not (self.dtype.is_integer or self.dtype is bool_):
            raise BadArgument(
                f"bincount: expected integers of one axis, got {self.dtype.name} {self._shown}"
            )
        size = integer_of("bincount", "minlength", minlength)
        if size < 0:
            raise BadArgument(f"bincount: expected minlength >= 0, got {size}")
        if self.numel():
            least, most = self._whole("bincount", self.min()), self._whole("bincount", self.max())
            if least < 0:
                raise BadArgument(f"bincount: expected numbers >= 0, got {least}")
            size = max(size, most + 1)
        given = None if weights is None else self._tensor("bincount", weights)
        if given is not None and given.shape != self.shape:
            raise BadArgument(
                f"bincount: expected weights of shape {list(self.shape)}, got {given._shown}"
            )
        kind = int64 if given is None else float32 if not given.dtype.is_float else given.dtype
        zeros = self._new(self._constant("bincount", 0, kind, (size,)))
        ones = self._new(self._constant("bincount", 1, int64, self.shape))
        return zeros.scatter_add(0, self.cast(int64), ones if given is None else given.cast(kind))

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """Return how many elements are in each of `bins` equal parts of min to max (both 0: of the
        range of the elements), in the elements' type; others are not counted."""
        if integer_of("histc", "bins", bins) <= 0:
            raise BadArgument(f"histc: expected bins > 0, got {bins}")
        values = self._real().reshape(self.numel())
        if not min <= max:
            raise BadArgument(f"histc: expected min <= max, got {min} and {max}")
        zeros = self._new(self._constant("histc", 0, float32, ()))
        low, high = zeros + min, zeros + max
        if min == max == 0 and self.numel():
            low, high = values.min(), values.max()
        single = low._compare("eq", high)
        low, high = single.where(low - 1, low), single.where(high + 1, high)
        part = ((values - low) * bins / (high - low)).floor().clamp(0, bins - 1).cast(int64)
        inside = (values >= low) & (values <= high)
        counts = self._new(self._constant("histc", 0, float32, (bins,)))
        return counts.scatter_add(0, part, inside.cast(float32)).cast(self.dtype)


def _changes(rows: Any) -> Any:
    """Return where a row differs from the one before; the first does."""
    if not rows.shape[0]:
        return rows._new(rows._constant("unique", False, bool_, (0,)))
    change = rows[1:]._compare("ne", rows[:-1]).any(1)
    return change.pad([(1, 0)], True)
