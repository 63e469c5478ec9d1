"""Training on `cpu` beside PyTorch: forward and backward passes of single operations, a step of an
optimiser, and whole steps of the digits' network, of an encoder of MiniLM's size, and of a GPT.
Ours is recorded by `@jit`; PyTorch is as it is. Weights of the last two are PyTorch's initial
ones.

See bench_compiler_peers for how the turns are taken and what the ratios mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.bench.compiler.bench_compiler_peers import Work, _peer, _versus
from ugpu import hcq
from ugpu.compiler import Tensor, grad, jit, nn, optim
from ugpu.hcq.device.device import Device

PARAMETERS = 100  # of the optimiser's step
LAYER = 256  # rows and columns of each
SLOW_S = 300.0  # for a step on a busy host


def measure() -> list[dict[str, object]]:
    torch = _peer("torch")
    results: list[dict[str, object]] = []
    with hcq.open("cpu") as device:
        if torch is not None:
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        for name, shapes, function, theirs in _operations(torch):
            results += _operation(device, torch, name, shapes, function, theirs)
        results += _lookups(device, torch)
        results += _optimiser(device, torch)
        results += _digits(device, torch)
        results += _transformer(device, torch, MINILM)
        results += _transformer(device, torch, GPT)
    return results


Case = tuple[str, Sequence[tuple[int, ...]], Callable[..., Tensor], Callable[..., Any]]


def _operations(torch: Any) -> list[Case]:
    functional: Any = None if torch is None else torch.nn.functional
    heads = (4, 8, 256, 64)
    return [
        ("matmul 512", [(512, 512)] * 2, lambda x, y: x @ y, lambda x, y: x @ y),
        (
            "conv2d 3 x 3, 32 to 64 of 32^2, batch 8",
            [(8, 32, 32, 32), (64, 32, 3, 3)],
            lambda x, w: x.conv2d(w, padding=1),
            lambda x, w: functional.conv2d(x, w, padding=1),
        ),
        (
            "attention 4 x 8 x 256 x 64",
            [heads] * 3,
            lambda q, k, v: q.scaled_dot_product_attention(k, v),
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v),
        ),
        (
            "causal attention 1 x 8 x 2048 x 64",
            [(1, 8, 2048, 64)] * 3,
            lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        ),
        (
            "layer norm 4096 x 512",
            [(4096, 512), (512,), (512,)],
            lambda x, w, b: x.layernorm() * w + b,
            lambda x, w, b: functional.layer_norm(x, (512,), w, b),
        ),
    ]


def _operation(
    device: Device, torch: Any, name: str, shapes: Sequence[tuple[int, ...]],
    function: Callable[..., Tensor], theirs: Callable[..., Any],
) -> list[dict[str, object]]:  # fmt: skip
    """The result's gradient is random, and given to both."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    given = [Tensor(array, device=device) for array in arrays]
    shape = function(*given).shape
    cotangent = rng.standard_normal(shape, np.float32)
    weight = Tensor(cotangent, device=device)

    @jit
    def both(*inputs: Tensor) -> Any:
        return grad(lambda *xs: (function(*xs) * weight).sum(), range(len(inputs)))(*inputs)

    def ours() -> None:
        both(*given)
        device.synchronize()

    peers: dict[str, Work] = {}
    if torch is not None:
        leaves = [torch.from_numpy(array).requires_grad_() for array in arrays]
        back = torch.from_numpy(cotangent)
        peers["PyTorch"] = lambda: torch.autograd.grad(theirs(*leaves), leaves, back)
    return _named(_versus(f"forward and backward of {name}", _warm(ours), peers))


def _lookups(device: Device, torch: Any, count: int = 4096) -> list[dict[str, object]]:
    """The gradient of the table of an embedding."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((30_000, 384), np.float32)
    index, back = rng.integers(0, len(table), count), rng.standard_normal((count, 384), np.float32)
    given = [Tensor(array, device=device) for array in (table, index, back)]

    @jit
    def gradient(table: Tensor, index: Tensor, back: Tensor) -> Any:
        return grad(lambda table: (table[index] * back).sum())(table)

    def ours() -> None:
        gradient(*given)
        device.synchronize()

    peers: dict[str, Work] = {}
    if torch is not None:
        leaf = torch.from_numpy(table).requires_grad_()
        places, cotangent = torch.from_numpy(index), torch.from_numpy(back)

        def work() -> None:
            found = torch.nn.functional.embedding(places, leaf)
            torch.autograd.grad(found, leaf, cotangent)

        peers["PyTorch"] = work
    name = f"gradient of {count} lookups in a table of 30,000 x 384"
    return _named(_versus(name, _warm(ours), peers))


def _warm(work: Work) -> Work:
    """Compile and record before the turns."""
    for _ in range(3):
        work()
    return work


def _named(results: list[Any]) -> list[dict[str, object]]:
    return list(results)


def _optimiser(device: Device, torch: Any) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    shape = (LAYER, LAYER)
    arrays = [rng.standard_normal(shape, np.float32) for _ in range(PARAMETERS)]
    gradients = [rng.standard_normal(shape, np.float32) for _ in range(PARAMETERS)]
    parameters = [nn.Parameter(array, device=device) for array in arrays]
    optimizer = optim.AdamW(parameters)
    given = [Tensor(array, device=device) for array in gradients]

    @jit
    def step(gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    def ours() -> None:
        step(given)
        device.synchronize()

    peers: dict[str, Work] = {}
    if torch is not None:
        theirs = [torch.nn.Parameter(torch.from_numpy(array.copy())) for array in arrays]
        for parameter, array in zip(theirs, gradients, strict=True):
            parameter.grad = torch.from_numpy(array)
        peers["PyTorch"] = torch.optim.AdamW(theirs).step
    name = f"AdamW of {PARAMETERS} matrices of {LAYER}^2"
    found = _named(_versus(name, _warm(ours), peers))
    return [*found, {"name": f"{name}, kernels", "value": step.kernels, "unit": ""}]


def _digits(device: Device, torch: Any, batch: int = 64) -> list[dict[str, object]]:
    """A step of the network of examples/training/train_digits.py."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, 1, 8, 8), np.float32)
    y = rng.integers(0, 10, batch)

    def network(n: Any, **options: Any) -> Any:
        return n.Sequential(
            n.Conv2d(1, 16, 3, padding=1, **options), n.BatchNorm2d(16, **options), n.ReLU(),
            n.Conv2d(16, 32, 3, padding=1, **options), n.BatchNorm2d(32, **options), n.ReLU(),
            n.MaxPool2d(2), n.Flatten(), n.Dropout(0.3), n.Linear(512, 10, **options),
        )  # fmt: skip

    model = network(nn, device=device)
    optimizer = optim.AdamW(model.parameters())

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = model(x).cross_entropy(y)
        loss.backward()
        optimizer.step()
        return loss

    inputs = Tensor(x, device=device), Tensor(y, device=device)

    def ours() -> None:
        step(*inputs)
        device.synchronize()

    peers: dict[str, Work] = {}
    if torch is not None:
        other = network(torch.nn)
        theirs = torch.optim.AdamW(other.parameters())
        pictures, labels = torch.from_numpy(x), torch.from_numpy(y)

        def work() -> None:
            theirs.zero_grad()
            torch.nn.functional.cross_entropy(other(pictures), labels).backward()
            theirs.step()

        peers["PyTorch"] = work
    found = _named(
        _versus(f"training step of the digits' network, batch {batch}", _warm(ours), peers)
    )
    return [*found, {"name": "training step of the digits' network, kernels",
                     "value": step.kernels, "unit": ""}]  # fmt: skip


@dataclass(frozen=True)
class _Transformer:
    """Sizes of a model. classes: of each token for a causal model, else of each sequence."""

    name: str
    batch: int
    tokens: int
    width: int
    heads: int
    layers: int
    words: int
    classes: int
    causal: bool

    @property
    def title(self) -> str:
        sizes = f"{self.layers} layers of {self.width}, {self.batch} x {self.tokens}"
        return f"training step of {self.name}, {sizes}"

    def modules(self, n: Any, **options: Any) -> Any:
        """Build the model. n: our modules or PyTorch's."""
        sizes = (self.width, self.heads, 4 * self.width, 0.0, "gelu")
        layers = [n.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=self.causal,
                                            **options)
                  for _ in range(self.layers)]  # fmt: skip
        embedding = n.Embedding(self.words, self.width, **options)
        return n.ModuleList([embedding, *layers, n.Linear(self.width, self.classes, **options)])

    def scores(self, modules: Any, x: Any, **causal: Any) -> Any:
        first, *layers, last = modules
        hidden = first(x)
        for layer in layers:
            hidden = layer(hidden, **causal)
        return last(hidden).reshape(-1, self.classes) if self.causal else last(hidden.mean(1))

    def inputs(self) -> tuple[Any, Any]:
        rng, count = np.random.default_rng(0), self.batch * (self.tokens if self.causal else 1)
        words = rng.integers(0, self.words, (self.batch, self.tokens))
        return words, rng.integers(0, self.classes, count)


# an encoder that classifies sentences by the mean of their tokens, and a causal model of bytes
MINILM = _Transformer("MiniLM", 32, 128, 384, 12, 6, 30522, 2, False)
GPT = _Transformer("a GPT", 8, 128, 384, 6, 6, 256, 256, True)


def _transformer(device: Device, torch: Any, sizes: _Transformer) -> list[dict[str, object]]:
    arrays = sizes.inputs()
    model = sizes.modules(nn, device=device)
    peers: dict[str, Work] = {}
    if torch is not None:
        peers["PyTorch"] = _torch_step(torch, model, sizes, arrays)
    optimizer = optim.AdamW(model.parameters())
    causal = {"causal": True} if sizes.causal else {}

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = sizes.scores(model, x, **causal).cross_entropy(y)
        loss.backward()
        optimizer.step()
        return loss

    inputs = [Tensor(array, device=device) for array in arrays]

    def ours() -> None:
        step(*inputs)
        device.synchronize(SLOW_S)

    return _named(_versus(sizes.title, _warm(ours), peers, 3))


def _torch_step(torch: Any, model: Any, sizes: _Transformer, arrays: tuple[Any, Any]) -> Work:
    """Return PyTorch's step; our model gets its initial weights."""
    other = sizes.modules(torch.nn)
    model.load_state_dict({name: each.numpy() for name, each in other.state_dict().items()})
    optimizer = torch.optim.AdamW(other.parameters())
    x, y = (torch.from_numpy(array) for array in arrays)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(sizes.tokens)
    causal = {"src_mask": mask, "is_causal": True} if sizes.causal else {}

    def work() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(sizes.scores(other, x, **causal), y).backward()
        optimizer.step()

    return work
