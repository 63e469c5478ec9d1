"""Train a network on two devices and on one: the losses are the same.

Each device has the whole network and half of each batch; `backward` sums the gradients of both.
Batches of 30 become 15 and 15, and the last one of 25 becomes 13 and 12.

usage: python examples/training/two_devices.py [DEVICE DEVICE]
"""

import sys
from contextlib import ExitStack

import numpy as np

import ugpu
from ugpu import Tensor, nn, optim

BATCH, EPOCHS = 30, 3


def spirals(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points of two spirals, [count, 2], and the spiral of each."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, count)
    angle = rng.uniform(0.5, 6, count)
    points = np.stack([np.cos(angle + labels * np.pi), np.sin(angle + labels * np.pi)], 1)
    return (points * angle[:, None] / 6).astype(np.float32), labels


def train(devices: list[ugpu.Device]) -> list[float]:
    """Return the mean loss of each epoch."""
    Tensor.manual_seed(0)
    points, labels = spirals(2 * BATCH - 5)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 2))
    model.to(devices[0]).shard(devices)
    optimizer = optim.AdamW(model.parameters(), lr=0.02)
    means = []
    for _ in range(EPOCHS):
        losses = []
        for start in range(0, len(labels), BATCH):
            part = slice(start, start + BATCH)
            x = Tensor(points[part], device=devices[0]).shard(devices, axis=0)
            y = Tensor(labels[part], device=devices[0]).shard(devices, axis=0)
            loss = model(x).cross_entropy(y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        means.append(float(np.mean(losses)))
    return means


if __name__ == "__main__":
    names = sys.argv[1:] or ["virtual:navi31", "virtual:navi31"]
    with ExitStack() as stack:
        devices = [stack.enter_context(ugpu.open(name)) for name in names]
        for used in (devices[:1], devices):
            losses = train(used)
            listed = " ".join(f"{loss:.6f}" for loss in losses)
            peaks = [f"{each.memory_peak(restart=True) / 1024:.0f} KiB" for each in used]
            print(f"{len(used)} x {names[0]}: loss {listed}; memory {', '.join(peaks)}")
