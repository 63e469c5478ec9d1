"""Functions that create arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.array_api.operands import array_of
from ugpu.compiler.dtype import DType
from ugpu.compiler.runtime.runtime import device_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Shape = int | tuple[int, ...]
Number = bool | int | float
OnDevice = Device | str | None


def arange(
    start: int | float, /, stop: int | float | None = None, step: int | float = 1, *,
    dtype: DType | None = None, device: OnDevice = None,
) -> Tensor:  # fmt: skip
    """Return `Tensor.arange`."""
    return Tensor.arange(start, stop, step, dtype=dtype, device=device)


def asarray(
    obj: Any, /, *, dtype: DType | None = None, device: OnDevice = None, copy: bool | None = None
) -> Tensor:  # Any: as for Tensor
    """Return numbers, nested lists, an array or a tensor as a Tensor. A tensor of that type on that
    device is returned itself unless `copy`; BadArgument if `copy` is False and it has to be
    copied."""
    if isinstance(obj, Tensor):
        kind = obj.dtype if dtype is None else dtypes.as_dtype(dtype)
        target = obj.device if device is None else device_of(device)
        if kind is obj.dtype and target is obj.device:
            return obj._same() if copy else obj
    if copy is False:
        raise BadArgument(
            f"asarray: {type(obj).__name__} has to be copied, expected copy=None or True; "
            "from_dlpack shares memory"
        )
    if isinstance(obj, Tensor):
        return obj.to(target).cast(kind)
    return Tensor(_gathered(obj), dtype=dtype, device=device)


def _gathered(obj: Any) -> Any:
    """Return nested lists with numbers for tensors, all of which are computed at once."""
    tensors = list(_tensors_in(obj))
    if tensors:
        tensors[0].realize(*tensors[1:])
    return _numbers(obj)


def _tensors_in(obj: Any) -> Iterator[Tensor]:
    if isinstance(obj, list | tuple):
        for each in obj:
            yield from _tensors_in(each)
    elif isinstance(obj, Tensor):
        yield obj


def _numbers(obj: Any) -> Any:
    if isinstance(obj, list | tuple):
        return [_numbers(each) for each in obj]
    return obj.tolist() if isinstance(obj, Tensor) else obj


def empty(shape: Shape, *, dtype: DType | None = None, device: OnDevice = None) -> Tensor:
    """Return zeros: memory is written once."""
    return zeros(shape, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: DType | None = None, device: OnDevice = None) -> Tensor:
    """Return zeros of the shape of x, and its type and device unless given."""
    return full_like(x, 0, dtype=dtype, device=device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType | None = None,
    device: OnDevice = None,
) -> Tensor:  # fmt: skip
    """Return `Tensor.eye`, with ones on the diagonal k above the main one."""
    return Tensor.eye(n_rows, n_cols, k, dtype=dtype or dtypes.float32, device=device)


def from_dlpack(x: Any, /, *, device: OnDevice = None, copy: bool | None = None) -> Tensor:
    """Return `Tensor.from_dlpack`."""
    return Tensor.from_dlpack(x, device=device, copy=copy)


def full(
    shape: Shape, fill_value: Number, *, dtype: DType | None = None, device: OnDevice = None
) -> Tensor:
    """Return `Tensor.full`."""
    return Tensor.full(shape, fill_value, dtype=dtype, device=device)


def full_like(
    x: Tensor, /, fill_value: Number, *, dtype: DType | None = None, device: OnDevice = None
) -> Tensor:
    """Return one value in the shape of x, and its type and device unless given."""
    given = array_of("full_like", x)
    kind, target = dtype or given.dtype, given.device if device is None else device
    return Tensor.full(given.shape, fill_value, dtype=kind, device=target)


def linspace(
    start: int | float, stop: int | float, /, num: int, *, dtype: DType | None = None,
    device: OnDevice = None, endpoint: bool = True,
) -> Tensor:  # fmt: skip
    """Return `Tensor.linspace`."""
    kind = dtype or dtypes.float32
    return Tensor.linspace(start, stop, num, endpoint, dtype=kind, device=device)


def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> list[Tensor]:
    """Return `Tensor.meshgrid`."""
    return list(Tensor.meshgrid(*arrays, indexing=indexing)) if arrays else []


def ones(shape: Shape, *, dtype: DType | None = None, device: OnDevice = None) -> Tensor:
    """Return `Tensor.ones`."""
    return Tensor.full(shape, 1, dtype=dtype or dtypes.float32, device=device)


def ones_like(x: Tensor, /, *, dtype: DType | None = None, device: OnDevice = None) -> Tensor:
    """Return ones of the shape of x, and its type and device unless given."""
    return full_like(x, 1, dtype=dtype, device=device)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return `Tensor.tril`."""
    return array_of("tril", x).tril(k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return `Tensor.triu`."""
    return array_of("triu", x).triu(k)


def zeros(shape: Shape, *, dtype: DType | None = None, device: OnDevice = None) -> Tensor:
    """Return `Tensor.zeros`."""
    return Tensor.full(shape, 0, dtype=dtype or dtypes.float32, device=device)


def zeros_like(x: Tensor, /, *, dtype: DType | None = None, device: OnDevice = None) -> Tensor:
    """Return zeros of the shape of x, and its type and device unless given."""
    return full_like(x, 0, dtype=dtype, device=device)
