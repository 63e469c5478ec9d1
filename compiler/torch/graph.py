"""A graph of PyTorch's operators (torch.fx, ATen level), run on a device."""

from __future__ import annotations

import operator as python
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ugpu.compiler.front.jit import Jit, jit
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.operators import (
    backward,
    creation,
    elementwise,
    indexing,
    networks,
    reductions,
    shapes,
    transformer,
)
from ugpu.compiler.torch.operators.registry import Operator, find
from ugpu.compiler.torch.package import dtype_of, from_torch, has_type, module
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

FAMILIES = (backward, creation, elementwise, indexing, networks, reductions, shapes, transformer)
PLACED = ("device", "layout", "memory_format", "pin_memory", "non_blocking", "generator")
NUMBERS = (python.getitem, *(getattr(python, name) for name in (
    "add", "sub", "mul", "floordiv", "mod", "neg", "eq", "ne", "lt", "le", "gt", "ge", "pow",
)))  # fmt: skip
SHAPES = 16  # recordings of one graph, each for one set of shapes


class Graph:
    """A graph as a function from tensors to tensors.

    It is recorded once for each set of shapes (see `jit`), unless it has operators that read
    elements. operators: how often each operator occurs. Raises NotSupported with the names of all
    operators and element types that are missing, before anything runs.
    """

    def __init__(self, module: Any, device: Device) -> None:
        """module: a torch.fx.GraphModule."""
        self.device = device
        self._nodes = list(module.graph.nodes)
        self.operators: Mapping[str, int] = Counter(
            str(node.target) for node in self._nodes
            if node.op == "call_function" and node.target not in NUMBERS
        )  # fmt: skip
        _check(self._nodes)
        self._found: dict[Any, Operator] = {}
        for node in self._nodes:
            operator = find(node.target) if node.op == "call_function" else None
            if operator is not None:
                self._found[node] = operator
        self._constants = {
            node: _constant(module, node.target, device)
            for node in self._nodes if node.op == "get_attr"
        }  # fmt: skip
        self._places = {node: n for n, node in enumerate(
            node for node in self._nodes if node.op == "placeholder")}  # fmt: skip
        self._last = _last_uses(self._nodes)
        self._recorded = not any(each.reads for each in self._found.values())
        self._jits: dict[tuple[Any, ...], Jit[[Sequence[Any]], Any]] = {}

    def __call__(self, values: Sequence[Any]) -> Any:
        """Run the graph. values: for each placeholder a tensor or a number. The result has the form
        of the graph's output."""
        if len(values) != len(self._places):
            raise BadArgument(f"the graph has {len(self._places)} inputs, got {len(values)}")
        if not self._recorded:
            return self.run(values)
        key = tuple([
            (each.shape, each.dtype.name) if isinstance(each, Tensor) else each for each in values
        ])  # fmt: skip
        recorded = self._jits.pop(key, None)
        if recorded is None:
            recorded = jit(self.run)
            if len(self._jits) >= SHAPES:
                del self._jits[next(iter(self._jits))]  # the one that was used longest ago
        self._jits[key] = recorded
        return recorded(values)

    def run(self, values: Sequence[Any]) -> Any:
        """Build the tensors of the results."""
        known: dict[Any, Any] = {}
        for node in self._nodes:
            if node.op == "placeholder":
                known[node] = values[self._places[node]]
            elif node.op == "get_attr":
                known[node] = self._constants[node]
            elif node.op == "output":
                return _looked_up(node.args[0], known)
            else:
                known[node] = self._computed(node, known)
            for done in self._last.get(node, ()):
                del known[done]
        return None

    def _computed(self, node: Any, known: Mapping[Any, Any]) -> Any:
        args = [_looked_up(each, known) for each in node.args]
        operator = self._found.get(node)
        if operator is None:
            return node.target(*args)
        options = {
            name: _looked_up(each, known) for name, each in node.kwargs.items()
            if name not in PLACED
        }  # fmt: skip
        if operator.places:
            options["device"] = self.device
        try:
            result = operator.function(*args, **options)
        except BadArgument as error:
            raise BadArgument(f"{node.target} ({node.name}): {error.message}") from error
        except TypeError as error:  # an argument that the implementation does not have
            raise NotSupported(f"{node.target} ({node.name}): {error}") from error
        return _typed(result, node.meta.get("val"))


def _typed(result: Any, described: Any) -> Any:
    """Return results as the element types that PyTorch gives them."""
    if isinstance(result, Tensor):
        kind = getattr(described, "dtype", None)
        return result if kind is None else result.cast(dtype_of(kind))
    if isinstance(result, tuple | list) and isinstance(described, tuple | list):
        return tuple([_typed(*pair) for pair in zip(result, described, strict=False)])
    return result


def _looked_up(argument: Any, known: Mapping[Any, Any]) -> Any:
    """Return an argument with nodes replaced by their values, and PyTorch's words by ours."""
    if isinstance(argument, list | tuple):
        return [_looked_up(each, known) for each in argument]
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    if isinstance(argument, module("torch.fx").Node):
        return known[argument]
    torch = module()
    if isinstance(argument, torch.dtype):
        return dtype_of(argument)
    if isinstance(argument, torch.device | torch.layout | torch.memory_format):
        return None
    if isinstance(argument, slice):
        return slice(*[_looked_up(each, known) for each in
                       (argument.start, argument.stop, argument.step)])  # fmt: skip
    raise NotSupported(f"an argument of type {type(argument).__name__} in PyTorch's graph")


def _last_uses(nodes: Sequence[Any]) -> dict[Any, list[Any]]:
    """Return the nodes whose values are not used after a node."""
    last: dict[Any, Any] = {}
    for node in nodes:
        last.setdefault(node, node)
        for source in node.all_input_nodes:
            last[source] = node
    ends: dict[Any, list[Any]] = {}
    for source, node in last.items():
        if node.op != "output":
            ends.setdefault(node, []).append(source)
    return ends


def _constant(owner: Any, path: str, device: Device) -> Tensor:
    value = owner
    for name in path.split("."):
        value = getattr(value, name)
    return from_torch(value, device)


def _check(nodes: Sequence[Any]) -> None:
    missing = sorted({text for node in nodes for text in _missing(node)})
    if missing:
        raise NotSupported(
            f"the model needs operators or types that are not supported: {', '.join(missing)}"
        )


def _missing(node: Any) -> Iterator[str]:
    if node.op in ("call_method", "call_module"):
        yield f"{node.op} {node.target}"
    if node.op == "call_function" and node.target not in NUMBERS and find(node.target) is None:
        yield str(node.target)
    described = node.meta.get("val")
    for value in described if isinstance(described, tuple | list) else (described,):
        kind = getattr(value, "dtype", None)
        if kind is not None and not has_type(kind):
            yield str(kind)
