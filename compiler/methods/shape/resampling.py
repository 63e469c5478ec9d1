"""Tensor: resizing images, by transposed convolution and by interpolation.

The source position of an element is computed in integers, so that it is not rounded to a neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, Self

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import uint8
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.methods.convolution import Convolutions, Pair, biased, pair
from ugpu.hcq.errors import BadArgument, NotSupported

LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}  # by number of axes
ANY = ("nearest", "nearest-exact", "area")  # modes for any number of axes
FILLED = 1.25  # by how much a window may grow to a whole number of strides
ORDERED = 512  # windows of all images up to which a host multiplies first, and sums after it
TERMS = 16  # most elements of windows that overlap at a place, which are written out
FINEST = 1 << 16  # a scale is a fraction whose parts are at most about this large


def cubic_weights(part: Any) -> list[Any]:
    """Return the weights of the four neighbours of a position `part` behind the second."""
    a = -0.75
    near, far = [part, 1 - part], [part + 1, 2 - part]
    outer = [((x * a - 5 * a) * x + 8 * a) * x - 4 * a for x in far]
    inner = [((x * (a + 2) - (a + 3)) * x) * x + 1 for x in near]
    return [outer[0], *inner, outer[1]]


class Resampling(Convolutions):
    """Resizing of tensors [batch, channels, ...]."""

    __slots__ = ()

    def conv_transpose2d(
        self, weight: Any, bias: Any = None, stride: Pair = 1, padding: Pair = 0,
        output_padding: Pair = 0, groups: int = 1, dilation: Pair = 1,
    ) -> Self:  # fmt: skip
        """Spread each element over a window times `weight` [channels, out channels / groups,
        height, width], with windows `stride` apart, and sum where they overlap; then add `bias`.

        `padding` elements are removed at each side, `output_padding` added at the ends. Types as in
        matmul. Computed as a convolution, with a stride of 1 as `conv2d` computes it (with Winograd
        tiles too), otherwise with the places between two windows as channels; or, where such
        windows would mostly be zeros, or are few on a host, as one matrix product of all windows,
        and a sum that puts them in place.
        """
        kernel = self._tensor("conv_transpose2d", weight)
        shapes = f"shapes {self._shown} and {kernel._shown}"
        if self.ndim == 3 and kernel.ndim == 4:
            return self.unsqueeze(0).conv_transpose2d(
                kernel, bias, stride=stride, padding=padding, output_padding=output_padding,
                groups=groups, dilation=dilation,
            ).squeeze(0)  # fmt: skip
        if self.ndim != 4 or kernel.ndim != 4:
            raise BadArgument(f"conv_transpose2d: expected 4 axes, got {shapes}")
        batch, channels, *size = self.shape
        _, each, *window = kernel.shape
        if groups < 1 or kernel.shape[0] != channels or channels % groups or not kernel.numel():
            raise BadArgument(f"conv_transpose2d: {shapes} do not match in {groups} groups")
        steps = pair("conv_transpose2d", stride, 1)
        cut = pair("conv_transpose2d", padding, 0)
        more = pair("conv_transpose2d", output_padding, 0)
        gaps = pair("conv_transpose2d", dilation, 1)
        if any(m >= max(s, g) for m, s, g in zip(more, steps, gaps, strict=True)):
            raise BadArgument(
                "conv_transpose2d: output_padding must be less than stride or dilation"
            )
        out = [
            (size[i] - 1) * steps[i] - 2 * cut[i] + gaps[i] * (window[i] - 1) + more[i] + 1
            for i in range(2)
        ]
        if min(*out, *size) < 1:
            raise BadArgument(f"conv_transpose2d: {shapes} give {out[0]} x {out[1]} elements")
        dtype = dtypes.promote(self.dtype, kernel.dtype)
        inner = dtypes.inner(dtype)
        taps = [-(-window[i] // steps[i]) for i in range(2)]
        filled = [taps[i] * steps[i] for i in range(2)]
        host = self.device.target.abi == "host"
        few = host and batch * prod(n + t - 1 for n, t in zip(size, taps, strict=True)) < ORDERED
        inside = cut[0] < window[0] and cut[1] < window[1]
        if gaps == steps == (1, 1) and inside and not few:
            result = self._as_windows(kernel, cut, groups)
        elif gaps == (1, 1) and prod(filled) <= FILLED * prod(window) and not few:
            joined = self.cast(inner)._by_phases(kernel.cast(inner), steps, taps, groups)
            ends = [max(0, cut[i] + out[i] - joined.shape[2 + i]) for i in range(2)]
            joined = joined.pad([(0, 0), (0, 0), (0, ends[0]), (0, ends[1])])
            places = (slice(start, start + count) for start, count in zip(cut, out, strict=True))
            result = joined[(slice(None), slice(None), *places)].cast(dtype)
        else:
            per_group = channels // groups
            left = kernel.cast(inner).reshape((groups, per_group, each * window[0] * window[1]))
            right = self.cast(inner).reshape((batch, groups, per_group, size[0] * size[1]))
            spread = left.transpose(-2, -1).matmul(right).contiguous()
            spread = spread.reshape((batch * groups * each, *window, *size))
            placed = spread._placed(out, steps, cut, gaps)
            result = placed.reshape((batch, groups * each, *out)).cast(dtype)
        result = result._ruled("conv_transpose2d", [self, kernel], (steps, cut, gaps, groups))
        return biased("conv_transpose2d", result, bias)

    def _as_windows(self, kernel: Self, cut: tuple[int, int], groups: int) -> Self:
        """Return a transposed convolution with a stride of 1: a convolution whose windows are
        turned, of an image with as many zeros around it as windows reach beyond."""
        channels, each, *window = kernel.shape
        turned = kernel.reshape((groups, channels // groups, each, *window)).flip((3, 4))
        turned = turned.permute((0, 2, 1, 3, 4))
        turned = turned.reshape((groups * each, channels // groups, *window))
        around = window[0] - 1 - cut[0], window[1] - 1 - cut[1]
        host, steps = self.device.target.abi == "host", ((1, 1), around, (1, 1))
        if host and not self._by_tiles(turned, steps, groups, None):
            turned = turned.contiguous()
        return self.conv2d(turned, padding=around, groups=groups)

    def _by_phases(
        self, kernel: Self, steps: Sequence[int], taps: Sequence[int], groups: int
    ) -> Self:
        """Return a transposed convolution, uncut: place q * step + p along an axis is the sum of
        element q - t times tap t * step + p of the window, so p counts channels of a convolution
        whose windows have `taps` elements."""
        batch, channels, *_ = self.shape
        each, *window = kernel.shape[1:]
        (tall, wide), (down, across) = taps, steps
        ends = [(0, taps[i] * steps[i] - window[i]) for i in range(2)]
        parts = kernel.pad([(0, 0), (0, 0), *ends])
        parts = parts.reshape((groups, channels // groups, each, tall, down, wide, across))
        parts = parts.flip((3, 5)).permute((0, 2, 4, 6, 1, 3, 5))
        parts = parts.reshape((groups * each * down * across, channels // groups, tall, wide))
        if self.device.target.abi == "host":
            parts = parts.contiguous()
        found = self.conv2d(parts, padding=(tall - 1, wide - 1), groups=groups, winograd=False)
        rows, columns = found.shape[2:]
        found = found.contiguous().reshape((batch, groups, each, down, across, rows, columns))
        found = found.permute((0, 1, 2, 5, 3, 6, 4))
        return found.reshape((batch, groups * each, rows * down, columns * across))

    def _placed(
        self, out: Sequence[int], steps: Sequence[int], cut: Sequence[int], gaps: Sequence[int]
    ) -> Self:
        """Sum from [n, *window, *size] to [n, *out]: each window's elements at their places."""
        window, size = self.shape[1:3], self.shape[3:]
        taps = [-(-window[i] // steps[i]) for i in range(2)]
        if gaps == (1, 1) and prod(taps) <= TERMS:
            return self._placed_by_taps(out, steps, cut, taps)
        shape = (*window, *out)
        inside, places = None, []
        for i in range(2):
            tap = self._numbered(window[i], i, 4)
            at = self._numbered(out[i], 2 + i, 4) + cut[i] - tap * gaps[i]
            place = at // steps[i]
            fits = (place >= 0) & (place < size[i]) & (at % steps[i])._compare("eq", 0)
            inside = fits if inside is None else inside & fits
            places.append((tap, place.maximum(0).minimum(size[i] - 1)))
        assert inside is not None
        indices = [places[0][0], places[1][0], places[0][1], places[1][1]]
        nodes = [each.expand(shape).node for each in indices]
        found = self._new(graph.gather(self.node, (1, 2, 3, 4), nodes, checked=True))
        kept = inside.unsqueeze(-1).where(found, 0)
        total = kept._reduce("sum", kept.node, (0, 1), False)
        return total.permute((2, 0, 1))

    def _placed_by_taps(
        self, out: Sequence[int], steps: Sequence[int], cut: Sequence[int], taps: Sequence[int]
    ) -> Self:
        """Do the same, where place q * step + p along an axis is the sum of element q - t of tap
        t * step + p, for each t: of all p side by side, each t is one shift."""
        count, *window = self.shape[:3]
        (tall, wide), (down, across) = taps, steps
        ends = [(0, taps[i] * steps[i] - window[i]) for i in range(2)]
        parts = self.pad([(0, 0), *ends, (0, 0), (0, 0)])
        parts = parts.reshape((count, tall, down, wide, across, *self.shape[3:]))
        total = None
        for y, x in product(range(tall), range(wide)):
            around = [(0, 0)] * 3 + [(y, tall - 1 - y), (x, wide - 1 - x)]
            term = parts[:, y, :, x].pad(around)
            total = term if total is None else total + term
        assert total is not None
        rows, columns = total.shape[3:]
        joined = total.permute((0, 3, 1, 4, 2)).reshape((count, rows * down, columns * across))
        more = [(0, max(0, cut[i] + out[i] - joined.shape[1 + i])) for i in range(2)]
        places = (slice(start, start + size) for start, size in zip(cut, out, strict=True))
        return joined.pad([(0, 0), *more])[(slice(None), *places)]

    def _numbered(self, count: int, axis: int, axes: int) -> Self:
        """Return 0, 1 ... along one of `axes` axes, as int64."""
        shape = tuple(count if place == axis else 1 for place in range(axes))
        return self._new(graph.reshape(graph.iota(count), shape))

    def interpolate(
        self, size: int | Sequence[int] | None = None, scale: float | Sequence[float] | None = None,
        mode: str = "nearest", align_corners: bool | None = False,
        recompute_scale_factor: bool | None = None, antialias: bool = False,
    ) -> Self:  # fmt: skip
        """Resize the axes after the first two to `size` or by `scale`.

        mode: "nearest" (the element below the position), "nearest-exact" (the nearest), "area"
        (means), or for 3, 4, 5 axes "linear", "bilinear", "trilinear" (between the two nearest
        along each axis), or for 4 "bicubic" (of four). align_corners: the first and last
        elements keep their positions; otherwise elements are areas, whose edges are aligned. Linear
        modes round uint8 to the nearest number (PyTorch rounds after each axis, so results may
        differ by one); other integers give float32. recompute_scale_factor: use the ratio of the
        sizes instead of `scale`. antialias is not supported.
        """
        if antialias:
            raise NotSupported("interpolate: antialias is not supported; write mode='area'")
        if recompute_scale_factor and scale is not None:
            size, scale = [count for count, _ in self._wanted(None, scale)], None
        allowed = (*ANY, LINEAR.get(self.ndim), "bicubic" if self.ndim == 4 else None)
        if self.ndim < 3 or mode not in allowed:
            raise BadArgument(
                f"interpolate: mode {mode!r} is not supported for shape {self._shown}"
            )
        if align_corners and mode in ANY:
            raise BadArgument("interpolate: align_corners requires a linear or cubic mode")
        nearest = mode.startswith("nearest")
        wide = self if nearest else self._real()
        for axis, (count, ratio) in enumerate(self._wanted(size, scale), 2):
            if mode == "area":
                wide = wide._averaged(axis, count)
            elif mode == "bicubic":
                wide = wide._cubic(axis, count, ratio, bool(align_corners))
            elif not nearest:
                wide = wide._between(axis, count, ratio, bool(align_corners))
            elif count != self.shape[axis] or ratio != 1:
                exact = mode == "nearest-exact"
                top, bottom = ratio.numerator, ratio.denominator
                counted = self._numbered(count, 0, 1)
                counted = (
                    (counted * 2 + 1) * top // (2 * bottom) if exact else counted * top // bottom
                )
                wide = wide._taken_along(axis, counted.minimum(self.shape[axis] - 1))
        if nearest:
            return wide
        if self.dtype is uint8:
            return (wide + 0.5).floor().clamp(0, 255).cast(uint8)
        return wide.cast(dtypes.float_dtype(self.dtype))

    def _averaged(self, axis: int, count: int) -> Self:
        """Return means of parts of an axis that cover it; neighbours may share an element."""
        have = self.shape[axis]
        number = self._numbered(count, 0, 2)
        first = number * have // count
        behind = ((number + 1) * have + count - 1) // count
        most = max((i + 1) * have // -count * -1 - i * have // count for i in range(count))
        taps = first + self._numbered(most, 1, 2)
        inside = (taps < behind).reshape((count, most, *[1] * (self.ndim - axis - 1)))
        values = self._taken_along(axis, taps.minimum(have - 1).reshape((count * most,)))
        shape = (*self.shape[:axis], count, most, *self.shape[axis + 1 :])
        total = inside.where(values.reshape(shape), 0.0).sum(axis + 1)
        return total / (behind - first).reshape((count, *[1] * (self.ndim - axis - 1)))

    def _cubic(self, axis: int, count: int, ratio: Fraction, align_corners: bool) -> Self:
        """Return weighted sums of four neighbours (R. Keys, 1981, with a = -3/4)."""
        have = self.shape[axis]
        counted = self._numbered(count, 0, 1)
        if align_corners:
            above, below = counted * (have - 1), max(1, count - 1)
        else:
            above = (counted * 2 + 1) * ratio.numerator - ratio.denominator
            below = 2 * ratio.denominator
        first = above.floor_divide(below)
        part = above.remainder(below).cast(dtypes.wide(self.dtype)) / below
        total: Self | None = None
        for tap, weight in zip(range(-1, 3), cubic_weights(part), strict=True):
            values = self._taken_along(axis, (first + tap).clamp(0, have - 1))
            term = values * weight.reshape((count, *[1] * (self.ndim - axis - 1)))
            total = term if total is None else total + term
        assert total is not None
        return total

    def _wanted(
        self, size: int | Sequence[int] | None, scale: float | Sequence[float] | None
    ) -> list[tuple[int, Fraction]]:
        """Return for each axis the number of elements, and their distance in the source."""
        axes = self.shape[2:]
        if (size is None) == (scale is None) or not self.numel():
            raise BadArgument(
                "interpolate: expected either size or scale and a non-empty tensor, got "
                f"size {size}, scale {scale}, shape {self._shown}"
            )
        if size is not None:
            sizes = [size] * len(axes) if isinstance(size, int) else list(size)
            if len(sizes) != len(axes) or not all(type(n) is int and n > 0 for n in sizes):
                raise BadArgument(
                    f"interpolate: size must be positive for each axis of shape {self._shown}, "
                    f"got {size}"
                )
            return [(n, Fraction(have, n)) for have, n in zip(axes, sizes, strict=True)]
        assert scale is not None
        scales = [scale] * len(axes) if isinstance(scale, int | float) else list(scale)
        if len(scales) != len(axes) or not all(each > 0 for each in scales):
            raise BadArgument(
                f"interpolate: scale must be positive for each axis of shape {self._shown}, got "
                f"{scale}"
            )
        exact = [Fraction(each).limit_denominator(FINEST) for each in scales]
        counts = [int(have * each) for have, each in zip(axes, exact, strict=True)]
        if not all(counts):
            raise BadArgument(
                f"interpolate: scale {scale} reduces shape {self._shown} to zero elements"
            )
        return [(n, 1 / each) for n, each in zip(counts, exact, strict=True)]

    def _taken_along(self, axis: int, places: Self) -> Self:
        """Return the elements at `places` along an axis."""
        found = graph.gather(self.node, (axis,), [places.node], checked=True)
        order = [*range(1, axis + 1), 0, *range(axis + 1, self.ndim)]
        return self._new(graph.permute(found, tuple(order)))

    def _between(self, axis: int, count: int, ratio: Fraction, align_corners: bool) -> Self:
        have = self.shape[axis]
        counted = self._numbered(count, 0, 1)
        if align_corners:
            above, below = counted * (have - 1), max(1, count - 1)
        else:  # (i + 1/2) * ratio - 1/2
            top, bottom = ratio.numerator, ratio.denominator
            above, below = ((counted * 2 + 1) * top - bottom).maximum(0), 2 * bottom
        first = (above // below).minimum(have - 1)
        part = (above % below).cast(dtypes.wide(self.dtype)) / below
        part = part.reshape((count, *[1] * (self.ndim - axis - 1)))
        one = self._taken_along(axis, first)
        two = self._taken_along(axis, (first + 1).minimum(have - 1))
        return one + (two - one) * part
