"""Tensors to machine code: `Tensor`, `jit`, `function`, and `dtypes` with the element types.

Importing this package loads nothing heavy: the names below are fetched on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compiler import dtype as dtypes
    from compiler.front.function import function
    from compiler.front.jit import jit
    from compiler.tensor import Tensor

__all__ = ["Tensor", "dtypes", "function", "jit"]


def __getattr__(name: str) -> object:
    if name == "Tensor":
        return importlib.import_module("compiler.tensor").Tensor
    if name == "function":
        return importlib.import_module("compiler.front.function").function
    if name == "jit":
        return importlib.import_module("compiler.front.jit").jit
    if name == "dtypes":
        return importlib.import_module("compiler.dtype")
    raise AttributeError(f"module 'compiler' has no attribute {name!r}")
