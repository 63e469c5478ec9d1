"""Chains of reductions in one kernel: softmax, layer norm and the like, on both devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import buffer, kernels_of
from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float16, float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.kernel.host import rows as host_rows
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.pattern import cost
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

Array = NDArray[Any]


device = device_fixture("cpu", "virtual:navi31")


def softmax(x: Array, axis: int) -> Array:
    raised = np.exp(x - x.max(axis, keepdims=True))
    return raised / raised.sum(axis, keepdims=True)


def layer_norm(x: Tensor, axis: int) -> Tensor:
    apart = x - x.mean(axis, keepdims=True)
    return apart / ((apart * apart).mean(axis, keepdims=True) + 1e-5).sqrt()


def layer_norm_of(x: Array, axis: int) -> Array:
    apart = x - x.mean(axis, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(axis, keepdims=True) + 1e-5)


CHAINS: dict[str, tuple[Callable[[Tensor, int], Tensor], Callable[[Array, int], Array]]] = {
    "softmax": (lambda x, axis: x.softmax(axis), softmax),
    "log softmax": (lambda x, axis: x.log_softmax(axis), lambda x, a: np.log(softmax(x, a))),
    "layer norm": (layer_norm, layer_norm_of),
    "variance": (lambda x, axis: x.var(axis), lambda x, axis: x.var(axis, ddof=1)),
    "argmax": (lambda x, axis: x.argmax(axis), lambda x, axis: x.argmax(axis)),
    "share": (
        lambda x, axis: (x.abs() + 1) / (x.abs() + 1).sum(axis, keepdims=True),
        lambda x, axis: (abs(x) + 1) / (abs(x) + 1).sum(axis, keepdims=True),
    ),
    "flipped": (
        lambda x, axis: (x - x.max(axis, keepdims=True)).flip(axis).exp(),
        lambda x, axis: np.flip(np.exp(x - x.max(axis, keepdims=True)), axis),
    ),
}


def check(device: Device, name: str, array: Array, axis: int, kernels: int = 1) -> None:
    ours, theirs = CHAINS[name]
    result = ours(Tensor(array, device=device), axis)
    assert len(schedule([result.node])) == kernels
    expected = theirs(array.astype(np.float64), axis)
    np.testing.assert_allclose(result.numpy(), expected, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", sorted(CHAINS))
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((4, 7), 1),  # a thread per row
        ((3, 1024), 1),  # rows that threads hold
        ((3, 1000), 1),  # the last threads have less
        ((2, 5003), 1),  # an odd row, longer than registers
        ((66, 130), 0),  # across memory
        ((2, 70, 9), 1),
        ((2, 3, 4, 65), 3),
        ((1, 200), 1),
    ],
)
def test_chains(device: Device, name: str, shape: tuple[int, ...], axis: int) -> None:
    array = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
    check(device, name, array, axis)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_chains_of_any_shape(device: Device, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(2, 40), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    name = data.draw(st.sampled_from(sorted(CHAINS)))
    array = np.random.default_rng(data.draw(st.integers(0, 99))).normal(0, 3, shape)
    check(device, name, array.astype(np.float32), axis)


def test_specials_stay_in_their_row(device: Device) -> None:
    array = np.zeros((6, 200), np.float32)
    array[0, 3], array[1, 150], array[2, 7] = np.nan, np.inf, -np.inf
    array[3] = -np.inf
    found = Tensor(array, device=device).softmax().numpy()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, softmax(array, 1), rtol=1e-6)


def test_rows_too_long_for_the_stack_are_held_in_the_result(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softmax computes each exponential once, and stores it where its result will be."""
    monkeypatch.setattr(host_rows, "HELD_BYTES", 0)
    rows = Tensor(np.zeros((70, 300), np.float32), device=cpu)
    (kernel,) = kernels_of(rows.softmax(1).node, cpu.target)
    text = format_kernel(kernel)
    assert [memory.space for memory in kernel.locals] == ["register", "register"]
    stores = [line for line in text.splitlines() if line.strip().startswith("out[")]
    assert len(stores) == 2 and "out[" in stores[1].partition(" = ")[2], text


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_results_held_in_the_result(
    cpu: Device, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a type of their own, across memory, of several axes, and written over what they read."""
    monkeypatch.setattr(host_rows, "HELD_BYTES", 0)
    array = np.random.default_rng(4).normal(size=(5, 7, 41)).astype(kind)
    wide = array.astype(np.float64)
    bound = 2e-6 if kind == "float32" else 2e-3
    x = Tensor(array, device=cpu)
    for axis in range(3):
        found = x.softmax(axis).numpy()
        np.testing.assert_allclose(found, softmax(wide, axis), bound, bound)
    centred = (x - x.mean((1, 2), keepdims=True)).exp()
    whole = np.exp(wide - wide.mean((1, 2), keepdims=True))
    found = (centred / centred.sum((1, 2), keepdims=True)).numpy()
    np.testing.assert_allclose(found, whole / whole.sum((1, 2), keepdims=True), bound, bound)
    flipped = x.softmax(2).flip(2).numpy()
    np.testing.assert_allclose(flipped, softmax(wide, 2)[..., ::-1], bound, bound)
    x[:] = x.softmax(2)
    np.testing.assert_allclose(x.numpy(), softmax(wide, 2), bound, bound)


def test_narrow_floats_and_masks(device: Device) -> None:
    array = np.random.default_rng(1).normal(0, 2, (5, 300)).astype(np.float16)
    x = Tensor(array, device=device)
    visible = Tensor.arange(300, device=device).reshape(1, 300) <= (
        Tensor.arange(5, device=device).reshape(5, 1) * 50
    )
    result = visible.where(x, -float("inf")).softmax()
    assert len(schedule([result.node])) == 1 and result.dtype is float16
    wide = np.where(np.arange(300) <= np.arange(5)[:, None] * 50, array.astype(np.float64), -np.inf)
    np.testing.assert_allclose(result.numpy(), softmax(wide, 1), rtol=2e-3, atol=1e-4)


def test_what_is_no_chain_is_stored(device: Device) -> None:
    x = Tensor(np.random.default_rng(2).random((20, 30), np.float32), device=device)
    both = x - x.sum(0) - x.sum(1, keepdims=True)  # of rows and of columns
    nested = (x / x.sum(1, keepdims=True)).sum(0)  # a row's sum inside a column's
    place = x[:, x.sum(0).argmax(0)]  # an index that is a reduction
    expected = x.numpy()
    for result, kernels, value in (
        (both, 2, expected - expected.sum(0) - expected.sum(1, keepdims=True)),
        (nested, 2, (expected / expected.sum(1, keepdims=True)).sum(0)),
        (place, 3, expected[:, expected.sum(0).argmax()]),
    ):
        assert len(schedule([result.node])) == kernels
        np.testing.assert_allclose(result.numpy(), value, rtol=1e-5)


def test_asked_for_inside_a_chain(device: Device) -> None:
    x = Tensor(np.random.default_rng(3).random((10, 200), np.float32), device=device)
    mean = x.mean(1, keepdims=True)
    apart = x - mean
    apart.realize(mean)
    expected = x.numpy().mean(1, keepdims=True)
    np.testing.assert_allclose(apart.numpy(), x.numpy() - expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-5)


# ---- costs -------------------------------------------------------------------------------------


def test_costs_weigh_compute_storage_and_locality() -> None:
    assert not cost.share(20, 2, float32) and cost.share(40, 2, float32)
    assert cost.share(20, 2, float16)  # narrower values are cheaper to store
    assert cost.share(20, 8, float32) and not cost.share(1000, 1, float32)
    assert not cost.repeat(8, float32) and cost.repeat(9, float32) and cost.repeat(5, float16)
    assert cost.hold(12) and not cost.hold(2)
    assert cost.keep_inside(4096, 1024, 20, float32)  # rows for all of the machine
    assert cost.keep_inside(1, 1024, 20, float32)  # short: a kernel costs more than the wait
    assert not cost.keep_inside(1, 1 << 20, 20, float32)  # one group would do it all


def test_a_long_single_row_uses_the_whole_machine(device: Device) -> None:
    row = buffer(1, 200000, dtype=float32)
    total = graph.expand(graph.reduce("sum", row, (1,)), (1, 200000))
    assert len(schedule([graph.elementwise("div", float32, row, total)])) == 2
    short = buffer(1, 600, dtype=float32)
    total = graph.expand(graph.reduce("sum", short, (1,)), (1, 600))
    assert len(schedule([graph.elementwise("div", float32, short, total)])) == 1


def test_wide_values_are_stored_narrow(device: Device) -> None:
    """What is stored before it is repeated is what was cast, not what it was cast to."""
    source = buffer(64, 1, dtype=float32)
    costly = graph.elementwise("exp", float32, source)
    narrow = graph.cast(costly, float16)
    wide = graph.expand(graph.cast(narrow, float32), (64, 64))
    groups = schedule([graph.elementwise("neg", float32, wide)])
    assert next(group.root for group in groups) is narrow and len(groups) == 2


def test_narrow_values_with_several_wide_users_are_stored_narrow(device: Device) -> None:
    """After a reduction, and where computing it twice costs more than two bytes an element."""
    total = graph.reduce("sum", buffer(256, 512, dtype=float32), (1,))
    exponential = graph.elementwise("exp", float32, buffer(1000, 1, dtype=float32))
    for source in (total, exponential):
        narrow = graph.cast(source, float16)
        wide = graph.cast(narrow, float32)
        users = [
            graph.elementwise("mul", float32, wide, wide),
            graph.elementwise("add", float32, graph.flip(wide, (0,)), wide),
        ]
        groups = schedule(users)
        results = [root for group in groups for root in group.roots]
        assert len(results) == 3 and {id(narrow), *map(id, users)} == set(map(id, results))
        assert groups[-1].inputs == (narrow,)
    # what is asked for keeps its type
    wide = graph.cast(graph.cast(total, float16), float32)
    assert [group.root for group in schedule([wide])] == [wide]


def test_narrow_values_with_several_users_as_numpy(cpu: Device) -> None:
    x = np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32)
    narrow = Tensor(x, device=cpu).sum(1).cast("float16").cast("float32")
    two = (narrow * 2).realize(other := narrow.flip(0) + narrow)
    expected = x.sum(1, dtype=np.float64).astype(np.float16).astype(np.float32)
    assert np.allclose(two.numpy(), expected * 2, rtol=2e-3)
    assert np.array_equal(other.numpy(), two.numpy()[::-1] / 2 + two.numpy() / 2)
