"""Compiler from tensors to machine code: `Tensor`, `jit`, `function`, and `dtypes` with the element
types.

Also: `set_default_device`, `kernel_log` (lists compiled kernels), `watch` (reports what each run
does) and `tuning` (searches for faster kernels). Names are loaded on first use; importing the
package loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compiler import dtype as dtypes
    from compiler.front.explain import watch as watch
    from compiler.front.function import function as function
    from compiler.front.jit import jit as jit
    from compiler.runtime.runtime import kernel_log as kernel_log
    from compiler.runtime.runtime import set_default_device as set_default_device
    from compiler.search.tune import tuning as tuning
    from compiler.tensor import Tensor as Tensor

_HOMES = {
    "Tensor": "compiler.tensor",
    "dtypes": "compiler.dtype",
    "function": "compiler.front.function",
    "jit": "compiler.front.jit",
    "kernel_log": "compiler.runtime.runtime",
    "set_default_device": "compiler.runtime.runtime",
    "tuning": "compiler.search.tune",
    "watch": "compiler.front.explain",
}

__all__ = [
    "Tensor",
    "dtypes",
    "function",
    "jit",
    "kernel_log",
    "set_default_device",
    "tuning",
    "watch",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'compiler' has no attribute {name!r}")
    module = importlib.import_module(home)
    value: object = module if name == "dtypes" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
