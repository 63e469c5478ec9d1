"""Tensor: convolutions of one and three axes, and pooling over one to three axes.

As in `convolution`, a window is a view of the padded source: [batch, channels, *out, *window].
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import bool_, int64
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.methods.convolution import Pair, biased, places_of
from ugpu.compiler.methods.core import Scalar, broadcast, integer_of
from ugpu.compiler.methods.shape.resampling import Resampling
from ugpu.hcq.errors import BadArgument

Sizes = int | Sequence[int]


class Windows(Resampling):
    """Convolutions and pooling of tensors [batch, channels, *size]. Sizes: one number for all axes,
    also in a sequence, or one for each."""

    __slots__ = ()

    # ---- convolution ---------------------------------------------------------------------------

    def conv1d(
        self, weight: Any, bias: Any = None, stride: Sizes = 1,
        padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
    ) -> Self:  # fmt: skip
        """Correlate [batch, channels, length] with [out channels, channels / groups, length]; see
        `conv2d`."""
        kernel = self._tensor("conv1d", weight)
        if isinstance(padding, str):
            line, padding = self._as_large("conv1d", kernel, padding, stride, dilation)
            return line.conv1d(kernel, bias, stride=stride, padding=padding, dilation=dilation,
                               groups=groups)  # fmt: skip
        if self.ndim == 2 and kernel.ndim == 3:
            one = self.unsqueeze(0)
            return one.conv1d(kernel, bias, stride=stride, padding=padding, dilation=dilation,
                              groups=groups).squeeze(0)  # fmt: skip
        if self.ndim != 3 or kernel.ndim != 3:
            raise BadArgument(
                f"conv1d: input and kernel must have 3 axes, got shapes {self._shown} and "
                f"{kernel._shown}"
            )
        (step,), (around,), (gap,) = (
            numbers("conv1d", given, 1, least)
            for given, least in ((stride, 1), (padding, 0), (dilation, 1))
        )
        wide = self.unsqueeze(2).conv2d(
            kernel.unsqueeze(2), bias, stride=(1, step), padding=(0, around), dilation=(1, gap),
            groups=groups,
        )  # fmt: skip
        return wide.squeeze(2)

    def conv3d(
        self, weight: Any, bias: Any = None, stride: Sizes = 1,
        padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
    ) -> Self:  # fmt: skip
        """Correlate [batch, channels, depth, height, width] with [out channels, channels / groups,
        depth, height, width]; see `conv2d`."""
        kernel = self._tensor("conv3d", weight)
        if isinstance(padding, str):
            block, padding = self._as_large("conv3d", kernel, padding, stride, dilation)
            return block.conv3d(kernel, bias, stride=stride, padding=padding, dilation=dilation,
                                groups=groups)  # fmt: skip
        if self.ndim == 4 and kernel.ndim == 5:
            one = self.unsqueeze(0)
            return one.conv3d(kernel, bias, stride=stride, padding=padding, dilation=dilation,
                              groups=groups).squeeze(0)  # fmt: skip
        shapes = f"shapes {self._shown} and {kernel._shown}"
        if self.ndim != 5 or kernel.ndim != 5:
            raise BadArgument(f"conv3d: input and kernel must have 5 axes, got {shapes}")
        out, each, *window = kernel.shape
        if groups < 1 or self.shape[1] != each * groups or out % groups or not kernel.numel():
            raise BadArgument(f"conv3d: {shapes} do not match in {groups} groups")
        dtype = dtypes.promote(self.dtype, kernel.dtype)
        inner = dtypes.inner(dtype)
        pairs = [(n, n) for n in numbers("conv3d", padding, 3, 0)]
        windows = self.cast(inner)._over("conv3d", window, stride, pairs, dilation, 0)
        batch, _, *size = windows.shape[:5]
        whole = (batch, groups, out // groups, *size, each, *window)
        right = windows.reshape((batch, groups, each, *size, *window))
        right = right.permute((0, 1, 3, 4, 5, 2, 6, 7, 8)).unsqueeze(2)
        left = kernel.cast(inner).reshape((1, groups, out // groups, 1, 1, 1, each, *window))
        products = graph.elementwise(
            "mul", inner, broadcast(left.node, whole), broadcast(right.node, whole)
        )
        total = self._new(products)._reduce("sum", products, (6, 7, 8, 9), False)
        result = total.reshape((batch, out, *size)).cast(dtype)
        if bias is None:
            return result
        return biased("conv3d", result.flatten(3, 4), bias).reshape(result.shape)

    def conv_transpose1d(
        self, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
    ) -> Self:  # fmt: skip
        """Transposed convolution of [batch, channels, length]; see `conv_transpose2d`."""
        name = "conv_transpose1d"
        kernel = self._tensor(name, weight)
        (step,), (gap,) = numbers(name, stride, 1, 1), numbers(name, dilation, 1, 1)
        (cut,), (more,) = numbers(name, padding, 1, 0), numbers(name, output_padding, 1, 0)
        if self.ndim == 2 and kernel.ndim == 3:
            one = self.unsqueeze(0)
            return one.conv_transpose1d(kernel, bias, stride=step, padding=cut, dilation=gap,
                                        output_padding=more, groups=groups).squeeze(0)  # fmt: skip
        if self.ndim != 3 or kernel.ndim != 3:
            raise BadArgument(
                f"{name}: expected 3 axes, got shapes {self._shown} and {kernel._shown}"
            )
        wide = self.unsqueeze(2).conv_transpose2d(
            kernel.unsqueeze(2), bias, stride=(1, step), padding=(0, cut),
            output_padding=(0, more), groups=groups, dilation=(1, gap),
        )  # fmt: skip
        return wide.squeeze(2)

    def conv_transpose3d(
        self, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
    ) -> Self:  # fmt: skip
        """Transposed convolution of [batch, channels, depth, height, width]; see
        `conv_transpose2d`. Computed as a convolution of the elements with zeros between them."""
        name = "conv_transpose3d"
        kernel = self._tensor(name, weight)
        if self.ndim == 4 and kernel.ndim == 5:
            return self.unsqueeze(0).conv_transpose3d(
                kernel, bias, stride=stride, padding=padding, output_padding=output_padding,
                groups=groups, dilation=dilation,
            ).squeeze(0)  # fmt: skip
        if self.ndim != 5 or kernel.ndim != 5 or kernel.shape[0] != self.shape[1]:
            raise BadArgument(
                f"{name}: expected 5 axes, got shapes {self._shown} and {kernel._shown}"
            )
        channels, each, *window = kernel.shape
        if groups < 1 or channels % groups:
            raise BadArgument(f"{name}: {channels} channels cannot be split in {groups} groups")
        steps, gaps = numbers(name, stride, 3, 1), numbers(name, dilation, 3, 1)
        cut, more = numbers(name, padding, 3, 0), numbers(name, output_padding, 3, 0)
        spread = self._apart(steps)
        around = [(k - 1) * d - p for k, d, p in zip(window, gaps, cut, strict=True)]
        pairs = [(max(0, n), max(0, n + m)) for n, m in zip(around, more, strict=True)]
        spread = spread.pad([(0, 0), (0, 0), *pairs])
        ends = [(max(0, -n), size - max(0, -n - m)) for n, m, size in zip(
            around, more, spread.shape[2:], strict=True)]  # fmt: skip
        spread = spread.shrink([(0, self.shape[0]), (0, channels), *ends]).contiguous()
        turned = kernel.reshape((groups, channels // groups, each, *window)).transpose(1, 2)
        turned = turned.flip(3, 4, 5).reshape((groups * each, channels // groups, *window))
        return spread.conv3d(turned, bias, dilation=gaps, groups=groups)

    def _apart(self, steps: Sequence[int]) -> Self:
        """Return the elements with steps - 1 zeros between them along the axes after the second."""
        result = self
        for axis, step in enumerate(steps, 2):
            if step > 1:
                shape = result.shape
                wide = result.unsqueeze(axis + 1)
                pairs = [(0, 0)] * (axis + 1) + [(0, step - 1)] + [(0, 0)] * (len(shape) - axis - 1)
                size = shape[axis] * step
                whole = wide.pad(pairs).reshape((*shape[:axis], size, *shape[axis + 1 :]))
                box = [(0, n) for n in whole.shape]
                box[axis] = (0, size - step + 1)
                result = whole.shrink(box)
        return result

    # ---- pooling -------------------------------------------------------------------------------

    def max_pool1d(
        self, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        """Return the maximum of each window; see `max_pool2d`."""
        return self._max_pool("max_pool1d", 1, size, stride=stride, padding=padding,
                              dilation=dilation, ceil_mode=ceil_mode,
                              return_indices=return_indices)  # fmt: skip

    def max_pool2d(
        self, size: Pair, stride: Pair | None = None, padding: Pair = 0, dilation: Pair = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        """Return the maximum of each window. stride: default the window's size; padding is ignored.

        ceil_mode: a last window that begins inside counts. return_indices: also return each
        maximum's place among the elements of its channel, as int64.
        """
        if not ceil_mode and not return_indices and self.ndim == 4:
            return self._max_pool2d(size, stride=stride, padding=padding, dilation=dilation)
        return self._max_pool("max_pool2d", 2, size, stride=stride, padding=padding,
                              dilation=dilation, ceil_mode=ceil_mode,
                              return_indices=return_indices)  # fmt: skip

    def max_pool3d(
        self, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        """Return the maximum of each window; see `max_pool2d`."""
        return self._max_pool("max_pool3d", 3, size, stride=stride, padding=padding,
                              dilation=dilation, ceil_mode=ceil_mode,
                              return_indices=return_indices)  # fmt: skip

    def avg_pool1d(
        self, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ) -> Self:  # fmt: skip
        """Return the mean of each window; see `avg_pool2d`."""
        return self._avg_pool(
            "avg_pool1d",
            1,
            size,
            stride=stride,
            padding=padding,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
        )

    def avg_pool2d(
        self, size: Pair, stride: Pair | None = None, padding: Pair = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Self:  # fmt: skip
        """Return the mean of each window. count_include_pad: include the zeros of the padding.
        ceil_mode: a last window that begins inside counts. divisor_override: divide sums by it."""
        if not ceil_mode and count_include_pad and self.ndim == 4 and divisor_override is None:
            return self._avg_pool2d(size, stride=stride, padding=padding)
        return self._avg_pool(
            "avg_pool2d", 2, size, stride=stride, padding=padding, ceil_mode=ceil_mode,
            count_include_pad=count_include_pad, divisor_override=divisor_override,
        )  # fmt: skip

    def avg_pool3d(
        self, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Self:  # fmt: skip
        """Return the mean of each window; see `avg_pool2d`."""
        return self._avg_pool(
            "avg_pool3d", 3, size, stride=stride, padding=padding, ceil_mode=ceil_mode,
            count_include_pad=count_include_pad, divisor_override=divisor_override,
        )  # fmt: skip

    def _max_pool(
        self, name: str, axes: int, size: Sizes, *, stride: Sizes | None = None,
        padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:  # fmt: skip
        if self.ndim == axes + 1:
            many = self.unsqueeze(0)._max_pool(
                name, axes, size, stride=stride, padding=padding, dilation=dilation,
                ceil_mode=ceil_mode, return_indices=return_indices,
            )  # fmt: skip
            return tuple(e.squeeze(0) for e in many) if return_indices else many.squeeze(0)
        sizes = numbers(name, size, axes, 1)
        pairs = [(n, n) for n in numbers(name, padding, axes, 0)]
        step = sizes if stride in (None, (), []) else stride
        return self._maxima(name, sizes, step, pairs, dilation, ceil_mode, return_indices)

    def _maxima(
        self, name: str, size: Sizes, stride: Sizes, pairs: Sequence[tuple[int, int]],
        dilation: Sizes, ceil_mode: bool, return_indices: bool,
    ) -> Any:  # fmt: skip
        """Return the maxima of windows, with padding of its own for each end of each axis."""
        axes = len(pairs)
        lowest = False if self.dtype is bool_ else dtypes.lowest(self.dtype)
        windows = self._over(name, size, stride, pairs, dilation, lowest, ceil_mode)
        operation = "or" if self.dtype is bool_ else "max"
        maxima = windows._reduce(
            operation, windows.node, tuple(range(axes + 2, windows.ndim)), False
        )._ruled("first extreme", [windows])
        if not return_indices:
            return maxima
        out, window = windows.shape[2 : axes + 2], windows.shape[axes + 2 :]
        chosen = windows.reshape((*windows.shape[: axes + 2], prod(window))).argmax(-1)
        steps, gaps = numbers(name, stride, axes, 1), numbers(name, dilation, axes, 1)
        index = chosen * 0
        for axis in range(axes):
            tap = chosen // prod(window[axis + 1 :]) % window[axis]
            shape = [1] * (axes + 2)
            shape[axis + 2] = out[axis]
            first = self._new(graph.reshape(graph.iota(out[axis]), tuple(shape))) * steps[axis]
            place = first + tap * gaps[axis] - pairs[axis][0]
            index = index * self.shape[axis + 2] + place
        return maxima, index.cast(int64)

    def _avg_pool(
        self, name: str, axes: int, size: Sizes, *, stride: Sizes | None = None,
        padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Self:  # fmt: skip
        if self.ndim == axes + 1:
            return self.unsqueeze(0)._avg_pool(
                name, axes, size, stride=stride, padding=padding, ceil_mode=ceil_mode,
                count_include_pad=count_include_pad, divisor_override=divisor_override,
            ).squeeze(0)  # fmt: skip
        sizes = numbers(name, size, axes, 1)
        if divisor_override is not None:
            if integer_of(name, "divisor_override", divisor_override) == 0:
                raise BadArgument(f"{name}: divisor_override must not be 0")
            around = [(n, n) for n in numbers(name, padding, axes, 0)]
            step = sizes if stride in (None, (), []) else stride
            windows = self._real()._over(name, sizes, step, around, 1, 0, ceil_mode)
            total = windows.sum(tuple(range(axes + 2, windows.ndim)))
            return (total / divisor_override).cast(dtypes.float_dtype(self.dtype))
        pairs = [(n, n) for n in numbers(name, padding, axes, 0)]
        step = sizes if stride in (None, (), []) else stride
        return self._means(name, sizes, step, pairs, 1, ceil_mode, count_include_pad)

    def _means(
        self, name: str, size: Sizes, stride: Sizes, pairs: Sequence[tuple[int, int]],
        dilation: Sizes, ceil_mode: bool, count_include_pad: bool,
    ) -> Self:  # fmt: skip
        """Return the means of windows, with padding of its own for each end of each axis."""
        axes = len(pairs)
        windows = self._real()._over(name, size, stride, pairs, dilation, 0, ceil_mode)
        total = windows.sum(tuple(range(axes + 2, windows.ndim)))
        sizes, steps, gaps = (numbers(name, n, axes, 1) for n in (size, stride, dilation))
        for axis in range(axes):
            count = total.shape[axis + 2]
            tap = self._new(places_of(count, steps[axis], sizes[axis], gaps[axis]))
            before, after = pairs[axis] if count_include_pad else (0, 0)
            place = tap - pairs[axis][0]
            inside = (place >= -before) & (place < self.shape[axis + 2] + after)
            shape = [1] * (axes + 2)
            shape[axis + 2] = count
            total = total / inside.sum(1).reshape(tuple(shape))
        return total.cast(dtypes.float_dtype(self.dtype))

    def _over(
        self, operation: str, size: Sizes, stride: Sizes, pairs: Sequence[tuple[int, int]],
        dilation: Sizes, outside: Scalar, ceil_mode: bool = False,
    ) -> Self:  # fmt: skip
        """Return windows [batch, channels, *out, *window] of the source padded by `pairs`."""
        axes = len(pairs)
        if self.ndim != axes + 2:
            raise BadArgument(f"{operation}: expected {axes + 2} axes, got shape {self._shown}")
        sizes, steps, gaps = (numbers(operation, n, axes, 1) for n in (size, stride, dilation))
        counts, padding = [], [(0, 0), (0, 0)]
        for full, length, step, gap, (before, after) in zip(
            self.shape[2:], sizes, steps, gaps, pairs, strict=True
        ):
            room = full + before + after - (length - 1) * gap - 1
            count = (room + step - 1 if ceil_mode else room) // step + 1
            if ceil_mode and (count - 1) * step >= full + before:
                count -= 1  # a window that begins in the padding
            if room < 0 or count < 1:
                raise BadArgument(
                    f"{operation}: a window of {length} with dilation {gap} is larger than the "
                    f"{full + before + after} padded elements"
                )
            counts.append(count)
            padding.append((before, after + max(0, (count - 1) * step - room)))
        source = self.node
        if any(before or after for before, after in padding):
            source = self._new(graph.pad(source, padding, outside)).contiguous().node
        for axis in range(axes):
            place = places_of(counts[axis], steps[axis], sizes[axis], gaps[axis])
            source = graph.gather(source, (2 * axis + 2,), [place], checked=True)
        last = 2 * (axes - 1)
        order = [2 * axes, 2 * axes + 1, *range(last, -1, -2), *range(last + 1, 0, -2)]
        return self._new(graph.permute(source, tuple(order)))


def numbers(operation: str, given: Sizes, axes: int, least: int) -> tuple[int, ...]:
    """Return one number for each axis. BadArgument unless they are integers >= least."""
    listed: tuple[Any, ...] = tuple(given) if isinstance(given, list | tuple) else (given,) * axes
    listed = listed * axes if len(listed) == 1 else listed
    if len(listed) != axes or not all(type(n) is int and n >= least for n in listed):
        raise BadArgument(
            f"{operation}: expected an int or {axes} ints of at least {least}, got {given!r}"
        )
    return listed
