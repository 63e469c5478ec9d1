"""Pooling modules. Those of one axis pool an image of one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ugpu.compiler.nn.module import Module
from ugpu.hcq.errors import BadArgument

Sizes = int | Sequence[int]


class _Pool(Module):
    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
        dilation: Sizes = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.size, self.padding, self.dilation = kernel_size, padding, dilation
        self.stride = kernel_size if stride is None else stride

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.size}, stride={self.stride}, padding={self.padding}"


class MaxPool2d(_Pool):
    """The maximum of each window of [batch, channels, height, width]."""

    def forward(self, x: Any) -> Any:
        """Return the maxima."""
        return x.max_pool2d(
            self.size, stride=self.stride, padding=self.padding, dilation=self.dilation
        )


class AvgPool2d(_Pool):
    """The mean of each window, zeros of the padding included."""

    def forward(self, x: Any) -> Any:
        """Return the means."""
        return x.avg_pool2d(self.size, stride=self.stride, padding=self.padding)


def _one(given: Sizes, rest: int) -> tuple[int, int]:
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if len(sizes) != 1:
        raise BadArgument(f"pooling of one axis: expected an int or one int in a list, got {given}")
    return rest, sizes[0]


class MaxPool1d(_Pool):
    """The maximum of each window of [batch, channels, length]."""

    def forward(self, x: Any) -> Any:
        """Return the maxima."""
        return x.unsqueeze(2).max_pool2d(
            _one(self.size, 1), stride=_one(self.stride, 1), padding=_one(self.padding, 0),
            dilation=_one(self.dilation, 1),
        ).squeeze(2)  # fmt: skip


class AvgPool1d(_Pool):
    """The mean of each window of [batch, channels, length], zeros of the padding included."""

    def forward(self, x: Any) -> Any:
        """Return the means."""
        return x.unsqueeze(2).avg_pool2d(
            _one(self.size, 1), stride=_one(self.stride, 1), padding=_one(self.padding, 0)
        ).squeeze(2)  # fmt: skip


class _Adaptive(Module):
    """Pools each axis behind the channels to a number of windows that share out its elements."""

    axes = 0
    method = ""

    def __init__(self, output_size: Sizes) -> None:
        super().__init__()
        given = (output_size,) * self.axes if isinstance(output_size, int) else tuple(output_size)
        if len(given) != self.axes or not all(type(n) is int and n > 0 for n in given):
            raise BadArgument(
                f"{type(self).__name__}: expected {self.axes} positive sizes, got {output_size}"
            )
        self.output = given

    def forward(self, x: Any) -> Any:
        """Return one number for each window."""
        if x.ndim != self.axes + 2:
            raise BadArgument(
                f"{type(self).__name__}: expected {self.axes + 2} axes, got shape {list(x.shape)}"
            )
        for axis, count in enumerate(self.output, 2):
            x = self._along(x, axis, count)
        return x

    def _along(self, x: Any, axis: int, count: int) -> Any:
        size = x.shape[axis]
        if size % count == 0:
            cut = x.reshape(*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
            return getattr(cut, self.method)(axis + 1)
        before = [slice(None)] * axis
        parts = []
        for place in range(count):
            start, stop = place * size // count, -(-(place + 1) * size // count)
            part = x[(*before, slice(start, stop))]
            parts.append(getattr(part, self.method)(axis, keepdims=True))
        return parts[0].cat(parts[1:], axis)


class AdaptiveAvgPool1d(_Adaptive):
    """Means of [batch, channels, length]."""

    axes, method = 1, "mean"


class AdaptiveAvgPool2d(_Adaptive):
    """Means of [batch, channels, height, width]."""

    axes, method = 2, "mean"


class AdaptiveMaxPool1d(_Adaptive):
    """Maxima of [batch, channels, length]."""

    axes, method = 1, "max"


class AdaptiveMaxPool2d(_Adaptive):
    """Maxima of [batch, channels, height, width]."""

    axes, method = 2, "max"
