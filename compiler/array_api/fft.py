"""The extension `fft`: discrete Fourier transforms of complex tensors, by those of `ugpu.fft`."""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.numeric import fft as pairs
from ugpu.compiler.numeric.transforms import Norm
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Array = Tensor | ComplexTensor
Sizes = Sequence[int] | None


def _given(operation: str, x: Array) -> Tensor:
    """Return the pairs of a complex tensor; a real one has imaginary parts of zero."""
    if not isinstance(x, Tensor | ComplexTensor):
        raise BadArgument(f"{operation}: expected a tensor, got {type(x).__name__}")
    return (x if isinstance(x, ComplexTensor) else ComplexTensor(x)).pairs()


def _real(operation: str, x: Array) -> Tensor:
    if not isinstance(x, Tensor):
        raise BadArgument(f"{operation}: expected a real tensor, got {type(x).__name__}")
    return x


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
        ) -> ComplexTensor:  # fmt: skip
    """Return the transform along an axis. n: its length, to which the axis is cut or filled with
    zeros. norm: "backward" scales nothing, "forward" by 1/n, "ortho" by its root."""
    return ComplexTensor.from_pairs(pairs.fft(_given("fft", x), n, axis, norm))


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
         ) -> ComplexTensor:  # fmt: skip
    """Return the inverse of `fft`."""
    return ComplexTensor.from_pairs(pairs.ifft(_given("ifft", x), n, axis, norm))


def fftn(x: Array, /, *, s: Sizes = None, axes: Sizes = None, norm: Norm = "backward"
         ) -> ComplexTensor:  # fmt: skip
    """Return `fft` along several axes; s: their lengths."""
    return ComplexTensor.from_pairs(pairs.fftn(_given("fftn", x), s, axes, norm))


def ifftn(x: Array, /, *, s: Sizes = None, axes: Sizes = None, norm: Norm = "backward"
          ) -> ComplexTensor:  # fmt: skip
    """Return the inverse of `fftn`."""
    return ComplexTensor.from_pairs(pairs.ifftn(_given("ifftn", x), s, axes, norm))


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
         ) -> ComplexTensor:  # fmt: skip
    """Return the first n // 2 + 1 elements of the transform of real numbers."""
    return ComplexTensor.from_pairs(pairs.rfft(_real("rfft", x), n, axis, norm))


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
          ) -> Tensor:  # fmt: skip
    """Return the real numbers whose `rfft` is x; n: how many."""
    return pairs.irfft(_given("irfft", x), n, axis, norm)


def rfftn(x: Tensor, /, *, s: Sizes = None, axes: Sizes = None, norm: Norm = "backward"
          ) -> ComplexTensor:  # fmt: skip
    """Return `rfft` along the last of several axes, and `fft` along the others."""
    return ComplexTensor.from_pairs(pairs.rfftn(_real("rfftn", x), s, axes, norm))


def irfftn(x: Array, /, *, s: Sizes = None, axes: Sizes = None, norm: Norm = "backward"
           ) -> Tensor:  # fmt: skip
    """Return the inverse of `rfftn`; s: the lengths of the result."""
    return pairs.irfftn(_given("irfftn", x), s, axes, norm)


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
         ) -> Tensor:  # fmt: skip
    """Return the real transform of a Hermitian signal, given its first half."""
    return pairs.hfft(_given("hfft", x), n, axis, norm)


def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
          ) -> ComplexTensor:  # fmt: skip
    """Return the inverse of `hfft`."""
    return ComplexTensor.from_pairs(pairs.ihfft(_real("ihfft", x), n, axis, norm))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: object = None, device: Device | str | None = None
            ) -> Tensor:  # fmt: skip
    """Return the frequency of each element of a transform of n samples at distances d."""
    return _typed(pairs.fftfreq(n, d, device), dtype)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: object = None, device: Device | str | None = None
             ) -> Tensor:  # fmt: skip
    """Return the frequency of each element of `rfft` of n samples at distances d."""
    return _typed(pairs.rfftfreq(n, d, device), dtype)


def _typed(x: Tensor, dtype: object) -> Tensor:
    return x if dtype is None else x.cast(dtype)


def fftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Move the element of frequency 0 to the middle of each axis."""
    if isinstance(x, ComplexTensor):
        return x.of(pairs.fftshift(x.real, axes), pairs.fftshift(x.imag, axes))
    return pairs.fftshift(x, axes)


def ifftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return the inverse of `fftshift`."""
    if isinstance(x, ComplexTensor):
        return x.of(pairs.ifftshift(x.real, axes), pairs.ifftshift(x.imag, axes))
    return pairs.ifftshift(x, axes)
