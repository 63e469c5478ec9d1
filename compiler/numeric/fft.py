"""Discrete Fourier transforms, `ugpu.fft`. Complex numbers are not supported: real and imaginary
parts lie on a last axis of two, as in `torch.view_as_real`. Complex arrays of NumPy are accepted;
`result.numpy().view(np.complex64)[..., 0]` makes one of a result.

A length is split into two factors close to each other, whose transforms are matrix products
(J. Cooley, J. Tukey, 1965), down to factors of at most FACTOR; a longer prime length becomes a
convolution by transforms of a power of two (L. Bluestein, 1970). Computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.dtype import float32, int64
from ugpu.compiler.methods.aliases import aliased_module
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

FACTOR = 64  # the longest transform that is one matrix product, where a length can be split
PRIME = 512  # the longest prime length that is one matrix product
Norm = Literal["backward", "ortho", "forward"]
Parts = tuple[Tensor, Tensor]  # real and imaginary
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
    return _joined(_along("fft", _parts("fft", x), n, axis, norm, -1))


def ifft(x: Parted, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the inverse of `fft`; "backward" scales by 1/n."""
    return _joined(_along("ifft", _parts("ifft", x), n, axis, norm, 1))


def rfft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the first n // 2 + 1 elements of the transform of real numbers, [..., 2]."""
    real = x.cast(float32)
    parts = _along("rfft", (real, real.zeros_like()), n, axis, norm, -1)
    place = real._axis("rfft", axis)
    kept = parts[0].shape[place] // 2 + 1
    head = (*[slice(None)] * place, slice(kept))
    return _joined((parts[0][head], parts[1][head]))


def irfft(x: Parted, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the real numbers whose `rfft` is x. n: their number, by default twice the elements
    less two."""
    real, imaginary = _parts("irfft", x)
    place = real._axis("irfft", axis)
    count = 2 * (real.shape[place] - 1) if n is None else n
    if count < 1:
        raise BadArgument(f"irfft: expected n >= 1, got {count}")
    real, imaginary = (_sized(each, count // 2 + 1, place) for each in (real, imaginary))
    rest = (*[slice(None)] * place, slice(1, count - count // 2))
    whole = (
        Tensor.cat([real, real[rest].flip(place)], place),
        Tensor.cat([_without_ends(imaginary, place, count), -imaginary[rest].flip(place)], place),
    )
    return _along("irfft", whole, count, place, norm, 1)[0]


def hfft(x: Parted, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the transform of a signal that is Hermitian, given its first half: real numbers. n:
    their number, by default twice the elements less two."""
    real, imaginary = _parts("hfft", x)
    return irfft(_joined((real, -imaginary)), n, axis, REVERSED.get(norm, norm))


def ihfft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Return the inverse of `hfft`."""
    parts = rfft(x, n, axis, REVERSED.get(norm, norm))
    return _joined((parts[..., 0], -parts[..., 1]))


def fftn(x: Parted, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """Return `fft` along several axes, counted without the last of two; s: their lengths."""
    given = _joined(_parts("fftn", x))
    for axis, n in _pairs("fftn", given.ndim - 1, s, axes):
        given = fft(given, n, axis, norm)
    return given


def ifftn(x: Parted, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """Return `ifft` along several axes."""
    given = _joined(_parts("ifftn", x))
    for axis, n in _pairs("ifftn", given.ndim - 1, s, axes):
        given = ifft(given, n, axis, norm)
    return given


def rfftn(x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """Return `rfft` along the last of several axes, and `fft` along the others."""
    *pairs, (last, n) = _pairs("rfftn", x.ndim, s, axes)
    result = rfft(x, n, last, norm)
    for axis, size in pairs:
        result = fft(result, size, axis, norm)
    return result


def irfftn(x: Parted, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Tensor:
    """Return the inverse of `rfftn`. s: the lengths of the result."""
    given = _joined(_parts("irfftn", x))
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


def fftfreq(n: int, d: float = 1.0, device: str | None = None) -> Tensor:
    """Return the frequency of each element of a transform of n samples at distances d."""
    numbers = Tensor.arange(n, device=device)
    return (numbers >= (n + 1) // 2).where(numbers - n, numbers).cast(float32) / (n * d)


def rfftfreq(n: int, d: float = 1.0, device: str | None = None) -> Tensor:
    """Return the frequency of each element of `rfft` of n samples at distances d."""
    return Tensor.arange(n // 2 + 1, device=device).cast(float32) / (n * d)


def _parts(operation: str, x: Parted) -> Parts:
    if isinstance(x, np.ndarray):
        wide = np.asarray(x, np.complex64)
        return Tensor(np.ascontiguousarray(wide.real)), Tensor(np.ascontiguousarray(wide.imag))
    if not x.ndim or x.shape[-1] != 2 or x.ndim < 2:
        raise BadArgument(
            f"{operation}: expected real and imaginary parts on a last axis of two, got shape "
            f"{list(x.shape)}"
        )
    single = x.cast(float32)
    return single[..., 0], single[..., 1]


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


def _joined(parts: Parts) -> Tensor:
    return Tensor.stack(list(parts), -1)


def _sized(x: Tensor, count: int, place: int) -> Tensor:
    """Cut an axis, or fill it with zeros."""
    have = x.shape[place]
    if count <= have:
        return x[(*[slice(None)] * place, slice(count))] if count < have else x
    pairs = [(0, 0)] * x.ndim
    pairs[place] = (0, count - have)
    return x.pad(pairs)


def _without_ends(imaginary: Tensor, place: int, count: int) -> Tensor:
    """The imaginary parts that a real signal cannot have count as zero, as in NumPy."""
    shape = [1] * imaginary.ndim
    shape[place] = size = imaginary.shape[place]
    at = Tensor.arange(size, device=imaginary.device).reshape(tuple(shape))
    own = at > 0
    if count % 2 == 0:
        own = own & (at < count // 2)
    return own.where(imaginary, 0.0)


def _along(operation: str, parts: Parts, n: int | None, axis: int, norm: Norm, sign: int) -> Parts:
    place = parts[0]._axis(operation, axis)
    count = parts[0].shape[place] if n is None else n
    if type(count) is not int or count < 1:
        raise BadArgument(f"{operation}: expected a length of at least 1, got {count}")
    scales = {"backward": 1.0 if sign < 0 else 1 / count, "ortho": count**-0.5,
              "forward": 1 / count if sign < 0 else 1.0}  # fmt: skip
    if norm not in scales:
        raise BadArgument(f"{operation}: norm must be one of {list(scales)}, got {norm!r}")
    real, imaginary = (_sized(each, count, place).transpose(place, -1) for each in parts)
    shape = real.shape
    rows = math.prod(shape[:-1])
    found = _transform(real.reshape((rows, count)), imaginary.reshape((rows, count)), sign)
    scale = scales[norm]
    results = [each.reshape(shape).transpose(place, -1) for each in found]
    return (results[0], results[1]) if scale == 1 else (results[0] * scale, results[1] * scale)


def _turn(products: Tensor, n: int, sign: int) -> Parts:
    """Return cosine and sine of 2 pi products / n; the products are reduced as integers."""
    angle = products.remainder(n).cast(float32) * (sign * 2 * math.pi / n)
    return angle.cos(), angle.sin()


def _times(one: Parts, two: Parts) -> Parts:
    return one[0] * two[0] - one[1] * two[1], one[0] * two[1] + one[1] * two[0]


def _transform(real: Tensor, imaginary: Tensor, sign: int) -> Parts:
    """Transform rows [rows, n]."""
    n = real.shape[1]
    factor = _factor(n)
    if n <= FACTOR or (factor == 1 and n <= PRIME):
        return _dense(real, imaginary, sign)
    if factor == 1:
        return _by_convolution(real, imaginary, sign)
    rows, rest = real.shape[0], n // factor
    # element a * rest + b: over a first, then over b; result c + factor * d
    split = [each.reshape((rows, factor, rest)).transpose(1, 2).reshape((rows * rest, factor))
             for each in (real, imaginary)]  # fmt: skip
    inner = [each.reshape((rows, rest, factor)) for each in _transform(split[0], split[1], sign)]
    numbers = [Tensor.arange(size, device=real.device) for size in (rest, factor)]
    twiddles = _turn(numbers[0].unsqueeze(1) * numbers[1].unsqueeze(0), n, sign)
    turned = _times((inner[0], inner[1]), twiddles)
    split = [each.transpose(1, 2).reshape((rows * factor, rest)) for each in turned]
    outer = _transform(split[0], split[1], sign)
    results = [each.reshape((rows, factor, rest)).transpose(1, 2).reshape((rows, n))
               for each in outer]  # fmt: skip
    return results[0], results[1]


def _factor(n: int) -> int:
    """Return the divisor of n next to its root from below, or at most FACTOR from above; 1 for a
    prime."""
    for candidate in range(math.isqrt(n), 1, -1):
        if n % candidate == 0:
            return candidate
    return 1


def _dense(real: Tensor, imaginary: Tensor, sign: int) -> Parts:
    """One matrix product of both parts side by side."""
    n = real.shape[1]
    numbers = Tensor.arange(n, device=real.device)
    cosine, sine = _turn(numbers.unsqueeze(1) * numbers.unsqueeze(0), n, sign)
    upper = Tensor.cat([cosine, sine], 1)
    lower = Tensor.cat([-sine, cosine], 1)
    matrix = Tensor.cat([upper, lower], 0).contiguous()
    found = Tensor.cat([real, imaginary], 1).matmul(matrix)
    return found[:, :n], found[:, n:]


def _by_convolution(real: Tensor, imaginary: Tensor, sign: int) -> Parts:
    n = real.shape[1]
    size = 1 << (2 * n - 2).bit_length()
    numbers = Tensor.arange(n, device=real.device).cast(int64)
    chirp = _turn(numbers * numbers, 2 * n, sign)
    weighted = _times((real, imaginary), chirp)
    padded = [each.pad([(0, 0), (0, size - n)]) for each in weighted]
    answer = [chirp[0], -chirp[1]]
    circular = [
        Tensor.cat([part, part[1:].flip(0).pad([(size - 2 * n + 1, 0)])], 0).reshape((1, size))
        for part in answer
    ]
    one = _transform(padded[0], padded[1], -1)
    two = _transform(circular[0], circular[1], -1)
    joined = _transform(*_times(one, two), 1)
    results = _times((joined[0][:, :n], joined[1][:, :n]), chirp)
    return results[0] * (1 / size), results[1] * (1 / size)


aliased_module(globals(), __name__)
