"""The models of lab/bench/models/networks.py by PyTorch, as its users write them: its own LSTM,
attention and norms, products with weights of [outputs, inputs]. The caller passes the torch module.
"""

from __future__ import annotations

from typing import Any

from lab.bench.models.networks import (
    BOTTLENECKS,
    HEADS,
    HIDDEN,
    INVERTED,
    LAYERS,
    STATE,
    WIDTH,
    WORDS,
    Weights,
)


class Networks:
    """Functions of weights and inputs. torch: the module; weights become its tensors."""

    def __init__(self, torch: Any) -> None:  # Any: it has no types of ours
        self.torch = torch
        self.functional = torch.nn.functional
        self._turned: dict[int, tuple[Any, Any]] = {}  # by id: a weight, kept alive, and its turn

    def conv(
        self, x: Any, weights: Weights, out: int, size: int, stride: int = 1, groups: int = 1
    ) -> Any:
        kernel = weights(out, x.shape[1] // groups, size, size)
        return self.functional.conv2d(x, kernel, weights(out), stride, size // 2, 1, groups)

    def linear(self, x: Any, weights: Weights, inputs: int, outputs: int) -> Any:
        given = weights(inputs, outputs)
        if id(given) not in self._turned:  # once: as a Linear layer keeps it
            self._turned[id(given)] = given, given.t().contiguous()
        return self.functional.linear(x, self._turned[id(given)][1])

    def resnet18(self, weights: Weights, x: Any) -> Any:
        relu = self.functional.relu
        x = self.functional.max_pool2d(relu(self.conv(x, weights, 64, 7, 2)), 3, 2, 1)
        for stage in range(4):
            for block in range(2):
                channels = 64 << stage
                stride = 2 if stage and not block else 1
                straight = self.conv(x, weights, channels, 1, stride) if stride == 2 else x
                hidden = relu(self.conv(x, weights, channels, 3, stride))
                x = relu(self.conv(hidden, weights, channels, 3) + straight)
        return self.linear(x.mean((2, 3)), weights, 512, 1000) + weights(1000)

    def resnet50(self, weights: Weights, x: Any) -> Any:
        relu = self.functional.relu
        x = self.functional.max_pool2d(relu(self.conv(x, weights, 64, 7, 2)), 3, 2, 1)
        for stage, blocks in enumerate(BOTTLENECKS):
            for block in range(blocks):
                channels = 64 << stage
                stride = 2 if stage and not block else 1
                straight = x if block else self.conv(x, weights, 4 * channels, 1, stride)
                hidden = relu(self.conv(x, weights, channels, 1))
                hidden = relu(self.conv(hidden, weights, channels, 3, stride))
                x = relu(self.conv(hidden, weights, 4 * channels, 1) + straight)
        return self.linear(x.mean((2, 3)), weights, 2048, 1000) + weights(1000)

    def mobilenet(self, weights: Weights, x: Any) -> Any:
        bounded = self.functional.relu6
        x = bounded(self.conv(x, weights, 32, 3, 2))
        for expansion, channels, blocks, first in INVERTED:
            for block in range(blocks):
                stride = 1 if block else first
                hidden, wide = x, x.shape[1] * expansion
                if expansion > 1:
                    hidden = bounded(self.conv(x, weights, wide, 1))
                hidden = bounded(self.conv(hidden, weights, wide, 3, stride, wide))
                hidden = self.conv(hidden, weights, channels, 1)
                x = x + hidden if x.shape == hidden.shape else hidden
        x = bounded(self.conv(x, weights, 1280, 1)).mean((2, 3))
        return self.linear(x, weights, 1280, 1000) + weights(1000)

    def unet_block(self, weights: Weights, x: Any) -> Any:
        silu, channels = self.functional.silu, x.shape[1]
        skip = self.conv(x, weights, channels, 1)
        hidden = self.conv(silu(self.conv(x, weights, channels, 3)), weights, channels, 3)
        wide = self.functional.interpolate(hidden + skip, scale_factor=2)
        return self.conv(silu(wide), weights, channels, 3)

    def lstm(self, weights: Weights) -> Any:
        """The module; its order of gates is ours."""
        layer = self.torch.nn.LSTM(STATE, STATE)
        inside, back = weights(STATE, 4 * STATE), weights(STATE, 4 * STATE)
        bias = weights(4 * STATE)
        with self.torch.no_grad():
            layer.weight_ih_l0.copy_(inside.t())
            layer.weight_hh_l0.copy_(back.t())
            layer.bias_ih_l0.copy_(bias)
            layer.bias_hh_l0.zero_()
        return layer

    def decode(
        self, weights: Weights, x: Any, cosines: Any, sines: Any, keys: Any, values: Any
    ) -> Any:
        """keys, values: [LAYERS, HEADS, places, depth], what came before the token."""
        torch, functional, depth = self.torch, self.functional, WIDTH // HEADS

        def normed(x: Any) -> Any:
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weights(WIDTH)

        def turned(rows: Any) -> Any:
            low, high = rows.chunk(2, -1)
            return torch.cat([low * cosines - high * sines, low * sines + high * cosines], -1)

        for layer in range(LAYERS):
            parts = self.linear(normed(x), weights, WIDTH, 3 * WIDTH).reshape(3, HEADS, 1, depth)
            key = torch.cat([keys[layer], turned(parts[1])], 1)
            value = torch.cat([values[layer], parts[2]], 1)
            scores = turned(parts[0]) @ key.transpose(-1, -2) * depth**-0.5
            seen = (torch.softmax(scores, -1) @ value).reshape(1, WIDTH)
            x = x + self.linear(seen, weights, WIDTH, WIDTH)
            inner = normed(x)
            gate = self.linear(inner, weights, WIDTH, HIDDEN)
            up = self.linear(inner, weights, WIDTH, HIDDEN)
            x = x + self.linear(functional.silu(gate) * up, weights, HIDDEN, WIDTH)
        return self.linear(normed(x), weights, WIDTH, WORDS)

    def minilm(self, weights: Weights, x: Any) -> Any:
        """Six layers of BERT above its embeddings."""
        functional = self.functional
        *batch, tokens, width = x.shape
        for _ in range(6):
            heads = [
                (self.linear(x, weights, width, width) + weights(width))
                .reshape(*(batch or [1]), tokens, 12, width // 12)
                .transpose(1, 2)
                for _ in range(3)
            ]
            mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2)
            mixed = self.linear(mixed.reshape(x.shape), weights, width, width)
            x = functional.layer_norm(x + mixed + weights(width), (width,))
            wide = self.linear(x, weights, width, 4 * width) + weights(4 * width)
            narrow = self.linear(functional.gelu(wide), weights, 4 * width, width)
            x = functional.layer_norm(x + narrow + weights(width), (width,))
        return x
