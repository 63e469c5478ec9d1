"""An ONNX model as a function, and its graph's interpreter."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ugpu.compiler.dtype import float64
from ugpu.compiler.onnx.constants import Constants
from ugpu.compiler.onnx.graphs import Graphs, missing_operators
from ugpu.compiler.onnx.package import DTYPES, STRING, array_of, module
from ugpu.compiler.runtime.runtime import device_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadFile, NotSupported
from ugpu.hcq.near import meant

OLDEST = 13  # opset; older models are converted
NEWEST = 28  # of a model that uses no standard operators
BATCHED = 9  # Scan of earlier opsets works on batches, which the conversion does not keep
CONVERTED = 17


class Model:
    """An ONNX model on a device. Calling it runs the graph.

    inputs, outputs: names, in the model's order. input_types: for each input its element type and
    its sizes, of which those that the model leaves open are names. operators: how often each
    operator occurs. The result of a call is a tensor for each output (a NumPy array of strings, a
    list for a sequence); nothing runs before the result is read. In `@jit` the model is recorded,
    if no shape depends on values of inputs.
    """

    def __init__(self, proto: Any, device: Device | str | None = None, folder: str = "") -> None:
        """proto: an onnx.ModelProto. folder: where files of its weights are. Raises NotSupported
        with the names of all operators that are missing."""
        self.device = device_of(device)
        opsets = {each.domain: each.version for each in proto.opset_import}
        version = opsets.get("", opsets.get("ai.onnx", NEWEST))
        if version < OLDEST:
            proto, version = _converted(proto, version), CONVERTED
            opsets[""] = version
        graph = proto.graph
        missing = missing_operators(proto, opsets)
        if missing:
            raise NotSupported(
                f"the model needs operators that are not supported: {', '.join(missing)}"
            )
        self.opset: int = version
        self.operators: Mapping[str, int] = Counter(node.op_type for node in graph.node)
        weights = {each.name: array_of(each, folder) for each in graph.initializer}
        self.inputs = [each.name for each in graph.input if each.name not in weights]
        self.optional = [each.name for each in graph.input if each.name in weights]
        self.outputs = [each.name for each in graph.output]
        self.input_types = {
            each.name: _described(each) for each in graph.input if each.name not in weights
        }
        self._graph = graph
        self._constants = Constants(self.device)
        self._weights = {name: self._constants.weight(array) for name, array in weights.items()}
        self._graphs = Graphs(self._constants, opsets, proto.functions)

    def __call__(self, *values: Any, **named: Any) -> dict[str, Any]:
        """Run the model. Values are arrays or tensors, in the order of `inputs` or by name; a model
        input whose name is not an identifier is given in a dict. Returns the outputs by name."""
        if len(values) == 1 and isinstance(values[0], Mapping):
            named = {**values[0], **named}
            values = ()
        given = {**dict(zip(self.inputs, values, strict=False)), **named}
        known = [*self.inputs, *self.optional]
        unknown = [name for name in given if name not in known]
        missing = [name for name in self.inputs if name not in given]
        if unknown or missing or len(values) > len(self.inputs):
            hint = "".join(meant(name, known) for name in unknown)
            raise BadArgument(
                f"the model's inputs are {', '.join(known)}; {hint}missing: {missing}, unknown: "
                f"{unknown}, {len(values)} values by position"
            )
        values_by_name: dict[str, Any] = dict(self._weights)
        values_by_name |= {name: self._given(name, value) for name, value in given.items()}
        results = self._graphs.run(self._graph, values_by_name)
        return dict(zip(self.outputs, map(self._constants.result, results), strict=True))

    def _given(self, name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.device is not self.device:
                raise BadArgument(
                    f"input {name!r} is on {value.device.name}, the model on {self.device.name}"
                )
            return value
        if isinstance(value, list) or value is None:
            return [self._given(name, each) for each in value] if value is not None else None
        array = np.asarray(value)
        if array.dtype.kind not in "biufV":
            return array
        double = array.dtype == np.float64 and self._takes_doubles(name)
        return Tensor(array, device=self.device, dtype=float64 if double else None)

    def _takes_doubles(self, name: str) -> bool:
        """Return whether the model has an input's doubles as they are: sequences are not typed."""
        if name in self.input_types:
            return self.input_types[name][0] in ("float64", "no tensor")
        return getattr(self._weights[name], "dtype", None) is float64

    def __repr__(self) -> str:
        return (
            f"<onnx.Model({', '.join(self.inputs)}) of {sum(self.operators.values())} nodes on "
            f"{self.device.name}>"
        )


def _described(value: Any) -> tuple[str, list[int | str]]:
    kind = value.type.tensor_type
    sizes: list[int | str] = []
    for n, each in enumerate(kind.shape.dim):
        sizes.append(each.dim_value if each.HasField("dim_value") else each.dim_param or f"?{n}")
    name = "string" if kind.elem_type == STRING else DTYPES.get(kind.elem_type, "no tensor")
    return name, sizes


def load(path: str | os.PathLike[str], *, device: Device | str | None = None) -> Model:
    """Load an ONNX model from a file. Opsets below 13 are converted to 17 by the package onnx.

    Raises BadFile for an invalid file, NotSupported with a list of the operators that are missing,
    MissingDependency without the package onnx.
    """
    onnx = module()
    file = Path(path)
    try:
        proto = onnx.load(str(file), load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's DecodeError has no public name common to its versions
        raise BadFile(f"{file.name} is not an ONNX model: {error}", file=str(file)) from None
    if not proto.graph.node and not proto.graph.output:
        raise BadFile(f"{file.name} is not an ONNX model: it has no graph", file=str(file))
    try:
        return Model(proto, device, str(file.parent))
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        if isinstance(error, BadArgument):
            raise
        raise BadFile(f"{file.name} is not a valid ONNX model: {error}", file=str(file)) from error


def _converted(proto: Any, version: int) -> Any:
    if version < BATCHED and any(node.op_type == "Scan" for node in proto.graph.node):
        raise NotSupported(f"ONNX operator Scan of opset {version}; expected {BATCHED} or newer")
    converter, inference = module("onnx.version_converter"), module("onnx.shape_inference")
    try:
        return converter.convert_version(proto, CONVERTED)
    except (RuntimeError, converter.ConvertError, inference.InferenceError) as error:
        raise NotSupported(
            f"a model of opset {version} cannot be converted to {CONVERTED}: {error}"
        ) from error
