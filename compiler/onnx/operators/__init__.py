"""Operators of ONNX as tensor operations, by family; see `registry`."""
