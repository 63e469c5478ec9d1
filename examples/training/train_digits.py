"""Train a convolution network on handwritten digits, to 98.5% and more of unseen ones.

A step of training (forward, backward, AdamW) is recorded once and replayed for each batch. The
1,797 digits of 8 x 8 come with scikit-learn; without it, digits are drawn from a font, moved and
covered with noise. The loss of each epoch is plotted.

usage: python examples/training/train_digits.py [DEVICE] [EPOCHS]
"""

import importlib.util
import sys

import numpy as np

import ugpu
from ugpu import Tensor, nn, optim

BATCH, BARS = 64, " ▁▂▃▄▅▆▇█"
FONT = "e9999e4c444ee1168fe1711e22af22f8e11e68e99ef12448e9e99ee9711e"  # six rows of 4 bits each


def drawn(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return digits drawn from a font, [count, 8, 8] from 0 to 1, and their numbers."""
    font = np.reshape([[int(row, 16) >> n & 1 for n in (3, 2, 1, 0)] for row in FONT], (10, 6, 4))
    labels, pictures = rng.integers(0, 10, count), rng.normal(0, 0.1, (count, 8, 8))
    for picture, label in zip(pictures, labels, strict=True):
        down, across = rng.integers(0, (3, 5))
        picture[down : down + 6, across : across + 4] += font[label] * rng.uniform(0.6, 1.0)
    return np.clip(pictures, 0, 1), labels


def digits(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures [n, 1, 8, 8] of float32 and labels [n], in random order."""
    pictures, labels = drawn(1797, rng)
    if importlib.util.find_spec("sklearn") is not None:
        from sklearn.datasets import load_digits

        pictures, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    pictures = (pictures.reshape(-1, 1, 8, 8)[order] / pictures.max()).astype(np.float32)
    return pictures, labels[order].astype(np.int64)


def train(epochs: int, device: str = "cpu") -> tuple[float, list[float]]:
    """Return the share of unseen digits that are recognised, and the mean loss of each epoch."""
    rng = np.random.default_rng(0)
    Tensor.manual_seed(0)
    pictures, labels = digits(rng)
    seen = len(labels) * 4 // 5
    ugpu.set_default_device(device)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip
    optimizer = optim.AdamW(model.parameters(), weight_decay=0.02)
    schedule = optim.OneCycleLR(optimizer, 1e-2, epochs * (seen // BATCH) + 1)

    @ugpu.jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = model(x).cross_entropy(y, label_smoothing=0.05)
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for _ in range(epochs):
        found = []
        for rows in rng.permutation(seen)[: seen // BATCH * BATCH].reshape(-1, BATCH):
            found.append(step(Tensor(pictures[rows]), Tensor(labels[rows])))
            schedule.step()
        losses.append(float(np.mean([loss.item() for loss in found])))
    guessed = model.eval()(Tensor(pictures[seen:])).argmax(1).numpy()
    return float((guessed == labels[seen:]).mean()), losses


if __name__ == "__main__":
    device, epochs = (*sys.argv[1:], *("cpu", 10)[len(sys.argv) - 1 :])
    right, curve = train(int(epochs), device)
    bars = "".join(BARS[int(loss / max(curve) * (len(BARS) - 1))] for loss in curve)
    print("loss by epoch:", bars, f"{curve[-1]:.3f}")
    print(f"{right:.2%} of the unseen digits are recognised")
