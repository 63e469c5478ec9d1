"""Losses and dropout, held against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ugpu.compiler import Tensor, jit
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Array = NDArray[Any]


def close(found: Tensor, wanted: Any, tolerance: float = 3e-6) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=tolerance, atol=tolerance)


def log_softmax(logits: Array, axis: int) -> Array:
    wide = logits.astype(np.float64)
    wide = wide - wide.max(axis, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis, keepdims=True))


def labelled(
    logs: Array, labels: Array, weight: Array | None, ignored: int, smoothing: float
) -> tuple[Array, Array]:
    """The loss of each label, and its weight, one by one; classes along axis 1."""
    losses, factors = np.zeros(labels.shape), np.zeros(labels.shape)
    classes = logs.shape[1]
    factor = np.ones(classes) if weight is None else weight.astype(np.float64)
    for at in np.ndindex(labels.shape):
        label = labels[at]
        if label == ignored:
            continue
        row = logs[(at[0], slice(None), *at[1:])]
        shared = -(row * factor).sum() * smoothing / classes if smoothing else 0.0
        losses[at] = -row[label] * factor[label] * (1 - smoothing) + shared
        factors[at] = factor[label]
    return losses, factors


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_cross_entropy_of_labels(cpu: Device, data: st.DataObject) -> None:
    rest = data.draw(st.sampled_from([(), (3,), (2, 3)]))
    batch, classes = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    logits = (random.normal(size=(batch, classes, *rest)) * 5).astype(np.float32)
    labels = random.integers(0, classes, (batch, *rest))
    ignored = data.draw(st.sampled_from([-100, 0]))
    labels[random.random(labels.shape) < 0.2] = ignored
    weight = random.random(classes).astype(np.float32) if data.draw(st.booleans()) else None
    smoothing = data.draw(st.sampled_from([0.0, 0.1]))
    losses, factors = labelled(log_softmax(logits, 1), labels, weight, ignored, smoothing)
    given_ = Tensor(logits, device=cpu), Tensor(labels, device=cpu)
    options: dict[str, Any] = {"ignore_index": ignored, "label_smoothing": smoothing}
    options["weight"] = None if weight is None else Tensor(weight, device=cpu)
    close(given_[0].cross_entropy(given_[1], **options, reduction="none"), losses)
    close(given_[0].cross_entropy(given_[1], **options, reduction="sum"), losses.sum(), 1e-5)
    with np.errstate(invalid="ignore"):
        wanted = losses.sum() / factors.sum()
    close(given_[0].cross_entropy(given_[1], **options), wanted, 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(cpu: Device, reduction: Any) -> None:
    random = np.random.default_rng(2)
    logits = (random.normal(size=(6, 40)) * 30).astype(np.float32)
    logits[0, :3] = [-np.inf, 200, 300]  # no overflow, and impossible classes
    labels = random.integers(0, 40, 6).astype(np.int32)
    labels[0] = 2
    labels[3] = -100
    losses, factors = labelled(log_softmax(logits, 1), labels, None, -100, 0)
    wanted = {"mean": losses.sum() / factors.sum(), "sum": losses.sum(), "none": losses}
    one, two = Tensor(logits, device=cpu), Tensor(labels, device=cpu)
    close(one.cross_entropy(two, reduction=reduction), wanted[reduction], 1e-5)
    close(one.log_softmax(1).nll_loss(two, reduction=reduction), wanted[reduction], 1e-5)
    chances = random.dirichlet(np.ones(40), 6).astype(np.float32)
    chances[0, 0] = 0
    logits[0, 0] = -50
    weight = random.random(40).astype(np.float32)
    logs, soft = log_softmax(logits, 1), chances.astype(np.float64) * 0.8 + 0.2 / 40
    apart = -(logs * soft * weight).sum(1)
    wanted = {"mean": apart.mean(), "sum": apart.sum(), "none": apart}
    found = Tensor(logits, device=cpu).cross_entropy(
        Tensor(chances, device=cpu),
        Tensor(weight, device=cpu),
        label_smoothing=0.2,
        reduction=reduction,
    )
    close(found, wanted[reduction], 1e-5)


def test_one_row_of_classes(cpu: Device) -> None:
    logits = np.array([1.0, -2.0, 0.5], np.float32)
    found = Tensor(logits, device=cpu).cross_entropy(Tensor(2, device=cpu))
    close(found, -log_softmax(logits, 0)[2])
    assert math.isnan(Tensor(logits, device=cpu).cross_entropy(Tensor(-100, device=cpu)).item())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_element_by_element(cpu: Device, reduction: Any) -> None:
    random = np.random.default_rng(4)
    collect = {"mean": np.mean, "sum": np.sum, "none": np.asarray}[reduction]
    chances = random.random((5, 9)).astype(np.float32)
    chances[0, :2] = 0, 1
    wanted = (random.random((5, 9)) < 0.5).astype(np.float32)
    wanted[1] = 0.25
    weight = random.random((5, 9)).astype(np.float32)
    logits = (random.normal(size=(5, 9)) * 40).astype(np.float32)
    p, t, w, x = (Tensor(each, device=cpu) for each in (chances, wanted, weight, logits))
    close(p.mse_loss(t, reduction), collect((chances - wanted) ** 2))
    close(p.l1_loss(t, reduction), collect(np.abs(chances - wanted)))
    with np.errstate(divide="ignore"):
        logs = [
            np.maximum(np.log(each.astype(np.float64)), -100) for each in (chances, 1 - chances)
        ]
    entropy = -(wanted * logs[0] + (1 - wanted) * logs[1]) * weight
    close(p.binary_cross_entropy(t, w, reduction), collect(entropy), 1e-5)
    positive = np.linspace(0.5, 3, 9).astype(np.float32)
    wide = logits.astype(np.float64)
    entropy = wanted * positive * np.logaddexp(0, -wide) + (1 - wanted) * np.logaddexp(0, wide)
    found = x.binary_cross_entropy_with_logits(
        t, w, positive_weight=Tensor(positive, device=cpu), reduction=reduction
    )
    close(found, collect(entropy * weight), 1e-5)


def test_refusals(cpu: Device) -> None:
    x = Tensor(np.zeros((4, 3), np.float32), device=cpu)
    with pytest.raises(BadArgument, match="cross_entropy: int64 labels of shape"):
        x.cross_entropy(Tensor([1, 2, 0], device=cpu))
    with pytest.raises(BadArgument, match="cross_entropy: shapes"):
        x.cross_entropy(Tensor([1.0, 2.0, 0.0], device=cpu))
    with pytest.raises(BadArgument, match="nll_loss: float32 labels"):
        x.nll_loss(x)
    with pytest.raises(BadArgument, match="mse_loss: shapes"):
        x.mse_loss(Tensor(np.zeros((4, 1), np.float32), device=cpu))
    unknown: Any = "avg"
    with pytest.raises(BadArgument, match=r"mse_loss: reduction must be .* got 'avg'"):
        x.mse_loss(x, unknown)
    with pytest.raises(BadArgument, match="weights"):
        x.cross_entropy(Tensor([1, 2, 0, 1], device=cpu), x)
    with pytest.raises(BadArgument, match="label_smoothing"):
        x.cross_entropy(Tensor([1, 2, 0, 1], device=cpu), label_smoothing=2)


# ---- dropout -----------------------------------------------------------------------------------


def test_dropout(cpu: Device) -> None:
    x = Tensor(np.ones((40, 50), np.float32), device=cpu)
    Tensor.manual_seed(7)
    found = x.dropout(0.25, training=True).numpy()
    Tensor.manual_seed(7)
    kept = Tensor.rand(40, 50, device=cpu).numpy() >= 0.25
    assert np.array_equal(found, np.where(kept, np.float32(1 / 0.75), 0))
    assert 0.7 < kept.mean() < 0.8
    for same in (x.dropout(0.25, training=False), x.dropout(0, training=True)):
        assert same is not x and np.array_equal(same.numpy(), x.numpy())
    assert not x.dropout(1, training=True).numpy().any()
    with pytest.raises(BadArgument, match="probability must be from 0 to 1, got 2"):
        x.dropout(2, training=True)


def test_dropout_in_a_recorded_function(cpu: Device) -> None:
    layer = jit(lambda x: x.dropout(0.5, training=True))
    x = Tensor(np.ones(200, np.float32), device=cpu)
    Tensor.manual_seed(3)
    recorded = [layer(x).numpy() for _ in range(5)]
    Tensor.manual_seed(3)
    for each in recorded:
        assert np.array_equal(each, x.dropout(0.5, training=True).numpy())
    assert len({each.tobytes() for each in recorded}) == 5
