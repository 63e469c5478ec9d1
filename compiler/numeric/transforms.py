"""Transforms of pairs, real and imaginary parts on a first axis of two: how a length is computed.

A length is split into two factors close to each other, whose transforms are matrix products
(J. Cooley, J. Tukey, 1965), down to factors of at most FACTOR; a longer prime length becomes a
convolution by transforms of a power of two (L. Bluestein, 1970). Computed in float32; of float64 in
float64.

On a host one kernel transforms signals whose length has no prime factor above 13
(compiler.kernel.host.fourier); an even number of real ones as half as many complex ones. Long
signals are split into two factors, for each of which it runs. Other lengths are split into factors
of about eight, whose matrices have the turns between factors in them.

The axis is moved to the front: a matrix multiplies all columns, whose elements lie side by side.
Matrices and turns are constants of a device, up to KEPT elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.dtype import DType, int64, to_numpy
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.kernel.host.fourier import turns
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

FACTOR = 64  # the longest transform that is one matrix product, where a length can be split
HOST_FACTOR = 16  # the same on a host, where kernels cost less than products
RADIX, LEAST = 10, 4  # the largest and the least factor whose matrices have turns
COLUMNS = 16  # from which on reading a matrix for each of the other factor's elements pays
FEW = 16  # neighbours from which on a host's vector has signals side by side in memory
LANES = 4  # minimum of a vector of signals
SPLIT = 256  # from which length on few signals of a host are split, so that vectors have signals
PRIME = 512  # the longest prime length that is one matrix product
KEPT = 1 << 16  # elements of the largest constants that a device keeps
Norm = Literal["backward", "ortho", "forward"]
Parts = tuple[Tensor, Tensor]  # real and imaginary


def joined(both: Tensor) -> Tensor:
    """Move the parts from the first axis to the last."""
    return both.permute(*range(1, both.ndim), 0)


def resized(x: Tensor, count: int, place: int) -> Tensor:
    """Cut an axis, or fill it with zeros."""
    have = x.shape[place]
    if count <= have:
        return x[(*[slice(None)] * place, slice(count))] if count < have else x
    pairs = [(0, 0)] * x.ndim
    pairs[place] = (0, count - have)
    return x.pad(pairs)


def scale_of(operation: str, norm: str, count: int, sign: int) -> float:
    """Return the factor of a transform's results; BadArgument for an unknown norm."""
    whole = 1 / count
    scales = {"backward": 1.0 if sign < 0 else whole, "ortho": math.sqrt(whole),
              "forward": whole if sign < 0 else 1.0}  # fmt: skip
    if norm not in scales:
        raise BadArgument(f"{operation}: norm must be one of {list(scales)}, got {norm!r}")
    return scales[norm]


# ---- kernels of a host -------------------------------------------------------------------------


def _signals(x: Tensor, place: int, size: int, sign: int, real: str, scale: float) -> Tensor | None:
    """Transform complex numbers [..., 2] along an axis by kernels, or return None."""
    if not x._serial or not x.numel():
        return None
    before, inner = math.prod(x.shape[:place]), math.prod(x.shape[place + 1 : -1])
    if size > turns.LONGEST or (size >= SPLIT and before * inner < FEW and not real):
        return None if real else _split(x, place, size, sign, scale)
    if not turns.fits(size):
        return None
    if 1 < inner < FEW:  # too few neighbours for a vector: each signal along memory
        turned = _signals(x.transpose(place, -2), x.ndim - 2, size, sign, real, scale)
        return None if turned is None else turned.transpose(place, -2)
    signals = graph.Signals(before, size, inner, sign, real, scale)
    table = _turns_of(x, signals)
    if table is None:
        return None
    given = graph.reshape(x.node, (before, signals.given, inner, 2))
    found = x._new(graph.fourier(given, table.node, signals))
    return found.reshape((*x.shape[:place], signals.wanted, *x.shape[place + 1 :]))


def _turns_of(x: Tensor, signals: graph.Signals) -> Tensor | None:
    name = f"fourier {x.dtype.name} {signals.size} {bool(signals.real)}"
    return x._kept(name, lambda: turns.table(signals).astype(to_numpy(x.dtype)))


def _split(x: Tensor, place: int, size: int, sign: int, scale: float) -> Tensor | None:
    """Transform a long signal, or one of few, over two factors of its length: element a * rest + b
    over a first, then over b, for which all a and all b are signals side by side."""
    before, behind = x.shape[:place], x.shape[place + 1 : -1]
    found = None if behind else _split_in_vectors(x, sign, scale)
    if found is not None:
        return found
    factor = _factor(size)
    rest = size // factor
    if factor < FEW:
        return None
    inner = _signals(x.reshape((*before, factor, rest, *behind, 2)), place, factor, sign, "", 1.0)
    if inner is None:
        return None
    angles = [each.permute(1, 0) for each in _turns(x, rest, factor, sign)]
    cosine, sine = (each.reshape((factor, rest, *[1] * len(behind))) for each in angles)
    real, imaginary = _times((inner[..., 0], inner[..., 1]), (cosine, sine))
    turned = Tensor.stack([real, imaginary], -1).contiguous()
    outer = _signals(turned, place + 1, rest, sign, "", scale)
    return None if outer is None else outer.transpose(place, place + 1).reshape(x.shape)


def _split_in_vectors(x: Tensor, sign: int, scale: float) -> Tensor | None:
    """The same for signals along memory, by two kernels: the first multiplies its results, the
    second writes all of one b side by side. None unless both factors are whole vectors."""
    before, size = math.prod(x.shape[:-2]), x.shape[-2]
    lanes = x.device.target.vector_bytes // x.dtype.itemsize
    known = range(math.isqrt(size) // lanes * lanes, 0, -lanes)
    factor = next((each for each in known if size % (each * lanes) == 0), 0)
    if not factor or lanes < LANES or 2 * size > KEPT or x.node.tracked:
        return None
    rest = size // factor
    if not (turns.fits(factor) and turns.fits(rest)):
        return None

    def make() -> NDArray[np.float64]:
        angles = np.outer(np.arange(factor), np.arange(rest)) * (sign * 2 * math.pi / size)
        return np.stack([np.cos(angles), np.sin(angles)])

    one = graph.Signals(before, factor, rest, sign, "", 1.0)
    two = graph.Signals(before * factor, rest, 1, sign, "", scale, factor)
    tables = [_turns_of(x, signals) for signals in (one, two)]
    factors = _constant(x, f"turns {factor} {rest} {sign} across", make)
    if tables[0] is None or tables[1] is None or factors is None:
        return None
    found = graph.reshape(x.node, (before, factor, rest, 2))
    found = graph.fourier(found, tables[0].node, one, factors.node)
    found = graph.reshape(found, (before * factor, rest, 1, 2))
    return x._new(graph.reshape(graph.fourier(found, tables[1].node, two), x.shape))


def by_kernel(both: Tensor, place: int, sign: int, scale: float) -> Tensor | None:
    """Transform [part, ...] along an axis."""
    count = both.shape[place]
    found = _signals(joined(both), place - 1, count, sign, "", scale)
    return None if found is None else found.permute(found.ndim - 1, *range(found.ndim - 1))


def real_forward(real: Tensor, n: int | None, axis: int, norm: Norm) -> Tensor | None:
    """Transform an even number of real numbers as half as many complex ones."""
    place = real._axis("rfft", axis)
    count = real.shape[place] if n is None else n
    if type(count) is not int or count < 4 or count % 2:
        return None
    pairs = resized(real, count, place).reshape(
        (*real.shape[:place], count // 2, 2, *real.shape[place + 1 :])
    )
    order = (*range(place + 1), *range(place + 2, pairs.ndim), place + 1)
    scale = scale_of("rfft", norm, count, -1)
    return _signals(pairs.permute(*order), place, count // 2, -1, "forward", scale)


def real_back(both: Tensor, count: int, place: int, norm: Norm) -> Tensor | None:
    """The inverse of that. both: [part, ...]."""
    if count < 4 or count % 2:
        return None
    scale = scale_of("irfft", norm, count, 1)
    pairs = _signals(joined(both), place, count // 2, 1, "back", scale)
    if pairs is None:
        return None
    last = pairs.ndim - 1
    pairs = pairs.permute(*range(place + 1), last, *range(place + 1, last))
    return pairs.reshape((*pairs.shape[:place], count, *pairs.shape[place + 2 :]))


def _turn(products: Tensor, n: int, sign: int, kind: DType) -> Parts:
    """Return cosine and sine of 2 pi products / n; the products are reduced as integers."""
    angle = products.remainder(n).cast(kind) * (sign * 2 * math.pi / n)
    return angle.cos(), angle.sin()


def _times(one: Parts, two: Parts) -> Parts:
    return one[0] * two[0] - one[1] * two[1], one[0] * two[1] + one[1] * two[0]


def transform(both: Tensor, sign: int) -> Tensor:
    """Transform columns [part, n, columns]."""
    _, n, columns = both.shape
    found = _by_radix(both, sign) if both._serial and n > HOST_FACTOR else None
    if found is not None:
        return found
    factor = _factor(n)
    if n <= (HOST_FACTOR if both._serial else FACTOR) or (factor == 1 and n <= PRIME):
        return _dense(both, sign)
    if factor == 1:
        return _by_convolution(both, sign)
    rest = n // factor
    # element a * rest + b: over a first, then over b; result c + factor * d
    inner = _dense(both.reshape((2, factor, rest * columns)), sign)
    inner = inner.reshape((2, factor, rest, columns)).transpose(1, 2)
    turns = [each.unsqueeze(-1) for each in _turns(both, rest, factor, sign)]
    turned = Tensor.stack([*_times((inner[0], inner[1]), (turns[0], turns[1]))], 0).contiguous()
    outer = transform(turned.reshape((2, rest, factor * columns)), sign)
    return outer.reshape((2, n, columns))


def _by_radix(both: Tensor, sign: int) -> Tensor | None:
    """Transform columns [part, n, columns] over a small factor first, element by element of the
    other one, by matrices that also turn. None without such a factor, or for too few columns."""
    _, n, columns = both.shape
    factor = next((each for each in range(RADIX, LEAST - 1, -1) if n % each == 0), 0)
    if not factor or columns < COLUMNS or 4 * n * factor > KEPT:
        return None
    rest = n // factor

    def make() -> NDArray[np.float64]:
        b, c, a = (np.arange(size) for size in (rest, factor, factor))
        products = np.multiply.outer(c, a) * rest + np.multiply.outer(b, c)[:, :, None]
        return _in_parts(products % n, n, sign)

    matrices = _constant(both, f"radix {factor} {rest} {sign}", make)
    if matrices is None:
        return None
    parts = both.reshape((2, factor, rest, columns)).permute((2, 0, 1, 3))
    turned = matrices.matmul(parts.reshape((rest, 2 * factor, columns)))
    turned = turned.reshape((rest, 2, factor, columns)).transpose(0, 1).contiguous()
    outer = transform(turned.reshape((2, rest, factor * columns)), sign)
    return outer.reshape((2, n, columns))


def _in_parts(products: NDArray[np.int_], n: int, sign: int) -> NDArray[np.float64]:
    """Return the matrices of real and imaginary parts of turns by 2 pi products / n."""
    angles = products * (sign * 2 * math.pi / n)
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.block([[cosine, -sine], [sine, cosine]])


def _constant(near: Tensor, name: str, make: Callable[[], NDArray[np.float64]]) -> Tensor | None:
    own = to_numpy(near.dtype)
    return near._kept(f"fft {near.dtype.name} {name}", lambda: make().astype(own))


def _turns(near: Tensor, rest: int, factor: int, sign: int) -> Parts:
    """Return cosine and sine of 2 pi b c / n, [b, c], of n = rest * factor."""

    def make() -> NDArray[np.float64]:
        angles = np.outer(np.arange(rest), np.arange(factor)) * (sign * 2 * math.pi / n)
        return np.stack([np.cos(angles), np.sin(angles)])

    n = rest * factor
    kept = _constant(near, f"turns {rest} {factor} {sign}", make) if 2 * n <= KEPT else None
    if kept is not None:
        return kept[0], kept[1]
    numbers = [Tensor.arange(size, device=near.device) for size in (rest, factor)]
    return _turn(numbers[0].unsqueeze(1) * numbers[1].unsqueeze(0), n, sign, near.dtype)


def _factor(n: int) -> int:
    """Return the divisor of n next to its root from below, or at most FACTOR from above; 1 for a
    prime."""
    for candidate in range(math.isqrt(n), 1, -1):
        if n % candidate == 0:
            return candidate
    return 1


def _dense(both: Tensor, sign: int) -> Tensor:
    """Transform columns by one matrix product."""
    _, n, columns = both.shape
    found = _matrix(both, n, sign).matmul(both.reshape((2 * n, columns)))
    return found.contiguous().reshape((2, n, columns))  # stored before it is turned


def _matrix(near: Tensor, n: int, sign: int) -> Tensor:
    """Return the matrix of a transform of parts, one below the other."""

    def make() -> NDArray[np.float64]:
        products = np.outer(np.arange(n), np.arange(n)) % n
        return _in_parts(products, n, sign)

    kept = _constant(near, f"matrix {n} {sign}", make) if 4 * n * n <= KEPT else None
    if kept is not None:
        return kept
    numbers = Tensor.arange(n, device=near.device)
    cosine, sine = _turn(numbers.unsqueeze(1) * numbers.unsqueeze(0), n, sign, near.dtype)
    rows = [Tensor.cat([cosine, -sine], 1), Tensor.cat([sine, cosine], 1)]
    return Tensor.cat(rows, 0).contiguous()


def _by_convolution(both: Tensor, sign: int) -> Tensor:
    _, n, _ = both.shape
    size = 1 << (2 * n - 2).bit_length()
    numbers = Tensor.arange(n, device=both.device).cast(int64)
    chirp = _turn(numbers * numbers, 2 * n, sign, both.dtype)
    turns = chirp[0].unsqueeze(-1), chirp[1].unsqueeze(-1)
    weighted = Tensor.stack([*_times((both[0], both[1]), turns)], 0)
    padded = weighted.pad([(0, 0), (0, size - n), (0, 0)])
    answer = [chirp[0], -chirp[1]]
    circular = [
        Tensor.cat([part, part[1:].flip(0).pad([(size - 2 * n + 1, 0)])], 0) for part in answer
    ]
    one = transform(padded.contiguous(), -1)
    two = transform(Tensor.stack(circular, 0).unsqueeze(-1).contiguous(), -1)
    product = Tensor.stack([*_times((one[0], one[1]), (two[0], two[1]))], 0)
    joined = transform(product.contiguous(), 1)[:, :n]
    return Tensor.stack([*_times((joined[0], joined[1]), turns)], 0) * (1 / size)
