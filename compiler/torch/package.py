"""The package torch, imported on first use, and copies of its tensors."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, MissingDependency, NotSupported

INSTALL = "pip install 'ugpu[torch]'"


def module(name: str = "torch") -> Any:  # the package's types are not read
    """Return a module of PyTorch. MissingDependency if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingDependency(f"PyTorch's models need the package torch: {INSTALL}",
                                install=INSTALL) from None  # fmt: skip


@cache
def _types() -> dict[Any, DType]:
    torch = module()
    names = {each.name: each for each in dtypes.ALL}
    return {getattr(torch, name): dtype for name, dtype in names.items()}


def has_type(kind: Any) -> bool:
    """Return whether tensors have an element type of PyTorch."""
    return kind in _types()


def dtype_of(kind: Any) -> DType:
    """Return the element type for one of PyTorch. NotSupported if none."""
    try:
        return _types()[kind]
    except KeyError:
        raise NotSupported(f"PyTorch's element type {kind}: tensors do not have it") from None


def from_torch(value: Any, device: Device) -> Tensor:
    """Copy a tensor of PyTorch to a device."""
    dtype, host = dtype_of(value.dtype), value.detach().cpu().contiguous()
    if dtypes.has_numpy(dtype):
        return Tensor(host.numpy(), device=device, dtype=dtype)
    bits = module().uint8 if dtype.itemsize == 1 else module().int16
    words = Tensor(host.view(bits).numpy().view(f"u{dtype.itemsize}"), device=device)
    return words.bitcast(dtype).realize()


def to_torch(value: Tensor, kind: Any) -> Any:
    """Copy a tensor to one of PyTorch in the host's memory, of element type `kind`."""
    torch = module()
    if dtypes.has_numpy(value.dtype):
        return torch.from_numpy(np.atleast_1d(value.numpy())).reshape(value.shape).to(kind)
    bits = value.bitcast(f"uint{value.dtype.bits}").numpy()
    width = torch.uint8 if value.dtype.itemsize == 1 else torch.int16
    words = torch.from_numpy(np.atleast_1d(bits).view(np.uint8)).view(width)
    own = getattr(torch, value.dtype.name)
    return words.reshape(value.shape).view(own).to(kind)


def tensor_of(value: Any, device: Device, what: str) -> Tensor:
    """Return an input, of ugpu, PyTorch or NumPy, as a tensor on a device."""
    if isinstance(value, Tensor):
        if value.device is not device:
            raise BadArgument(f"{what} is on {value.device.name}, the model on {device.name}")
        return value
    if isinstance(value, module().Tensor):
        return from_torch(value, device)
    return Tensor(value, device=device)
