"""The public package: everything a program needs to run tensors and kernels on a GPU.

    import ugpu
    with ugpu.open("virtual:navi31") as gpu:
        x = ugpu.Tensor([1.0, 2.0, 3.0], device=gpu)
        print((x * x).sum().numpy())

Names come from `hcq` (devices, buffers, queues, errors) and `compiler` (tensors, `jit`, `dtypes`)
and are loaded on first use: `import ugpu` itself loads neither NumPy nor LLVM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ugpu.compiler import ComplexTensor as ComplexTensor
    from ugpu.compiler import Tensor as Tensor
    from ugpu.compiler import TensorFile as TensorFile
    from ugpu.compiler import checkpoint as checkpoint
    from ugpu.compiler import custom_gradient as custom_gradient
    from ugpu.compiler import dtypes as dtypes
    from ugpu.compiler import enable_grad as enable_grad
    from ugpu.compiler import fft as fft
    from ugpu.compiler import function as function
    from ugpu.compiler import grad as grad
    from ugpu.compiler import jit as jit
    from ugpu.compiler import kernel_log as kernel_log
    from ugpu.compiler import linalg as linalg
    from ugpu.compiler import load as load
    from ugpu.compiler import nn as nn
    from ugpu.compiler import no_grad as no_grad
    from ugpu.compiler import onnx as onnx
    from ugpu.compiler import optim as optim
    from ugpu.compiler import save as save
    from ugpu.compiler import set_default_device as set_default_device
    from ugpu.compiler import torch as torch
    from ugpu.compiler import tuning as tuning
    from ugpu.compiler import value_and_grad as value_and_grad
    from ugpu.compiler import watch as watch
    from ugpu.compiler import xp as xp
    from ugpu.hcq import Buffer as Buffer
    from ugpu.hcq import Capture as Capture
    from ugpu.hcq import Device as Device
    from ugpu.hcq import Kernel as Kernel
    from ugpu.hcq import Parameter as Parameter
    from ugpu.hcq import Placement as Placement
    from ugpu.hcq import Program as Program
    from ugpu.hcq import Queue as Queue
    from ugpu.hcq import QueueKind as QueueKind
    from ugpu.hcq import Sensor as Sensor
    from ugpu.hcq import UgpuError as UgpuError
    from ugpu.hcq import errors as errors
    from ugpu.hcq import list_devices as list_devices
    from ugpu.hcq import open as open

__version__ = "0.1.0"

_HOMES = {
    "ugpu.hcq": (
        "Buffer", "Capture", "Device", "Kernel", "Parameter", "Placement", "Program", "Queue",
        "QueueKind", "Sensor", "UgpuError", "errors", "list_devices", "open",
    ),
    "ugpu.compiler": (
        "ComplexTensor", "Tensor", "TensorFile", "checkpoint", "custom_gradient", "dtypes",
        "enable_grad",
        "fft", "function", "grad", "jit", "kernel_log", "linalg", "load", "nn", "no_grad",
        "onnx", "optim", "save", "set_default_device", "torch", "tuning", "value_and_grad", "watch",
        "xp",
    ),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ugpu' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
