"""Train a small GPT on the characters of a text, and let it write: loss falls, words appear.

Two layers of causal attention learn to predict the next character of README.md. A step of training
is recorded once and replayed; so is the prediction that writes. A bar shows the progress on a
terminal; the losses are plotted there, and as a picture if a file is named.

usage: python examples/training/character_model.py [DEVICE] [STEPS] [CURVE.svg]
"""

import sys
from pathlib import Path

import numpy as np

import ugpu
from ugpu import Tensor, nn, optim

CONTEXT, WIDTH, HEADS, LAYERS, BATCH, WRITTEN, BARS = 64, 64, 4, 2, 16, 160, " ▁▂▃▄▅▆▇█"
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1" width="640">
<polyline fill="none" stroke="#06c" stroke-width="0.005" points="{}"/></svg>"""
text = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
letters, numbers = np.unique(list(text), return_inverse=True)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(letters), WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True,
                                       norm_first=True) for _ in range(LAYERS)
        )  # fmt: skip
        self.last = nn.Linear(WIDTH, len(letters))

    def forward(self, x: Tensor) -> Tensor:
        x = self.letters(x) + self.places.weight
        for layer in self.layers:
            x = layer(x, causal=True)
        return self.last(x)


def train(steps: int) -> tuple[Model, list[float]]:
    """Return the model and the loss of each step, in bits of a character."""
    rng, model, losses = np.random.default_rng(0), Model(), []
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)

    @ugpu.jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = model(x).reshape(-1, len(letters)).cross_entropy(y.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss

    for number in range(steps):
        starts = rng.integers(0, len(numbers) - CONTEXT, (BATCH, 1)) + np.arange(CONTEXT)
        losses.append(step(Tensor(numbers[starts]), Tensor(numbers[starts + 1])).item() / np.log(2))
        if sys.stderr.isatty():
            print(f"\r{'█' * (32 * (number + 1) // steps):32}", end="", file=sys.stderr)
    return model, losses


def write(model: Model, count: int) -> str:
    """Return characters that the model finds likely after the text's beginning."""
    rng, known = np.random.default_rng(1), list(numbers[:CONTEXT])
    predict = ugpu.jit(lambda x: (model(x)[0, -1] / 0.7).softmax(0))  # 0.7: rather likely ones
    for _ in range(count):
        chances = predict(Tensor(np.array([known[-CONTEXT:]]))).numpy().astype(np.float64)
        known.append(int(rng.choice(len(letters), p=chances / chances.sum())))
    return "".join(letters[number] for number in known[CONTEXT:])


if __name__ == "__main__":
    device, steps, picture = (*sys.argv[1:], *("cpu", 60, "")[len(sys.argv) - 1 :])
    ugpu.set_default_device(device), Tensor.manual_seed(0)
    model, curve = train(int(steps))
    means = [part.mean() for part in np.array_split(curve, min(32, len(curve)))]
    bars = "".join(BARS[int(loss / max(means) * (len(BARS) - 1))] for loss in means)
    print(f"\nbits of a character: {bars} {means[-1]:.2f}\n{write(model, WRITTEN)}")
    if picture:
        points = [f"{n / len(curve):.4f},{1 - y / max(curve):.4f}" for n, y in enumerate(curve)]
        Path(picture).write_text(SVG.format(" ".join(points)))
