"""Modules against PyTorch's: results, gradients of inputs and parameters, buffers, names of states.

Skipped without PyTorch, except what needs no judge (test_modules.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor, nn

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

Make = Callable[[Any], Any]  # from torch.nn or ugpu.nn to a module


def randn(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def integers(*shape: int) -> Any:
    return torch.randint(0, 10, shape, generator=torch.Generator().manual_seed(1))


OPTIONS = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
CASES: dict[str, tuple[Make, list[Any]]] = {
    "linear": (lambda n: n.Linear(5, 7), [randn(3, 5)]),
    "bilinear": (lambda n: n.Bilinear(3, 4, 5), [randn(6, 3), randn(6, 4)]),
    "embedding": (lambda n: n.Embedding(10, 4, padding_idx=2), [integers(3, 5)]),
    **{
        f"conv{d}d": (lambda n, d=d: getattr(n, f"Conv{d}d")(4, 6, 3), [randn(2, 4, *[6] * d)])
        for d in (1, 2, 3)
    },
    **{
        f"conv{d}d options": (lambda n, d=d: getattr(n, f"Conv{d}d")(4, 6, 3, **OPTIONS),
                              [randn(2, 4, *[8] * d)])
        for d in (1, 2, 3)
    },
    **{
        f"conv_transpose{d}d": (
            lambda n, d=d: getattr(n, f"ConvTranspose{d}d")(4, 6, 3, output_padding=1, **OPTIONS),
            [randn(2, 4, *[4] * d)])
        for d in (1, 2, 3)
    },
    "same": (lambda n: n.Conv2d(2, 3, 3, padding="same", bias=False), [randn(1, 2, 5, 4)]),
    "batch_norm1d": (lambda n: n.BatchNorm1d(4), [randn(8, 4)]),
    "batch_norm2d": (lambda n: n.BatchNorm2d(4, momentum=None), [randn(3, 4, 5, 2)]),
    "layer_norm": (lambda n: n.LayerNorm((2, 6)), [randn(3, 2, 6)]),
    "rms_norm": (lambda n: n.RMSNorm(6), [randn(3, 6)]),
    "group_norm": (lambda n: n.GroupNorm(2, 4), [randn(3, 4, 5)]),
    "instance_norm": (lambda n: n.InstanceNorm2d(4, affine=True, track_running_stats=True),
                      [randn(2, 4, 5, 5)]),
    "max_pool": (lambda n: n.MaxPool2d(3, 2, 1), [randn(2, 3, 7, 7)]),
    "avg_pool": (lambda n: n.AvgPool2d(2), [randn(2, 3, 6, 6)]),
    "pool1d": (lambda n: n.Sequential(n.MaxPool1d(2), n.AvgPool1d(2)), [randn(2, 3, 8)]),
    "adaptive": (lambda n: n.AdaptiveAvgPool2d((3, 2)), [randn(2, 3, 7, 6)]),
    "prelu glu gelu": (lambda n: n.Sequential(n.PReLU(), n.GLU(), n.GELU(), n.Hardswish()),
                       [randn(3, 4)]),
    "activations": (lambda n: n.Sequential(n.ELU(0.7), n.LeakyReLU(0.2), n.SELU(), n.Softplus(2.0),
                                           n.Mish(), n.Hardtanh(0.1, 0.9), n.Softmax(dim=1)),
                    [randn(3, 4)]),
    "lstm": (lambda n: n.LSTM(5, 4, 2, bidirectional=True), [randn(3, 2, 5)]),
    "gru": (lambda n: n.GRU(5, 4, 2, batch_first=True), [randn(2, 3, 5)]),
    "rnn": (lambda n: n.RNN(5, 4, bias=False), [randn(3, 2, 5)]),
    "attention": (lambda n: n.MultiheadAttention(8, 2), [randn(5, 2, 8), randn(6, 2, 8),
                                                        randn(6, 2, 8)]),
    "attention sizes": (lambda n: n.MultiheadAttention(8, 2, kdim=5, vdim=3, batch_first=True),
                        [randn(2, 5, 8), randn(2, 6, 5), randn(2, 6, 3)]),
    "encoder": (lambda n: n.TransformerEncoderLayer(8, 2, 16, 0.0), [randn(5, 2, 8)]),
}  # fmt: skip


def called(name: str, module: Any, inputs: list[Any]) -> Any:
    more = {"need_weights": False} if name.startswith("attention") else {}
    result = module(*inputs, **more)
    return result[0] if isinstance(result, tuple) else result


def close(what: str, mine: Any, theirs: Any) -> None:
    assert mine.shape == tuple(theirs.shape), what
    wanted = theirs.detach().numpy()
    assert np.abs(mine.numpy() - wanted).max() <= 1e-4 * (1 + np.abs(wanted).max()), what


@pytest.mark.parametrize("name", CASES)
def test_module(name: str) -> None:
    make, given = CASES[name]
    torch.manual_seed(0)
    theirs, mine = make(torch.nn), make(nn)
    state = theirs.state_dict()
    assert list(mine.state_dict()) == list(state)
    mine.load_state_dict({key: value.numpy() for key, value in state.items()})
    inputs = [each.clone().requires_grad_(each.is_floating_point()) for each in given]
    own = [Tensor(each.numpy()) for each in given]
    for tensor, each in zip(own, given, strict=True):
        if each.is_floating_point():
            tensor.requires_grad_()
    wanted, found = called(name, theirs, inputs), called(name, mine, own)
    close("result", found, wanted)
    cotangent = torch.randn(wanted.shape)
    wanted.backward(cotangent)
    found.backward(Tensor(cotangent.numpy()))
    for tensor, each in zip(own, inputs, strict=True):
        if each.grad is not None:
            close("input", tensor.grad, each.grad)
    parameters = dict(mine.named_parameters())
    for key, parameter in theirs.named_parameters():
        if parameter.grad is not None:
            close(key, parameters[key].grad, parameter.grad)
    buffers = dict(mine.named_buffers())
    for key, buffer in theirs.named_buffers():
        close(key, buffers[key], buffer)
    close("in evaluation", called(name, mine.eval(), own), called(name, theirs.eval(), inputs))


@pytest.mark.parametrize("kind", ["padding", "bools", "floats", "causal"])
def test_attention_masks(kind: str) -> None:
    torch.manual_seed(0)
    theirs, mine = torch.nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2)
    mine.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    x = randn(4, 2, 8)
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    options = {
        "padding": {"key_padding_mask": torch.tensor([[False] * 3 + [True], [False] * 4])},
        "bools": {"attn_mask": causal},
        "floats": {"attn_mask": randn(4, 4)},
        "causal": {"attn_mask": causal, "is_causal": True},
    }[kind]
    wanted, _ = theirs(x, x, x, need_weights=False, **options)
    own = Tensor(x.numpy())
    given = {k: Tensor(v.numpy()) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    close(kind, mine(own, own, own, **given)[0], wanted)


def test_names_of_optimisers_states() -> None:
    """A state of PyTorch's AdamW goes on in ours."""
    from ugpu.compiler import optim

    data = [randn(3, 4), randn(5)]
    theirs = [torch.nn.Parameter(each.clone()) for each in data]
    mine = [nn.Parameter(each.numpy()) for each in data]
    one, two = torch.optim.AdamW(theirs, lr=0.1), optim.AdamW(mine, lr=0.3)
    for step in range(4):
        for parameter, own in zip(theirs, mine, strict=True):
            parameter.grad = torch.ones_like(parameter) * (step + 1)
            own.grad = Tensor(parameter.grad.numpy())
        one.step()
        if step == 1:
            with torch.no_grad():
                for parameter, own in zip(theirs, mine, strict=True):
                    nn.init._set(own, Tensor(parameter.numpy()))
            two.load_state_dict(one.state_dict())
        elif step > 1:
            two.step()
    for parameter, own in zip(theirs, mine, strict=True):
        close("parameter", own, parameter)
    state = two.state_dict()
    assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert state["state"][0]["step"].item() == 4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"lr": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2}),
        ("Adam", {"lr": 0.1, "weight_decay": 0.1}),
        ("AdamW", {"lr": 0.1}),
        ("AdamW", {"lr": 0.1, "amsgrad": True}),
        ("Muon", {"lr": 0.1}),
        ("Muon", {"lr": 0.1, "adjust_lr_fn": "match_rms_adamw", "nesterov": False}),
    ],
)
def test_optimiser(name: str, options: dict[str, Any]) -> None:
    from ugpu.compiler import optim

    data = [randn(6, 4), randn(3, 5)] + ([] if name == "Muon" else [randn(7)])
    theirs = [torch.nn.Parameter(each.clone()) for each in data]
    mine = [nn.Parameter(each.numpy()) for each in data]
    one, two = getattr(torch.optim, name)(theirs, **options), getattr(optim, name)(mine, **options)
    for step in range(4):
        for place, (parameter, own) in enumerate(zip(theirs, mine, strict=True)):
            torch.manual_seed(10 * step + place)
            parameter.grad = torch.randn(parameter.shape)
            own.grad = Tensor(parameter.grad.numpy())
        one.step()
        two.step()
    limit = 2e-2 if name == "Muon" else 1e-5  # Muon computes in bfloat16
    for parameter, own in zip(theirs, mine, strict=True):
        assert np.abs(own.numpy() - parameter.detach().numpy()).max() < limit


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("StepLR", {"step_size": 3, "gamma": 0.5}),
        ("MultiStepLR", {"milestones": [2, 5]}),
        ("ExponentialLR", {"gamma": 0.9}),
        ("LinearLR", {"total_iters": 4}),
        ("CosineAnnealingLR", {"T_max": 8, "eta_min": 0.01}),
        ("OneCycleLR", {"max_lr": 0.5, "total_steps": 9}),
        ("LambdaLR", {"factor": lambda n: 1 / (n + 1)}),
    ],
)
def test_schedule(name: str, options: dict[str, Any]) -> None:
    from ugpu.compiler import optim

    one = torch.optim.SGD([torch.nn.Parameter(randn(2))], lr=0.1)
    two = optim.SGD([nn.Parameter(np.zeros(2, np.float32))], lr=0.1)
    other = {"lr_lambda" if key == "factor" else key: value for key, value in options.items()}
    more = {"cycle_momentum": False} if name == "OneCycleLR" else {}
    theirs = getattr(torch.optim.lr_scheduler, name)(one, **other, **more)
    mine = getattr(optim, name)(two, **options)
    for _ in range(8):
        assert mine.get_last_lr() == pytest.approx(theirs.get_last_lr(), rel=1e-6)
        one.step()
        theirs.step()
        mine.step()


@pytest.mark.parametrize("norm", [2.0, float("inf"), 1.0])
def test_clipping(norm: float) -> None:
    from ugpu.compiler import optim

    data = [randn(3, 4), randn(5)]
    theirs = [torch.nn.Parameter(each.clone()) for each in data]
    mine = [nn.Parameter(each.numpy()) for each in data]
    for parameter, own in zip(theirs, mine, strict=True):
        parameter.grad = parameter.detach() * 3
        own.grad = Tensor(parameter.grad.numpy())
    wanted = torch.nn.utils.clip_grad_norm_(theirs, 1.5, norm)
    found = optim.clip_grad_norm_(mine, 1.5, norm)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    for parameter, own in zip(theirs, mine, strict=True):
        close("gradient", own.grad, parameter.grad)
