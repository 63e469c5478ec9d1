"""A decoder that makes one token after the other, its keys and values in memory: ours, and NumPy's.

Each layer writes the token's key and value into its cache and looks at what is there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device

Array = NDArray[Any]
Position = int | Tensor  # a tensor without axes: then steps differ in data only


class Weights:
    """Of one layer, and its caches of [heads, length, depth]."""

    def __init__(self, seed: int, width: int, heads: int, length: int) -> None:
        random = np.random.default_rng(seed)

        def make(*shape: int) -> Array:
            array: Array = random.standard_normal(shape).astype(np.float32) / np.float32(width**0.5)
            return array

        self.given = make(width, 3 * width)
        self.mixed = make(width, width)
        self.up, self.down = make(width, 2 * width), make(2 * width, width)
        self.keys = np.zeros((heads, length, width // heads), np.float32)
        self.values = np.zeros_like(self.keys)


class Layer:
    """The same on a device; what it keeps changes with each token."""

    def __init__(self, weights: Weights, device: Device) -> None:
        for name, array in vars(weights).items():
            setattr(self, name, Tensor(array, device=device))

    given: Tensor
    mixed: Tensor
    up: Tensor
    down: Tensor
    keys: Tensor
    values: Tensor

    def __call__(self, x: Tensor, position: Position, mask: Tensor) -> Tensor:
        heads, _, depth = self.keys.shape
        parts = (normed(x) @ self.given).reshape(3, heads, depth)
        self.keys[:, position] = parts[1]
        self.values[:, position] = parts[2]
        scores = parts[0].reshape(heads, 1, depth) @ self.keys.transpose(-1, -2) * depth**-0.5
        seen = ((scores + mask).softmax() @ self.values).reshape(1, heads * depth)
        x = x + seen @ self.mixed
        inner: Tensor = normed(x) @ self.up
        return x + inner.relu() @ self.down


def normed(x: Any) -> Any:
    """Of a tensor or an array, over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / ((centred * centred).mean(-1, keepdims=True) + 1e-5) ** 0.5


class Decoder:
    """Layers of equal shapes."""

    def __init__(
        self, device: Device, layers: int, width: int = 16, heads: int = 2, length: int = 24
    ) -> None:
        self.device, self.length = device, length
        self.weights = [Weights(seed, width, heads, length) for seed in range(layers)]
        self.layers = [Layer(each, device) for each in self.weights]

    def position(self, number: int) -> Tensor:
        return Tensor(np.array(number, np.int32), device=self.device)

    def step(self, x: Tensor, position: Position) -> Tensor:
        """The graph of a token, [1, width] to the same."""
        places = Tensor.arange(self.length, device=self.device)
        mask = (places <= position).where(0.0, float("-inf"))
        for layer in self.layers:
            x = layer(x, position, mask)
        return x

    def reference(self, x: Array, position: int) -> Array:
        """The same by NumPy, into the caches of `weights`."""
        hidden = np.where(np.arange(self.length) <= position, 0, -np.inf).astype(np.float32)
        for each in self.weights:
            heads, _, depth = each.keys.shape
            query, key, value = (normed(x) @ each.given).reshape(3, heads, depth)
            each.keys[:, position], each.values[:, position] = key, value
            scores = query[:, None] @ each.keys.swapaxes(-1, -2) * depth**-0.5 + hidden
            raised = np.exp(scores - scores.max(-1, keepdims=True))
            seen = (raised / raised.sum(-1, keepdims=True)) @ each.values
            x = x + seen.reshape(1, -1) @ each.mixed
            x = x + np.maximum(normed(x) @ each.up, 0) @ each.down
        return x
