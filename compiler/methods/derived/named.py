"""Tensor: other names of methods in PyTorch and NumPy, and methods of one line."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.methods.core import Scalar, TensorCore, number_of, shape_of
from ugpu.compiler.methods.groups import Groups
from ugpu.compiler.methods.reductions import Axis
from ugpu.hcq.errors import BadArgument


class Named(Groups):
    """Other names, and short methods."""

    __slots__ = ()

    absolute = Groups.abs
    arccos = Groups.acos
    arccosh = Groups.acosh
    arcsin = Groups.asin
    arcsinh = Groups.asinh
    arctan = Groups.atan
    arctanh = Groups.atanh
    negative = Groups.neg
    multiply = Groups.mul
    subtract = Groups.sub
    fix = Groups.trunc
    sgn = Groups.sign
    astype = Groups.cast
    swapaxes = Groups.transpose
    swapdims = Groups.transpose
    unbind = Groups.unstack

    # ---- Python's operators --------------------------------------------------------------------

    def __divmod__(self, other: Any) -> tuple[Self, Self]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Self, Self]:
        return other // self, other % self

    def __contains__(self, value: Any) -> bool:
        found: Any = self._compare("eq", value).any()  # Tensor's item
        return bool(found.item())

    # ---- arithmetic ----------------------------------------------------------------------------

    def divide(self, other: Any, *, rounding_mode: Any = None) -> Self:
        """Return `div`."""
        return self.div(other, rounding_mode=rounding_mode)

    def true_divide(self, other: Any) -> Self:
        """Return the quotient; integers give float32."""
        return self.div(other)

    def positive(self) -> Self:
        """Return the same elements."""
        return self._same()

    def addcmul(self, tensor1: Any, tensor2: Any, *, value: Scalar = 1) -> Self:
        """Return self + value * tensor1 * tensor2."""
        product: Self = self._tensor("addcmul", tensor1) * tensor2
        return self + product * value

    def addcdiv(self, tensor1: Any, tensor2: Any, *, value: Scalar = 1) -> Self:
        """Return self + value * tensor1 / tensor2."""
        share: Self = self._tensor("addcdiv", tensor1).div(tensor2)
        return self + share * value

    def clamp_min(self, min: Any) -> Self:
        """Limit the elements to at least `min`."""
        return self.clamp(min)

    def clamp_max(self, max: Any) -> Self:
        """Limit the elements to at most `max`."""
        return self.clamp(None, max)

    def fmax(self, other: Any) -> Self:
        """Return the larger of two; of a number and NaN the number."""
        return self._beside("fmax", "lt", other)

    def fmin(self, other: Any) -> Self:
        """Return the smaller of two; of a number and NaN the number."""
        return self._beside("fmin", "le", other)

    def _beside(self, operation: str, comparison: str, other: Any) -> Self:
        _, (left, right) = self._operands(operation, other)
        one, two = self._new(left), self._new(right)
        second = one._compare(comparison, two)
        if operation == "fmin":
            second = ~second & ~two.isnan() if one.dtype.is_float else ~second
        return ((second | one.isnan()) if one.dtype.is_float else second).where(two, one)

    def float_power(self, exponent: Any) -> Self:
        """Return the power in float32; of float64 in that type."""
        given = self._lift("float_power", exponent)
        if isinstance(given, TensorCore):
            given = self._new(given.node)._real()
        return self._real().pow(given)

    # ---- comparisons and bits ------------------------------------------------------------------

    def eq(self, other: Any) -> Self:
        """Return whether the elements are equal."""
        return self._compare("eq", other)

    def ne(self, other: Any) -> Self:
        """Return whether the elements are not equal."""
        return self._compare("ne", other)

    def lt(self, other: Any) -> Self:
        """Return whether self < other."""
        return self._compare("lt", other)

    def le(self, other: Any) -> Self:
        """Return whether self <= other."""
        return self._compare("le", other)

    def gt(self, other: Any) -> Self:
        """Return whether self > other."""
        return self._compare("lt", other, swap=True)

    def ge(self, other: Any) -> Self:
        """Return whether self >= other."""
        return self._compare("le", other, swap=True)

    not_equal, less, less_equal, greater, greater_equal = ne, lt, le, gt, ge

    def equal(self, other: Any) -> bool:
        """Return whether shape and all elements are equal. Waits for the device."""
        given = self._tensor("equal", other)
        return given.shape == self.shape and bool(self._whole("equal", self._compare(
            "eq", given).all()))  # fmt: skip

    def bitwise_and(self, other: Any) -> Self:
        """Return the bits that both have; of integers and bools."""
        return self._bitwise("and", other)

    def bitwise_or(self, other: Any) -> Self:
        """Return the bits that either has; of integers and bools."""
        return self._bitwise("or", other)

    def bitwise_xor(self, other: Any) -> Self:
        """Return the bits that exactly one has; of integers and bools."""
        return self._bitwise("xor", other)

    def bitwise_not(self) -> Self:
        """Return the opposite bits; of integers and bools."""
        return ~self

    def bitwise_left_shift(self, other: Any) -> Self:
        """Return self << other."""
        return self._bitwise("shl", other)

    def bitwise_right_shift(self, other: Any) -> Self:
        """Return self >> other."""
        return self._bitwise("shr", other)

    # ---- reductions ----------------------------------------------------------------------------

    def amax(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the largest element along the axes; no axes are all."""
        return self.max(None if axis == () else axis, keepdims)

    def amin(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the smallest element along the axes; no axes are all."""
        return self.min(None if axis == () else axis, keepdims)

    def aminmax(self, *, axis: int | None = None, keepdims: bool = False) -> tuple[Self, Self]:
        """Return `min` and `max`."""
        return self.min(axis, keepdims), self.max(axis, keepdims)

    # ---- types and sizes -----------------------------------------------------------------------

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    ndimension = dim

    def nelement(self) -> int:
        """The number of elements."""
        return self.numel()

    def element_size(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.numel() * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Return whether the type is a float."""
        return self.dtype.is_float

    def is_complex(self) -> bool:
        """Return False: complex numbers are in a ComplexTensor."""
        return False

    def is_signed(self) -> bool:
        """Return whether the type has negative numbers."""
        return self.dtype.kind in "if"

    def is_same_size(self, other: TensorCore) -> bool:
        """Return whether the shapes are equal."""
        return self._tensor("is_same_size", other).shape == self.shape

    def is_nonzero(self) -> bool:
        """Return whether the only element is not zero. Waits for the device."""
        return bool(self)

    def is_contiguous(self) -> bool:
        """Return True: elements are in row-major order."""
        return True

    def short(self) -> Self:
        """Convert to int16; floats are rounded towards 0."""
        return self.cast(dtypes.int16)

    def char(self) -> Self:
        """Convert to int8; floats are rounded towards 0."""
        return self.cast(dtypes.int8)

    def byte(self) -> Self:
        """Convert to uint8; floats are rounded towards 0."""
        return self.cast(dtypes.uint8)

    def type(self, dtype: Any = None) -> Any:
        """Convert to another type; without one, return the type."""
        return self.dtype if dtype is None else self.cast(dtype)

    def type_as(self, other: TensorCore) -> Self:
        """Convert to the type of another tensor."""
        return self.cast(self._tensor("type_as", other).dtype)

    # ---- complex numbers: every tensor is real -------------------------------------------------

    @property
    def real(self) -> Self:
        """The real parts: every tensor is real."""
        return self._same()

    @property
    def imag(self) -> Self:
        """The imaginary parts: every tensor is real. Zeros, as in NumPy."""
        return self._filled(0)

    def conj(self) -> Self:
        """Return the same elements: every tensor is real."""
        return self._same()

    conjugate, conj_physical, resolve_conj, resolve_neg = conj, conj, conj, conj

    def isreal(self) -> Self:
        """Return True for each element: every tensor is real."""
        return self._new(self._constant("isreal", True, dtypes.bool_, self.shape))

    # ---- copies and new tensors ----------------------------------------------------------------

    def clone(self) -> Self:
        """Return another tensor of the same elements; gradients flow through it."""
        return self._same()

    def copy(self) -> Self:
        """Return another tensor of the same elements."""
        return self._same()

    def new_full(self, size: Any, fill_value: Scalar, *, dtype: Any = None) -> Self:
        """Return a tensor of one value on the same device, by default of the same type."""
        kind = self.dtype if dtype is None else dtypes.as_dtype(dtype)
        given = int(fill_value) if isinstance(fill_value, bool) else fill_value
        number = number_of("new_full", "fill_value", given)
        return self._new(self._constant("new_full", number, kind, shape_of("new_full", [size])))

    def new_zeros(self, *size: Any, dtype: Any = None) -> Self:
        """Return zeros on the same device, by default of the same type."""
        return self.new_full(shape_of("new_zeros", size), 0, dtype=dtype)

    def new_ones(self, *size: Any, dtype: Any = None) -> Self:
        """Return ones on the same device, by default of the same type."""
        return self.new_full(shape_of("new_ones", size), 1, dtype=dtype)

    def new_empty(self, *size: Any, dtype: Any = None) -> Self:
        """Return zeros on the same device; every element has a value."""
        return self.new_full(shape_of("new_empty", size), 0, dtype=dtype)

    def new_tensor(self, data: Any, *, dtype: Any = None) -> Self:
        """Return numbers or an array as a tensor on the same device."""
        made = self._new(self._from_array(data).node)
        return made if dtype is None else made.cast(dtype)

    # ---- order and shape -----------------------------------------------------------------------

    def t(self) -> Self:
        """Return the transposed matrix; at most two axes."""
        if self.ndim > 2:
            raise BadArgument(f"t: expected at most two axes, got shape {self._shown}")
        return self.T

    @property
    def H(self) -> Self:
        """The transposed matrix."""
        return self.t()

    @property
    def mH(self) -> Self:
        """The tensor with its last two axes exchanged: matrices transposed."""
        return self.mT

    def adjoint(self) -> Self:
        """Exchange the last two axes."""
        return self.mT

    def ravel(self) -> Self:
        """Return the elements along one axis, in row-major order."""
        return self.reshape(self.numel())

    def expand_as(self, other: TensorCore) -> Self:
        """Repeat axes of size 1 up to the shape of another tensor."""
        return self.expand(self._tensor("expand_as", other).shape)

    def reshape_as(self, other: TensorCore) -> Self:
        """Return the same elements in the shape of another tensor."""
        return self.reshape(self._tensor("reshape_as", other).shape)

    view_as = reshape_as

    def view(self, *shape: Any, dtype: Any = None) -> Self:
        """Return `reshape`; given a type instead of a shape, `bitcast`."""
        sizes = (int, np.integer, list, tuple)
        if dtype is None and len(shape) == 1 and not isinstance(shape[0], sizes):
            (dtype,), shape = shape, ()
        return self.reshape(*shape) if dtype is None else self.bitcast(dtype)

    def fliplr(self) -> Self:
        """Reverse the order along the second axis."""
        return self.flip(1)

    def flipud(self) -> Self:
        """Reverse the order along the first axis."""
        return self.flip(0)
