"""Functions of element types, and what the library reports about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler import float8
from ugpu.compiler.array_api.operands import array_of
from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.dtype import DType
from ugpu.compiler.runtime.runtime import device_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device, entered
from ugpu.hcq.errors import BadArgument

Kind = DType | str | tuple[DType | str, ...]

STANDARD = (
    *(each for each in dtypes.ALL if not each.is_float or each.itemsize >= 4),
    *dtypes.PART_OF,
)
KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu",
    "real floating": "f", "complex floating": "c", "numeric": "iufc",
}  # fmt: skip


@dataclass(frozen=True)
class FloatInfo:
    """Limits of a float type.

    Attributes:
        bits: of an element.
        eps: the distance from 1 to the next larger number.
        max: the largest finite number.
        min: the smallest finite number.
        smallest_normal: the smallest positive number with full precision.
        dtype: the type.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntegerInfo:
    """Limits of an integer type.

    Attributes:
        bits: of an element.
        max: the largest number.
        min: the smallest number.
        dtype: the type.
    """

    bits: int
    max: int
    min: int
    dtype: DType


def astype(
    x: Tensor, dtype: DType, /, *, copy: bool = True, device: Device | str | None = None
) -> Tensor:
    """Return `Tensor.cast`. copy: whether to return a new tensor even if nothing changes."""
    given = array_of("astype", x)
    moved = given if device is None else given.to(device_of(device))
    if moved.dtype is dtype and moved.device is given.device:
        return +given if copy else given
    if isinstance(given, ComplexTensor) and dtype.kind != "c":
        raise BadArgument(f"astype: expected a complex type, got {dtype.name}; take real or imag")
    return converted(moved, dtype)


def converted(x: Tensor, dtype: DType) -> Tensor:
    """Return a tensor in another type, a real one as a ComplexTensor where that is complex."""
    if dtype.kind == "c" and not isinstance(x, ComplexTensor):
        return cast("Tensor", ComplexTensor(x, dtype=dtype))
    return x.cast(dtype)


def can_cast(from_: DType | Tensor, to: DType, /) -> bool:
    """Return whether promotion with `to` gives `to`, see `result_type`."""
    wanted = _type_of("can_cast", to)
    return dtypes.promote(_type_of("can_cast", from_), wanted) is wanted


def finfo(type: DType | Tensor, /) -> FloatInfo:
    """Return the limits of a float type, or of the parts of a complex one; BadArgument for another
    type."""
    kind = _type_of("finfo", type)
    kind = dtypes.PART_OF.get(kind, kind)
    if not kind.is_float:
        raise BadArgument(f"finfo: expected a float type, got {kind.name}")
    if kind is dtypes.bfloat16:  # float32's exponents and 8 bits of precision
        largest, least = (2 - 2.0**-7) * 2.0**127, 2.0**-126
        return FloatInfo(16, 2.0**-7, largest, -largest, least, kind)
    if kind.is_float8:
        form = float8.FORMATS[kind.name]
        largest = float(float8.decode(np.array(form.largest, np.uint8), kind.name))
        eps, least = 2.0**-form.mantissa, 2.0 ** (1 - form.bias)
        return FloatInfo(8, eps, largest, -largest, least, kind)
    limits = np.finfo(kind.name)
    eps, largest, least = float(limits.eps), float(limits.max), float(limits.smallest_normal)
    return FloatInfo(kind.bits, eps, largest, -largest, least, kind)


def iinfo(type: DType | Tensor, /) -> IntegerInfo:
    """Return the limits of an integer type; BadArgument for another type."""
    kind = _type_of("iinfo", type)
    if not kind.is_integer:
        raise BadArgument(f"iinfo: expected an integer type, got {kind.name}")
    return IntegerInfo(kind.bits, int(dtypes.highest(kind)), int(dtypes.lowest(kind)), kind)


def isdtype(dtype: DType, kind: Kind) -> bool:
    """Return whether a type is another one, or of a kind: "bool", "signed integer", "unsigned
    integer", "integral", "real floating", "complex floating" or "numeric"; or one of several."""
    own = _type_of("isdtype", dtype)
    if isinstance(kind, tuple):
        return any(isdtype(own, each) for each in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise BadArgument(f"isdtype: kind must be one of {list(KINDS)}, got {kind!r}")
        return own.kind in KINDS[kind]
    return own is _type_of("isdtype", kind)


def result_type(*arrays_and_dtypes: Tensor | DType | bool | int | float | complex) -> DType:
    """Return the type of an operation on all of these, see compiler.dtype."""
    scalars = [each for each in arrays_and_dtypes if isinstance(each, bool | int | float | complex)]
    kinds = [
        _type_of("result_type", each)
        for each in arrays_and_dtypes
        if not isinstance(each, bool | int | float | complex)
    ]
    if not kinds:
        raise BadArgument(f"result_type: expected a Tensor or a type, got {arrays_and_dtypes}")
    result = kinds[0]
    for kind in kinds[1:]:
        result = dtypes.promote(result, kind)
    for scalar in scalars:
        if isinstance(scalar, complex):
            result = dtypes.promote(result, dtypes.complex64)
        else:
            result = dtypes.promote_scalar(result, scalar)
    return result


def _type_of(operation: str, given: DType | Tensor) -> DType:
    if isinstance(given, Tensor | ComplexTensor):
        return given.dtype
    if isinstance(given, DType):
        return given
    raise BadArgument(f"{operation}: expected a Tensor or a type, got {given!r}")


class NamespaceInfo:
    """What the library offers: its devices, types and limits."""

    def capabilities(self) -> dict[str, bool | int | None]:
        """Return whether results may have a shape that depends on elements, and the most axes (None
        for no limit)."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Device:
        """Return the device of new tensors."""
        return device_of(None)

    def default_dtypes(self, *, device: Device | str | None = None) -> dict[str, DType]:
        """Return the types of Python numbers and of indices."""
        return {
            "real floating": dtypes.float32, "complex floating": dtypes.complex64,
            "integral": dtypes.int64, "indexing": dtypes.int64,
        }  # fmt: skip

    def devices(self) -> list[Device]:
        """Return the default device, and those whose `with` blocks the caller is in."""
        return list(dict.fromkeys([device_of(None), *entered()]))

    def dtypes(
        self, *, device: Device | str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """Return the standard's types by name that a device has, of a kind (see `isdtype`). Floats
        of 16 and 8 bits are not in the standard."""
        lacking = dtypes.LACKING.get(device_of(device).target.abi, ())
        own = [each for each in STANDARD if dtypes.PART_OF.get(each, each) not in lacking]
        chosen = [each for each in own if kind is None or isdtype(each, kind)]
        return {each.name: each for each in chosen}


def __array_namespace_info__() -> NamespaceInfo:
    """Return what the library offers."""
    return NamespaceInfo()
