"""Run an ONNX model, node by node, as one tensor expression: magika's model names a file's type.

needs: pip install --no-deps magika onnx protobuf ml_dtypes typing_extensions
usage: python examples/models/onnx_model.py [FILE [DEVICE]]
"""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import onnx

import ugpu

FILE, DEVICE = (*sys.argv[1:], *(__file__, "cpu")[len(sys.argv) - 1 :])
SPEC = importlib.util.find_spec("magika")  # importing it would need onnxruntime
FOLDER = max((Path(str(SPEC and SPEC.origin)).parent / "models").glob("standard_*"))
KINDS = {1: "float32", 6: "int32", 7: "int64"}  # ONNX: TensorProto.DataType


def cut(x, starts, ends, axes, steps=(1, 1, 1, 1)):
    bounds = {a: slice(*map(int, b)) for a, *b in zip(axes, starts, ends, steps, strict=False)}
    return x[tuple(bounds.get(axis, slice(None)) for axis in range(x.ndim))]


# Shapes, and what is computed of them, are NumPy arrays of integers; all else are tensors.
OPERATIONS = {
    "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y,
    "Div": lambda x, y: x / y, "MatMul": lambda x, y: x @ y, "Equal": lambda x, y: x == y,
    "Max": lambda x, y: x.maximum(y), "Tanh": lambda x: x.tanh(), "Sqrt": lambda x: x.sqrt(),
    "Exp": lambda x: x.exp(), "Reciprocal": lambda x: 1 / x, "Slice": cut,
    "Cast": lambda x, to: getattr(x, "cast", getattr(x, "astype", None))(KINDS[to]),
    "Shape": lambda x: np.array(x.shape), "Concat": lambda *x, axis: np.concatenate(x, axis),
    "Reshape": lambda x, shape: x.reshape(shape.tolist()),
    "Expand": lambda x, shape: x.expand(np.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "Transpose": lambda x, perm: x.permute(perm), "Conv": lambda x, weight, **_: x.conv2d(weight),
    "Squeeze": lambda x, axes: x.squeeze(axes.tolist()),
    "Unsqueeze": lambda x, axes: x.unsqueeze(int(axes[0])),
    "GlobalMaxPool": lambda x: x.max(axis=tuple(range(2, x.ndim)), keepdims=True),
    "ReduceSum": lambda x, axes, keepdims, **_: x.sum(axes.tolist(), keepdims=bool(keepdims)),
    "ReduceMax": lambda x, axes, keepdims: x.max(axes, keepdims=bool(keepdims)),
}  # fmt: skip

config = json.loads((FOLDER / "config.min.json").read_text("utf-8"))
graph = onnx.load(FOLDER / "model.onnx").graph
content = Path(FILE).read_bytes()
first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
given = [*first, *[config["padding_token"]] * (2048 - len(first) - len(last)), *last]
with ugpu.open(DEVICE) as gpu:
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    values = {n: ugpu.Tensor(w, device=gpu) if w.dtype == "f4" else w for n, w in weights.items()}
    values[graph.input[0].name] = ugpu.Tensor(np.array([given], "i4"), device=gpu)
    for node in graph.node:
        options = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        operation = OPERATIONS[node.op_type]
        values[node.output[0]] = operation(*map(values.get, node.input), **options)
    scores = values[graph.output[0].name].numpy()[0]
print(f"{FILE}: {config['target_labels_space'][scores.argmax()]} ({scores.max():.3f})")
