"""Tensor: parts and arrangements, composed of slices, masks and movement. Names as in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ugpu.compiler.dtype import int64
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.methods.core import (
    Scalar,
    TensorCore,
    broadcast_shape,
    integer_of,
    integers_of,
    shape_of,
)
from ugpu.compiler.methods.operations import Operations
from ugpu.hcq.errors import BadArgument


class Layout(Operations):
    """Parts and arrangements of elements. None of these allocates memory."""

    __slots__ = ()

    def full_like(self, value: Scalar, *, dtype: Any = None) -> Self:
        """Return a tensor of one value with the same shape, device, and type unless given."""
        return (self if dtype is None else self.cast(dtype))._filled(value)

    def zeros_like(self, *, dtype: Any = None) -> Self:
        """Return zeros with the same shape, device, and type unless given."""
        return self.full_like(0, dtype=dtype)

    def ones_like(self, *, dtype: Any = None) -> Self:
        """Return ones with the same shape, device, and type unless given."""
        return self.full_like(1, dtype=dtype)

    def tril(self, diagonal: int = 0) -> Self:
        """Keep the elements on or below a diagonal of the last two axes; set the others to zero."""
        return self._triangle("tril", diagonal, True)

    def triu(self, diagonal: int = 0) -> Self:
        """Keep the elements on or above a diagonal of the last two axes; set the others to zero."""
        return self._triangle("triu", diagonal, False)

    def _triangle(self, operation: str, diagonal: int, below: bool) -> Self:
        if self.ndim < 2:
            raise BadArgument(f"{operation}: expected at least two axes, got shape {self._shown}")
        down = self._counted(self.shape[-2], self.ndim - 2) + diagonal
        across = self._counted(self.shape[-1], self.ndim - 1)
        kept = across <= down if below else across >= down
        return kept.where(self, 0).cast(self.dtype)

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """Return a diagonal of two axes, as the last axis of the result. offset: its distance above
        the main diagonal. dim1, dim2: the axes that count down and across."""
        if self.ndim < 2:
            raise BadArgument(f"diagonal: expected at least two axes, got shape {self._shown}")
        above = integer_of("diagonal", "offset", offset)
        down, across = self._axes("diagonal", (dim1, dim2))
        rest = [axis for axis in range(self.ndim) if axis not in (down, across)]
        first, second = max(0, -above), max(0, above)
        count = max(0, min(self.shape[down] - first, self.shape[across] - second))
        places = self._new(graph.iota(count))
        return self.permute(*rest, down, across)[(..., places + first, places + second)]

    def diag(self, diagonal: int = 0) -> Self:
        """Return a matrix with this one-axis tensor on a diagonal; for a matrix, its diagonal.
        diagonal: the distance above the main one."""
        above = integer_of("diag", "diagonal", diagonal)
        if self.ndim == 2:
            return self.diagonal(above)
        if self.ndim != 1:
            raise BadArgument(f"diag: expected one axis or two, got shape {self._shown}")
        before = max(0, -above)
        size = self.shape[0] + abs(above)
        padded = self.pad([(before, size - self.shape[0] - before)]).unsqueeze(1)
        down = self._new(graph.iota(size)).unsqueeze(1)
        across = self._new(graph.iota(size)).unsqueeze(0)
        return (down + above)._compare("eq", across).where(padded, 0).cast(self.dtype)

    def split(self, sizes: int | Sequence[int], axis: int = 0) -> tuple[Self, ...]:
        """Split into parts of one size (the last may be shorter), or of given sizes that add up to
        the axis."""
        place = self._axis("split", axis)
        whole = self.shape[place]
        if not isinstance(sizes, list | tuple):
            sizes = integer_of("split", "sizes", sizes)
            if sizes <= 0:
                raise BadArgument(f"split: sizes must be positive, got {sizes}")
            sizes = [min(sizes, whole - start) for start in range(0, whole, sizes)]
        sizes = integers_of("split", "sizes", sizes)
        if sum(sizes) != whole or any(size < 0 for size in sizes):
            raise BadArgument(
                f"split: sizes {list(sizes)} do not add up to axis {axis} of shape {self._shown}"
            )
        parts, start = [], 0
        for size in sizes:
            parts.append(self[(*[slice(None)] * place, slice(start, start + size))])
            start += size
        return tuple(parts)

    def chunk(self, count: int, axis: int = 0) -> tuple[Self, ...]:
        """Split into at most `count` parts of equal size (the last may be shorter)."""
        place = self._axis("chunk", axis)
        if integer_of("chunk", "count", count) <= 0:
            raise BadArgument(f"chunk: count must be positive, got {count}")
        return self.split(max(1, -(-self.shape[place] // count)), place)

    def roll(self, shifts: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Self:
        """Rotate the elements along axes; None rotates the flattened tensor."""
        if axis is None:
            if not isinstance(shifts, int):
                raise BadArgument("roll: several shifts need as many axes")
            return self.flatten().roll(shifts, 0).reshape(self.shape)
        axes = self._axes("roll", axis)
        listed = shifts if isinstance(shifts, list | tuple) else [shifts] * len(axes)
        moves = integers_of("roll", "shifts", listed)
        if len(moves) != len(axes):
            raise BadArgument(
                f"roll: expected as many shifts as axes, got {len(moves)} shifts "
                f"for {len(axes)} axes"
            )
        result = self._same()
        for place, move in zip(axes, moves, strict=True):
            size = self.shape[place]
            if size and move % size:
                before = [slice(None)] * place
                cut = size - move % size
                parts = [result[(*before, slice(cut, None))], result[(*before, slice(None, cut))]]
                result = self._new(graph.cat([part.node for part in parts], place))
        return result

    def repeat_interleave(
        self, count: Any, axis: int | None = None, *, output_size: int | None = None
    ) -> Self:
        """Repeat each element `count` times consecutively, along an axis (None: of the flattened
        tensor). count: an int, or a tensor of ints of one axis, one for each part along the axis;
        then waits for the device. output_size: PyTorch's, of no effect."""
        if axis is None:
            return self.flatten().repeat_interleave(count, 0)
        if isinstance(count, TensorCore):
            return self._repeated_each(self._new(count.node), self._axis("repeat_interleave", axis))
        if integer_of("repeat_interleave", "count", count) < 0:
            raise BadArgument(f"repeat_interleave: count must not be negative, got {count}")
        place = self._axis("repeat_interleave", axis)
        shape = self.shape
        spread = (*shape[: place + 1], count, *shape[place + 1 :])
        joined = (*shape[:place], shape[place] * count, *shape[place + 1 :])
        return self.unsqueeze(place + 1).expand(spread).reshape(joined)

    def _repeated_each(self, counts: Self, place: int) -> Self:
        if not counts.dtype.is_integer or counts.shape not in ((), (1,), (self.shape[place],)):
            raise BadArgument(
                f"repeat_interleave: expected {self.shape[place]} counts, ints on one axis, got "
                f"{counts.dtype.name} {counts._shown}"
            )
        numbers = self._picked(counts.broadcast_to(self.shape[place]))
        if (numbers < 0).any():
            raise BadArgument(f"repeat_interleave: counts must not be negative, got {numbers}")
        places = np.repeat(np.arange(len(numbers)), numbers)
        return self[(*[slice(None)] * place, places)]

    def unstack(self, axis: int = 0) -> tuple[Self, ...]:
        """Return the parts along an axis, without it: the inverse of `stack`."""
        place = self._axis("unstack", axis)
        return tuple(self[(*[slice(None)] * place, at)] for at in range(self.shape[place]))

    def unflatten(self, axis: int, sizes: Sequence[int]) -> Self:
        """Split an axis into several; one size may be -1."""
        place = self._axis("unflatten", axis)
        listed = tuple(integers_of("unflatten", "sizes", sizes))
        wanted = shape_of("unflatten", [listed], self.shape[place])
        return self.reshape((*self.shape[:place], *wanted, *self.shape[place + 1 :]))

    def one_hot(self, classes: int = -1) -> Self:
        """Add a last axis of `classes`, 1 at the position of the integer and 0 elsewhere, as int64.

        -1: as many classes as the largest integer requires, which is computed immediately (an error
        in a recorded function).
        """
        if not self.dtype.is_integer:
            raise BadArgument(f"one_hot: expected integers, got {self.dtype.name}")
        if type(classes) is not int or classes < -1:
            raise BadArgument(f"one_hot: classes must be an int of at least -1, got {classes!r}")
        if classes == -1:
            classes = max(0, self._whole("one_hot", self.max()) + 1)
        across = self._new(graph.iota(classes))
        return self.unsqueeze(-1)._compare("eq", across).cast(int64)

    def masked_select(self, mask: TensorCore) -> Self:
        """Return the elements selected by a mask, in order; both are broadcast.

        Their number depends on data: the mask is computed immediately (an error in a recorded
        function).
        """
        lifted = self._lift("masked_select", mask)
        if not isinstance(lifted, TensorCore):
            raise BadArgument(f"masked_select: mask must be a Tensor, got {mask!r}")
        shape = broadcast_shape("masked_select", self.node, lifted.node)
        picked = self._picked(self._new(lifted.node).broadcast_to(shape))
        return (self if shape == self.shape else self.broadcast_to(shape))[picked]

    def _whole(self, operation: str, tensor: Self) -> int:
        """Return the only element, computed now."""
        raise NotImplementedError
