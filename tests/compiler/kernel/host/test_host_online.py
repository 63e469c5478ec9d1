"""Softmax of rows too long to be held: one pass for the maximum and the sum, around its blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.compiler.compiler_cases import kernels_of
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.kernel.host import online
from ugpu.compiler.schedule import split
from ugpu.hcq.device.device import Device

BLOCK = 32
SIZES = [31, 32, 33, 64, 95, 300]  # of rows: below, at and above whole blocks, and many
WORKS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "softmax": (lambda x: x.softmax(-1), lambda x: _weights(x) / _total(x)),
    "log softmax": (lambda x: x.log_softmax(-1), lambda x: np.log(_weights(x) / _total(x))),
    "logsumexp": (
        lambda x: (x - x.max(-1, True)).exp().sum(-1).log() + x.max(-1),
        lambda x: np.log(_total(x))[..., 0] + x.max(-1),
    ),
    "weighted": (
        lambda x: ((x - x.max(-1, True)).exp() * x).sum(-1, True) + (x - x.max(-1, True)).exp(),
        lambda x: (_weights(x) * x).sum(-1, keepdims=True) + _weights(x),
    ),
    "of a function": (
        lambda x: (x * 0.5 - x.abs()).softmax(-1),
        lambda x: _weights(x * 0.5 - abs(x)) / _total(x * 0.5 - abs(x)),
    ),
    "flipped": (lambda x: x.softmax(-1).flip(-1), lambda x: (_weights(x) / _total(x))[..., ::-1]),
}


def _weights(x: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.exp(x - x.max(-1, keepdims=True))
    return weights


def _total(x: np.ndarray) -> np.ndarray:
    total: np.ndarray = _weights(x).sum(-1, keepdims=True)
    return total


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "HELD_BYTES", 0)
    monkeypatch.setattr(online, "BLOCK", BLOCK)


def _rows(size: int) -> np.ndarray:
    """Rows whose maxima come in the first, the last and each block."""
    x = np.random.default_rng(size).normal(0, 3, (7, size)).astype(np.float32)
    x[0], x[1] = np.linspace(-200, 100, size), np.linspace(100, -200, size)
    x[2, size // 2], x[3, size - 1], x[4, 0] = 80, 80, 80
    return x


@pytest.mark.parametrize("name", sorted(WORKS))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("short")
def test_as_numpy(cpu: Device, name: str, size: int) -> None:
    ours, theirs = WORKS[name]
    x = _rows(size)
    result = ours(Tensor(x, device=cpu))
    (kernel,) = kernels_of(result.node, cpu.target)
    assert "before" in [memory.name for memory in kernel.locals]
    with np.errstate(divide="ignore"):
        wanted = theirs(x.astype(np.float64))
    if name == "log softmax":
        wanted = np.maximum(wanted, -1e3)
    np.testing.assert_allclose(result.numpy(), wanted, 3e-6, 3e-6)


def test_rows_longer_than_a_block(cpu: Device) -> None:
    """Shorter ones are held on the stack, as are those with other values worth it."""
    for size, function, passes in (
        (online.BLOCK, Tensor.softmax, 3), (online.BLOCK + 1, Tensor.softmax, 2),
        (online.BLOCK + 1, lambda x: (x * 0.5 - x.abs()).softmax(), 3),
    ):  # fmt: skip
        x = _rows(size)[:2] / 300
        result = function(Tensor(x, device=cpu))
        kernel = kernels_of(result.node, cpu.target)[-1]
        held = {memory.name for memory in kernel.locals}
        assert ("before" in held) == (passes == 2), held
        wide = x.astype(np.float64)
        wide = wide * 0.5 - abs(wide) if function is not Tensor.softmax else wide
        np.testing.assert_allclose(result.numpy(), _weights(wide) / _total(wide), 3e-6)


@pytest.mark.usefixtures("short")
def test_infinities_and_not_numbers(cpu: Device) -> None:
    x = np.zeros((9, 100), np.float32)
    x[0, 3], x[1, 70], x[2, 7], x[3] = np.nan, np.inf, -np.inf, -np.inf
    x[4, :50], x[5, 50:], x[6, 1:], x[7, :99] = (-np.inf,) * 4
    x[8] = np.finfo(np.float32).min
    found = Tensor(x, device=cpu).softmax().numpy()
    with np.errstate(invalid="ignore"):
        wanted = _weights(x) / _total(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.usefixtures("short")
def test_types_and_writes_over_the_input(cpu: Device) -> None:
    wide = _rows(75).astype(np.float16).astype(np.float64)
    x = Tensor(wide.astype(np.float16), device=cpu)
    np.testing.assert_allclose(x.softmax().numpy(), _weights(wide) / _total(wide), 2e-3, 2e-3)
    y = Tensor(wide.astype(np.float32), device=cpu)
    y[:] = y.softmax()
    np.testing.assert_allclose(y.numpy(), _weights(wide) / _total(wide), 3e-6, 3e-6)


def test_few_blocks(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of more than BLOCKS blocks has longer ones."""
    monkeypatch.setattr(online, "HELD_BYTES", 0)
    monkeypatch.setattr(online, "BLOCK", 4)
    monkeypatch.setattr(online, "BLOCKS", 3)
    x = _rows(100)
    found = Tensor(x, device=cpu).softmax()
    (kernel,) = kernels_of(found.node, cpu.target)
    assert [memory.count for memory in kernel.locals if memory.name == "scales"] == [3]
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found.numpy(), _weights(wide) / _total(wide), 3e-6, 3e-6)


@pytest.mark.parametrize(
    ("rows", "units", "whole"),
    [(1, 1, True), (3, 1, True), (3, 2, False), (4, 2, True), (7, 2, False), (9, 2, True)],
)
def test_long_rows_are_whole_where_all_threads_have_some(
    rows: int, units: int, whole: bool
) -> None:
    x = np.random.default_rng(rows).normal(0, 3, (rows, split.LONG + 1)).astype(np.float32)
    wide = x.astype(np.float64)
    with hcq.open("cpu", threads=units) as device:
        found = Tensor(x, device=device).softmax()
        assert (len(kernels_of(found.node, device.target)) == 1) == whole
        np.testing.assert_allclose(found.numpy(), _weights(wide) / _total(wide), 3e-6, 1e-9)
