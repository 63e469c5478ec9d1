"""ONNX models: `ugpu.onnx.load(path)` gives a function from arrays to tensors.

    model = ugpu.onnx.load("model.onnx", device=gpu)
    outputs = model(image=pixels)          # tensors by name
    scores = outputs["scores"].numpy()

Operators are translated to tensor operations (`operators`), those with a function body in the
standard by that body. Values that are known without the device, such as shapes, are computed on the
host by the package onnx's own reference. Needs the extra "onnx".
"""

from ugpu.compiler.onnx.model import Model as Model
from ugpu.compiler.onnx.model import load as load

__all__ = ["Model", "load"]
