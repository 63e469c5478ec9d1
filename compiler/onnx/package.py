"""The package onnx, which reads models; imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import MissingDependency

INSTALL = "pip install 'ugpu[onnx]'"


def module(name: str = "onnx") -> Any:  # the package has no complete types
    """Return a module of the package onnx. MissingDependency if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingDependency(f"ONNX models need the package onnx: {INSTALL}",
                                install=INSTALL) from None  # fmt: skip


# TensorProto.DataType
DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
}  # fmt: skip
STRING = 8


def array_of(proto: Any, base: str = "") -> NDArray[Any]:
    """Return a TensorProto's elements. base: the folder of its external data."""
    array: NDArray[Any] = np.asarray(module("onnx.numpy_helper").to_array(proto, base))
    return array


def attribute(proto: Any) -> Any:
    """Return an attribute's value: numbers, strings, arrays, or graphs as they are."""
    value = module("onnx.helper").get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if type(value).__name__ == "TensorProto":
        return array_of(value)
    if isinstance(value, str | int | float):
        return value
    if hasattr(value, "DESCRIPTOR"):
        return value
    return [each.decode("utf-8", "surrogateescape") if isinstance(each, bytes) else each
            for each in value]  # fmt: skip
