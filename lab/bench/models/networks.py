"""Whole models at the sizes they are used at, by our tensors. networks_torch.py has the
same, and takes the same weights in the same order.

Batch norms of inference are part of the convolutions before them (a bias each), as models are
deployed. Products with weights are `x @ w`, w of [inputs, outputs].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ugpu.compiler import Tensor

Array = np.ndarray[Any, np.dtype[Any]]

WIDTH, HEADS, LAYERS, HIDDEN, LENGTH, WORDS = 512, 8, 8, 1408, 256, 8192  # of the decoder
STEPS, STATE = 64, 256  # of the LSTM
MINILM = (32, 384)  # tokens and width of all-MiniLM-L6-v2, with 12 heads and 6 layers
BOTTLENECKS = (3, 4, 6, 3)  # blocks of ResNet-50's stages
# expansion, channels, blocks, stride: MobileNetV2 (M. Sandler et al., arXiv:1801.04381), table 2
INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
            (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip


class Weights:
    """Random arrays by request, as a library's tensors: made in the first pass through a network,
    given again in the next. Each sums up `inputs` products, so that values stay near 1."""

    def __init__(self, convert: Callable[[Array], Any], arrays: list[Array] | None = None) -> None:
        self.convert = convert
        self.random = np.random.default_rng(1)
        self.arrays: list[Array] = []
        self.given: list[Any] = []
        self.next = 0
        for array in arrays or ():
            self._add(array)

    def _add(self, array: Array) -> None:
        self.arrays.append(array)
        self.given.append(self.convert(array))

    def __call__(self, *shape: int, inputs: int = 1) -> Any:
        if self.next == len(self.arrays):
            array = self.random.standard_normal(shape, dtype=np.float32)
            self._add(array / np.float32(inputs**0.5))
        found = self.given[self.next]
        assert tuple(found.shape) == shape, (self.next, found.shape, shape)
        self.next += 1
        return found

    def restart(self) -> None:
        self.next = 0


def _conv(
    x: Tensor, weights: Weights, out: int, size: int, stride: int = 1, groups: int = 1
) -> Tensor:
    each = x.shape[1] // groups
    kernel = weights(out, each, size, size, inputs=each * size * size)
    bias = weights(out, inputs=16)
    return x.conv2d(kernel, bias, stride=stride, padding=size // 2, groups=groups)


def resnet18(weights: Weights, x: Tensor) -> Tensor:
    """[1, 3, side, side] to [1, 1000]. (K. He et al., arXiv:1512.03385.)"""
    x = _conv(x, weights, 64, 7, 2).relu().max_pool2d(3, stride=2, padding=1)
    for stage in range(4):
        for block in range(2):
            channels = 64 << stage
            stride = 2 if stage and not block else 1
            straight = _conv(x, weights, channels, 1, stride) if stride == 2 else x
            hidden = _conv(x, weights, channels, 3, stride).relu()
            x = (_conv(hidden, weights, channels, 3) + straight).relu()
    found: Tensor = x.mean((2, 3)) @ weights(512, 1000, inputs=512) + weights(1000)
    return found


def resnet50(weights: Weights, x: Tensor) -> Tensor:
    """[1, 3, side, side] to [1, 1000]: bottleneck blocks, their stride in the 3 x 3 convolution."""
    x = _conv(x, weights, 64, 7, 2).relu().max_pool2d(3, stride=2, padding=1)
    for stage, blocks in enumerate(BOTTLENECKS):
        for block in range(blocks):
            channels = 64 << stage
            stride = 2 if stage and not block else 1
            straight = x if block else _conv(x, weights, 4 * channels, 1, stride)
            hidden = _conv(x, weights, channels, 1).relu()
            hidden = _conv(hidden, weights, channels, 3, stride).relu()
            x = (_conv(hidden, weights, 4 * channels, 1) + straight).relu()
    found: Tensor = x.mean((2, 3)) @ weights(2048, 1000, inputs=2048) + weights(1000)
    return found


def mobilenet(weights: Weights, x: Tensor) -> Tensor:
    """MobileNetV2 of width 1: [1, 3, side, side] to [1, 1000]."""
    x = _conv(x, weights, 32, 3, 2).clamp(0, 6)
    for expansion, channels, blocks, first in INVERTED:
        for block in range(blocks):
            stride = 1 if block else first
            hidden, wide = x, x.shape[1] * expansion
            if expansion > 1:
                hidden = _conv(x, weights, wide, 1).clamp(0, 6)
            hidden = _conv(hidden, weights, wide, 3, stride, wide).clamp(0, 6)
            hidden = _conv(hidden, weights, channels, 1)
            x = x + hidden if x.shape == hidden.shape else hidden
    x = _conv(x, weights, 1280, 1).clamp(0, 6).mean((2, 3))
    found: Tensor = x @ weights(1280, 1000, inputs=1280) + weights(1000)
    return found


def unet_block(weights: Weights, x: Tensor) -> Tensor:
    """[1, 64, side, side] to twice the side: two convolutions, a skip by 1 x 1, one more."""
    channels = x.shape[1]
    skip = _conv(x, weights, channels, 1)
    hidden = _conv(_conv(x, weights, channels, 3).silu(), weights, channels, 3)
    wide = (hidden + skip).interpolate(scale=2)
    return _conv(wide.silu(), weights, channels, 3)


def lstm(weights: Weights, x: Tensor) -> Tensor:
    """[STEPS, 1, STATE] to the same: one layer, one sequence."""
    inside = weights(STATE, 4 * STATE, inputs=STATE)
    back = weights(STATE, 4 * STATE, inputs=STATE)
    bias = weights(4 * STATE)
    given = x.reshape(STEPS, STATE) @ inside + bias
    hidden = cell = Tensor.zeros(1, STATE, device=x.device)
    found = []
    for step in range(STEPS):
        gates = given[step : step + 1] + hidden @ back
        enter, forget, new, leave = gates.chunk(4, 1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        found.append(hidden)
    return Tensor.stack(found)


def _normed(x: Tensor, gain: Tensor) -> Tensor:
    scale: Tensor = ((x * x).mean(-1, keepdims=True) + 1e-5) ** -0.5
    return x * scale * gain


def decode(
    weights: Weights, x: Tensor, cosines: Tensor, sines: Tensor, position: Tensor,
    keys: list[Tensor], values: list[Tensor],
) -> Tensor:  # fmt: skip
    """A token of a Llama-like decoder, [1, WIDTH] to [1, WORDS]; it is added to the caches, a pair
    of [HEADS, LENGTH, depth] a layer. cosines, sines: of the position, [depth / 2]."""
    depth = WIDTH // HEADS
    places = Tensor.arange(LENGTH, device=x.device)
    mask = (places <= position).where(0.0, float("-inf"))

    def turned(rows: Tensor) -> Tensor:
        low, high = rows[:, : depth // 2], rows[:, depth // 2 :]
        return Tensor.cat([low * cosines - high * sines, low * sines + high * cosines], 1)

    for layer in range(LAYERS):
        inner = _normed(x, weights(WIDTH))
        parts = (inner @ weights(WIDTH, 3 * WIDTH, inputs=WIDTH)).reshape(3, HEADS, depth)
        keys[layer][:, position] = turned(parts[1])
        values[layer][:, position] = parts[2]
        query = turned(parts[0]).reshape(HEADS, 1, depth)
        scores = query @ keys[layer].transpose(-1, -2) * depth**-0.5 + mask
        seen = (scores.softmax() @ values[layer]).reshape(1, WIDTH)
        x = x + seen @ weights(WIDTH, WIDTH, inputs=WIDTH)
        inner = _normed(x, weights(WIDTH))
        gate = inner @ weights(WIDTH, HIDDEN, inputs=WIDTH)
        up = inner @ weights(WIDTH, HIDDEN, inputs=WIDTH)
        x = x + (gate.silu() * up) @ weights(HIDDEN, WIDTH, inputs=HIDDEN)
    found: Tensor = _normed(x, weights(WIDTH)) @ weights(WIDTH, WORDS, inputs=WIDTH)
    return found


def minilm(weights: Weights, x: Tensor) -> Tensor:
    """Six layers of BERT above its embeddings: [tokens, width], or [batch, tokens, width]."""
    *batch, tokens, width = x.shape
    for _ in range(6):
        heads = [
            (x @ weights(width, width, inputs=width) + weights(width))
            .reshape(*batch, tokens, 12, width // 12)
            .transpose(-2, -3)
            for _ in range(3)
        ]
        mixed = Tensor.scaled_dot_product_attention(*heads).transpose(-2, -3).reshape(*x.shape)
        x = (x + mixed @ weights(width, width, inputs=width) + weights(width)).layernorm()
        wide = (x @ weights(width, 4 * width, inputs=width) + weights(4 * width)).gelu()
        x = (x + wide @ weights(4 * width, width, inputs=4 * width) + weights(width)).layernorm()
    return x
