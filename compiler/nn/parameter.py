"""Parameter: a tensor that a module trains. Several may lie side by side in one array."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

from ugpu.compiler.dtype import DType
from ugpu.compiler.gradients.reverse import LEAF, tracking
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node, Shape
from ugpu.compiler.graph.tracking import History
from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.sharding.sharded import Devices, Sharded, parts_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

ALIGNED = 64  # elements: parts whose size is a multiple start at a multiple


class Parameter(Tensor, results=False):
    """A tensor with requires_grad. Results of its methods are plain Tensors.

    An optimiser moves parameters into one array (`Array`); each is then a part of it: it reads what
    the array holds, and assignments to it are assignments to the array.
    """

    __slots__ = ("_array", "_frozen", "_view")

    _view: weakref.ref[Node] | None  # the present node, as a part of the array

    def __init__(
        self, data: Any, requires_grad: bool = True, *, device: Device | str | None = None,
        dtype: DType | str | None = None,
    ) -> None:  # fmt: skip
        self._array: Array | None = None
        if device is None and isinstance(data, Tensor):
            device = data.device
        super().__init__(data, device=device, dtype=dtype)
        if isinstance(data, Tensor):
            self.node = graph.detached(self.node)
        self.requires_grad = requires_grad

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are computed for this parameter."""
        return self.node.tracked

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if self._array is None:
            super()._set_requires_grad(wanted)
        else:
            self._frozen, self._view = not wanted, None

    def __deepcopy__(self, memo: object) -> Any:  # of Parameter
        """Return a parameter of its own with the same elements."""
        return Parameter(self.detach(), self.requires_grad)

    def _become_leaf(self, node: Node) -> None:
        if self._array is None:  # a part of an array is one already
            super()._become_leaf(node)


def _read(parameter: Parameter) -> Node:
    array = parameter._array
    if array is None:
        node: Node = TensorCore.__dict__["node"].__get__(parameter)
        return node
    return array.part(parameter)


def _write(parameter: Parameter, node: Node) -> None:
    if parameter._array is None:
        TensorCore.__dict__["node"].__set__(parameter, node)
    else:
        parameter._array.write(parameter, node)


# By name: for mypy, `node` is a variable, which a property cannot replace. The slot of TensorCore
# may be exchanged for a property while a function is recorded.
type.__setattr__(
    Parameter, "node", property(_read, _write)
)  # mypy allows no property over a variable


class Array:
    """One array of several parameters of a type and device, one after the other. The parameters
    become parts of it. `parameters` has them in the order of the array: the sizes that divide by
    the highest power of two first, so that each starts at a multiple of that power."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        first = parameters[0]
        self.parameters = sorted(parameters, key=lambda each: -_alignment(each.numel()))
        self.starts: dict[int, int] = {}
        self.shapes: dict[int, Shape] = {}
        size = 0
        for parameter in self.parameters:
            if parameter.dtype is not first.dtype or parameter.device is not first.device:
                raise BadArgument(
                    f"parameters of one group must have one type and device, got "
                    f"{first.dtype.name} on {first.device.name} and {parameter.dtype.name} on "
                    f"{parameter.device.name}"
                )
            self.starts[id(parameter)] = size
            self.shapes[id(parameter)] = parameter.shape
            size += parameter.numel()
        self.size = size
        with tracking(False):
            self.tensor = self.joined([each.detach() for each in self.parameters]).realize()
        for parameter in parameters:
            parameter._view, parameter._frozen = None, False
            parameter._array = self

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return one array of tensors like the parameters, in the order of `parameters`."""
        return Tensor.cat([part.reshape(part.numel()) for part in parts]).contiguous()

    def of(self, values: Node, parameter: Parameter) -> Node:
        """Return the part of such an array that belongs to a parameter."""
        start, shape = self.starts[id(parameter)], self.shapes[id(parameter)]
        return graph.reshape(graph.shrink(values, [(start, start + prod(shape))]), shape)

    def part(self, parameter: Parameter) -> Node:
        """Return the parameter's present node, the same until the array changes."""
        whole = self.tensor.node
        known = None if parameter._view is None else parameter._view()
        if known is not None and _moves(known, whole):
            return known
        with tracking(False):
            node = graph.detached(self.of(whole, parameter))
        if not parameter._frozen:
            node.tracked, node.history = True, History(LEAF, (), weakref.ref(parameter))
        parameter._view = weakref.ref(node)  # weak: it must not keep the array's old value
        return node

    def write(self, parameter: Parameter, node: Node) -> None:
        """Replace the parameter's elements."""
        start = self.starts[id(parameter)]
        with tracking(False):
            value = self.tensor._new(graph.reshape(node, (prod(self.shapes[id(parameter)]),)))
            self.tensor[start : start + value.numel()] = value


def _alignment(size: int) -> int:
    """Return the highest power of two up to ALIGNED that divides a size."""
    return math.gcd(size, ALIGNED)


def _moves(node: Node, source: Node) -> bool:
    """Return whether a node is nothing but movement of `source`."""
    while node is not source and node.op in graph.MOVEMENT:
        node = node.sources[0]
    return node is source


def replace(tensor: Tensor | Sharded, value: Tensor | Sharded) -> None:
    """Give a tensor new elements: in its own memory if nothing else needs it and the kernel that
    computes them reads each old element only where it writes the new one. An assignment would take
    a kernel more: a value that depends on the array is computed before the array is written."""
    assert tensor.shape == value.shape
    for own, given in zip(parts_of(tensor), parts_of(value), strict=True):
        old = own.node
        node = given.node
        if old.storage is not None and node.storage is None and node.op != "contiguous":
            node = graph.instead(graph.cast(node, old.dtype), old)
        own.node = node


def sharded_parameter(parameter: Parameter, devices: Devices, axis: int | None) -> Sharded:
    """Return a parameter on several devices: replicated, or split along an axis."""
    placed = parameter.detach().shard(devices, axis)
    parts = [Parameter(each, False) for each in placed.parts]
    made = Sharded(parts, placed.axis)
    return made.requires_grad_() if parameter.requires_grad else made
