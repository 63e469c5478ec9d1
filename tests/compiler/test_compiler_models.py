"""Whole networks: repeated structure is compiled once, few kernels per layer, right results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.compiler import models
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import kernel_log, runtime_of, use_cache
from ugpu.compiler.schedule.group import describe
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device


def maker(device: Device, seed: int = 0) -> Callable[..., Tensor]:
    random = np.random.default_rng(seed)

    def make(*shape: int) -> Tensor:
        return Tensor(random.normal(0, 0.3, shape).astype(np.float32), device=device)

    return make


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Device]:
    with hcq.open("cpu", threads=2) as device:
        use_cache(device, tmp_path)
        yield device


def small(make: Callable[..., Any], layers: int) -> Any:
    return models.transformer(make, layers, width=32, heads=2, length=16)


def test_layers_are_compiled_once(fresh: Device) -> None:
    with kernel_log() as first:
        small(maker(fresh), 2).realize()
    with kernel_log() as more:
        small(maker(fresh), 9).realize()
    assert 5 <= len(first) <= 12 and more == []


def test_a_layer_is_few_kernels(fresh: Device) -> None:
    make = maker(fresh)
    counts = [len(schedule([small(make, layers).node])) for layers in (1, 2, 3)]
    assert counts[2] - counts[1] == counts[1] - counts[0] <= 10
    names = [describe(group) for group in schedule([small(make, 1).node])]
    # attention is one kernel, each of the three norms is one
    assert sum("max" in name for name in names) == 1
    assert sum(name.startswith("sum") for name in names) <= 3


def test_preparing_compiles_and_runs_nothing(fresh: Device) -> None:
    network = small(maker(fresh), 1)
    expected = len(schedule([network.node]))
    with kernel_log() as compiled:
        assert runtime_of(fresh).prepare([network.node]) == expected
    assert compiled and network.node.storage is None
    with kernel_log() as compiled:
        network.realize()
    assert compiled == [] and runtime_of(fresh).prepare([network.node]) == 0


def test_a_transformer_agrees_with_numpy_and_between_devices(fresh: Device) -> None:
    with hcq.open("virtual:navi31") as gpu:
        use_cache(gpu, None)
        results = [small(maker(device), 2).numpy() for device in (fresh, gpu)]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(results[0], small(_numpy_maker(), 2).array, rtol=1e-3, atol=1e-3)


class _Array:
    """NumPy behind the methods that the networks use."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array, np.float64)
        self.shape = self.array.shape

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> _Array:
        return _Array(operation(self.array, other.array if isinstance(other, _Array) else other))

    def __add__(self, other: Any) -> _Array:
        return self._with(other, np.add)

    def __sub__(self, other: Any) -> _Array:
        return self._with(other, np.subtract)

    def __mul__(self, other: Any) -> _Array:
        return self._with(other, np.multiply)

    def __truediv__(self, other: Any) -> _Array:
        return self._with(other, np.divide)

    def __matmul__(self, other: Any) -> _Array:
        return self._with(other, np.matmul)

    def __getitem__(self, index: Any) -> _Array:
        return _Array(self.array[index])

    def sum(self, axis: int) -> _Array:
        return _Array(self.array.sum(axis))

    def reshape(self, *shape: int) -> _Array:
        return _Array(self.array.reshape(shape))

    def permute(self, *axes: int) -> _Array:
        return _Array(self.array.transpose(axes))

    def transpose(self, first: int, second: int) -> _Array:
        return _Array(self.array.swapaxes(first, second))

    def sqrt(self) -> _Array:
        return _Array(np.sqrt(self.array))

    def sigmoid(self) -> _Array:
        return _Array(1 / (1 + np.exp(-self.array)))

    def softmax(self, axis: int) -> _Array:
        raised = np.exp(self.array - self.array.max(axis, keepdims=True))
        return _Array(raised / raised.sum(axis, keepdims=True))


def _numpy_maker() -> Callable[..., _Array]:
    random = np.random.default_rng(0)
    return lambda *shape: _Array(random.normal(0, 0.3, shape).astype(np.float32))
