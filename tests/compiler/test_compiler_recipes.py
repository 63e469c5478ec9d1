"""Reductions of stored arrays are built and planned once, and give the same every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hcq
from compiler import Tensor, explain, jit
from compiler.graph.node import Node
from compiler.graph.recipe import recipe_of
from compiler.runtime import runtime_of, use_cache
from hcq.device import Device
from hcq.errors import BadArgument, Closed

LONG = 1 << 18  # elements that are reduced in two kernels


@pytest.fixture
def planned(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every run that looks at the graph."""
    runtime, seen = runtime_of(cpu), list[int]()
    found = runtime._planned

    def planned(*given: Any) -> object:
        seen.append(1)
        return found(*given)

    monkeypatch.setattr(runtime, "_planned", planned)
    return seen


@given(
    shape=st.sampled_from([(5,), (3, 4), (2, 3, 5), (LONG,), (LONG + 1,), (1, 1), (0, 3)]),
    axis=st.none() | st.integers(-3, 2), keepdims=st.booleans(),
    name=st.sampled_from(["sum", "max", "min"]),
    kind=st.sampled_from(["float32", "float16", "int8", "bool"]),
)  # fmt: skip
@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_again_and_again_as_numpy(
    cpu: Device, shape: tuple[int, ...], axis: int | None, keepdims: bool, name: str, kind: str
) -> None:
    rng = np.random.default_rng(len(shape))
    for _ in range(3):
        array = rng.integers(0, 2, shape).astype(kind)
        tensor = Tensor(array, device=cpu)
        try:
            with np.errstate(over="ignore"):
                expected = getattr(array, name)(axis=axis, keepdims=keepdims)
        except ValueError:  # an axis that is not there, or the largest of nothing
            with pytest.raises(BadArgument):
                getattr(tensor, name)(axis, keepdims)
            continue
        if kind == "float16" and name == "sum" and array.size > 2048:
            with np.errstate(over="ignore"):  # summed in float32, rounded once
                wide = array.sum(axis=axis, keepdims=keepdims, dtype=np.float32)
                expected = wide.astype(kind)
        result = getattr(tensor, name)(axis, keepdims)
        assert result.shape == expected.shape
        assert np.array_equal(result.numpy(), expected)


@pytest.mark.parametrize("count", [7919, 3 * LONG])
def test_the_second_run_looks_at_no_graph(cpu: Device, planned: list[int], count: int) -> None:
    tensors = [Tensor(np.full(count, n, np.int32), device=cpu) for n in range(4)]
    results = [tensor.sum().realize() for tensor in tensors]  # none is waited for
    assert len(planned) <= 1
    assert [result.item() for result in results] == [n * count for n in range(4)]
    assert all(result.node.op == "buffer" and result.node.sources == () for result in results)


def test_runs_use_what_is_stored_now(cpu: Device) -> None:
    tensor = Tensor(np.ones(LONG, np.float32), device=cpu)
    assert tensor.sum().item() == tensor.sum().item() == LONG
    tensor[: LONG // 2] = 3.0
    before = tensor.sum()
    assert before.item() == 2 * LONG
    tensor[:] = 0.0
    assert tensor.sum().item() == 0 and before.item() == 2 * LONG


def test_a_part_that_is_computed_already(cpu: Device, planned: list[int]) -> None:
    """A result of the chain may be stored by then: what is left is another graph."""
    tensor = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device=cpu)
    tensor.sum(0).realize()
    shared = tensor.sum(0)
    one = Tensor.cat([shared.reshape(1, 4), shared.reshape(1, 4)])
    assert one.tolist() == [[12, 15, 18, 21]] * 2
    assert shared.realize().tolist() == [12, 15, 18, 21]
    assert (tensor.sum(0) + 1).tolist() == [13, 16, 19, 22]  # more hangs on it


def test_recordings_and_reports_see_every_run(cpu: Device) -> None:
    tensor = Tensor(np.ones(LONG, np.float32), device=cpu)
    tensor.sum().realize()
    with explain.watch() as runs:
        tensor.sum().realize()
    assert [len(run.kernels) for run in runs] == [2]
    replayed = jit(lambda x: x.sum())
    for n in range(4):
        assert replayed(Tensor(np.full(LONG, n, np.float32), device=cpu)).item() == n * LONG
    assert replayed.kernels == 2
    with cpu.capture() as graph:
        kept = tensor.sum().realize()
    graph.replay()
    graph.wait()
    assert kept.item() == LONG


def test_a_chain_is_told_from_what_is_none(cpu: Device) -> None:
    source = Node("buffer", Tensor(1.0, device=cpu).dtype, (4,))
    once = Node("neg", source.dtype, (4,), (source,))
    recipe = recipe_of(source, Node("exp", source.dtype, (4,), (once,)))
    assert recipe is not None and not recipe.long
    made = recipe.apply(source)
    assert (made.op, made.sources[0].op, made.sources[0].sources) == ("exp", "neg", (source,))
    assert made.recipe is recipe and made.sources[0].recipe is None
    assert recipe_of(source, source) is None
    assert recipe_of(source, Node("add", source.dtype, (4,), (once, source))) is None


def test_each_device_runs_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    array = np.arange(LONG, dtype=np.int64)
    for _ in range(2):
        with hcq.open("cpu", threads=2) as device:
            use_cache(device, None)
            tensor = Tensor(array, device=device)
            results = [tensor.sum().realize() for _ in range(3)]
            assert {result.item() for result in results} == {LONG * (LONG - 1) // 2}
        with pytest.raises(Closed):
            tensor.sum().realize()


def test_a_failed_device_says_so_and_works_after_its_reset() -> None:
    with hcq.open("cpu", threads=2) as device:
        use_cache(device, None)
        tensor = Tensor(np.ones(LONG, np.float32), device=device)
        assert [tensor.sum().item() for _ in range(2)] == [LONG, LONG]
        failure = BadArgument("played")
        device.failure = failure
        waiting = tensor.sum()
        with pytest.raises(BadArgument, match="played"):
            waiting.realize()
        device.reset()
        assert waiting.item() == LONG
