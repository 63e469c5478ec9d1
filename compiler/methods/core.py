"""Base of all method groups of Tensor: a node, a device, and the conversion of operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.forms import Makes
from ugpu.compiler.graph.node import Node, Recipe, Repeated, Shape
from ugpu.compiler.graph.origin import here, text
from ugpu.compiler.graph.recipe import Sources, chained, recipe_of, sources_of
from ugpu.compiler.graph.series import (
    HeldFloat,
    HeldInt,
    Numbers,
    Series,
    begun,
    known,
    with_held,
)
from ugpu.compiler.graph.tracking import History, mode
from ugpu.compiler.runtime.watch import watchers
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument, BadIndex

Scalar = bool | int | float
RECIPES = 1024  # recipes kept

# None: the method's result cannot be made by a recipe.
_recipes: dict[tuple[object, ...], Recipe | None] = {}
_UNKNOWN: Any = object()  # no key's recipe


class Count(int):
    """A number of elements, which can be called as PyTorch's `size`."""

    _tensor: TensorCore

    def __new__(cls, tensor: TensorCore) -> Self:
        made = super().__new__(cls, tensor.node.size)
        made._tensor = tensor
        return made

    def __call__(self, axis: int | None = None, *, dim: int | None = None) -> Any:
        """Return the shape, or the size of an axis."""
        place = axis if dim is None else dim
        shape = self._tensor.shape
        return shape if place is None else shape[self._tensor._axis("size", place)]

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


class TensorCore:
    """A node of the graph on a device. Tensors are immutable."""

    __slots__ = ("__weakref__", "device", "node")

    node: Node
    device: Device
    _kind: ClassVar[Any]  # the class of results; a subclass may leave it as it is

    def __init_subclass__(cls, results: bool = True) -> None:
        if results:
            cls._kind = cls

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    @property
    def size(self) -> Count:
        """The number of elements, as in NumPy. Called, as in PyTorch: `x.size()` is the shape,
        `x.size(axis)` the size of an axis."""
        return Count(self)

    def numel(self) -> int:
        """The number of elements."""
        return self.node.size

    def _new(self, node: Node) -> Self:
        made: Self = object.__new__(self._kind)
        made.node = graph.detached(node) if node.tracked and not mode.on else node
        made.device = self.device
        if node.origin is None:
            node.origin = here()
        return made

    def _same(self) -> Self:
        """Return another tensor with the same elements: an assignment to one leaves the other as
        it is."""
        return self._new(self.node)

    def detach(self) -> Self:
        """Return a tensor of the same elements, through which no gradient flows."""
        return self._new(graph.detached(self.node)) if self.node.tracked else self._same()

    def _ruled(self, rule: str, sources: Sequence[TensorCore], arg: Any = None) -> Self:
        """Give this new tensor a gradient by a rule of its own (compiler.gradients), as a function
        of `sources`, instead of the one that follows from its operations; return self."""
        node = self.node
        if node.tracked and all(each.node is not node for each in sources):
            node.history = History(rule, tuple([each.node for each in sources]), arg)
        return self

    def _again(
        self, name: tuple[object, ...], others: tuple[TensorCore, ...], method: Callable[[], Self]
    ) -> Self:
        """Return the result of `method` for this tensor and the others. The recipe is built once
        for stored arrays of one type and shape, for slices of them, and for results of recipes.
        name: what else the result depends on, with the type of each Python number before it. The
        method must be a function of these alone.

        The public method calls this directly: the recorded line is three calls up."""
        device = self.device
        operands: tuple[Node, ...] = (self.node,)
        if others:
            for other in others:
                if other.device is not device:
                    return method()
                operands += (other.node,)
        sources = sources_of(operands)
        if sources is None or watchers:  # watchers show the line of each operation
            return method()
        key = (name, sources[0], device.target.compute_units)
        recipe = _recipes.get(key, _UNKNOWN)
        if recipe is _UNKNOWN:
            return self._learnt(name, key, sources, method)
        if recipe is None:
            return method()
        recipe.repeats = True
        return self._repeated(recipe, *sources[1:])

    def _again_with_numbers(
        self,
        name: tuple[object, ...],
        numbers: Numbers,
        method: Callable[..., Self],
        holds: bool,
        others: tuple[TensorCore, ...] = (),
        dtype: DType | None = None,
    ) -> Self:
        """Return what `_again` does for a method of self, of others if any, and of Python numbers,
        which are part of the recipe. holds: the recipe may have them by value instead, and does for
        all but the first HELD_FROM that come for arrays like these. dtype: of the operands that
        decide the numbers' type, if not self's."""
        device = self.device
        operands: tuple[Node, ...] = (self.node,)
        for other in others:
            if other.device is not device:
                return method(*numbers)
            operands += (other.node,)
        sources = sources_of(operands)
        if sources is None or watchers:
            return method(*numbers)
        kinds = (type(numbers[0]),) if len(numbers) == 1 else tuple(map(type, numbers))
        units = device.target.compute_units  # below: 0.0 and -0.0 are equal
        zeros = [] if 0 not in numbers else [math.copysign(1, number) for number in numbers]
        key = (name, kinds, numbers, *zeros, sources[0], units)
        recipe = _recipes.get(key, _UNKNOWN)
        if recipe is _UNKNOWN:
            if holds and self._gives_numbers:
                like = (name, kinds, sources[0], units)
                series = known.get(like)
                if series is None:
                    promoted = dtypes.promote_scalar(dtype or self.dtype, numbers[0])
                    series = begun(like, Series(promoted, numbers, name[0]))
                if not series.begins(numbers):
                    result = self._by_value(series, name, operands, others, numbers, method)
                    if result is not None:
                        return result
            return self._learnt((*name, *kinds), key, sources, partial(method, *numbers))
        if recipe is None:
            return method(*numbers)
        recipe.repeats = True
        return self._repeated(recipe, *sources[1:])

    def _by_value(
        self,
        series: Series,
        name: tuple[object, ...],
        operands: tuple[Node, ...],
        others: tuple[TensorCore, ...],
        numbers: Numbers,
        method: Callable[..., Self],
    ) -> Self | None:
        """Return the result of a method with numbers that come by value; None if they have to be
        part of the kernel. operands: the nodes of self and the others."""
        given = operands
        for number in numbers:
            node = series.node(number)
            if node is None:
                return None
            given += (node,)
        stored = None not in [node.storage for node in operands]
        if series.recipe is not None and stored:
            return self._repeated(series.recipe, given, given, ())
        nodes = given[len(operands) :]
        for node in nodes:
            made: Self = object.__new__(self._kind)
            made.device, made.node = self.device, node
            others += (made,)
        held = partial(with_held, method, numbers, nodes)
        result = self._again((*name, "held"), others, held)
        last = result.node
        if stored and isinstance(last, Repeated) and last.given == given:
            series.recipe = last.recipe
        return result

    @property
    def _gives_numbers(self) -> bool:
        """Whether operations may have numbers by value now."""
        raise NotImplementedError

    def _learnt(
        self,
        name: tuple[object, ...],
        key: tuple[object, ...],
        sources: Sources,
        method: Callable[[], Self],
    ) -> Self:
        """Return the result of `method`, and remember its recipe. One with a number may not be
        needed again, until it is: nothing is learnt about what reads its result."""
        _, operands, given, inner = sources
        result = method()
        recipe = recipe_of(operands, result.node)
        if inner and recipe is not None:
            recipe = chained(recipe, given, result.node)
        if recipe is not None:
            recipe.repeats = not any(isinstance(each, type) for each in name)
        if len(_recipes) >= RECIPES:
            _recipes.clear()
        _recipes[key] = recipe
        if recipe is None:
            return result
        return self._repeated(recipe, operands, given, inner)

    def _repeated(
        self,
        recipe: Recipe,
        operands: tuple[Node, ...],
        given: tuple[Node, ...],
        inner: tuple[Node, ...],
    ) -> Self:
        """Repeat a recipe. Few steps, since memory is slow for a program that has just read much
        of it."""
        device = self.device
        if recipe.long:
            core_of(device).driver.prefetch_wake()
        made: Self = object.__new__(self._kind)
        made.device = device
        made.node = result = Repeated(recipe, operands, given, inner)
        result.origin = here(4)  # above this, its caller and the public method
        return made

    @property
    def _shown(self) -> str:
        """Return the shape and the line that built this tensor, for errors."""
        return shown(self.node)

    def _lift(self, operation: str, other: Any) -> TensorCore | Scalar:  # Any: checked here
        """Return an operand: a tensor, or a weak Python scalar."""
        if isinstance(other, TensorCore):
            if other.device is not self.device:
                raise BadArgument(
                    f"{operation}: tensors on {self.device.name} and {other.device.name}; "
                    "move one with .to(device)"
                )
            return other
        if isinstance(other, bool | int | float):
            return other
        if isinstance(other, np.generic) and other.dtype.kind in "biuf":
            made = dtypes.from_numpy(other.dtype)
            return self._new(Node("const", made, (), (), other.item()))
        if _is_array(other):
            return self._from_array(other)
        kind = type(other)
        if is_complex(other):
            raise BadArgument(f"{operation}: {dtypes.COMPLEX}, got {other!r}")
        if hasattr(kind, "placement"):
            raise BadArgument(
                f"{operation}: a tensor on {self.device.name} and {other!r}; place it with "
                ".shard(devices) first"
            )
        name = (
            kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        )
        raise BadArgument(
            f"{operation}: operand must be a Tensor, an array or a number, got {name}"
        )

    @staticmethod
    def _is_operand(other: object) -> bool:
        """Return whether `_lift` accepts it as an operand."""
        numbers = TensorCore | bool | int | float | complex | np.generic
        return isinstance(other, numbers) or _is_array(other)

    def _from_array(self, array: Any) -> TensorCore:  # Any: see _is_array
        """Return an array from outside as a tensor on this device."""
        raise NotImplementedError

    def _with_complex(self, name: tuple[object, ...], other: Any) -> Any:
        """Return the operation `name` of this tensor and an operand that is complex."""
        raise NotImplementedError

    def _kept(self, name: str, make: Callable[[], np.ndarray[Any, Any]]) -> TensorCore | None:
        """Return an array of constants on this device, copied there once. None if it is not there
        yet and work is being recorded, which cannot copy."""
        raise NotImplementedError

    def _preferred(self, what: str, forms: Mapping[str, Makes]) -> str | None:
        """Return the measured best form, see compiler.search.forms; None while recording."""
        raise NotImplementedError

    def _constant(
        self, operation: str, number: Scalar, dtype: DType, shape: Shape, exact: bool = False
    ) -> Node:
        """Return a Python scalar as a node; BadArgument if the type cannot hold it. exact: an
        operation reads it, in float32 if the type is narrow: it is not rounded to the type."""
        if not isinstance(number, bool | int | float):
            raise BadArgument(f"{operation}: expected a number, got {number!r}")
        if isinstance(number, HeldInt | HeldFloat):
            if number.node.dtype is dtype:
                return broadcast(number.node, shape)
            if dtypes.is_narrow(dtype):
                return broadcast(graph.number(number.node, dtype), shape)
        if dtype.is_integer and not dtypes.lowest(dtype) <= number <= dtypes.highest(dtype):
            raise BadArgument(f"{operation}: {number} is out of range for {dtype.name}")
        try:
            if dtypes.is_narrow(dtype) and not exact:
                number = dtypes.rounded(number, dtype)
            return graph.full(float(number) if dtype.is_float else number, dtype, shape)
        except OverflowError:
            raise BadArgument(f"{operation}: {number} is out of range for {dtype.name}") from None

    def _common(self, operation: str, *others: Any) -> DType:
        """Return the type of an operation on self and others, see compiler.dtype."""
        dtype, scalars = self.dtype, []
        for other in others:
            lifted = self._lift(operation, other)
            if isinstance(lifted, TensorCore):
                dtype = dtypes.promote(dtype, lifted.dtype)
            else:
                scalars.append(lifted)
        for scalar in scalars:
            dtype = dtypes.promote_scalar(dtype, scalar)
        return dtype

    def _float_common(self, operation: str, *others: Any) -> DType:
        """Return the type of a real-valued function of self and others; None counts for nothing."""
        given = [other for other in others if other is not None]
        return dtypes.float_dtype(self._common(operation, *given))

    def _operands(
        self, operation: str, *others: Any, common: DType | None = None, exact: bool = False
    ) -> tuple[DType, list[Node]]:
        """Return self and others broadcast to one shape and converted to one type (`common`, if
        given). exact: see `_constant`."""
        lifted = [self, *(self._lift(operation, other) for other in others)]
        dtype = common or self._common(operation, *lifted[1:])
        shape = broadcast_shape(
            operation, *(each.node for each in lifted if isinstance(each, TensorCore))
        )
        nodes = []
        for each in lifted:
            if isinstance(each, TensorCore):
                nodes.append(broadcast(graph.cast(each.node, dtype), shape))
            else:
                nodes.append(self._constant(operation, each, dtype, shape, exact))
        return dtype, nodes

    def _axis(self, operation: str, axis: int, extra: int = 0) -> int:
        """Return an axis counted from either end; `extra` more are valid, to insert one."""
        count = self.ndim + extra
        if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
            raise BadArgument(f"{operation}: axis must be an int, got {axis!r}")
        if not -count <= axis < count:
            raise BadIndex(f"{operation}: axis {axis} is out of range for shape {self._shown}")
        return int(axis) % count

    def _axes(self, operation: str, axis: int | Sequence[int] | None) -> tuple[int, ...]:
        """Return axes as numbers; None is all axes. Repeated axes are refused. A tensor without
        axes counts as having one, as in PyTorch."""
        if axis is None:
            return tuple(range(self.ndim))
        listed = axis if isinstance(axis, list | tuple) else (axis,)
        if not self.ndim:
            for each in listed:
                self._axis(operation, each, extra=1)
            return ()
        axes = tuple(self._axis(operation, each) for each in listed)
        if len(set(axes)) != len(axes):
            raise BadArgument(f"{operation}: axis {axis} contains an axis twice")
        return axes


def _is_array(given: object) -> bool:
    """Return whether an object exports its elements as an array: NumPy's, or another library's."""
    if isinstance(given, np.ndarray):
        return True
    if hasattr(type(given), "placement"):  # a sharded tensor: it is on several devices
        return False
    return not isinstance(given, type) and any(
        hasattr(given, name) for name in ("__dlpack__", "__array__", "__array_interface__")
    )


def shown(given: Node | Shape) -> str:
    """Return a shape for errors; for a node, with the line that built it."""
    if not isinstance(given, Node):
        return str(list(given))
    place = text(given.origin)
    return f"{list(given.shape)} (built at {place})" if place else str(list(given.shape))


def is_complex(other: object) -> bool:
    """Return whether an operand is complex: a number, an array, or a ComplexTensor."""
    if isinstance(other, np.ndarray | np.generic):
        return other.dtype.kind == "c"
    return isinstance(other, complex) or hasattr(type(other), "from_pairs")


def broadcast_shape(operation: str, *operands: Node | Shape) -> Shape:
    """Return the shape all broadcast to, aligned at the last axis. BadArgument if there is none."""
    shapes = [each.shape if isinstance(each, Node) else each for each in operands]
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    rank = max(len(shape) for shape in shapes)
    full = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*full, strict=True):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            listed = " and ".join(shown(each) for each in operands)
            raise BadArgument(f"{operation}: shapes {listed} cannot be broadcast together")
        result.append(others.pop() if others else 1)
    return tuple(result)


def broadcast(node: Node, shape: Shape) -> Node:
    """Repeat a node's elements to a shape it broadcasts to."""
    padded = (1,) * (len(shape) - len(node.shape)) + node.shape
    return graph.expand(graph.reshape(node, padded), shape)


def shape_of(operation: str, given: Sequence[Any], size: int | None = None) -> Shape:
    """Return a shape given as numbers or one sequence; with `size`, one entry may be -1."""
    entries = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    if not all(isinstance(e, int | np.integer) and not isinstance(e, bool) for e in entries):
        raise BadArgument(f"{operation}: a shape must be ints, got {tuple(entries)!r}")
    shape = [int(entry) for entry in entries]
    if size is not None and shape.count(-1) == 1:
        rest = prod(entry for entry in shape if entry != -1)
        if rest <= 0 or size % rest:
            raise BadArgument(f"{operation}: {size} elements cannot be reshaped to {shape}")
        shape[shape.index(-1)] = size // rest
    if any(entry < 0 for entry in shape):
        raise BadArgument(f"{operation}: sizes must be at least 0, got {shape}")
    return tuple(shape)


def integer_of(operation: str, name: str, given: Any) -> int:  # Any: checked here
    """Return a parameter that must be a whole number, Python's or NumPy's."""
    if isinstance(given, bool | np.bool_) or not isinstance(given, int | np.integer):
        raise BadArgument(f"{operation}: {name} must be an int, got {given!r}")
    return int(given)


def number_of(operation: str, name: str, given: Any) -> int | float:  # Any: checked here
    """Return a parameter that must be a number, Python's or NumPy's, or a tensor without axes and
    gradients, which is read; and not NaN."""
    read = isinstance(given, TensorCore) and not given.ndim and not given.node.tracked
    if read or isinstance(given, np.generic):
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
        raise BadArgument(f"{operation}: {name} must be a number, got {given!r}")
    return given


def integers_of(operation: str, name: str, given: Any) -> list[int]:  # Any: checked here
    """Return a parameter that must be a sequence of whole numbers."""
    if not isinstance(given, list | tuple):
        raise BadArgument(f"{operation}: {name} must be a sequence of ints, got {given!r}")
    return [integer_of(operation, name, each) for each in given]
