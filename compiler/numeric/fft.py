"""Discrete Fourier transforms, `ugpu.fft`. Complex numbers are not supported: real and imaginary
parts lie on a last axis of two, as in `torch.view_as_real`. Complex arrays of NumPy are accepted;
`result.numpy().view(np.complex64)[..., 0]` makes one of a result.

This file has the functions, their axes, lengths and scales; compiler.numeric.transforms computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.dtype import float32
from ugpu.compiler.dtype import wide as wide_type
from ugpu.compiler.methods.aliases import aliased_module
from ugpu.compiler.numeric.transforms import (
    Norm,
    by_kernel,
    joined,
    real_back,
    real_forward,
    resized,
    scale_of,
    transform,
)
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Parted = Tensor | NDArray[np.complexfloating]
Sizes = int | Sequence[int] | None
Axes = int | Sequence[int] | None
REVERSED: dict[str, Norm] = {"backward": "forward", "forward": "backward"}


def fft(x: Parted, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the transform of complex numbers [..., 2] along an axis, which is counted without the
    last of two.

    n: the length, to which the axis is cut or filled with zeros. norm: "backward" scales nothing,
    "forward" by 1/n, "ortho" by its root. Raises BadArgument for another shape.
    """
    return joined(_along("fft", _parts("fft", x), n, axis, norm, -1))


def ifft(x: Parted, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the inverse of `fft`; "backward" scales by 1/n."""
    return joined(_along("ifft", _parts("ifft", x), n, axis, norm, 1))


def rfft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the first n // 2 + 1 elements of the transform of real numbers, [..., 2]."""
    real = x.cast(wide_type(x.dtype))
    whole = real_forward(real, n, axis, norm)
    if whole is not None:
        return whole
    both = _along("rfft", Tensor.stack([real, real.zeros_like()], 0), n, axis, norm, -1)
    place = real._axis("rfft", axis)
    kept = both.shape[1 + place] // 2 + 1
    return joined(both[(*[slice(None)] * (1 + place), slice(kept))])


def irfft(x: Parted, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the real numbers whose `rfft` is x. n: their number, by default twice the elements
    less two."""
    both = _parts("irfft", x)
    place = both[0]._axis("irfft", axis)
    count = 2 * (both.shape[1 + place] - 1) if n is None else n
    if count < 1:
        raise BadArgument(f"irfft: expected n >= 1, got {count}")
    sized = resized(both, count // 2 + 1, 1 + place)
    found = real_back(sized, count, place, norm)
    if found is not None:
        return found
    real, imaginary = sized[0], sized[1]
    rest = (*[slice(None)] * place, slice(1, count - count // 2))
    whole = [
        Tensor.cat([real, real[rest].flip(place)], place),
        Tensor.cat([_without_ends(imaginary, place, count), -imaginary[rest].flip(place)], place),
    ]
    return _along("irfft", Tensor.stack(whole, 0), count, place, norm, 1)[0]


def hfft(x: Parted, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the transform of a signal that is Hermitian, given its first half: real numbers. n:
    their number, by default twice the elements less two."""
    both = _parts("hfft", x)
    return irfft(Tensor.stack([both[0], -both[1]], -1), n, axis, REVERSED.get(norm, norm))


def ihfft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the inverse of `hfft`."""
    parts = rfft(x, n, axis, REVERSED.get(norm, norm))
    return Tensor.stack([parts[..., 0], -parts[..., 1]], -1)


def fftn(x: Parted, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """Return `fft` along several axes, counted without the last of two; s: their lengths."""
    return _along_each("fftn", x, s, axes, norm, -1)


def ifftn(x: Parted, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """Return `ifft` along several axes."""
    return _along_each("ifftn", x, s, axes, norm, 1)


def rfftn(x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """Return `rfft` along the last of several axes, and `fft` along the others."""
    *pairs, (last, n) = _pairs("rfftn", x.ndim, s, axes)
    result = rfft(x, n, last, norm)
    for axis, size in pairs:
        result = fft(result, size, axis, norm)
    return result


def irfftn(x: Parted, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """Return the inverse of `rfftn`. s: the lengths of the result."""
    given = joined(_parts("irfftn", x))
    *pairs, (last, n) = _pairs("irfftn", given.ndim - 1, s, axes)
    for axis, size in pairs:
        given = ifft(given, size, axis, norm)
    return irfft(given, n, last, norm)


def fft2(x: Parted, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = "backward") -> Tensor:
    """Return `fft` along two axes; s: their lengths."""
    return fftn(x, s, axes, norm)


def ifft2(x: Parted, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = "backward") -> Tensor:
    """Return `ifft` along two axes."""
    return ifftn(x, s, axes, norm)


def rfft2(x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = "backward") -> Tensor:
    """Return `rfft` along the second axis, and `fft` along the first."""
    return rfftn(x, s, axes, norm)


def irfft2(x: Parted, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = "backward") -> Tensor:
    """Return the inverse of `rfft2`. s: the lengths of the result."""
    return irfftn(x, s, axes, norm)


def fftshift(x: Tensor, axes: Axes = None) -> Tensor:
    """Move the element of frequency 0 to the middle of each axis."""
    chosen = x._axes("fftshift", axes)
    return x.roll([x.shape[axis] // 2 for axis in chosen], chosen)


def ifftshift(x: Tensor, axes: Axes = None) -> Tensor:
    """Return the inverse of `fftshift`."""
    chosen = x._axes("ifftshift", axes)
    return x.roll([-(x.shape[axis] // 2) for axis in chosen], chosen)


def fftfreq(n: int, d: float = 1.0, device: Device | str | None = None) -> Tensor:
    """Return the frequency of each element of a transform of n samples at distances d."""
    numbers = Tensor.arange(n, device=device)
    return (numbers >= (n + 1) // 2).where(numbers - n, numbers).cast(float32) / (n * d)


def rfftfreq(n: int, d: float = 1.0, device: Device | str | None = None) -> Tensor:
    """Return the frequency of each element of `rfft` of n samples at distances d."""
    return Tensor.arange(n // 2 + 1, device=device).cast(float32) / (n * d)


def _parts(operation: str, x: Parted) -> Tensor:
    """Return real and imaginary parts on a first axis of two."""
    if isinstance(x, np.ndarray):
        wide = np.asarray(x, np.complex64)
        return Tensor(np.stack([wide.real, wide.imag]))
    if not isinstance(x, Tensor):
        raise BadArgument(f"{operation}: expected a Tensor of pairs, got {x!r}; see ugpu.xp.fft")
    if not x.ndim or x.shape[-1] != 2 or x.ndim < 2:
        raise BadArgument(
            f"{operation}: expected real and imaginary parts on a last axis of two, got shape "
            f"{list(x.shape)}"
        )
    return x.cast(wide_type(x.dtype)).permute(x.ndim - 1, *range(x.ndim - 1))


def _pairs(operation: str, count: int, s: Sizes, axes: Axes) -> list[tuple[int, int | None]]:
    """Return pairs of an axis and its length, None for its own."""
    sizes = None if s is None else [s] if isinstance(s, int) else list(s)
    if axes is None:
        chosen = list(range(-len(sizes) if sizes is not None else -count, 0))
    else:
        chosen = [axes] if isinstance(axes, int) else list(axes)
    if not chosen or (sizes is not None and len(sizes) != len(chosen)):
        raise BadArgument(f"{operation}: expected a length for each axis, got {s} for {axes}")
    lengths = [None] * len(chosen) if sizes is None else [None if n == -1 else n for n in sizes]
    return list(zip(chosen, lengths, strict=True))


def _without_ends(imaginary: Tensor, place: int, count: int) -> Tensor:
    """The imaginary parts that a real signal cannot have count as zero, as in NumPy."""
    shape = [1] * imaginary.ndim
    shape[place] = size = imaginary.shape[place]
    at = Tensor.arange(size, device=imaginary.device).reshape(tuple(shape))
    own = at > 0
    if count % 2 == 0:
        own = own & (at < count // 2)
    return own.where(imaginary, 0.0)


def _along_each(operation: str, x: Parted, s: Sizes, axes: Axes, norm: Norm, sign: int) -> Tensor:
    both = _parts(operation, x)
    for number, (axis, n) in enumerate(_pairs(operation, both.ndim - 1, s, axes)):
        both = _along(operation, both, n, axis, norm, sign, number > 0)
    return joined(both)


def _along(
    operation: str, both: Tensor, n: int | None, axis: int, norm: Norm, sign: int,
    apart: bool = False,
) -> Tensor:  # fmt: skip
    """Transform along an axis. apart: whether real and imaginary parts are so in memory."""
    place = 1 + both[0]._axis(operation, axis)
    count = both.shape[place] if n is None else n
    if type(count) is not int or count < 1:
        raise BadArgument(f"{operation}: expected a length of at least 1, got {count}")
    scale = scale_of(operation, norm, count, sign)
    sized = resized(both, count, place)
    found = by_kernel(sized, place, sign, scale)
    if found is not None:
        return found
    if place != 1:  # parts apart first, then turned: each is a kernel of whole lines of memory
        sized = (sized if apart else sized.contiguous()).transpose(place, 1)
    columns = math.prod(sized.shape[2:])
    found = transform(sized.reshape((2, count, columns)).contiguous(), sign)
    result = found.reshape(sized.shape)
    if place != 1:
        result = result.transpose(place, 1).contiguous()
    return result if scale == 1 else result * scale


aliased_module(globals(), __name__)
