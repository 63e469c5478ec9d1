"""Every module of `ugpu.nn` on several devices: outputs and gradients are those of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import nn
from ugpu.compiler.sharding.sharded import Sharded
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device

BATCH = 5  # 3 and 2 on two devices
Make = Callable[[], Any]
# a module and the shape of its input; the batch is axis 0 unless "second" is in the name
MODULES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "LSTM second": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True), (2, BATCH, 3)),
    "LSTM dropout": (lambda: nn.LSTM(3, 4, 2, batch_first=True, dropout=0.5), (BATCH, 2, 3)),
    "GRU": (lambda: nn.GRU(3, 4, batch_first=True), (BATCH, 3, 3)),
    "RNN second": (lambda: nn.RNN(3, 4, bias=False), (3, BATCH, 3)),
    "Dropout": (lambda: nn.Dropout(0.4), (BATCH, 3)),
    "Dropout1d": (lambda: nn.Dropout1d(0.4), (BATCH, 6, 3)),
    "Dropout2d": (lambda: nn.Dropout2d(0.4), (BATCH, 6, 2, 2)),
    "Dropout3d": (lambda: nn.Dropout3d(0.4), (BATCH, 6, 2, 1, 2)),
    "Linear": (lambda: nn.Linear(3, 4), (BATCH, 3)),
    "LayerNorm": (lambda: nn.LayerNorm(3), (BATCH, 3)),
    "RMSNorm": (lambda: nn.RMSNorm(3), (BATCH, 3)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (BATCH, 4, 3)),
    "BatchNorm": (lambda: nn.BatchNorm2d(4), (BATCH, 4, 3, 2)),
    "InstanceNorm": (lambda: nn.InstanceNorm2d(4, affine=True), (BATCH, 4, 3, 2)),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (BATCH, 3, 6)),
    "Conv2d": (lambda: nn.Conv2d(2, 4, 3), (BATCH, 2, 5, 5)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (BATCH, 2, 3, 3, 3)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 2, 3, stride=2), (BATCH, 3, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 2, 2), (BATCH, 3, 3, 3)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 2, 2), (BATCH, 2, 2, 2, 2)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), (BATCH, 3, 5, 4)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3), (BATCH, 3, 7)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (BATCH, 3, 4, 4)),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), (BATCH, 3, 4)),
    "GLU": (lambda: nn.GLU(), (BATCH, 6)),
    "PReLU": (lambda: nn.PReLU(3), (BATCH, 3)),
    "Softmax": (lambda: nn.Softmax(-1), (BATCH, 3)),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (BATCH, 4, 8),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def two() -> Iterator[list[Device]]:
    with hcq.open("cpu") as one, hcq.open("cpu") as other:
        yield [one, other]


def run(module: Any, x: Any) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """Return the output, also of the last states, and the gradients of the parameters."""
    Tensor.manual_seed(11)
    x.requires_grad_()
    made = module(x)
    outputs = []
    while isinstance(made, tuple):  # outputs and states
        outputs.append(made[0])
        made = made[1] if len(made) > 1 else None
    outputs += [] if made is None else [made]
    total = sum((each.square().sum() for each in outputs[1:]), outputs[0].square().sum())
    total.backward()
    gradients = [x.grad, *(each.grad for each in module.parameters())]
    if isinstance(x, Sharded):
        assert isinstance(outputs[0], Sharded) and outputs[0].axis is not None
    return outputs[0].detach().numpy(), [each.numpy() for each in gradients]


SLOW = ("LSTM second", "LSTM dropout", "GRU", "TransformerEncoderLayer", "ConvTranspose3d")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in MODULES],
)
def test_a_module(two: list[Device], name: str) -> None:
    make, shape = MODULES[name]
    array = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    results = []
    for sharded in (False, True):
        Tensor.manual_seed(5)
        module = make().to(two[0])
        x = Tensor(array, device=two[0])
        axis = 1 if "second" in name else 0
        given = (module.shard(two), x.shard(two, axis)) if sharded else (module, x)
        results.append(run(*given))
    (expected, slopes), (output, same) = results
    np.testing.assert_allclose(output, expected, rtol=2e-5, atol=2e-6)
    for one, other in zip(slopes, same, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_modules_of_two_inputs_and_tables(two: list[Device]) -> None:
    rng = np.random.default_rng(4)
    one, other = (rng.normal(size=(BATCH, n)).astype(np.float32) for n in (3, 4))
    index = np.array([[0, 2], [1, 1], [2, 0], [3, 2], [0, 0]])
    attended = rng.normal(size=(BATCH, 4, 8)).astype(np.float32)
    cases: list[tuple[Make, list[np.ndarray[Any, Any]], dict[str, Any]]] = [
        (lambda: nn.Bilinear(3, 4, 2), [one, other], {}),
        (lambda: nn.Embedding(4, 3, padding_idx=2), [index], {}),
        (lambda: nn.MultiheadAttention(8, 2, batch_first=True), [attended] * 3, {}),
        (lambda: nn.MultiheadAttention(8, 2, batch_first=True), [attended] * 3,
         {"is_causal": True}),
    ]  # fmt: skip
    for make, arrays, options in cases:
        results = []
        for sharded in (False, True):
            Tensor.manual_seed(5)
            module = make().to(two[0])
            given: list[Any] = [Tensor(each, device=two[0]) for each in arrays]
            if sharded:
                module, given = module.shard(two), [each.shard(two, 0) for each in given]
            made = module(*given, **options)
            made = made[0] if isinstance(made, tuple) else made
            made.square().sum().backward()
            results.append([made.detach().numpy(), *(p.grad.numpy() for p in module.parameters())])
        for expected, same in zip(*results, strict=True):
            np.testing.assert_allclose(same, expected, rtol=2e-4, atol=2e-5)
        if make is cases[1][0]:
            assert (results[1][1][2] == 0).all()
