"""Element types, and the type of an operation on two of them.

Promotion follows NumPy between integers and between floats, and PyTorch between the two kinds:

- bool with anything gives the other type.
- Two signed or two unsigned integers give the wider one. Signed with unsigned gives the narrowest
  signed type that holds both. uint64 with a signed type has no such type and gives float32, the
  default float (NumPy: float64).
- An integer with a float gives that float, whatever the integer's width.
- float16 with bfloat16 gives float32, the narrowest type that holds both. float64 with any other
  float but float8 gives float64.
- float8 types are not converted: a tensor of one with a tensor of another type is refused, as in
  PyTorch. `cast` one of them.
- A real-valued method (a quotient, a logarithm, a loss, attention) of integers or bools gives
  float32.
- These rules hold for all tensors that a method computes with: a loss of float16 with a target or
  weight of float32 is float32. A tensor of indices, labels or a mask does not count, and a method
  that writes values into a tensor (`scatter`, `index_add`, `masked_fill`) keeps that tensor's type.
- A Python scalar is weak (NumPy's NEP 50): it takes the tensor's type, except that a float makes an
  integer tensor float32 and an int makes a bool tensor int64.

float32 is the default: an array of float64 becomes float32, and float64 only where that type is
asked for (`dtype="float64"`, a float64 tensor as the other operand, DLPack, files). Not every
device has it, see `require`. Complex types are those of ComplexTensor (compiler.complex) alone.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ugpu.compiler import float8
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.state.target import TargetSpec


@dataclass(frozen=True)
class DType:
    """An element type.

    Attributes:
        name: as in `dtypes`, such as "float32".
        kind: "b" bool, "i" signed, "u" unsigned, "f" float, "c" complex.
        itemsize: in bytes.
    """

    name: str
    kind: str
    itemsize: int

    @property
    def bits(self) -> int:
        return self.itemsize * 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_float8(self) -> bool:
        return self.itemsize == 1 and self.kind == "f"

    def __repr__(self) -> str:
        return f"dtypes.{self.name}"


bool_ = DType("bool", "b", 1)
int8, int16, int32, int64 = (DType(f"int{8 * size}", "i", size) for size in (1, 2, 4, 8))
uint8, uint16, uint32, uint64 = (DType(f"uint{8 * size}", "u", size) for size in (1, 2, 4, 8))
float16 = DType("float16", "f", 2)
bfloat16 = DType("bfloat16", "f", 2)
float32 = DType("float32", "f", 4)
float64 = DType("float64", "f", 8)
complex64, complex128 = DType("complex64", "c", 8), DType("complex128", "c", 16)  # ComplexTensor's
float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz = FLOAT8 = tuple(
    DType(name, "f", 1) for name in float8.FORMATS
)

PART_OF = {complex64: float32, complex128: float64}

ALL = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32,
    float64, *FLOAT8,
)  # fmt: skip
# The element types that targets lack, by the ABI of their kernels (hcq.state.target); a target that
# is not listed has all. Adreno: ir3 has no arithmetic of 64-bit floats (Mesa, ir3_compiler_nir.c).
LACKING: Mapping[str, tuple[DType, ...]] = {"ir3": (float64,)}
COMPLEX = "a Tensor is real; complex numbers are in a ugpu.ComplexTensor"
_BITS: dict[DType, type[np.generic]] = {bfloat16: np.uint16, **dict.fromkeys(FLOAT8, np.uint8)}
_HALF = struct.Struct("<e")
_BY_NAME = {dtype.name: dtype for dtype in ALL}
_TO_NUMPY: dict[str, np.dtype[np.generic]] = {
    dtype.name: np.dtype(_BITS.get(dtype, dtype.name)) for dtype in ALL
}
_FROM_NUMPY: dict[np.dtype[Any], DType] = {}
_SIGNED = {dtype.itemsize: dtype for dtype in (int8, int16, int32, int64)}
_UNSIGNED = {dtype.itemsize: dtype for dtype in (uint8, uint16, uint32, uint64)}


def as_dtype(given: DType | DTypeLike) -> DType:
    """Return the DType for a DType, a name, a NumPy dtype, or Python's bool, int (int64) or float
    (float32). BadArgument if unsupported."""
    if isinstance(given, DType):
        return given
    if isinstance(given, str) and given in _BY_NAME:
        return _BY_NAME[given]
    if given is float:
        return float32
    try:
        wanted = np.dtype(given)
        return float64 if wanted == np.float64 else from_numpy(wanted)
    except TypeError:
        raise BadArgument(
            f"{given!r} is not an element type; expected one of {', '.join(_BY_NAME)}"
        ) from None


def from_numpy(given: np.dtype[Any]) -> DType:
    """Return the type that stores a NumPy array of which no type is asked for: its own, or float32
    for float64."""
    found = _FROM_NUMPY.get(given)  # NumPy takes four microseconds for a dtype's name
    if found is None:
        found = _FROM_NUMPY[given] = _named(given)
    return found


def _named(given: np.dtype[Any]) -> DType:
    name = "float32" if given == np.float64 else given.name
    if given.kind == "c":
        raise BadArgument(f"{COMPLEX}, got {given.name}")
    if name not in _BY_NAME:
        raise BadArgument(
            f"arrays of {given.name} are not supported; expected one of {', '.join(_BY_NAME)}"
        )
    return _BY_NAME[name]


def require(dtype: DType, target: TargetSpec) -> None:
    """Raise NotSupported if a target does not have a type."""
    if dtype in LACKING.get(target.abi, ()):
        raise NotSupported(
            f"{target.name} has no {dtype.name}; expected another type, such as float32",
            target=target.name,
        )


def to_numpy(dtype: DType) -> np.dtype[np.generic]:
    """Return the NumPy type with the same bytes. bfloat16 and float8 types have none: their bits
    are uint16 and uint8."""
    return _TO_NUMPY[dtype.name]


def promote(left: DType, right: DType) -> DType:
    """Return the type of an operation on two tensors; see the module docstring for the rules."""
    if left is right:
        return left
    if "c" in (left.kind, right.kind):
        parts = [PART_OF.get(each, each) for each in (left, right)]
        return complex128 if float64 in parts else complex64
    if left.is_float8 or right.is_float8:
        raise BadArgument(
            f"float8 types are not converted implicitly: got {left.name} and {right.name}; "
            "expected one type, see cast"
        )
    if right is bool_:
        return left
    if left is bool_:
        return right
    if left.is_float or right.is_float:
        if left.is_float and right.is_float:
            return float64 if float64 in (left, right) else float32
        return left if left.is_float else right
    if left.kind == right.kind:
        return left if left.itemsize >= right.itemsize else right
    signed, unsigned = (left, right) if left.kind == "i" else (right, left)
    return _SIGNED.get(max(signed.itemsize, 2 * unsigned.itemsize), float32)


def promote_scalar(dtype: DType, scalar: bool | int | float) -> DType:
    """Return the type of an operation on a tensor and a Python scalar."""
    if isinstance(scalar, bool) or dtype.kind in "fc":
        return dtype
    if isinstance(scalar, float):
        return float32
    return int64 if dtype is bool_ else dtype


def of_scalar(scalar: bool | int | float) -> DType:
    """Return the type of a tensor made from a Python scalar alone."""
    if isinstance(scalar, bool):
        return bool_
    return int64 if isinstance(scalar, int) else float32


def sum_dtype(dtype: DType) -> DType:
    """Return the type of a sum or product: integers and bools widen to 64 bits, as in NumPy."""
    if dtype.is_float:
        return dtype
    return uint64 if dtype.kind == "u" else int64


def float_dtype(dtype: DType) -> DType:
    """Return the type of a real-valued function: floats keep theirs, others give float32."""
    return dtype if dtype.is_float else float32


def wide(dtype: DType) -> DType:
    """Return the float type in which elements are computed: float64 of float64, else float32."""
    return float64 if dtype is float64 else float32


def is_narrow(dtype: DType) -> bool:
    """Return whether a float is stored in 16 or 8 bits and computed in 32."""
    return dtype.is_float and dtype.itemsize < 4


def inner(dtype: DType) -> DType:
    """Return the type in which products of elements are summed."""
    if dtype.is_float:
        return wide(dtype)
    return int32 if dtype is bool_ else dtype


def lowest(dtype: DType) -> bool | int | float:
    """Return the smallest value: the maximum over no elements."""
    if dtype is bool_:
        return False
    if dtype.is_float:
        return -highest(dtype)
    return -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0


def highest(dtype: DType) -> bool | int | float:
    """Return the largest value: the minimum over no elements."""
    if dtype is bool_:
        return True
    if dtype.is_float:
        form = float8.FORMATS.get(dtype.name)
        if form is None or form.infinite is not None:
            return float("inf")
        return float(float8.numbers(dtype.name)[form.largest])
    return (1 << (dtype.bits - (dtype.kind == "i"))) - 1


def misfit(array: NDArray[Any], dtype: DType) -> Any:
    """Return the first element that is out of range for an integer type, NaN included; None if
    there is none. Floats are rounded to infinity by float types, and any number is a bool."""
    if not dtype.is_integer or array.dtype.kind == "b" or not array.size:
        return None
    low, high = int(lowest(dtype)), int(highest(dtype))
    if array.dtype.kind in "iu":
        if low <= int(array.min()) and int(array.max()) <= high:
            return None
        return next(each for each in array.reshape(-1).tolist() if not low <= each <= high)
    limit = float(high) if int(float(high)) <= high else float(np.nextafter(float(high), 0.0))
    wide = array.astype(np.float64, copy=False)
    outside = ~((wide >= float(low)) & (wide <= limit))
    return wide[outside][0].item() if outside.any() else None


def encode_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 to bfloat16 bits, to nearest, ties to even; NaN stays a quiet NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def decode_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 values of bfloat16 bits; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def has_numpy(dtype: DType) -> bool:
    """Return whether NumPy has the type; else `to_numpy` gives that of its bits."""
    return not (dtype is bfloat16 or dtype.is_float8)


def encode(values: NDArray[Any], dtype: DType) -> NDArray[np.generic]:
    """Return numbers as a type stores them, floats rounded to nearest, ties to even; floats that
    are too large become infinite (of float8 types see compiler.float8)."""
    with np.errstate(over="ignore"):
        if dtype is bfloat16:
            return encode_bfloat16(values.astype(np.float32))
        if dtype.is_float8:
            return float8.encode(values.astype(np.float32), dtype.name)
        return np.ascontiguousarray(values, to_numpy(dtype))


def decode(stored: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Return the numbers of stored elements: float32 for types that NumPy lacks."""
    if dtype is bfloat16:
        return decode_bfloat16(stored)
    return float8.decode(stored, dtype.name) if dtype.is_float8 else stored


def rounded(number: bool | int | float, dtype: DType) -> float:
    """Return a number as a float type has it; of float32, where every user rounds, and of float64
    unchanged."""
    if dtype.itemsize > 2:
        return number
    if dtype is float16:  # as `encode` does, in a twentieth of its time
        try:
            return float(_HALF.unpack(_HALF.pack(number))[0])
        except OverflowError:
            return math.copysign(math.inf, number)
    return float(decode(encode(np.array([number], np.float64), dtype), dtype)[0])
