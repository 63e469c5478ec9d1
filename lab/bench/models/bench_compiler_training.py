"""Training on `cpu` beside PyTorch: forward and backward passes of single operations, a step of an
optimiser, and a whole step of the digits' network. Ours is recorded by `@jit`; PyTorch is
as it is.

See bench_compiler_peers for how the turns are taken and what the ratios mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lab.bench.compiler.bench_compiler_peers import Work, _peer, _versus
from ugpu import hcq
from ugpu.compiler import Tensor, grad, jit, nn, optim
from ugpu.hcq.device.device import Device

PARAMETERS = 100  # of the optimiser's step
LAYER = 256  # rows and columns of each


def measure() -> list[dict[str, object]]:
    torch = _peer("torch")
    results: list[dict[str, object]] = []
    with hcq.open("cpu") as device:
        if torch is not None:
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        for name, shapes, function, theirs in _operations(torch):
            results += _operation(device, torch, name, shapes, function, theirs)
        results += _optimiser(device, torch)
        results += _digits(device, torch)
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
