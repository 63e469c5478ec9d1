"""Gradients of functions: grad, value_and_grad, no_grad, custom gradients, recomputation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from ugpu.compiler.gradients.differentiable import CUT, Differentiable
from ugpu.compiler.gradients.reverse import (
    LEAF,
    TARGET,
    below,
    gradients,
    history_of,
    tracking,
)
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.tracking import History, Tape, mode
from ugpu.hcq.errors import BadArgument

Given = ParamSpec("Given")
T = TypeVar("T")
Indices = int | Sequence[int]


def no_grad() -> AbstractContextManager[None]:
    """Return a context in which operations of this thread are not tracked."""
    return tracking(False)


def enable_grad() -> AbstractContextManager[None]:
    """Return a context in which operations are tracked, also inside `no_grad`."""
    return tracking(True)


def grad(
    function: Callable[..., Any], arguments: Indices = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the gradient of `function`, which returns a tensor of one
    element, by some of its positional arguments: tensors of floats, one or several.

    has_aux: `function` returns the tensor and something else; so does the gradient. Applied twice,
    it gives a second derivative. Raises BadArgument if the result does not depend on an argument.
    """
    both = value_and_grad(function, arguments, has_aux=has_aux)

    @functools.wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(
    function: Callable[..., Any], arguments: Indices = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the value of `function` and its gradient; see `grad`."""
    single = isinstance(arguments, int)
    places = [arguments] if isinstance(arguments, int) else list(arguments)

    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        outer = mode.on
        given = list(args)
        with tracking(True):
            leaves = []
            for place in places:
                leaves.append(_leaf(function, args, place))
                given[place] = leaves[-1]
            result = function(*given, **kwargs)
            value, *aux = result if has_aux else (result,)
            found, higher = _of(function, value, leaves, outer)
            value = value if higher else value.detach()
        return ((value, *aux) if has_aux else value), found[0] if single else tuple(found)

    return both


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _leaf(function: Callable[..., Any], args: Sequence[Any], place: int) -> Differentiable:
    """Return an argument as a leaf, which depends on what the argument depends on."""
    if not -len(args) <= place < len(args):
        raise BadArgument(f"grad of {_name(function)}: argument {place} of {len(args)} is missing")
    given = args[place]
    if not isinstance(given, Differentiable) or not given.dtype.is_float:
        kind = given.dtype.name if isinstance(given, Differentiable) else type(given).__name__
        raise BadArgument(
            f"grad of {_name(function)}: argument {place} must be a Tensor of floats, got {kind}"
        )
    leaf: Differentiable = target(given)
    return leaf


def target(given: Differentiable) -> Any:
    """Return a tracked tensor of the same elements; its gradient flows on to `given`."""
    node = graph.detached(given.node)
    node.tracked, node.history = True, History(TARGET, (given.node,))
    return given._plain(node)


def _of(
    function: Callable[..., Any], value: Any, leaves: Sequence[Differentiable], outer: bool
) -> tuple[list[Any], bool]:
    """Return the gradients, and whether the value depends on tensors that are tracked outside."""
    name = _name(function)
    if not isinstance(value, Differentiable) or value.numel() != 1:
        raise BadArgument(f"grad of {name}: it must return a Tensor of one element, got {value!r}")
    nodes = [leaf.node for leaf in leaves]
    own = {id(node) for node in nodes}
    others = [each for each in below([value.node]) if id(each) not in own]
    higher = outer and any(history_of(each).op in (LEAF, TARGET) for each in others)
    one = value._filled(1)
    sums = gradients([value], [one], keep=True, higher=higher, targets=nodes)
    by_node = {id(node): g for node, g in sums}
    for place, node in enumerate(nodes):
        if id(node) not in by_node:
            raise BadArgument(
                f"grad of {name}: the result does not depend on argument {place} of those to "
                f"differentiate by; {CUT}"
            )
    return [by_node[id(node)] for node in nodes], higher


# ---- functions with a gradient of their own ----------------------------------------------------


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors whose gradient the program gives: `function` returns a tensor
    and a function from the gradient of that tensor to a sequence of the gradients of its positional
    arguments (None where there is none)."""
    name = _name(function)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with tracking(False):
            value, backward = function(*args, **kwargs)
        tensors = [each for each in args if isinstance(each, Differentiable)]
        if not mode.on or not any(each.requires_grad for each in tensors):
            return value

        def checked(g: Any) -> list[Any]:
            results = backward(g)
            listed = list(results) if isinstance(results, list | tuple) else [results]
            if len(listed) != len(args):
                raise BadArgument(
                    f"custom_gradient of {name}: expected {len(args)} gradients, got {len(listed)}"
                )
            found = [r for r, a in zip(listed, args, strict=True) if isinstance(a, Differentiable)]
            for result, tensor in zip(found, tensors, strict=True):
                if result is not None and result.shape != tensor.shape:
                    raise BadArgument(
                        f"custom_gradient of {name}: expected a gradient of shape "
                        f"{list(tensor.shape)}, got {list(result.shape)}"
                    )
            return found

        return _with_history(value, History("custom", tuple(t.node for t in tensors), checked))

    return called


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Return function(*args), a tensor, of which the backward pass keeps nothing but the arguments:
    it computes the function again, with the same random numbers."""
    tensors = [each for each in args if isinstance(each, Differentiable)]
    tape = Tape()

    def run(sources: Sequence[Any]) -> tuple[Any, list[Node]]:
        """Return the value, and the nodes that stand for the sources in it."""
        given = iter(sources)
        own = [target(next(given)) if isinstance(a, Differentiable) else a for a in args]
        with tape, tracking(True):
            value = function(*own)
        return value, [each.node for each in own if isinstance(each, Differentiable)]

    value, ends = run(tensors)
    if not isinstance(value, Differentiable):
        raise BadArgument(f"checkpoint of {_name(function)}: it must return a Tensor")
    if not mode.on or not value.requires_grad:
        return value.detach() if value.requires_grad else value
    inner = below([value.node])
    leaves = [each for each in inner if history_of(each).op == LEAF]
    tracked = [each.node for each in tensors if each.requires_grad]
    if not leaves and not tracked:
        return value.detach()

    def backward(g: Any) -> list[Any]:
        again, ends = run(tensors)
        sums = gradients([again], [g], keep=False, higher=mode.on, targets=[*ends, *leaves])
        by_node = {id(node): found for node, found in sums}
        return [by_node.get(id(node)) for node in (*ends, *leaves)]

    sources = (*(each.node for each in tensors), *leaves)
    del ends
    return _with_history(value, History("custom", sources, backward))


def _with_history(value: Differentiable, history: History) -> Any:
    node = graph.detached(value.node)
    node.tracked, node.history = True, history
    return value._plain(node)
