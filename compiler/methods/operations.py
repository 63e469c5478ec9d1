"""Tensor: the operations that the groups of methods are built from."""

from __future__ import annotations

from typing import Any, Self

from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.methods.core import Scalar, TensorCore, broadcast
from ugpu.compiler.methods.functions import Functions
from ugpu.compiler.methods.reductions import Reductions
from ugpu.compiler.methods.shape.indexing import Indexing
from ugpu.hcq.errors import BadArgument


class Operations(Reductions, Functions, Indexing):
    """Arithmetic, movement, reductions and indexing, and helpers that several groups use. Groups
    built on this class do not use each other."""

    __slots__ = ()

    def gather(self, axis: int, index: TensorCore) -> Self:
        """Return result[i, j] = self[index[i, j], j] for axis 0, and so on.

        An index has as many axes as the tensor and may be shorter along each (along `axis` also
        longer). Negative indices count from the end; indices out of range read as zero. An index
        without elements may have any shape, which is that of the result.
        """
        lifted = self._lift("gather", index)
        if isinstance(lifted, TensorCore) and not lifted.numel() and lifted.dtype.is_integer:
            self._axes("gather", axis)
            return self._new(self._constant("gather", 0, self.dtype, lifted.shape))
        if not self.ndim and isinstance(lifted, TensorCore) and lifted.ndim <= 1:
            self._axes("gather", axis)  # counts as having one axis, as in PyTorch
            line = self._new(lifted.node).reshape((lifted.numel(),))
            return self.reshape(1).gather(0, line).reshape(lifted.shape)
        place, node = self._indices("gather", axis, index)
        common = node.shape
        entries = []
        for other, size in enumerate(common):
            if other == place:
                entries.append(node)
                continue
            shape = [size if each == other else 1 for each in range(self.ndim)]
            entries.append(broadcast(graph.reshape(graph.iota(size), tuple(shape)), common))
        return self._new(graph.gather(self.node, tuple(range(self.ndim)), entries, False))

    def _tensor(self, operation: str, given: Any) -> Self:  # Any: checked here
        """Return an operand as a tensor. BadArgument unless it is a tensor or an array."""
        lifted = self._lift(operation, given)
        if not isinstance(lifted, TensorCore):
            raise BadArgument(f"{operation}: expected a Tensor or an array, got {given!r}")
        return self._new(lifted.node)

    def _counted(self, size: int, axis: int) -> Self:
        """Return 0, 1 ... along an axis, with as many axes as this tensor."""
        shape = tuple(size if place == axis else 1 for place in range(self.ndim))
        return self._new(graph.reshape(graph.iota(size), shape))

    def _filled(self, value: Scalar) -> Self:
        return self._new(self._constant("full_like", value, self.dtype, self.shape))

    def _indices(self, operation: str, axis: int, index: TensorCore) -> tuple[int, Node]:
        place = self._axis(operation, axis)
        lifted = self._lift(operation, index)
        if not isinstance(lifted, TensorCore) or not lifted.dtype.is_integer:
            raise BadArgument(f"{operation}: the index must be a tensor of integers")
        shape = lifted.shape
        fits = len(shape) == self.ndim > 0 and all(
            size <= own or each == place
            for each, (size, own) in enumerate(zip(shape, self.shape, strict=True))
        )
        if not fits:
            raise BadArgument(
                f"{operation}: the index's shape {lifted._shown} does not fit shape {self._shown}"
            )
        return place, lifted.node
