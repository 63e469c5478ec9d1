"""The interpreter of graphs, with control flow and functions."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from ugpu.compiler.onnx.constants import SMALL, Constants
from ugpu.compiler.onnx.expansion import Bodies, Body, has_body
from ugpu.compiler.onnx.host import ON_HOST, HostNodes
from ugpu.compiler.onnx.operators import (
    elementwise,
    networks,
    quantised,
    random,
    recurrent,
    reductions,
    resizing,
    sequences,
    shapes,
    spectra,
)
from ugpu.compiler.onnx.operators.registry import OPERATORS, Operator
from ugpu.compiler.onnx.package import array_of, attribute
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument, BadFile, NotSupported, UgpuError

FAMILIES = (
    elementwise,
    networks,
    quantised,
    random,
    recurrent,
    reductions,
    resizing,
    sequences,
    shapes,
    spectra,
)
STANDARD = ("", "ai.onnx", "ai.onnx.ml")
DEPTH = 64  # graphs within graphs
ITERATIONS = 1 << 20  # of a loop
OFTEN = 16  # iterations between computations of a loop's state
CONTROL = frozenset(("If", "Loop", "Scan"))
# What operators raise for inputs and attributes that do not fit them, which nothing has checked.
UNFIT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
Scope = MutableMapping[str, Any]


def missing_operators(proto: Any, opsets: Mapping[str, int]) -> list[str]:
    """Return the names of a model's operators that cannot be run."""
    own = {(each.domain, each.name) for each in proto.functions}
    missing = set()
    for node in _nodes([proto.graph, *proto.functions]):
        name, domain = node.op_type, node.domain
        standard = domain in STANDARD and (
            name in OPERATORS or name in ON_HOST or name in CONTROL or name == "Constant"
        )
        if (domain, name) in own or standard or has_body(domain, name, opsets.get(domain, 1)):
            continue
        missing.add(f"{domain}.{name}" if domain else name)
    return sorted(missing)


def _nodes(graphs: Sequence[Any]) -> Iterator[Any]:
    """Yield the nodes of graphs and of the graphs within them."""
    waiting = list(graphs)
    while waiting:
        for node in waiting.pop().node:
            yield node
            for each in node.attribute:
                waiting += [each.g] if each.HasField("g") else []
                waiting += each.graphs


class Graphs:
    """Runs the graphs of one model."""

    def __init__(
        self, constants: Constants, opsets: dict[str, int], functions: Sequence[Any]
    ) -> None:
        self._constants = constants
        self._opset = opsets.get("", opsets.get("ai.onnx", 1))
        self._host = HostNodes(opsets)
        self._bodies = Bodies(opsets, functions)
        self._attributes: dict[int, tuple[Any, dict[str, Any]]] = {}  # by id of the node
        self._weights: dict[int, tuple[Any, dict[str, Any]]] = {}  # of inner graphs, by id
        self._depth = 0

    def run(self, graph: Any, values: Mapping[str, Any]) -> list[Any]:
        """Return a graph's outputs."""
        return self._run(graph.node, ChainMap(dict(values)), [each.name for each in graph.output])

    def _inner(self, graph: Any, scope: Scope, given: Mapping[str, Any]) -> list[Any]:
        """Run a graph of a node; it sees the names of the graphs around it."""
        kept = self._weights.get(id(graph))
        if kept is None:
            weights = {e.name: self._constants.weight(array_of(e)) for e in graph.initializer}
            kept = self._weights[id(graph)] = (graph, weights)
        inner = ChainMap({**kept[1], **given}, scope)
        return self._run(graph.node, inner, [each.name for each in graph.output])

    def _run(self, nodes: Sequence[Any], scope: Scope, outputs: Sequence[str]) -> list[Any]:
        self._depth += 1
        try:
            if self._depth > DEPTH:
                raise BadFile(f"the model's graphs are nested more than {DEPTH} times")
            for node in nodes:
                inputs = _values(node.input, scope)
                try:
                    results = self._node(node, inputs, scope)
                except UgpuError:
                    raise
                except UNFIT as error:
                    raise BadArgument(
                        f"ONNX operator {node.op_type} ({node.name}): {error}"
                    ) from error
                for name, result in zip(node.output, results, strict=False):
                    if name:
                        scope[name] = result
            return _values(outputs, scope)
        finally:
            self._depth -= 1

    def _node(self, node: Any, inputs: list[Any], scope: Scope) -> Sequence[Any]:
        name = node.op_type
        if self._bodies.own(node) or node.domain not in STANDARD:
            return self._called(node, inputs, scope)
        if name in CONTROL:
            return self._controlled(name, node, inputs, scope)
        attributes = self._attributes_of(node)
        if name == "Constant":
            return [_constant(attributes)]
        found = OPERATORS.get(name)
        known = all(map(self._constants.known, inputs)) and name not in random.RANDOM
        if known and found is not None and (node.input or name.startswith("Sequence")):
            arrays = [self._constants.array(value) for value in inputs]
            if not _large(name, arrays):
                return self._host.run(node, arrays)
        if found is not None:
            return self._computed(node, found, inputs, attributes)
        if name in ON_HOST:
            return self._host.run(node, [self._constants.array(value) for value in inputs])
        return self._called(node, inputs, scope)

    def _attributes_of(self, node: Any) -> dict[str, Any]:
        kept = self._attributes.get(id(node))
        if kept is None:
            found = {each.name: attribute(each) for each in node.attribute}
            kept = self._attributes[id(node)] = (node, found)
        return kept[1]

    def _computed(
        self, node: Any, found: Operator, inputs: list[Any], attributes: dict[str, Any]
    ) -> Sequence[Any]:
        values = [
            self._constants.array(value) if n in found.host else self._constants.tensor(value)
            for n, value in enumerate(inputs)
        ]
        while values and values[-1] is None:
            values.pop()
        options = dict(found.known(node.op_type, attributes))
        given = {"opset": self._opset, "device": self._constants.device,
                 "outputs": _used(node.output)}  # fmt: skip
        options |= {name: given[name] for name in found.keywords}
        try:
            result = found.function(*values, **options)
        except UgpuError as error:
            error.add_facts(node=node.name or node.output[0], operator=node.op_type)
            raise
        return result if isinstance(result, tuple) else (result,)

    def _called(self, node: Any, inputs: list[Any], scope: Scope) -> Sequence[Any]:
        """Run the body of a function."""
        body: Body | None = self._bodies.of(node, inputs)
        if body is None:
            raise NotSupported(f"ONNX operator {node.op_type} is not supported")
        given: dict[str, Any] = dict.fromkeys(body.inputs)
        given |= dict(zip(body.inputs, inputs, strict=False))
        wanted = [
            name if used else "" for name, used in zip(body.outputs, node.output, strict=False)
        ]
        return self._run(body.nodes, ChainMap(given), wanted)

    # ---- control flow --------------------------------------------------------------------------

    def _controlled(self, name: str, node: Any, inputs: list[Any], scope: Scope) -> Sequence[Any]:
        attributes = self._attributes_of(node)
        if name == "If":
            branch = "then_branch" if self._truth(inputs[0]) else "else_branch"
            return self._inner(attributes[branch], scope, {})
        if name == "Loop":
            return self._loop(attributes["body"], inputs, scope)
        return self._scan(attributes, inputs, scope)

    def _truth(self, value: Any) -> bool:
        return bool(np.asarray(self._constants.array(value)).reshape(-1)[0])

    def _loop(self, body: Any, inputs: list[Any], scope: Scope) -> Sequence[Any]:
        limit = ITERATIONS
        if inputs[0] is not None:
            limit = int(np.asarray(self._constants.array(inputs[0])).reshape(-1)[0])
        going = inputs[1] is None or self._truth(inputs[1])
        state = list(inputs[2:])
        rows: list[list[Any]] = []
        names = [each.name for each in body.input]
        number = 0
        while going and number < limit:
            if number >= ITERATIONS:
                raise BadArgument(f"ONNX operator Loop: more than {ITERATIONS} iterations")
            values = [np.array(number, np.int64), np.array(True), *state]
            results = self._inner(body, scope, dict(zip(names, values, strict=False)))
            going, state = self._truth(results[0]), results[1 : 1 + len(state)]
            rows.append(results[1 + len(state) :])
            number += 1
            self._settle(number, state)
        scans = [
            self._stacked([row[n] for row in rows], body.output[1 + len(state) + n], 0)
            for n in range(len(body.output) - 1 - len(state))
        ]
        return [*state, *scans]

    def _scan(self, attributes: dict[str, Any], inputs: list[Any], scope: Scope) -> Sequence[Any]:
        body, count = attributes["body"], attributes["num_scan_inputs"]
        state, given = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
        axes = attributes.get("scan_input_axes") or [0] * count
        turned = attributes.get("scan_input_directions") or [0] * count
        names = [each.name for each in body.input]
        tensors = [self._constants.tensor(value) for value in given]
        length = tensors[0].shape[axes[0]]
        rows: list[list[Any]] = []
        for number in range(length):
            parts = [
                tensor.take(np.array(length - 1 - number if back else number), axis)
                for tensor, axis, back in zip(tensors, axes, turned, strict=True)
            ]
            results = self._inner(body, scope, dict(zip(names, [*state, *parts], strict=True)))
            state = results[: len(state)]
            rows.append(results[len(state) :])
            self._settle(number + 1, state)
        outputs = len(body.output) - len(state)
        places = attributes.get("scan_output_axes") or [0] * outputs
        flipped = attributes.get("scan_output_directions") or [0] * outputs
        scans = []
        for n in range(outputs):
            column = [row[n] for row in rows]
            column = column[::-1] if flipped[n] else column
            scans.append(self._stacked(column, body.output[len(state) + n], places[n]))
        return [*state, *scans]

    def _settle(self, number: int, state: Sequence[Any]) -> None:
        """Compute a loop's state now and then: the graph of a long loop would be deep."""
        tensors = [value for value in state if isinstance(value, Tensor)]
        if tensors and number % OFTEN == 0:
            tensors[0].realize(*tensors[1:])

    def _stacked(self, values: list[Any], described: Any, axis: int) -> Any:
        if values and all(map(self._constants.known, values)):
            return np.stack([self._constants.array(value) for value in values], axis)
        if values:
            return Tensor.stack([self._constants.tensor(value) for value in values], axis)
        kind = described.type.tensor_type
        sizes = [each.dim_value for each in kind.shape.dim]
        return np.zeros((0, *sizes), np.float32)


def _used(names: Sequence[str]) -> int:
    return max((n for n, name in enumerate(names, 1) if name), default=0)


def _constant(attributes: dict[str, Any]) -> Any:
    """Return the value of a Constant node."""
    (name, value), *_ = attributes.items()
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
             "value_floats": np.float32}  # fmt: skip
    if name in kinds:
        return np.asarray(value, kinds[name])
    if name in ("value_string", "value_strings"):
        return np.asarray(value, np.object_)
    if name != "value":
        raise NotSupported(f"ONNX operator Constant: {name}")
    return np.asarray(value)


def _values(names: Sequence[str], scope: Scope) -> list[Any]:
    """Return values by name, None for an empty name."""
    try:
        return [scope[name] if name else None for name in names]
    except KeyError as error:
        raise BadFile(f"the model uses {error}, which no node computes before") from error


def _large(name: str, inputs: list[Any]) -> bool:
    """Return whether a result of known inputs is better computed on the device."""
    if name in ("ConstantOfShape", "Expand"):
        return prod(int(n) for n in inputs[-1].reshape(-1)) > SMALL
    if name == "Tile":
        return bool(inputs[0].size * prod(int(n) for n in inputs[1].reshape(-1)) > SMALL)
    if name == "Range":
        start, limit, delta = (each.item() for each in inputs)
        return bool(delta) and ceil((limit - start) / delta) > SMALL
    return False
