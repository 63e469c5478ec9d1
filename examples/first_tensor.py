"""A first tensor: the same expression on a device and in NumPy.

usage: python examples/first_tensor.py [DEVICE]
"""

import sys

import numpy as np

import ugpu

rng = np.random.default_rng(0)
scores = rng.standard_normal((256, 256), dtype=np.float32)

with ugpu.open(sys.argv[1] if len(sys.argv) > 1 else "virtual:navi31") as gpu:
    x = ugpu.Tensor(scores, device=gpu)
    y = (x @ x).softmax(axis=-1).sum(axis=0)  # nothing has run yet
    result = y.numpy()  # kernels are compiled, launched and awaited

products = scores @ scores
exponentials = np.exp(products - products.max(axis=-1, keepdims=True))
expected = (exponentials / exponentials.sum(axis=-1, keepdims=True)).sum(axis=0)
assert np.allclose(result, expected, rtol=1e-3, atol=1e-4)
print(f"largest difference from NumPy: {np.abs(result - expected).max():.1e}")
