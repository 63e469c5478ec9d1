"""Normalisation over batches, layers, groups and instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ugpu.compiler.dtype import int64
from ugpu.compiler.gradients import pending
from ugpu.compiler.gradients.reverse import tracking
from ugpu.compiler.nn import init
from ugpu.compiler.nn.linear import empty
from ugpu.compiler.nn.module import Module
from ugpu.compiler.nn.parameter import replace
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.sharding.sharded import parts_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

SMALLEST_STEP = 1.1920928955078125e-07  # float32's machine epsilon: RMSNorm's default


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes, then weight and bias of their shape."""

    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight = init.ones_(empty(*self.shape, device=device)) if elementwise_affine else None
        self.bias = empty(*self.shape, device=device) if elementwise_affine and bias else None

    def forward(self, x: Any) -> Any:
        """Return the normalised elements."""
        _check_last("LayerNorm", x, self.shape)
        made = x.layernorm(_last(self.shape), self.eps)
        made = made if self.weight is None else made * self.weight
        return made if self.bias is None else made + self.bias


class RMSNorm(Module):
    """Divides by the root of the mean square over the last axes, then multiplies by weight."""

    def __init__(
        self, shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = SMALLEST_STEP if eps is None else eps
        self.weight = init.ones_(empty(*self.shape, device=device)) if elementwise_affine else None

    def forward(self, x: Any) -> Any:
        """Return the normalised elements."""
        _check_last("RMSNorm", x, self.shape)
        wide = x.float()
        scale = (wide.square().mean(_last(self.shape), keepdims=True) + self.eps).rsqrt()
        made = (wide * scale).cast(x.dtype)
        return made if self.weight is None else made * self.weight


def _last(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(shape), 0))


def _check_last(name: str, x: Any, shape: Sequence[int]) -> None:
    if x.shape[max(0, x.ndim - len(shape)) :] != tuple(shape):
        raise BadArgument(f"{name}: expected last axes {list(shape)}, got shape {list(x.shape)}")


class GroupNorm(Module):
    """Mean 0 and variance 1 over groups of channels and all places; weight and bias [channels]."""

    def __init__(
        self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True,
        device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if channels % groups:
            raise BadArgument(f"GroupNorm: {channels} channels cannot form {groups} groups")
        self.groups, self.eps = groups, eps
        self.weight = init.ones_(empty(channels, device=device)) if affine else None
        self.bias = empty(channels, device=device) if affine else None

    def forward(self, x: Any) -> Any:
        """Return the normalised elements."""
        rows = x.reshape(x.shape[0], self.groups, -1)
        return _scaled(rows.layernorm(-1, self.eps).reshape(x.shape), self.weight, self.bias)


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    """Multiply channels by weight and add bias."""
    shape = (-1, *[1] * (x.ndim - 2))
    made = x if weight is None else x * weight.reshape(shape)
    return made if bias is None else made + bias.reshape(shape)


class _Running(Module):
    """Normalisation with running statistics: running_mean, running_var [channels]."""

    axes: tuple[int, ...] = ()  # the numbers of axes of an input

    def __init__(
        self, channels: int, eps: float, momentum: float | None, affine: bool, track: bool,
        device: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.channels, self.eps, self.momentum = channels, eps, momentum
        self.weight = init.ones_(empty(channels, device=device)) if affine else None
        self.bias = empty(channels, device=device) if affine else None
        self.tracks = track
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, None)
        if track:
            zeros = Tensor.zeros(channels, device=device)
            self.running_mean = zeros.contiguous().realize()
            self.running_var = zeros.add(1).contiguous().realize()
            count = Tensor(0, dtype=int64, device=device)
            self.num_batches_tracked = count.contiguous().realize()

    def _check(self, x: Any) -> None:
        if x.ndim not in self.axes or x.shape[1] != self.channels:
            raise BadArgument(
                f"{type(self).__name__}: expected {self.channels} channels on axis 1 of "
                f"{' or '.join(map(str, self.axes))} axes, got shape {list(x.shape)}"
            )

    def _update(self, mean: Any, variance: Any, counts: bool = True) -> None:
        """Move the running statistics towards those of a batch; variance: the unbiased one. counts:
        whether the batch is counted."""
        if not self.tracks:
            return
        with tracking(False):
            rows = list(zip(*map(parts_of, self._buffers.values()), strict=True))  # by device
            for first, *others in rows:
                if first.node.storage is None and current_recording() is None:
                    first.realize(*others)  # of a step without an optimiser
            if counts:
                replace(self.num_batches_tracked, self.num_batches_tracked + 1)
            part: Any = self.momentum
            if part is None:  # the plain mean of all batches
                part = 1 / self.num_batches_tracked.float()
            mean, variance = mean.detach(), variance.detach()
            replace(self.running_mean, self.running_mean * (1 - part) + mean * part)
            replace(self.running_var, self.running_var * (1 - part) + variance * part)
            pending.add(*(each for own in self._buffers.values() for each in parts_of(own)))

    def _normalised(self, x: Any, mean: Any, variance: Any) -> Any:
        shape = (-1, *[1] * (x.ndim - 2))
        scale = (variance + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        made = (x - mean.reshape(shape)) * scale.reshape(shape)
        return made if self.bias is None else made + self.bias.reshape(shape)


class _BatchNorm(_Running):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device)

    def forward(self, x: Any) -> Any:
        """Return the elements, normalised by the batch in training, else by the running
        statistics."""
        self._check(x)
        if not self.training and self.tracks:
            return self._normalised(x, self.running_mean, self.running_var)
        axes = (0, *range(2, x.ndim))
        count = x.numel() // self.channels
        if self.training and count <= 1:
            raise BadArgument(
                f"{type(self).__name__}: training needs more than one value for each channel, "
                f"got shape {list(x.shape)}"
            )
        mean, variance = x.mean(axes), x.var(axes, correction=0)
        if self.training:
            self._update(mean, variance * (count / (count - 1)))
        return self._normalised(x, mean, variance)


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of [batch, channels] or [batch, channels, length]."""

    axes = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of [batch, channels, height, width]."""

    axes = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of [batch, channels, depth, height, width]."""

    axes = (5,)


class _InstanceNorm(_Running):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device)

    def forward(self, x: Any) -> Any:
        """Return the elements, normalised for each image and channel, or by running statistics
        outside of training, if they are tracked."""
        self._check(x)
        if not self.training and self.tracks:
            return self._normalised(x, self.running_mean, self.running_var)
        axes = tuple(range(2, x.ndim))
        if self.training and self.tracks:
            self._update(x.mean(axes).mean(0), x.var(axes).mean(0), counts=False)
        return _scaled(x.layernorm(axes, self.eps), self.weight, self.bias)


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of [batch, channels, length]."""

    axes = (3,)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of [batch, channels, height, width]."""

    axes = (4,)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of [batch, channels, depth, height, width]."""

    axes = (5,)
