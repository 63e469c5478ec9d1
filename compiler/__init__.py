"""Compiler from tensors to machine code: `Tensor`, `jit`, `function`, and `dtypes` with the element
types; `load` and `save` for files; `nn` and `optim`; for gradients `grad`, `value_and_grad`,
`no_grad`, `enable_grad`, `checkpoint` and `custom_gradient`.

Also: `set_default_device`, `kernel_log` (lists compiled kernels), `watch` (reports what each run
does) and `tuning` (searches for faster kernels). Names are loaded on first use; importing the
package loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ugpu.compiler import array_api as xp
    from ugpu.compiler import dtype as dtypes
    from ugpu.compiler import nn as nn
    from ugpu.compiler import onnx as onnx
    from ugpu.compiler import optim as optim
    from ugpu.compiler import torch as torch
    from ugpu.compiler.complex.tensor import ComplexTensor as ComplexTensor
    from ugpu.compiler.files.tensor_file import TensorFile as TensorFile
    from ugpu.compiler.files.tensor_file import load as load
    from ugpu.compiler.files.tensor_file import save as save
    from ugpu.compiler.front.explain import watch as watch
    from ugpu.compiler.front.function import function as function
    from ugpu.compiler.front.jit import jit as jit
    from ugpu.compiler.gradients.functional import checkpoint as checkpoint
    from ugpu.compiler.gradients.functional import custom_gradient as custom_gradient
    from ugpu.compiler.gradients.functional import enable_grad as enable_grad
    from ugpu.compiler.gradients.functional import grad as grad
    from ugpu.compiler.gradients.functional import no_grad as no_grad
    from ugpu.compiler.gradients.functional import value_and_grad as value_and_grad
    from ugpu.compiler.runtime.runtime import kernel_log as kernel_log
    from ugpu.compiler.runtime.runtime import set_default_device as set_default_device
    from ugpu.compiler.search.tune import tuning as tuning
    from ugpu.compiler.tensor import Tensor as Tensor

_HOMES = {
    "ComplexTensor": "ugpu.compiler.complex.tensor",
    "Tensor": "ugpu.compiler.tensor",
    **dict.fromkeys(
        ("checkpoint", "custom_gradient", "enable_grad", "grad", "no_grad", "value_and_grad"),
        "ugpu.compiler.gradients.functional",
    ),
    "TensorFile": "ugpu.compiler.files.tensor_file",
    "dtypes": "ugpu.compiler.dtype",
    "fft": "ugpu.compiler.numeric.fft",
    "function": "ugpu.compiler.front.function",
    "jit": "ugpu.compiler.front.jit",
    "linalg": "ugpu.compiler.numeric.linalg",
    "kernel_log": "ugpu.compiler.runtime.runtime",
    "onnx": "ugpu.compiler.onnx",
    "nn": "ugpu.compiler.nn",
    "optim": "ugpu.compiler.optim",
    "load": "ugpu.compiler.files.tensor_file",
    "save": "ugpu.compiler.files.tensor_file",
    "set_default_device": "ugpu.compiler.runtime.runtime",
    "torch": "ugpu.compiler.torch",
    "tuning": "ugpu.compiler.search.tune",
    "watch": "ugpu.compiler.front.explain",
    "xp": "ugpu.compiler.array_api",
}
WHOLE = ("dtypes", "fft", "linalg", "nn", "onnx", "optim", "torch", "xp")  # names of modules

__all__ = [
    "ComplexTensor",
    "Tensor",
    "TensorFile",
    "checkpoint",
    "custom_gradient",
    "dtypes",
    "enable_grad",
    "fft",
    "function",
    "grad",
    "jit",
    "kernel_log",
    "linalg",
    "load",
    "nn",
    "no_grad",
    "onnx",
    "optim",
    "save",
    "set_default_device",
    "torch",
    "tuning",
    "value_and_grad",
    "watch",
    "xp",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ugpu.compiler' has no attribute {name!r}")
    module = importlib.import_module(home)
    value: object = module if name in WHOLE else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
