"""Tensor: shape and order. These methods change only indices; they compute and copy nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

from ugpu.compiler.graph import operations as graph
from ugpu.compiler.methods.core import Scalar, TensorCore, broadcast, broadcast_shape, shape_of
from ugpu.hcq.errors import BadArgument


class Movement(TensorCore):
    """Changes of shape and order. Names as in PyTorch; `axis` counts from either end."""

    __slots__ = ()

    def reshape(self, *shape: Any) -> Self:
        """Return the same elements in row-major order with another shape; one size may be -1."""
        wanted = shape_of("reshape", shape, self.numel())
        if prod(wanted) != self.numel():
            raise BadArgument(
                f"reshape: shape {self._shown} has another number of elements than {list(wanted)}"
            )
        return self._again(
            ("reshape", wanted), (), lambda: self._new(graph.reshape(self.node, wanted))
        )

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Join the axes from `start` to `end`, inclusive."""
        if not self.ndim:
            return self.reshape(1)
        first, last = self._axis("flatten", start), self._axis("flatten", end)
        if first > last:
            raise BadArgument(
                f"flatten: axes {start} to {end} are out of order for shape {self._shown}"
            )
        joined = prod(self.shape[first : last + 1])
        return self.reshape(*self.shape[:first], joined, *self.shape[last + 1 :])

    def unsqueeze(self, axis: int) -> Self:
        """Insert an axis of size 1."""
        place = self._axis("unsqueeze", axis, extra=1)
        return self.reshape((*self.shape[:place], 1, *self.shape[place:]))

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Self:
        """Remove axes of size 1: all of them by default; given axes of other sizes remain."""
        axes = self._axes("squeeze", axis)
        kept = [size for i, size in enumerate(self.shape) if size != 1 or i not in axes]
        return self.reshape(tuple(kept))

    def permute(self, *axes: Any) -> Self:
        """Reorder the axes: axis i of the result is axis axes[i]."""
        listed = axes[0] if len(axes) == 1 and isinstance(axes[0], list | tuple) else axes
        order = tuple(self._axis("permute", axis) for axis in listed)
        if sorted(order) != list(range(self.ndim)):
            raise BadArgument(
                f"permute: expected an order of the axes of shape {self._shown}, got "
                f"{tuple(listed)}"
            )
        return self._permuted(order)

    def _permuted(self, order: tuple[int, ...]) -> Self:
        return self._again(
            ("permute", order), (), lambda: self._new(graph.permute(self.node, order))
        )

    def transpose(self, first: int = 0, second: int = 1) -> Self:
        """Exchange two axes."""
        if not self.ndim:
            self._axes("transpose", first), self._axes("transpose", second)
            return self._same()
        order = list(range(self.ndim))
        one, two = self._axis("transpose", first), self._axis("transpose", second)
        order[one], order[two] = order[two], order[one]
        return self._permuted(tuple(order))

    @property
    def T(self) -> Self:
        """The tensor with all axes in reverse order."""
        return self._permuted(tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Self:
        """The tensor with its last two axes exchanged: matrices transposed."""
        if self.ndim < 2:
            raise BadArgument(f"mT: expected at least two axes, got shape {self._shown}")
        return self.transpose(-1, -2)

    def expand(self, *shape: Any) -> Self:
        """Repeat axes of size 1; -1 keeps an axis; new axes may be added in front."""
        listed = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        own = (1,) * (len(listed) - self.ndim) + self.shape
        if len(own) != len(listed):
            raise BadArgument(f"expand: shape {self._shown} cannot be expanded to {list(listed)}")
        kept = [mine if size == -1 else size for mine, size in zip(own, listed, strict=True)]
        wanted = shape_of("expand", [tuple(kept)])
        if any(m not in (1, w) for m, w in zip(own, wanted, strict=True)):
            raise BadArgument(f"expand: shape {self._shown} cannot be expanded to {list(wanted)}")
        return self._new(broadcast(self.node, wanted))

    def broadcast_to(self, *shape: Any) -> Self:
        """Repeat axes of size 1 up to `shape`; the same as `expand`."""
        wanted = shape_of("broadcast_to", shape)
        if broadcast_shape("broadcast_to", self.node, wanted) != wanted:
            raise BadArgument(
                f"broadcast_to: shape {self._shown} does not broadcast to {list(wanted)}"
            )
        return self._new(broadcast(self.node, wanted))

    def pad(self, pairs: Sequence[tuple[int, int]], value: Scalar = 0) -> Self:
        """Add `value` around the elements: (before, after) for each axis, as in numpy.pad. A
        negative amount removes elements."""
        listed = self._pairs("pad", pairs)
        checked = self._constant("pad", value, self.dtype, ()).arg
        if all(before >= 0 and after >= 0 for before, after in listed):
            return self._new(graph.pad(self.node, listed, checked))
        if any(size + sum(pair) < 0 for size, pair in zip(self.shape, listed, strict=True)):
            raise BadArgument(
                f"pad: amounts {listed} remove more elements than shape {self._shown} has"
            )
        added = [(max(0, before), max(0, after)) for before, after in listed]
        whole = graph.pad(self.node, added, checked)
        kept = [
            (max(0, -before), size + min(0, after))
            for size, (before, after) in zip(whole.shape, listed, strict=True)
        ]
        return self._new(graph.shrink(whole, kept))

    def shrink(self, box: Sequence[tuple[int, int]]) -> Self:
        """Return the elements from start to stop along each axis."""
        listed = self._pairs("shrink", box)
        for (start, stop), size in zip(listed, self.shape, strict=True):
            if not 0 <= start <= stop <= size:
                raise BadArgument(f"shrink: bounds {listed} are outside shape {self._shown}")
        return self._new(graph.shrink(self.node, listed))

    def _pairs(self, operation: str, given: Sequence[Any]) -> list[tuple[int, int]]:
        try:
            listed = [(int(first), int(second)) for first, second in given]
        except (TypeError, ValueError):
            raise BadArgument(f"{operation}: expected a sequence of pairs, got {given!r}") from None
        if len(listed) != self.ndim:
            raise BadArgument(
                f"{operation}: expected a pair for each axis of shape {self._shown}, got {listed}"
            )
        return listed

    def flip(self, *axes: Any, dims: Any = None) -> Self:
        """Reverse the order along the axes, numbers or one sequence; dims: PyTorch's name."""
        if axes and dims is not None:
            raise BadArgument("flip got both axes and dims, expected one of them")
        given = axes if dims is None else (dims,)
        listed = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
        return self._new(graph.flip(self.node, self._axes("flip", tuple(listed))))

    def repeat(self, *repeats: Any) -> Self:
        """Tile: repeats[i] copies along axis i; new axes may be added in front."""
        counts = shape_of("repeat", repeats)
        if len(counts) < self.ndim:
            raise BadArgument(
                f"repeat: expected a count for each axis of shape {self._shown}, got {list(counts)}"
            )
        own = (1,) * (len(counts) - self.ndim) + self.shape
        split = self.reshape(tuple(n for size in own for n in (1, size)))
        spread = split.expand(
            tuple(n for c, size in zip(counts, own, strict=True) for n in (c, size))
        )
        return spread.reshape(tuple(c * size for c, size in zip(counts, own, strict=True)))

    def contiguous(self) -> Self:
        """Store this value in memory instead of computing it again in each use."""
        if self.node.storage is not None:
            return self._same()
        return self._new(graph.contiguous(self.node))

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("a tensor without axes has no len()")
        return self.shape[0]
