"""Sums over one-hot factors whose terms are added at their places, on all devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor
from ugpu.compiler.schedule import counted
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

device = device_fixture("cpu", "virtual:navi31", "virtual:gh100")
TERMS, RESULTS = 1033, 72  # more comparisons than counted.LEAST, more results than FEWEST_GPU


def numbers(terms: int = TERMS, results: int = RESULTS) -> Any:
    """Return integers, some of them outside 0 .. results."""
    return np.random.default_rng(terms).integers(-9, results + 9, terms)


def is_counted(tensor: Tensor) -> bool:
    return any(group.root.op == "scatter" for group in schedule([tensor.node]))


def one_hot(places: Tensor, count: int) -> Tensor:
    hot: Tensor = places.unsqueeze(-1) == Tensor.arange(count, device=places.device)
    return hot


def expected(places: Any, weights: Any, results: int) -> Any:
    inside = (places >= 0) & (places < results)
    total = np.zeros((results, *weights.shape[1:]), weights.dtype)
    np.add.at(total, places[inside], weights[inside])
    return total


@pytest.mark.parametrize("terms", [TERMS, 4096, 5000])
@pytest.mark.parametrize("kind", ["int8", "int32", "int64"])
def test_a_histogram(device: Device, terms: int, kind: str) -> None:
    places = numbers(terms).astype(kind)
    histogram = one_hot(Tensor(places, device=device), RESULTS).sum(0)
    assert is_counted(histogram)
    wanted = expected(places, np.ones(terms, np.int64), RESULTS)
    np.testing.assert_array_equal(histogram.numpy(), wanted)


def test_pieces_add_side_by_side(cpu: Device) -> None:
    """As many terms as give each unit of the processor a piece, and one more."""
    terms = counted.PIECE * cpu.target.compute_units + 1
    places = numbers(terms)
    histogram = one_hot(Tensor(places, device=cpu), RESULTS).cast("float32").sum(0)
    wanted = expected(places, np.ones(terms, np.float32), RESULTS)
    np.testing.assert_array_equal(histogram.numpy(), wanted)


def test_weights_are_added_at_their_places(device: Device) -> None:
    places, weights = numbers(), np.random.default_rng(1).normal(size=TERMS).astype(np.float32)
    x, w = Tensor(places, device=device), Tensor(weights, device=device)
    hot = one_hot(x, RESULTS)
    for total in (hot.where(w.unsqueeze(1), 0.0).sum(0), w @ hot.cast("float32"),
                  hot.cast("float32").mul(w.unsqueeze(1)).sum(0)):  # fmt: skip
        assert is_counted(total)
        np.testing.assert_allclose(total.numpy(), expected(places, weights, RESULTS), atol=1e-4)


def test_a_transposed_one_hot_matrix_adds_rows(device: Device) -> None:
    places = numbers()
    rows = np.random.default_rng(2).normal(size=(TERMS, 5)).astype(np.float32)
    hot = one_hot(Tensor(places, device=device), RESULTS).cast("float32")
    total = hot.permute(1, 0) @ Tensor(rows, device=device)
    assert is_counted(total)
    np.testing.assert_allclose(total.numpy(), expected(places, rows, RESULTS), atol=1e-4)


def test_a_batch_of_histograms_from_an_offset(device: Device) -> None:
    places = np.random.default_rng(3).integers(0, 90, (3, 700)).astype(np.int32)
    bins = Tensor.arange(RESULTS, device=device) + 10
    counts = (Tensor(places, device=device).unsqueeze(1) == bins.unsqueeze(1)).sum(2)
    assert is_counted(counts)
    wanted = [expected(row - 10, np.ones(700, np.int64), RESULTS) for row in places]
    np.testing.assert_array_equal(counts.numpy(), wanted)


def test_what_is_not_selected_does_not_count(device: Device) -> None:
    places, weights = numbers(), np.ones(TERMS, np.float32)
    weights[(places < 0) | (places >= RESULTS)] = np.inf
    hot = one_hot(Tensor(places, device=device), RESULTS).cast("float32")
    total = (hot * Tensor(weights, device=device).unsqueeze(1)).sum(0)
    assert is_counted(total)
    kept = np.where(np.isfinite(weights), weights, 0)
    np.testing.assert_array_equal(total.numpy(), expected(places, kept, RESULTS))


def test_gradients(device: Device) -> None:
    """Of a table's lookup by one-hot rows, and of weights that are counted."""
    places = numbers()
    slope = np.random.default_rng(4).normal(size=(TERMS, 3)).astype(np.float32)
    x, g = Tensor(places, device=device), Tensor(slope, device=device)
    table = Tensor(np.ones((RESULTS, 3), np.float32), device=device).requires_grad_()
    ((one_hot(x, RESULTS).cast("float32") @ table) * g).sum().backward()
    assert table.grad is not None
    np.testing.assert_allclose(table.grad.numpy(), expected(places, slope, RESULTS), atol=1e-4)
    weights = Tensor(np.ones(TERMS, np.float32), device=device).requires_grad_()
    factors = Tensor.arange(RESULTS, device=device).cast("float32")
    total = one_hot(x, RESULTS).where(weights.unsqueeze(1), 0.0).sum(0)
    assert is_counted(total)
    (total * factors).sum().backward()
    assert weights.grad is not None
    inside = (places >= 0) & (places < RESULTS)
    np.testing.assert_array_equal(weights.grad.numpy(), np.where(inside, places, 0))


@pytest.mark.slow
def test_random_sums(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any axes, any movement in between, bins from an offset or along a diagonal: as NumPy."""
    for name in ("LEAST", "FEWEST", "FEWEST_GPU", "PIECE", "PIECE_GPU"):
        monkeypatch.setattr(counted, name, 2)
    met = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        tensor, array = one_hot_terms(random, device)
        axes = tuple(map(int, np.flatnonzero(random.random(array.ndim) < 0.5))) or (0,)
        total = tensor.sum(axes)
        met += is_counted(total)
        assert np.array_equal(total.numpy(), array.sum(axes)), seed
    assert met >= 6


def one_hot_terms(random: np.random.Generator, device: Device) -> tuple[Tensor, Any]:
    """Return the terms of a sum over one-hot factors, as a tensor and as an array."""
    shape = random.integers(1, 7, random.integers(2, 5))
    rank, axis = len(shape), random.integers(len(shape))

    def part(chance: float) -> Any:
        """Sizes of an array that is repeated along some axes, and along that of the bins."""
        return np.where((random.random(rank) < chance) & (np.arange(rank) != axis), shape, 1)

    places = random.integers(-3, 9, part(0.75))
    weights = random.integers(-4, 5, part(0.6)).astype(random.choice(["float32", "int32"]))
    start, other = int(random.integers(-2, 3)), random.integers(rank)
    bins = np.arange(shape[axis]).reshape(np.where(np.arange(rank) == axis, shape, 1)) + start
    x, w = Tensor(places, device=device), Tensor(weights, device=device)
    k = Tensor.arange(int(shape[axis]), device=device).reshape(*map(int, bins.shape)) + start
    if other != axis and random.random() < 0.3:
        size = np.where(np.arange(rank) == other, shape, 1)
        bins = bins + np.arange(shape[other]).reshape(size)
        k = k + Tensor.arange(int(shape[other]), device=device).reshape(*map(int, size))
    array = np.broadcast_to(np.where(bins == places, weights, 0), shape)
    tensor = (k == x).where(w, 0) if random.random() < 0.5 else (x == k).cast(w.dtype) * w
    tensor = tensor.broadcast_to(array.shape)
    if random.random() < 0.5:
        order = tuple(map(int, random.permutation(rank)))
        array, tensor = array.transpose(order), tensor.permute(*order)
    if random.random() < 0.3:
        array, tensor = np.flip(array, 0), tensor.flip(0)
    if random.random() < 0.3 and array.shape[0] > 1:
        array, tensor = array[1:], tensor[1:]
    return tensor, array


def test_sums_that_stay_sums(device: Device) -> None:
    places = numbers(5000)
    x = Tensor(places, device=device).unsqueeze(1)
    bins = Tensor.arange(RESULTS, device=device)
    weights = Tensor(np.arange(RESULTS), device=device)
    few = x == Tensor.arange(counted.FEWEST - 1, device=device)
    below = bins < x  # no equality
    doubled = bins * 2 == x  # its place does not count
    other = (x == bins).where(weights, 1)  # elements are not zero where it does not hold
    beyond = (x == bins).where(weights, 0)  # the term depends on its place
    for sums in (few.sum(0), below.sum(0), doubled.sum(0), other.sum(0), beyond.sum(0)):
        assert not is_counted(sums)
    small = Tensor(places[:20], device=device).unsqueeze(1) == bins
    assert not is_counted(small.sum(0))
    total = np.bincount(places[(places >= 0) & (places < RESULTS)], minlength=RESULTS)
    np.testing.assert_array_equal(beyond.sum(0).numpy(), total * np.arange(RESULTS))
    even = expected(places, np.ones(5000, np.int64), 2 * RESULTS)[::2]
    np.testing.assert_array_equal(doubled.sum(0).numpy(), even)
