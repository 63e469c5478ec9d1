"""Tensor: requires_grad, grad, backward; names and meanings as in PyTorch."""

from __future__ import annotations

import weakref
from typing import Any, Self

from ugpu.compiler.gradients import pending, replicas
from ugpu.compiler.gradients.reverse import LEAF, gradients, tracking
from ugpu.compiler.gradients.values import Values
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.region import Region, Scatter
from ugpu.compiler.graph.tracking import History, mode
from ugpu.hcq.errors import BadArgument

CUT = "integers, comparisons, item(), numpy(), detach() and no_grad() end the graph of gradients"


class Differentiable(Values):
    """Gradients by reverse mode. A leaf is a tensor whose `requires_grad` the program set."""

    __slots__ = ("_grad",)

    _grad: Differentiable | None  # unset until there is one

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded for gradients. Setting it makes the tensor
        a leaf, whose gradient `backward` adds to `grad`; BadArgument unless it is a float."""
        return self.node.tracked

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self._set_requires_grad(wanted)

    def _set_requires_grad(self, wanted: bool) -> None:
        if wanted is self.node.tracked:
            return
        if not wanted:
            if not self.is_leaf:
                raise BadArgument(
                    "requires_grad: only a leaf can be made untracked; use detach() on a result"
                )
            self.node = _copy(self.node)
            return
        if not self.dtype.is_float:
            raise BadArgument(
                f"requires_grad: only floats have gradients, expected a float tensor, got "
                f"{self.dtype.name}"
            )
        self._become_leaf(_copy(self.node))

    def requires_grad_(self, wanted: bool = True) -> Self:
        """Set `requires_grad` and return self."""
        self.requires_grad = wanted
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor is not the result of a tracked operation."""
        history = self.node.history
        own = history is not None and history.op == LEAF and history.arg() is self
        return own or not self.node.tracked

    @property
    def grad(self) -> Any:  # Self | None: a property of a subclass
        """The sum of the gradients that `backward` computed for this leaf; None if there are
        none."""
        return getattr(self, "_grad", None)

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None and (not isinstance(value, Values) or value.shape != self.shape):
            raise BadArgument(f"grad: expected None or a Tensor of shape {self._shown}")
        if value is not None:
            self._lift("grad", value)
        given: Any = value
        self._grad = given

    def backward(
        self, gradient: Any = None, *, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Add the gradient of this tensor to `grad` of each leaf it depends on. Computes nothing
        by itself: gradients are lazy tensors.

        gradient: that of this tensor; 1 for a tensor of one element. retain_graph: whether the
        graph can be used by another pass (default: as create_graph). create_graph: whether
        gradients are tracked, for derivatives of higher order. Raises BadArgument for a tensor that
        depends on no leaf.
        """
        if not self.requires_grad:
            raise BadArgument(
                f"backward: {self.dtype.name} tensor {self._shown} depends on no tensor with "
                f"requires_grad; {CUT}"
            )
        pending.add(self)
        keep = create_graph if retain_graph is None else retain_graph
        given = self._cotangent("backward", gradient)
        found = gradients([self], [given], keep=keep, higher=create_graph)
        replicas.accumulate(found, create_graph)

    def _cotangent(self, operation: str, gradient: Any) -> Values:
        if gradient is None:
            if self.numel() != 1:
                raise BadArgument(
                    f"{operation}: a tensor of one element is expected, or the gradient of each, "
                    f"got shape {self._shown}"
                )
            return self._filled(1)
        given = self._tensor(operation, gradient)
        if given.shape != self.shape:
            raise BadArgument(
                f"{operation}: the gradient's shape {given._shown} must be {list(self.shape)}"
            )
        return given

    def _accumulate(self, g: Values, higher: bool) -> None:
        known: Any = self.grad
        if known is None:
            self._grad = self._plain(g.node)
        elif higher:
            self.grad = known + g
        else:  # into the same tensor: a recorded function can do that
            with tracking(False):
                known.assign(known + g)

    def _plain(self, node: Node) -> Any:
        """Return a tensor of a node, which is not a leaf."""
        made = object.__new__(self._kind)
        made.node, made.device = node, self.device
        return made

    def _become_leaf(self, node: Node) -> None:
        """Take a node that only this tensor refers to."""
        node.tracked, node.history = True, History(LEAF, (), weakref.ref(self))
        self.node = node

    def _replace(self, op: str, arg: Region | Scatter, given: Node, *others: Node) -> None:
        leaf = self.node.tracked and self.is_leaf
        if leaf and mode.on:
            raise BadArgument(
                f"assign: tensor {self._shown} requires a gradient, expected no_grad() around an "
                "assignment to it"
            )
        super()._replace(op, arg, given, *others)
        if leaf:
            self._become_leaf(self.node)


def _copy(node: Node) -> Node:
    """Return an untracked node of the same elements that nothing else refers to."""
    if node.storage is None:
        return graph.detached(node)
    made = Node("buffer", node.dtype, node.shape)
    made.storage, made.origin = node.storage, node.origin
    return made
