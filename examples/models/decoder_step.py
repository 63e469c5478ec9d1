"""One step of a decoder: a token attends to a cache of keys and values, which grows in place.

usage: python examples/models/decoder_step.py [DEVICE]
"""

import sys

import numpy as np

import ugpu

HEADS, DEPTH, LONGEST = 4, 16, 32
WIDTH = HEADS * DEPTH
rng = np.random.default_rng(0)
matrices = {name: rng.standard_normal((WIDTH, WIDTH), dtype="f4") / 8 for name in "qkvo"}
tokens = rng.standard_normal((6, WIDTH), dtype="f4")

with ugpu.open(sys.argv[1] if len(sys.argv) > 1 else "cpu") as gpu:
    weights = {name: ugpu.Tensor(array, device=gpu) for name, array in matrices.items()}
    keys = ugpu.Tensor.zeros(LONGEST, WIDTH, device=gpu).realize()
    values = ugpu.Tensor.zeros(LONGEST, WIDTH, device=gpu).realize()

    def heads(x: ugpu.Tensor) -> ugpu.Tensor:
        return x.reshape(-1, HEADS, DEPTH).permute(1, 0, 2)

    def step(x: ugpu.Tensor, length: int) -> ugpu.Tensor:
        """x: [1, WIDTH], the token at position `length`; appends to the cache."""
        keys[length : length + 1] = x @ weights["k"]
        values[length : length + 1] = x @ weights["v"]
        seen = slice(0, length + 1)
        scores = heads(x @ weights["q"]) @ heads(keys[seen]).permute(0, 2, 1)
        mixed = (scores * DEPTH**-0.5).softmax(axis=-1) @ heads(values[seen])
        return x + mixed.permute(1, 0, 2).reshape(1, WIDTH) @ weights["o"]

    outputs = [step(ugpu.Tensor(tokens[i : i + 1], device=gpu), i).numpy() for i in range(6)]

# The same, all tokens at once, with a causal mask, in NumPy.
q, k, v = ((tokens @ matrices[name]).reshape(6, HEADS, DEPTH).swapaxes(0, 1) for name in "qkv")
scores = q @ k.swapaxes(1, 2) * DEPTH**-0.5 + np.triu(np.full((6, 6), -np.inf), 1)
shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
mixed = (shares / shares.sum(axis=-1, keepdims=True)) @ v
expected = tokens + mixed.swapaxes(0, 1).reshape(6, WIDTH) @ matrices["o"]
assert np.allclose(np.concatenate(outputs), expected, rtol=1e-3, atol=1e-4)
print(f"6 tokens, largest difference: {np.abs(np.concatenate(outputs) - expected).max():.1e}")
