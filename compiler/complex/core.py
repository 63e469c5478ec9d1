"""What complex tensors consist of: two real tensors of one shape, type and device.

Everything is composed of operations on these, so that kernels, the scheduler and devices see real
types alone. Gradients follow from the composition: that of a complex leaf is the gradient of its
real part plus i times that of its imaginary part, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType
from ugpu.compiler.methods.core import broadcast_shape
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Number = bool | int | float | complex
WHOLE = {part: whole for whole, part in dtypes.PART_OF.items()}


class ComplexCore:
    """Two parts.

    Attributes:
        real, imag: tensors of float32 (complex64) or float64 (complex128).
    """

    __slots__ = ("imag", "real")
    real: Tensor
    imag: Tensor

    @classmethod
    def of(cls, real: Tensor, imag: Tensor) -> Self:
        """Return a complex tensor of two real ones, which are broadcast and converted to the type
        of both, at least float32. An assignment to it leaves them as they are. BadArgument for
        tensors of two devices."""
        kind = dtypes.wide(dtypes.promote(real.dtype, imag.dtype))
        if real.device is not imag.device:
            raise BadArgument(
                f"complex: expected parts on one device, got {real.device.name} and "
                f"{imag.device.name}"
            )
        made: Self = object.__new__(cls)
        one, two = (part.cast(kind) for part in (real, imag))  # never the given tensors themselves
        if one.shape != two.shape:
            shape = broadcast_shape("complex", one.shape, two.shape)
            one, two = one.expand(shape), two.expand(shape)
        made.real, made.imag = one, two
        return made

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a complex tensor of both parts, changed alike."""
        return self.of(change(self.real), change(self.imag))

    def _operand(self, operation: str, other: Any) -> Tensor | float | Self:  # Any: checked here
        """Return an operand: what is real as a Tensor or a number, else a complex tensor."""
        if isinstance(other, Tensor | type(self)):
            if other.device is not self.device:
                raise BadArgument(
                    f"{operation}: tensors on {self.device.name} and {other.device.name}; "
                    "move one with .to(device)"
                )
            return other
        if isinstance(other, np.generic | bool | int | float | complex):
            number = complex(other)
            if not isinstance(other, complex | np.complexfloating):
                return number.real
            return self.of(self._number(number.real), self._number(number.imag))
        if isinstance(other, np.ndarray | list | tuple):
            array = np.asarray(other)
            kind = self.real.dtype if array.dtype == np.complex128 else None
            real, imag = parts_of(operation, array, self.device, kind)
            return self.of(real, imag) if array.dtype.kind == "c" else real
        raise BadArgument(
            f"{operation}: operand must be a tensor, an array or a number, got "
            f"{type(other).__name__}"
        )

    def _is_operand(self, other: object) -> bool:
        """Return whether `_operand` accepts it."""
        return isinstance(other, ComplexCore) or Tensor._is_operand(other)

    def _lifted(self, operation: str, other: Any) -> Self:  # Any: see _operand
        """Return an operand as a complex tensor."""
        found = self._operand(operation, other)
        if isinstance(found, type(self)):
            return found
        real = self._number(found) if isinstance(found, float) else found
        assert isinstance(real, Tensor)
        return self.of(real, real.zeros_like())

    def _number(self, number: float) -> Tensor:
        return Tensor.full((), number, device=self.device, dtype=self.real.dtype)

    def _axis(self, operation: str, axis: int) -> int:
        return self.real._axis(operation, axis)

    def _axes(self, operation: str, axis: Any) -> tuple[int, ...]:
        return tuple(self.real._axes(operation, axis))

    def __getattr__(self, name: str) -> Any:
        if name in ("real", "imag"):  # not made yet
            raise AttributeError(name)
        raise AttributeError(
            f"ComplexTensor has no {name!r}: expected a method that has a meaning for complex "
            "numbers, or one of .real, .imag or .abs()"
        )

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        """complex64 or complex128."""
        return WHOLE[self.real.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.real.shape

    @property
    def device(self) -> Device:
        """The device of both parts."""
        return self.real.device

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.real.ndim

    @property
    def size(self) -> Any:
        """What `Tensor.size` is."""
        return self.real.size

    def numel(self) -> int:
        """Return the number of elements."""
        return self.real.numel()

    def is_complex(self) -> bool:
        """Return True."""
        return True

    def is_floating_point(self) -> bool:
        """Return False: the elements are complex."""
        return False

    @property
    def parts(self) -> list[Tensor]:
        """Both parts, real first."""
        return [self.real, self.imag]

    placement = "complex"  # of its parts, for recorded functions

    def with_parts(self, parts: Sequence[Tensor]) -> Self:
        """Return a complex tensor whose parts are these tensors themselves."""
        made: Self = object.__new__(type(self))
        made.real, made.imag = parts
        return made


def complex_dtype(given: Any) -> DType:  # Any: checked here
    """Return complex64 or complex128 for a type, its name or NumPy's; BadArgument for another."""
    name = given.name if isinstance(given, DType) else np.dtype(given).name
    found = next((each for each in dtypes.PART_OF if each.name == name), None)
    if found is None:
        raise BadArgument(f"complex: expected complex64 or complex128, got {name}")
    return found


def parts_of(
    operation: str,
    array: NDArray[Any],
    device: Device | str | None,
    kind: DType | None = None,
) -> tuple[Tensor, Tensor]:
    """Return an array's real and imaginary parts as tensors. kind: of the parts; by default float64
    of complex128 is stored as float32, as real numbers are."""
    if array.dtype.kind not in "biufc":
        raise BadArgument(f"{operation}: expected numbers, got an array of {array.dtype.name}")
    part = kind or dtypes.float32
    pair = (np.array(each, order="C") for each in (array.real, array.imag))
    one, two = (Tensor(each, device=device, dtype=part) for each in pair)
    return one, two
