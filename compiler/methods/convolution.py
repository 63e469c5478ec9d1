"""Tensor: convolutions and pooling, as index arithmetic.

A window is a view: element [.., y, .., i] along an axis is [.., y * stride + i * dilation] of the
(padded) source. A convolution is then a sum of products, which lowering recognises as a matrix
product; only the padded source is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType, bool_, float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.methods import winograd as winograd_tiles
from ugpu.compiler.methods.core import TensorCore, broadcast
from ugpu.compiler.methods.operations import Operations
from ugpu.compiler.pattern import cost
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.config import config

Pair = int | Sequence[int]
Steps = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # stride, padding, dilation
T = TypeVar("T", bound=Operations)


class Convolutions(Operations):
    """Convolutions and pooling of tensors [batch, channels, height, width]. A Pair is one number
    for both axes, also in a sequence, or two."""

    __slots__ = ()

    def conv2d(
        self, weight: Any, bias: Any = None, stride: Pair = 1, padding: Pair | str = 0,
        dilation: Pair = 1, groups: int = 1, *, winograd: bool | None = None,
    ) -> Self:  # fmt: skip
        """Correlate with `weight` [out channels, channels / groups, height, width], then add `bias`
        [out channels].

        A tensor of three axes is one image, and so is the result. Outside the image, `padding`
        zeros are read; "same": as many as make the result as large as the image, for strides of 1;
        "valid": none. Types as in matmul. winograd: whether to compute a 3 x 3 or 4 x 4 window of
        float32 with Winograd tiles, less precisely (compiler.methods.winograd.TOLERANCE); by
        default if that is faster, unless the setting UGPU_WINOGRAD is 0. Raises BadArgument if it
        is requested but not possible.
        """
        kernel = self._tensor("conv2d", weight)
        if isinstance(padding, str):
            image, around = self._as_large("conv2d", kernel, padding, stride, dilation)
            return image.conv2d(kernel, bias, stride=stride, padding=around, dilation=dilation,
                                groups=groups, winograd=winograd)  # fmt: skip
        if self.ndim == 3 and kernel.ndim == 4:
            many = self.unsqueeze(0)
            return many.conv2d(kernel, bias, stride=stride, padding=padding, dilation=dilation,
                               groups=groups, winograd=winograd).squeeze(0)  # fmt: skip
        if self.ndim != 4 or kernel.ndim != 4:
            raise BadArgument(
                f"conv2d: input and kernel must have 4 axes, got shapes {self._shown} and "
                f"{kernel._shown}"
            )
        channels = self.shape[1]
        out_channels, each, height, width = kernel.shape
        fits = groups > 0 and channels == each * groups and out_channels % groups == 0
        if not fits or not each or not height or not width:
            raise BadArgument(
                f"conv2d: shapes {self._shown} and {kernel._shown} do not match in {groups} groups"
            )
        dtype = dtypes.promote(self.dtype, kernel.dtype)
        steps = pair("conv2d", stride, 1), pair("conv2d", padding, 0), pair("conv2d", dilation, 1)
        tiles = self._by_tiles(kernel, steps, groups, winograd)
        found = None
        if not tiles or self._tiles_held(kernel, steps[1]):
            found = self._over_windows(kernel, dtype, steps, groups, cost.TILED if tiles else "sum")
        else:
            found = self._tiled(kernel, steps[1])
        if found is None or (winograd and not tiles):
            raise BadArgument(
                f"conv2d: shapes {self._shown} and {kernel._shown} do not support "
                "winograd=True, which requires float32, 3 x 3 or 4 x 4 windows, stride, "
                "dilation and groups of 1, and a first use outside of capture()"
            )
        return biased("conv2d", found._ruled("conv2d", [self, kernel], (*steps, groups)), bias)

    def _over_windows(
        self, kernel: Self, dtype: DType, steps: Steps, groups: int, sum_: str
    ) -> Self:
        """Convolve by a sum of products over windows. steps: stride, padding and dilation. sum_:
        the reduction."""
        batch, _, _, columns = self.shape
        out_channels, each, height, width = kernel.shape
        inner = dtypes.inner(dtype)
        host = self.device.target.abi == "host"
        # an image that only one channel reads is padded by the kernel that holds it, as are tiles
        held = cost.in_windows(height, width, columns + 2 * steps[1][1], prod(steps[0]))
        apart = host and out_channels == groups and held
        image = self.cast(dtype)
        if sum_ == cost.TILED:
            image, apart = image.contiguous(), True
        windows = image._windows("conv2d", (height, width), *steps, 0, apart)
        # [batch, channels, out height, out width, height, width]
        rows, columns = windows.shape[2:4]
        per_group = out_channels // groups
        whole = (batch, groups, per_group, rows, columns, each, height, width)
        left = graph.cast(kernel.node, inner)
        left = graph.reshape(left, (1, groups, per_group, 1, 1, each, height, width))
        right = graph.cast(windows, inner)
        right = graph.reshape(right, (batch, groups, each, rows, columns, height, width))
        right = graph.permute(right, (0, 1, 3, 4, 2, 5, 6))
        right = graph.reshape(right, (batch, groups, 1, rows, columns, each, height, width))
        products = graph.elementwise("mul", inner, broadcast(left, whole), broadcast(right, whole))
        if sum_ == "sum":
            total = self._new(products)._reduce("sum", products, (5, 6, 7), False).node
        else:
            total = graph.reduce(sum_, products, (5, 6, 7))
        node = graph.reshape(graph.cast(total, dtype), (batch, out_channels, rows, columns))
        return self._new(node)

    def _as_large(
        self, operation: str, kernel: TensorCore, padding: str, stride: Pair, dilation: Pair
    ) -> tuple[Self, list[int]]:
        """Return the image, padded if the ends differ, and the padding of "same" or "valid"."""
        axes = kernel.ndim - 2
        if padding == "valid":
            return self, [0] * axes
        steps, gaps = (list(n) if isinstance(n, list | tuple) else [n] * axes
                       for n in (stride, dilation))  # fmt: skip
        if padding != "same" or any(step != 1 for step in steps) or len(gaps) not in (1, axes):
            raise BadArgument(
                f"{operation}: padding must be numbers, 'valid', or 'same' with a stride of 1, got "
                f"{padding!r} with a stride of {stride}"
            )
        gaps = gaps * axes if len(gaps) == 1 else gaps
        more = [gap * (size - 1) for gap, size in zip(gaps, kernel.shape[2:], strict=True)]
        if all(each % 2 == 0 for each in more):
            return self, [each // 2 for each in more]
        pairs = [(0, 0)] * (self.ndim - axes) + [(n // 2, n - n // 2) for n in more]
        return self.pad(pairs), [0] * axes

    def _tiles_held(self, kernel: Self, around: tuple[int, int]) -> bool:
        """Return whether one kernel of a host computes a convolution with Winograd tiles."""
        out, channels = kernel.shape[:2]
        host = self.device.target.abi == "host"
        fewest = min(out, channels, *self._results(kernel, around))
        return host and fewest > 1 and channels <= cost.TILES_MOST

    def _results(self, kernel: Self, around: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of results of a stride of 1."""
        rows, columns = (
            self.shape[axis] + 2 * around[axis - 2] - kernel.shape[axis] + 1 for axis in (2, 3)
        )
        return rows, columns

    def _by_tiles(self, kernel: Self, steps: Steps, groups: int, wanted: bool | None) -> bool:
        """Return whether to convolve with Winograd tiles: if possible, and requested or cheaper.
        steps: stride, padding and dilation."""
        batch, channels = self.shape[:2]
        out, _, window, width = kernel.shape
        stride, around, dilation = steps
        dtype = dtypes.promote(self.dtype, kernel.dtype)
        if window not in winograd_tiles.WINDOWS or width != window or dtype is not float32:
            return False
        if groups > 1 or not stride == dilation == (1, 1):
            return False
        rows, columns = self._results(kernel, around)
        if rows < 1 or columns < 1 or not self.numel() or not out:
            return False
        if wanted is not None or not config().winograd:
            return bool(wanted)
        found = self._form(kernel, around)
        if found is not None:
            return found == "tiles"
        tiles = winograd_tiles.tiles(rows, window) * winograd_tiles.tiles(columns, window)
        lanes = self.device.target.vector_bytes // float32.itemsize
        held, results = self._tiles_held(kernel, around), (batch, out, rows, columns)
        return held and cost.winograd(results, channels, window, tiles, lanes)

    def _tiled(self, kernel: Self, around: tuple[int, int]) -> Self | None:
        """Convolve with Winograd tiles by products with matrices (compiler.methods.winograd); None
        if these are not on the device, and cannot be copied now."""
        batch, channels, height, width = self.shape
        out, window = kernel.shape[0], kernel.shape[2]
        rows, columns = self._results(kernel, around)
        down, across = (winograd_tiles.tiles(count, window) for count in (rows, columns))
        size, step = winograd_tiles.AROUND, winograd_tiles.tile(window)
        constants = {
            name: self._kept(f"winograd {name} {window}", partial(_matrix, name, window))
            for name in ("image", "weight", "result")
        }
        if any(each is None for each in constants.values()):
            return None
        image, weight, result = (self._tensor("conv2d", each) for each in constants.values())
        # the image with its edges, as large as the tiles need it, then all windows stored
        more = window - 1
        ends = step * down + more - height - around[0], step * across + more - width - around[1]
        pairs = [(0, 0), (0, 0), (around[0], ends[0]), (around[1], ends[1])]
        padded = self._new(graph.pad(graph.cast(self.node, float32), pairs, 0)).contiguous()
        windows = self._new(padded._windows("conv2d", (size, size), step, 0, 1, 0))
        places, count = size * size, batch * down * across
        elements = windows.permute((4, 5, 1, 0, 2, 3)).reshape((places, channels * count))
        filters = kernel.cast(float32).permute((2, 3, 0, 1)).reshape((window**2, out * channels))
        left = (weight @ filters).reshape((places, out, channels)).contiguous()
        right = (image @ elements.contiguous()).reshape((places, channels, count)).contiguous()
        products = (left @ right).reshape((places, out * count)).contiguous()
        tile = (result @ products).reshape((step, step, out, batch, down, across))
        joined = tile.permute((3, 2, 4, 0, 5, 1)).reshape((batch, out, step * down, step * across))
        box = [(0, batch), (0, out), (0, rows), (0, columns)]
        return self._new(graph.shrink(joined.node, box))

    def _form(self, kernel: Self, around: tuple[int, int]) -> str | None:
        """Return "tiles" or "windows", as a search measured them on this device; None if none
        did."""
        shapes = (self.shape, kernel.shape)

        def form(tiles: bool) -> tuple[list[Node], Callable[[Sequence[Node]], Node]]:
            ones = [Node("contiguous", float32, s, (graph.full(1, float32, s),)) for s in shapes]

            def build(sources: Sequence[Node]) -> Node:
                image, weight = (self._new(source) for source in sources)
                return image.conv2d(weight, padding=around, winograd=tiles).node

            return ones, build

        what = f"conv2d {self.shape} {kernel.shape} {around}"
        forms = {"windows": partial(form, False), "tiles": partial(form, True)}
        return self._preferred(what, forms)

    def _max_pool2d(
        self, size: Pair, *, stride: Pair | None = None, padding: Pair = 0, dilation: Pair = 1
    ) -> Self:
        """Return the maximum of each window. stride: default the window's size; padding is
        ignored."""
        sizes = pair("max_pool2d", size, 1)
        step = sizes if stride in (None, (), []) else stride
        lowest = False if self.dtype is bool_ else dtypes.lowest(self.dtype)
        windows = self._windows("max_pool2d", sizes, step, padding, dilation, lowest)
        operation = "or" if self.dtype is bool_ else "max"
        source = self._new(windows)
        found = source._reduce(operation, windows, (4, 5), False)
        return found._ruled("first extreme", [source])

    def _avg_pool2d(self, size: Pair, *, stride: Pair | None = None, padding: Pair = 0) -> Self:
        """Return the mean of each window, including the zeros of the padding."""
        sizes = pair("avg_pool2d", size, 1)
        step = sizes if stride in (None, (), []) else stride
        windows = self._windows("avg_pool2d", sizes, step, padding, 1, 0)
        return self._new(windows).mean((4, 5))

    def _windows(
        self, operation: str, size: tuple[int, int], stride: Pair, padding: Pair, dilation: Pair,
        outside: bool | int | float, inside: bool = False,
    ) -> Node:  # fmt: skip
        """Return windows [batch, channels, out height, out width, height, width] of the padded
        source. inside: whether the kernel that reads the windows pads by itself."""
        if self.ndim != 4:
            raise BadArgument(f"{operation}: expected 4 axes, got shape {self._shown}")
        steps = pair(operation, stride, 1)
        around = pair(operation, padding, 0)
        apart = pair(operation, dilation, 1)
        source = self.node
        if any(around):
            # stored: many windows read each element, and every read would test for the edge
            pairs = [(0, 0), (0, 0), *((number, number) for number in around)]
            source = graph.pad(source, pairs, outside)
            if max(size) > 1 and not inside:
                source = self._new(source).contiguous().node
        padded = self._new(source)
        counts = []
        for full, length, step, gap in zip(source.shape[2:], size, steps, apart, strict=True):
            count = (full - (length - 1) * gap - 1) // step + 1
            if count < 1:
                raise BadArgument(
                    f"{operation}: a window of {length} with dilation {gap} is larger than the "
                    f"{full} padded elements"
                )
            counts.append(count)
        for axis in (2, 3):
            which = axis - 2
            places = places_of(counts[which], steps[which], size[which], apart[which])
            # a gather removes its axis and puts two in front: the width has moved on by one
            source = graph.gather(source, (axis + which,), [places], checked=True)
        found = self._new(graph.permute(source, (4, 5, 2, 0, 3, 1)))
        return found._ruled("windows", [padded], (steps, apart)).node


def pair(operation: str, given: Pair, least: int) -> tuple[int, int]:
    """Return a Pair as two numbers. BadArgument unless both are integers >= least."""
    listed = given if isinstance(given, list | tuple) else (given, given)
    listed = (*listed, *listed) if len(listed) == 1 else listed
    if len(listed) != 2 or not all(type(n) is int and n >= least for n in listed):
        raise BadArgument(
            f"{operation}: expected an int or a pair of ints of at least {least}, got {given!r}"
        )
    return listed[0], listed[1]


def biased(operation: str, images: T, bias: Any) -> T:
    """Add a bias per channel to [batch, channels, height, width]; None adds nothing."""
    if bias is None:
        return images
    added, channels = images._tensor(operation, bias), images.shape[1]
    if added.shape != (channels,):
        raise BadArgument(f"{operation}: the bias must have shape [{channels}], got {added._shown}")
    return images + images._new(graph.reshape(added.node, (channels, 1, 1)))


def _matrix(name: str, window: int) -> NDArray[np.float32]:
    return winograd_tiles.matrices(window)[name]


def places_of(count: int, step: int, length: int, gap: int) -> Node:
    """Return [count, length] of int64: the place of element i of window y."""
    shape = (count, length)
    first = graph.reshape(graph.iota(count), (count, 1))
    offset = graph.reshape(graph.iota(length), (1, length))
    terms = []
    for node, factor in ((first, step), (offset, gap)):
        number = graph.full(factor, node.dtype, node.shape)
        terms.append(graph.elementwise("mul", node.dtype, node, number))
    return graph.elementwise("add", terms[0].dtype, *(broadcast(term, shape) for term in terms))
