"""Scaling of losses: as PyTorch's GradScaler, in training in float16, and in a recorded step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor, jit, nn, optim
from ugpu.hcq.errors import BadArgument

OPTIMIZERS: dict[str, tuple[Callable[[Any], optim.Optimizer], str, dict[str, Any]]] = {
    "AdamW": (lambda p: optim.AdamW(p, lr=0.1), "AdamW", {"lr": 0.1}),
    "SGD": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), "SGD", {"lr": 0.1, "momentum": 0.9}),
    "offloaded": (lambda p: optim.AdamW(p, lr=0.1, offload=True), "AdamW", {"lr": 0.1}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_and_factors_are_pytorchs(name: str) -> None:
    """Of twelve steps, four have a gradient that is not finite."""
    torch = pytest.importorskip("torch")
    make, theirs, options = OPTIMIZERS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((3, 2), np.float32), rng.standard_normal(5, np.float32)]
    mine = [nn.Parameter(each) for each in arrays]
    other = [torch.nn.Parameter(torch.from_numpy(each.copy())) for each in arrays]
    own, judge = make(mine), getattr(torch.optim, theirs)(other, **options)
    settings = {"init_scale": 1024.0, "growth_interval": 3}
    scaler, reference = optim.GradScaler(**settings), torch.amp.GradScaler("cpu", **settings)
    reference.scale(torch.ones(1))  # makes its factor
    for step in range(12):
        gradients = [rng.standard_normal(each.shape, np.float32) * 1024 for each in arrays]
        if step in (2, 3, 8, 11):
            gradients[step % 2].reshape(-1)[step % 5] = [np.inf, np.nan, -np.inf][step % 3]
        for parameter, twin, gradient in zip(mine, other, gradients, strict=True):
            parameter.grad = Tensor(gradient)
            twin.grad = torch.from_numpy(gradient.copy())
        if step % 2:
            scaler.unscale_(own)
            optim.clip_grad_value_(mine, 0.7)
            reference.unscale_(judge)
            torch.nn.utils.clip_grad_value_(other, 0.7)
        scaler.step(own)
        scaler.update()
        reference.step(judge)
        reference.update()
        assert scaler.get_scale() == reference.get_scale(), step
        for parameter, twin in zip(mine, other, strict=True):
            np.testing.assert_allclose(parameter.numpy(), twin.detach().numpy(), 2e-6, 2e-6)
    assert scaler.state_dict() == reference.state_dict()
    again = optim.GradScaler()
    again.load_state_dict(reference.state_dict())
    assert again.state_dict() == reference.state_dict()


def trained(scaled: bool, wrap: Callable[[Any], Any]) -> tuple[list[float], float, Any]:
    """Train a network in float16 whose gradients are below float16's least number; return the
    losses, the factor and the weights."""
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((32, 8), np.float32)
    wanted = (inputs @ rng.standard_normal((8, 1), np.float32)) * 1e-3
    Tensor.manual_seed(3)
    first, second = nn.Linear(8, 16), nn.Linear(16, 1)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = optim.Adam(parameters, lr=3e-3, eps=1e-16)
    scaler = optim.GradScaler(init_scale=2.0**60, growth_interval=25, enabled=scaled)

    def half(layer: Any, x: Tensor) -> Tensor:
        product: Tensor = x.half() @ layer.weight.half().transpose(0, 1)
        return product + layer.bias.half()

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = (half(second, half(first, x).tanh()).float() - y).square().mean() * 1e-9
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    run = wrap(step)
    losses = [run(Tensor(inputs), Tensor(wanted)).item() for _ in range(60)]
    return losses, scaler.get_scale(), first.weight.numpy()


def test_training_in_float16_needs_it() -> None:
    losses, factor, weights = trained(True, lambda step: step)
    assert losses[-1] < 0.05 * losses[0]
    assert 2.0**10 < factor < 2.0**60  # it began too large, and has found a factor that fits
    assert np.isfinite(weights).all()
    plain, _, _ = trained(False, lambda step: step)
    assert plain[-1] > 0.5 * plain[0]  # the gradients are zero


def test_a_recorded_step_equals_the_plain_one() -> None:
    plain, recorded = trained(True, lambda step: step), trained(True, jit)
    assert plain[0] == recorded[0] and plain[1] == recorded[1]
    assert np.array_equal(plain[2], recorded[2])


def test_what_it_refuses() -> None:
    parameter = nn.Parameter(np.ones(3, np.float32))
    optimizer, scaler = optim.SGD([parameter]), optim.GradScaler()
    with pytest.raises(BadArgument, match=r"update\(\) without"):
        scaler.update()
    with pytest.raises(BadArgument, match="expected parameters with gradients"):
        scaler.step(optimizer)
    parameter.grad = Tensor(np.ones(3, np.float32))
    scaler.unscale_(optimizer)
    with pytest.raises(BadArgument, match=r"unscale_\(\) was called already"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(BadArgument, match=r"step\(\) was called already"):
        scaler.step(optimizer)
    scaler.update(8.0)
    assert scaler.get_scale() == 8.0
    with pytest.raises(BadArgument, match="growth_factor above 1"):
        optim.GradScaler(growth_factor=0.5)
    with pytest.raises(BadArgument, match="the state lacks"):
        scaler.load_state_dict({"scale": 1.0})
