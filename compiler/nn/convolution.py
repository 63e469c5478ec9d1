"""Convolutions of one to three axes, and transposed ones. Those of one and three axes are computed
by those of two: a line is an image of one row; the depth of a window joins the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ugpu.compiler.nn import init
from ugpu.compiler.nn.linear import empty
from ugpu.compiler.nn.module import Module
from ugpu.hcq.errors import BadArgument

Sizes = int | Sequence[int]


def _sizes(name: str, option: str, given: Sizes, count: int, least: int) -> tuple[int, ...]:
    listed = (given,) * count if isinstance(given, int) else tuple(given)
    if len(listed) != count or not all(type(n) is int and n >= least for n in listed):
        raise BadArgument(f"{name}: {option} must be {count} ints of at least {least}, got {given}")
    return listed


class _Convolution(Module):
    axes = 0

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
        padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
        device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise BadArgument(
                f"{name}: {in_channels} and {out_channels} channels do not form {groups} groups"
            )
        self.size = _sizes(name, "kernel_size", kernel_size, self.axes, 1)
        self.stride = _sizes(name, "stride", stride, self.axes, 1)
        self.dilation = _sizes(name, "dilation", dilation, self.axes, 1)
        self.groups = groups
        self.padding = self._padding(name, padding)
        self.weight = empty(*self._shape(in_channels, out_channels), device=device)
        self.bias = empty(out_channels, device=device) if bias else None
        init.default_(self.weight, self.bias)

    def _shape(self, inputs: int, outputs: int) -> tuple[int, ...]:
        return outputs, inputs // self.groups, *self.size

    def _padding(self, name: str, given: Sizes | str) -> tuple[int, ...]:
        if not isinstance(given, str):
            return _sizes(name, "padding", given, self.axes, 0)
        whole = [gap * (n - 1) for gap, n in zip(self.dilation, self.size, strict=True)]
        if given == "valid":
            return (0,) * self.axes
        if given != "same" or set(self.stride) != {1} or any(n % 2 for n in whole):
            raise BadArgument(
                f"{name}: padding must be ints, 'valid', or, with a stride of 1 and odd windows, "
                f"'same', got {given!r}"
            )
        return tuple(n // 2 for n in whole)

    def _check(self, x: Any) -> None:
        if x.ndim != self.axes + 2:
            raise BadArgument(
                f"{type(self).__name__}: expected {self.axes + 2} axes, got shape {list(x.shape)}"
            )

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"weight={list(self.weight.shape)}, stride={self.stride}, padding={self.padding}"


class Conv2d(_Convolution):
    """Convolution of [batch, channels, height, width]; weight [outputs, inputs / groups, height,
    width], bias [outputs]."""

    axes = 2

    def forward(self, x: Any) -> Any:
        """Return the convolution."""
        return x.conv2d(self.weight, self.bias, stride=self.stride, padding=self.padding,
                        dilation=self.dilation, groups=self.groups)  # fmt: skip


class Conv1d(_Convolution):
    """Convolution of [batch, channels, length]; weight [outputs, inputs / groups, length]."""

    axes = 1

    def forward(self, x: Any) -> Any:
        """Return the convolution."""
        self._check(x)
        made = x.unsqueeze(2).conv2d(
            self.weight.unsqueeze(2), self.bias, stride=(1, *self.stride),
            padding=(0, *self.padding), dilation=(1, *self.dilation), groups=self.groups,
        )  # fmt: skip
        return made.squeeze(2)


class Conv3d(_Convolution):
    """Convolution of [batch, channels, depth, height, width]; weight [outputs, inputs / groups,
    depth, height, width]."""

    axes = 3

    def forward(self, x: Any) -> Any:
        """Return the convolution."""
        self._check(x)
        taps, step, gap, pad = (
            each[0] for each in (self.size, self.stride, self.dilation, self.padding)
        )
        padded = x.pad([(0, 0), (0, 0), (pad, pad), (0, 0), (0, 0)]) if pad else x
        depth = (padded.shape[2] - (taps - 1) * gap - 1) // step + 1
        if depth < 1:
            raise BadArgument(f"Conv3d: a window of {taps} is deeper than shape {list(x.shape)}")
        last = (depth - 1) * step + 1
        slices = [padded[:, :, tap * gap : tap * gap + last : step] for tap in range(taps)]
        batch, channels, *place = x.shape
        joined = slices[0].stack(slices[1:], 2)  # [batch, channels, taps, depth, height, width]
        images = joined.permute(0, 3, 1, 2, 4, 5)
        images = images.reshape(batch * depth, channels * taps, *place[1:])
        out, each = self.weight.shape[:2]
        weight = self.weight.reshape(out, each * taps, *self.size[1:])
        made = images.conv2d(
            weight, self.bias, stride=self.stride[1:], padding=self.padding[1:],
            dilation=self.dilation[1:], groups=self.groups,
        )  # fmt: skip
        return made.reshape(batch, depth, *made.shape[1:]).transpose(1, 2)


class _Transposed(_Convolution):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
        padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, bias: bool = True,
        dilation: Sizes = 1, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups,
                         bias, device)  # fmt: skip
        self.more = _sizes(type(self).__name__, "output_padding", output_padding, self.axes, 0)

    def _shape(self, inputs: int, outputs: int) -> tuple[int, ...]:
        return inputs, outputs // self.groups, *self.size


class ConvTranspose2d(_Transposed):
    """Transposed convolution; weight [inputs, outputs / groups, height, width]."""

    axes = 2

    def forward(self, x: Any) -> Any:
        """Return the transposed convolution."""
        return x.conv_transpose2d(
            self.weight, self.bias, stride=self.stride, padding=self.padding,
            output_padding=self.more, groups=self.groups, dilation=self.dilation,
        )  # fmt: skip


class ConvTranspose1d(_Transposed):
    """Transposed convolution; weight [inputs, outputs / groups, length]."""

    axes = 1

    def forward(self, x: Any) -> Any:
        """Return the transposed convolution."""
        self._check(x)
        made = x.unsqueeze(2).conv_transpose2d(
            self.weight.unsqueeze(2), self.bias, stride=(1, *self.stride),
            padding=(0, *self.padding), output_padding=(0, *self.more), groups=self.groups,
            dilation=(1, *self.dilation),
        )  # fmt: skip
        return made.squeeze(2)


class ConvTranspose3d(_Transposed):
    """Transposed convolution; weight [inputs, outputs / groups, depth, height, width]. Each tap of
    the depth is a transposed convolution of all slices; they are summed where they overlap."""

    axes = 3

    def forward(self, x: Any) -> Any:
        """Return the transposed convolution."""
        self._check(x)
        batch, channels, depth, *place = x.shape
        step, gap, taps = self.stride[0], self.dilation[0], self.size[0]
        images = x.transpose(1, 2).reshape(batch * depth, channels, *place)
        whole = (depth - 1) * step + gap * (taps - 1) + 1 + self.more[0]
        total: Any = None
        for tap in range(taps):
            made = images.conv_transpose2d(
                self.weight[:, :, tap], stride=self.stride[1:], padding=self.padding[1:],
                output_padding=self.more[1:], groups=self.groups, dilation=self.dilation[1:],
            )  # fmt: skip
            made = made.reshape(batch, depth, 1, *made.shape[1:])
            spread = made.pad([(0, 0), (0, 0), (0, step - 1), (0, 0), (0, 0), (0, 0)])
            spread = spread.reshape(batch, depth * step, *made.shape[3:])
            spread = spread[:, : (depth - 1) * step + 1]
            behind = whole - tap * gap - spread.shape[1]
            moved = spread.pad([(0, 0), (tap * gap, behind), (0, 0), (0, 0), (0, 0)])
            total = moved if total is None else total + moved
        cut = self.padding[0]
        found = total[:, cut : whole - cut].transpose(1, 2)
        return found if self.bias is None else found + self.bias.reshape(-1, 1, 1, 1)
