"""Bodies of functions: of the model, and of operators that the standard defines by other ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ugpu.compiler.onnx.package import DTYPES, module
from ugpu.compiler.tensor import Tensor

_NUMBERS = {name: number for number, name in DTYPES.items()}


@dataclass(frozen=True)
class Body:
    """Nodes with the names of their inputs and outputs."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[Any]


def has_body(domain: str, name: str, version: int) -> bool:
    """Return whether the standard defines an operator by a function body."""
    schema = _schema(domain, name, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _schema(domain: str, name: str, version: int) -> Any:
    defs = module("onnx.defs")
    try:
        return defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return None


class Bodies:
    """Function bodies with the attributes of a node, made once for each node and its types."""

    def __init__(self, opsets: Mapping[str, int], functions: Iterable[Any]) -> None:
        self._opsets = opsets
        self._own = {(each.domain, each.name): each for each in functions}
        self._made: dict[tuple[Any, ...], tuple[Any, Body]] = {}

    def own(self, node: Any) -> bool:
        """Return whether the model defines a node's operator."""
        return (node.domain, node.op_type) in self._own

    def of(self, node: Any, inputs: list[Any]) -> Body | None:
        """Return the body of a node's operator, or None if there is none."""
        types = tuple(_type(value) for value in inputs)
        kept = self._made.get((id(node), types))
        if kept is None:
            body = self._body(node, types)
            if body is None:
                return None
            kept = self._made[id(node), types] = (node, body)
        return kept[1]

    def _body(self, node: Any, types: tuple[Any, ...]) -> Body | None:
        given = {each.name: each for each in node.attribute}
        own = self._own.get((node.domain, node.op_type))
        if own is not None:
            defaults = {each.name: each for each in own.attribute_proto}
            return _bound(own, {**defaults, **given})
        schema = _schema(node.domain, node.op_type, self._opsets.get(node.domain, 1))
        if schema is None:
            return None
        defaults = {
            name: each.default_value
            for name, each in schema.attributes.items()
            if each.default_value.name
        }
        if schema.has_function:
            return _bound(schema.function_body, {**defaults, **given})
        if not schema.has_context_dependent_function:
            return None
        protos = [_type_proto(each).SerializeToString() for each in types]
        data = schema.get_context_dependent_function(node.SerializeToString(), protos)
        function = module("onnx").FunctionProto()
        function.ParseFromString(data)
        return _bound(function, {**defaults, **given})


def _type(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype.name, value.shape
    array = getattr(value, "array", value)  # a Weight
    if array is None or isinstance(array, list):
        return None
    return array.dtype.name, array.shape


def _type_proto(described: Any) -> Any:
    onnx = module("onnx")
    if described is None:
        return onnx.TypeProto()
    name, shape = described
    number = _NUMBERS.get(name, 1)
    return module("onnx.helper").make_tensor_type_proto(number, shape)


def _bound(function: Any, attributes: Mapping[str, Any]) -> Body:
    nodes = []
    for each in function.node:
        node = type(each)()
        node.CopyFrom(each)
        _bind(node, attributes)
        nodes.append(node)
    return Body(list(function.input), list(function.output), nodes)


def _bind(node: Any, attributes: Mapping[str, Any]) -> None:
    """Replace attributes that refer to those of the function; absent ones are removed."""
    kept = []
    for each in node.attribute:
        if each.ref_attr_name:
            value = attributes.get(each.ref_attr_name)
            if value is None:
                continue
            copy = type(each)()
            copy.CopyFrom(value)
            copy.name = each.name
            kept.append(copy)
        else:
            for graph in (each.g, *each.graphs) if each.HasField("g") or each.graphs else ():
                for inner in graph.node:
                    _bind(inner, attributes)
            kept.append(each)
    copies = []
    for each in kept:
        copy = type(each)()
        copy.CopyFrom(each)
        copies.append(copy)
    del node.attribute[:]
    node.attribute.extend(copies)
