"""Functions that create arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.array_api.operands import any_complex, array_of
from ugpu.compiler.array_api.types import astype, converted
from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.dtype import DType
from ugpu.compiler.methods.core import is_complex
from ugpu.compiler.runtime.runtime import device_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Shape = int | tuple[int, ...]
Number = bool | int | float | complex
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
    if isinstance(obj, Tensor | ComplexTensor):
        kind = obj.dtype if dtype is None else dtype
        target = obj.device if device is None else device_of(device)
        if kind is obj.dtype and target is obj.device:
            return cast("Tensor", +obj if copy else obj)
    if copy is False:
        raise BadArgument(
            f"asarray: {type(obj).__name__} has to be copied, expected copy=None or True; "
            "from_dlpack shares memory"
        )
    if isinstance(obj, Tensor | ComplexTensor):
        return astype(cast("Tensor", obj), kind, device=target)
    gathered = _gathered(obj)
    if (dtype is not None and dtype.kind == "c") or _has_complex(gathered):
        if dtype is not None and dtype.kind != "c":
            raise BadArgument(f"asarray: expected a complex type, got {dtype.name}")
        return cast("Tensor", ComplexTensor(gathered, dtype=dtype, device=device))
    return Tensor(gathered, dtype=dtype, device=device)


def _has_complex(obj: Any) -> bool:
    """Return whether numbers, nested lists of them or an array are complex."""
    if isinstance(obj, list | tuple):
        return any(_has_complex(each) for each in obj)
    return is_complex(obj) or getattr(getattr(obj, "dtype", None), "kind", "") == "c"


def _gathered(obj: Any) -> Any:
    """Return nested lists with numbers for tensors, all of which are computed at once."""
    tensors = list(_tensors_in(obj))
    if tensors:
        tensors[0].realize(*tensors[1:])
    return _numbers(obj)


def _tensors_in(obj: Any) -> Iterator[Tensor]:
    if isinstance(obj, ComplexTensor):
        yield from obj.parts
    if isinstance(obj, list | tuple):
        for each in obj:
            yield from _tensors_in(each)
    elif isinstance(obj, Tensor):
        yield obj


def _numbers(obj: Any) -> Any:
    if isinstance(obj, list | tuple):
        return [_numbers(each) for each in obj]
    return obj.tolist() if isinstance(obj, Tensor | ComplexTensor) else obj


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
    kind = dtype or dtypes.float32
    part = dtypes.PART_OF.get(kind, kind)
    return converted(Tensor.eye(n_rows, n_cols, k, dtype=part, device=device), kind)


def from_dlpack(x: Any, /, *, device: OnDevice = None, copy: bool | None = None) -> Tensor:
    """Return `Tensor.from_dlpack`."""
    return Tensor.from_dlpack(x, device=device, copy=copy)


def full(
    shape: Shape, fill_value: Number, *, dtype: DType | None = None, device: OnDevice = None
) -> Tensor:
    """Return `Tensor.full`."""
    kind = dtypes.complex64 if dtype is None and isinstance(fill_value, complex) else dtype
    if kind is not None and kind.kind == "c":
        made = ComplexTensor(fill_value, dtype=kind, device=device)
        return cast("Tensor", made.expand((shape,) if isinstance(shape, int) else shape))
    if isinstance(fill_value, complex):
        raise BadArgument(f"full: expected a complex type for {fill_value}, got {dtype}")
    return Tensor.full(shape, fill_value, dtype=kind, device=device)


def full_like(
    x: Tensor, /, fill_value: Number, *, dtype: DType | None = None, device: OnDevice = None
) -> Tensor:
    """Return one value in the shape of x, and its type and device unless given."""
    given = array_of("full_like", x)
    kind, target = dtype or given.dtype, given.device if device is None else device
    return full(given.shape, fill_value, dtype=kind, device=target)


def linspace(
    start: Number, stop: Number, /, num: int, *, dtype: DType | None = None,
    device: OnDevice = None, endpoint: bool = True,
) -> Tensor:  # fmt: skip
    """Return `Tensor.linspace`."""
    whole = isinstance(start, complex) or isinstance(stop, complex)
    kind = dtype or (dtypes.complex64 if whole else dtypes.float32)
    if kind.kind != "c":
        if isinstance(start, complex) or isinstance(stop, complex):
            raise BadArgument(f"linspace: expected a complex type, got {kind.name}")
        return Tensor.linspace(start, stop, num, endpoint, dtype=kind, device=device)
    one, two, part = complex(start), complex(stop), dtypes.PART_OF[kind]
    real, imag = (
        Tensor.linspace(first, last, num, endpoint, dtype=part, device=device)
        for first, last in ((one.real, two.real), (one.imag, two.imag))
    )
    return cast("Tensor", ComplexTensor.of(real, imag))


def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> list[Tensor]:
    """Return `Tensor.meshgrid`."""
    if not arrays:
        return []
    first = any_complex(*arrays)
    if first is None:
        return list(Tensor.meshgrid(*arrays, indexing=indexing))
    pairs = zip(*(first._lifted("meshgrid", each).parts for each in arrays), strict=True)
    real, imag = (Tensor.meshgrid(*each, indexing=indexing) for each in pairs)
    return [cast("Tensor", ComplexTensor.of(*both)) for both in zip(real, imag, strict=True)]


def ones(shape: Shape, *, dtype: DType | None = None, device: OnDevice = None) -> Tensor:
    """Return `Tensor.ones`."""
    return full(shape, 1, dtype=dtype or dtypes.float32, device=device)


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
    return full(shape, 0, dtype=dtype or dtypes.float32, device=device)


def zeros_like(x: Tensor, /, *, dtype: DType | None = None, device: OnDevice = None) -> Tensor:
    """Return zeros of the shape of x, and its type and device unless given."""
    return full_like(x, 0, dtype=dtype, device=device)
