"""ComplexTensor: complex arrays on a device."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.complex.core import complex_dtype, parts_of
from ugpu.compiler.complex.functions import Functions
from ugpu.compiler.complex.reductions import Reductions
from ugpu.compiler.dtype import PART_OF, DType
from ugpu.compiler.methods.aliases import with_aliases
from ugpu.compiler.runtime.upload import array_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Kind = TypeVar("Kind")


def _aliased(kind: type[Kind]) -> type[Kind]:
    """Let public methods accept PyTorch's names of arguments, as Tensor's do."""
    for group in kind.__mro__[:-1]:
        for name, member in list(vars(group).items()):
            if isinstance(member, FunctionType) and not name.startswith("_"):
                member.__qualname__ = f"{kind.__name__}.{member.__name__}"
                setattr(group, name, with_aliases(member))
    return kind


@_aliased
class ComplexTensor(Reductions, Functions):
    """An array of complex64 or complex128 on a device, as two real tensors, `real` and `imag`.

    Args:
        data: a complex number, nested lists of them, an array, or a tensor, copied at once;
            complex128 is stored as complex64 unless `dtype` is complex128, as float64 is.
        dtype: the type to store it with.
        device: a Device, a name to open, or None for the default, as of Tensor.

    It has the methods of Tensor that have a meaning for complex numbers; the others are missing.
    `x * 1j` of a Tensor makes one too. Elements are compared for equality alone.
    """

    __slots__ = ()
    __array_priority__ = 101.0  # so that an array or a Tensor beside it calls this class

    def __init__(
        self, data: Any, *, device: Device | str | None = None, dtype: DType | str | None = None
    ) -> None:
        part = None if dtype is None else PART_OF[complex_dtype(dtype)]
        if isinstance(data, Tensor | ComplexTensor):
            whole = data if device is None else data.to(device)
            real = whole.real
            imag = whole.imag if isinstance(whole, ComplexTensor) else whole.zeros_like()
        else:
            array = np.asarray(data) if _plain(data) else array_of(data, None)[0]
            real, imag = parts_of("ComplexTensor", array, device, part)
        made = self.of(real, imag) if part is None else self.of(real.cast(part), imag.cast(part))
        self.real, self.imag = made.real, made.imag

    @classmethod
    def polar(cls, size: Tensor, angle: Tensor) -> Self:
        """Return the numbers of these absolute values and angles in radians."""
        return cls.of(size * angle.cos(), size * angle.sin())

    @classmethod
    def from_pairs(cls, pairs: Tensor) -> Self:
        """Return the numbers whose real and imaginary parts lie on a last axis of two."""
        if not pairs.ndim or pairs.shape[-1] != 2:
            raise BadArgument(
                "from_pairs: expected real and imaginary parts on a last axis of two, got shape "
                f"{list(pairs.shape)}"
            )
        return cls.of(pairs[..., 0], pairs[..., 1])

    def pairs(self) -> Tensor:
        """Return real and imaginary parts on a last axis of two."""
        return Tensor.stack([self.real, self.imag], -1)

    # ---- types, devices and gradients ----------------------------------------------------------

    def cast(self, dtype: DType | str) -> Any:
        """Convert to complex64 or complex128, or take the real part as a Tensor of a real type, as
        NumPy's `astype`."""
        name = dtype.name if isinstance(dtype, DType) else str(dtype)
        if name in ("complex64", "complex128"):
            kind = PART_OF[complex_dtype(dtype)]
            return self._each(lambda part: part.cast(kind))
        return self.real.cast(dtype)

    def to(self, target: Any) -> Any:
        """Move to a device, or convert to a type."""
        if isinstance(target, DType) or target in ("complex64", "complex128"):
            return self.cast(target)
        return self._each(lambda part: part.to(target))

    def requires_grad_(self, wanted: bool = True) -> Self:
        """Make both parts leaves of gradients; return self."""
        self.real, self.imag = self.real.detach(), self.imag.detach()
        self.real.requires_grad_(wanted)
        self.imag.requires_grad_(wanted)
        return self

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to a part."""
        return bool(self.real.requires_grad or self.imag.requires_grad)

    @property
    def grad(self) -> Self | None:
        """The gradient of the real part plus i times that of the imaginary part; None before
        `backward`."""
        one, two = self.real.grad, self.imag.grad
        if one is None and two is None:
            return None
        zeros = self.real.detach().zeros_like()
        return self.of(zeros if one is None else one, zeros if two is None else two)

    @grad.setter
    def grad(self, value: Self | None) -> None:
        self.real.grad = None if value is None else value.real
        self.imag.grad = None if value is None else value.imag

    def backward(self, gradient: Any) -> None:
        """Add gradients to the leaves. gradient: of a real result with regard to this tensor, as
        `grad` has it."""
        given = self._lifted("backward", gradient)
        (self.real * given.real + self.imag * given.imag).sum().backward()

    def realize(self) -> Self:
        """Compute the elements and return self; does not wait."""
        self.real.realize(self.imag)
        return self

    # ---- elements ------------------------------------------------------------------------------

    def numpy(self) -> NDArray[Any]:
        """Return the elements as a new array."""
        self.realize()
        result = np.empty(self.shape, self.dtype.name)
        result.real, result.imag = self.real.numpy(), self.imag.numpy()
        return result

    def item(self) -> complex:
        """Return the only element; BadArgument if there are more."""
        return complex(self.real.item(), self.imag.item())

    def tolist(self) -> Any:
        """Return nested lists of Python numbers, or one number."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a ComplexTensor has no array without a copy")
        return self.numpy().astype(dtype or self.dtype.name, copy=False)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return self.real.__array_namespace__(api_version=api_version)

    def __complex__(self) -> complex:
        return self.item()

    def __bool__(self) -> bool:
        return self.item() != 0

    def __iter__(self) -> Iterator[Self]:
        return iter([self[place] for place in range(len(self))])

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"<ComplexTensor {self.dtype.name}[{shape}] on {self.device.name}>"


def _plain(data: Any) -> bool:
    return isinstance(data, complex | np.ndarray | np.generic | list | tuple)


def combined(tensor: Tensor, name: tuple[Any, ...], other: Any) -> Any:
    """Return an operation of a Tensor and a complex operand. name: as Tensor has it: the operation,
    for a comparison behind "compare", and whether the operands are swapped."""
    operation, reverse = (name[1], False) if name[0] == "compare" else (name[0], name[-1])
    left = ComplexTensor(tensor)
    if operation not in ("add", "sub", "mul", "div", "pow", "matmul", "eq", "ne"):
        raise BadArgument(f"{operation}: {dtypes.COMPLEX}, which has no such operation")
    pair = (left._lifted(operation, other), left) if reverse else (left, other)
    return getattr(pair[0], operation)(pair[1])
