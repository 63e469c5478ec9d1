"""Networks written once for any library whose tensors have the usual methods: ours, tinygrad's.

Weights are made by `make(*shape)`, so that a caller decides where they live and what is in them.
Only the shape of the computation is of interest: nothing here is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Make = Callable[..., Any]  # a tensor of the library at hand, of the given sizes


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    """Over the last axis."""
    size = x.shape[-1]
    row = (*x.shape[:-1], 1)
    apart = x - (x.sum(-1) * (1 / size)).reshape(*row)
    variance = ((apart * apart).sum(-1) * (1 / size)).reshape(*row)
    return apart / (variance + 1e-5).sqrt() * gain + bias


def decoder_layer(x: Any, mask: Any, make: Make, heads: int) -> Any:
    """Attention and a gated unit."""
    batch, length, width = x.shape
    each = width // heads
    inner = layer_norm(x, make(width), make(width))
    projected = inner @ make(width, 3 * width) + make(3 * width)
    parts = projected.reshape(batch, length, 3, heads, each).permute(2, 0, 3, 1, 4)
    query, key, value = parts[0], parts[1], parts[2]
    scores = (query @ key.transpose(-1, -2)) * each**-0.5 + mask
    mixed = (scores.softmax(-1) @ value).permute(0, 2, 1, 3).reshape(batch, length, width)
    x = x + (mixed @ make(width, width) + make(width))
    inner = layer_norm(x, make(width), make(width))
    wide = inner @ make(width, 4 * width) + make(4 * width)
    wide = wide * (wide * 1.702).sigmoid()
    return x + (wide @ make(4 * width, width) + make(width))


def transformer(
    make: Make,
    layers: int = 12,
    width: int = 384,
    heads: int = 6,
    length: int = 128,
    layer: Callable[..., Any] = decoder_layer,
) -> Any:
    """A decoder, forward. layer: decoder_layer, or a wrapped one. Gives [2, length, width]."""
    x = make(2, length, width)
    mask = make(length, length)
    for _ in range(layers):
        x = layer(x, mask, make, heads)
    return layer_norm(x, make(width), make(width))


def _normed(x: Any, make: Make, relu: bool = True) -> Any:
    """Batch norm of inference: a factor and an offset per channel."""
    channels = x.shape[1]
    result = x * make(1, channels, 1, 1) + make(1, channels, 1, 1)
    return result.relu() if relu else result


def resnet50(make: Make, batch: int = 1, size: int = 224) -> Any:
    """ResNet-50, forward: [batch, 1000]. (K. He et al., arXiv:1512.03385.)"""

    def conv(x: Any, channels: int, kernel: int, stride: int = 1, relu: bool = True) -> Any:
        weight = make(channels, x.shape[1], kernel, kernel)
        found = x.conv2d(weight, stride=stride, padding=kernel // 2)
        return _normed(found, make, relu)

    x = conv(make(batch, 3, size, size), 64, 7, 2)
    x = x.max_pool2d((3, 3), stride=2, padding=1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            straight = conv(x, 4 * inner, 1, stride, False) if block == 0 else x
            x = conv(conv(conv(x, inner, 1), inner, 3, stride), 4 * inner, 1, 1, False)
            x = (x + straight).relu()
    pooled = x.sum((2, 3)) * (1 / (x.shape[2] * x.shape[3]))
    return pooled @ make(2048, 1000) + make(1000)
