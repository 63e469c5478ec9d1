"""Long rows of values on the host by quicksort, held against NumPy's stable sort, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compiler.methods.order.test_compiler_sorting import falling, numbers
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import ALL
from ugpu.compiler.graph import along
from ugpu.compiler.kernel.host.sorting import quicksort, values
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device

Array = NDArray[Any]
# of places 0 to n - 1: rows that divide badly, or do not divide at all
PATTERNS: dict[str, Callable[[Array], Array]] = {
    "rising": lambda at: at,
    "falling": lambda at: -at,
    "a pipe": lambda at: np.minimum(at, len(at) - at),
    "a saw": lambda at: at % 29,
    "alike": lambda at: at * 0 + 3,
    "two": lambda at: at // 900,
    "one above": lambda at: (at == 500) * 5,
    "one below": lambda at: -5 * (at == 1),
}


@pytest.fixture(params=[64, 32, 16], scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """With vectors of that many bytes, compressed by instructions or not."""
    with pytest.MonkeyPatch.context() as patch, hcq.open("cpu", threads=2) as opened:
        patch.setattr(values, "can_divide", lambda dtype, _: dtype.itemsize >= 4)
        use_cache(opened, None)
        opened.driver.target = replace(opened.target, vector_bytes=request.param)
        yield opened


def check(device: Device, array: Array, down: bool = False) -> None:
    wanted = falling(array, 1) if down else np.argsort(array, 1, kind="stable")
    tensor = Tensor(array, device=device, dtype=array.dtype.name)
    found = tensor.sort(1, descending=down)[0]
    assert "sort values" in repr(found)
    assert found.numpy().tobytes() == np.take_along_axis(array, wanted, 1).tobytes()


def rows(random: np.random.Generator, shape: tuple[int, int], dtype: str) -> Array:
    """Rows of patterns, of numbers that differ, and of numbers with all that is special."""
    place = np.arange(shape[1], dtype=np.int64)
    with np.errstate(all="ignore"):
        found = [make(place).astype(dtype) for make in PATTERNS.values()]
        found.append((random.normal(size=shape[1]) * 1e5).astype(dtype))
    return np.concatenate([found, numbers(random, shape, dtype)])


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "float64", "int64", "uint64"])
def test_rows_of_every_kind(device: Device, dtype: str, down: bool) -> None:
    array = rows(np.random.default_rng(11), (2, 1025), dtype)
    if array.dtype.kind == "f":
        array[-1, 2:9:2] = np.copysign(np.nan, -1)
    check(device, array, down)


@pytest.mark.parametrize("size", [1026, 1039, 1040, 2049, 4097])
def test_lengths(device: Device, size: int) -> None:
    """With and without elements behind the last whole vector; on the stack and beyond."""
    check(device, rows(np.random.default_rng(size), (1, size), "float32"))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_rows_too_long_for_the_stack(
    device: Device, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row ends where memory of another one begins."""
    monkeypatch.setattr(along, "NEAR", 1000)
    check(device, numbers(np.random.default_rng(8), (5, 1031), dtype), down=True)


@pytest.mark.parametrize("dtype", ["float32", "uint64"])
@pytest.mark.parametrize("work", [0, 2])
def test_rows_that_divide_badly(
    device: Device, dtype: str, work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so much work, here before they are in order, they are sorted by digits."""
    monkeypatch.setattr(quicksort, "LIMIT", 0)
    monkeypatch.setattr(quicksort, "MORE", work)
    check(device, rows(np.random.default_rng(work), (1, 1301 + work), dtype))


def test_rows_that_lie_apart(device: Device) -> None:
    array = numbers(np.random.default_rng(1), (1100, 3), "float32")
    found = Tensor(array, device=device).sort(0)[0].numpy()
    wanted = np.take_along_axis(array, np.argsort(array, 0, kind="stable"), 0)
    assert found.tobytes() == wanted.tobytes()


def test_processors_that_compress_vectors(cpu: Device) -> None:
    """Of elements of 32 and 64 bits, in vectors of 64 bytes."""
    whole = replace(cpu.target, features="+avx2,+avx512f", vector_bytes=64)
    for dtype in ALL:
        assert quicksort.can_divide(dtype, whole) is (dtype.itemsize >= 4)
        assert not quicksort.can_divide(dtype, replace(whole, features="+avx2,-avx512f"))
        assert not quicksort.can_divide(dtype, replace(whole, vector_bytes=32))
