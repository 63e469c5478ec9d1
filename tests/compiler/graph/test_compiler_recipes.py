"""Reductions of stored arrays are built and planned once, and give the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ugpu import hcq
from ugpu.compiler import Tensor, jit, no_grad
from ugpu.compiler.front import explain
from ugpu.compiler.graph import recipe
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.recipe import recipe_of
from ugpu.compiler.methods import core
from ugpu.compiler.runtime.runtime import runtime_of, use_cache
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadIndex, Closed

LONG = 1 << 18  # elements that are reduced in two kernels


@pytest.fixture
def planned(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every run that looks at the graph. Recipes of other tests are not kept beside:
    they are all forgotten when there are many."""
    monkeypatch.setattr(core, "_recipes", {})
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


WORKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "with itself": lambda x, y: x * x,
    "number": lambda x, y: x * 2.5,
    "number first": lambda x, y: 1 - x,
    "softmax": lambda x, y: x.softmax(),
    "product": lambda x, y: x @ y,
    "square": lambda x, y: x @ x,
    "slice": lambda x, y: x[2:7, ::-2][1] + 1.5,
}


@pytest.mark.parametrize("name", sorted(WORKS))
@pytest.mark.parametrize("where", ["cpu", "virtual:navi31", "virtual:gh100"])
def test_operations_on_stored_arrays_look_at_no_graph(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_recipes", {})
    work = WORKS[name]
    rng = np.random.default_rng(1)
    arrays = [rng.random((8, 8)).astype("f4") for _ in range(4)]
    with hcq.open(where) as device:
        use_cache(device, None)
        tensors = [Tensor(array, device=device) for array in arrays]
        pairs = [(0, 1), (2, 3), (1, 0), (3, 3)]
        first = work(tensors[0], tensors[1]).numpy()
        with monkeypatch.context() as patch:
            if name in ("add", "product"):  # pairs of the same array are another structure
                pairs = pairs[:3]
            patch.setattr(runtime_of(device), "_planned", None)
            found = [work(tensors[a], tensors[b]).realize() for a, b in pairs]
        for (a, b), result in zip(pairs, found, strict=True):
            chained = work(tensors[a] + 0, tensors[b] + 0)  # built anew
            assert np.allclose(result.numpy(), chained.numpy(), rtol=1e-6)
        assert np.array_equal(found[0].numpy(), first)


CHAINS: dict[str, Callable[[Any, Any], Any]] = {
    "sum of a sum": lambda x, y: (x + 1).sum(0),
    "of two": lambda x, y: (x + 1) * (y - 2),
    "with itself": lambda x, y: (x + y) * (x + y),  # two nodes
    "twice": lambda x, y: twice(x + y),  # one
    "crossed": lambda x, y: (x - y) * (y - x),
    "several kernels": lambda x, y: ((x @ y) * 2).softmax(),
    "statistics": lambda x, y: (x - x.mean()) / x.std(),
    "turned": lambda x, y: x.T @ (y + 1),
    "turned between": lambda x, y: (x @ y).T.reshape(-1) * 2,
    "chosen": lambda x, y: (x > y).where(x, -0.0) * 2,
    "activation": lambda x, y: ((x + 1) * 2 - y).relu().sqrt(),
    "bits": lambda x, y: (((x * 8).cast("int32") & 3) == 2).sum(1),
}


def twice(x: Tensor) -> Tensor:
    return x * x


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_chains_are_planned_once(name: str, cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the full path computes them, whichever of the sources is the same array."""
    rng, chain = np.random.default_rng(2), CHAINS[name]
    arrays = [rng.random((8, 8)).astype("f4") for _ in range(4)]
    tensors = [Tensor(array, device=cpu) for array in arrays]

    def without_recipes(a: int, b: int) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(core, "_recipes", dict[Any, Any]())
            one = Tensor(arrays[a], device=cpu)
            other = one if a == b else Tensor(arrays[b], device=cpu)
            return chain(one, other).numpy()

    wanted = {(a, b): without_recipes(a, b) for a, b in ((0, 1), (1, 0), (2, 3), (2, 2))}
    for _ in range(12):  # one more run for each number
        assert np.array_equal(chain(tensors[0], tensors[1]).numpy(), wanted[0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(runtime_of(cpu), "_planned", None)
        for a, b in ((0, 1), (1, 0), (2, 3)):
            assert np.array_equal(chain(tensors[a], tensors[b]).numpy(), wanted[a, b])
    same = chain(tensors[2], tensors[2]).numpy()  # another structure
    assert np.array_equal(same, wanted[2, 2])


@pytest.mark.parametrize("count", [recipe.DEEPEST, recipe.DEEPEST + 1, recipe.MOST + 1])
def test_chains_end_at_their_longest(cpu: Device, planned: list[int], count: int) -> None:
    """What follows is built upon their graph."""
    array = np.linspace(0, 1, 8, dtype=np.float32)
    x = Tensor(array, device=cpu)

    def chain() -> Tensor:
        result = x
        for _ in range(count + 1):  # the last reads `count` others
            result = -result
        return result

    for _ in range(4):
        assert np.array_equal(chain().numpy(), array if count % 2 else -array)
    planned.clear()
    chain().realize()
    assert bool(planned) == (count > recipe.DEEPEST)


@pytest.fixture
def learnt(cpu: Device) -> tuple[Tensor, Callable[[], tuple[Tensor, Tensor]]]:
    """An array, and a chain whose inner value takes a kernel of its own: both, when it is known."""
    x = Tensor(np.random.default_rng(3).random((8, 8)).astype("f4"), device=cpu)

    def chain() -> tuple[Tensor, Tensor]:
        inner = x @ x
        return inner, inner.softmax()

    for _ in range(8):
        chain()[1].realize()
    return x, chain


def test_what_the_program_keeps_of_a_chain_is_stored(
    cpu: Device, planned: list[int], learnt: tuple[Tensor, Callable[[], tuple[Tensor, Tensor]]]
) -> None:
    _, chain = learnt
    planned.clear()  # what learning took
    chain()[1].realize()
    assert not planned
    inner, outer = chain()
    assert np.allclose(outer.numpy().sum(1), 1) and planned
    assert inner.node.storage is not None, "it would be computed twice"


def test_an_inner_value_that_is_computed_meanwhile_is_read(
    planned: list[int], learnt: tuple[Tensor, Callable[[], tuple[Tensor, Tensor]]]
) -> None:
    _, chain = learnt
    inner, outer = chain()
    inner.realize()
    planned.clear()
    before = outer.node.recipe
    assert before is not None and np.allclose(outer.numpy().sum(1), 1)
    assert planned and outer.node.op == "buffer"


def test_a_chain_reads_what_its_sources_were(
    learnt: tuple[Tensor, Callable[[], tuple[Tensor, Tensor]]],
) -> None:
    x, chain = learnt
    expected = chain()[1].numpy()
    waiting = chain()[1]
    x[:] = 0.0
    assert np.array_equal(waiting.numpy(), expected)
    assert np.allclose(chain()[1].numpy(), 1 / 8)


def test_changing_numbers_are_not_learnt(cpu: Device) -> None:
    x = Tensor(np.ones(4, "f4"), device=cpu)
    for _ in range(4):
        (x + 1).realize()
    for n in range(2, 6):
        before = len(core._recipes)
        assert (x * float(n) + 1).sum().item() == 4 * (n + 1)
        assert len(core._recipes) <= before + 1


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "int64"])
@pytest.mark.parametrize("busy", [False, True])
def test_changing_numbers_come_from_memory(cpu: Device, kind: str, busy: bool) -> None:
    """Whether the device is idle, so that the host writes them, or at work."""
    array, long = np.arange(5).astype(kind), Tensor(np.ones(LONG * 8, np.float32), device=cpu)
    x, results = Tensor(array, device=cpu), {}
    for n in range(2, 9):
        if busy:
            long.sum().realize()
        else:
            cpu.synchronize()
        results[n] = (x * n).realize()
    for n, result in results.items():
        assert np.array_equal(result.numpy(), array * n)


def test_gradients_of_chains(cpu: Device) -> None:
    x = Tensor(np.arange(1, 5, dtype=np.float32), device=cpu).requires_grad_()
    array = np.arange(1, 5, dtype=np.float32)
    expected = (2 * array + 1) / np.sqrt(array * array + array)
    for _ in range(8):
        x.grad = None
        inner = x * x
        ((inner + x).sqrt() * 2).sum().backward()
        assert x.grad is not None and np.allclose(x.grad.numpy(), expected, rtol=1e-5)
    for _ in range(4):  # an inner value without gradients
        x.grad = None
        with no_grad():
            inner = x * x
        (inner * x).sum().backward()
        assert x.grad is not None and np.allclose(x.grad.numpy(), array * array)


def test_equal_numbers_of_other_kinds_are_other_recipes(cpu: Device) -> None:
    x = Tensor(np.array([3, 4], np.int32), device=cpu)
    assert (x * 1).dtype.name == "int32"
    assert (x * 1.0).dtype.name == "float32"
    assert (x * True).dtype.name == "int32"
    y = Tensor(np.array([1.0], "f4"), device=cpu)
    for _ in range(2):
        assert np.signbit((y * -0.0).numpy())[0] and not np.signbit((y * 0.0).numpy())[0]


def test_equal_keys_of_other_kinds_are_other_slices(cpu: Device) -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    x = Tensor(array, device=cpu)
    keys = [1, True, np.int64(1), slice(1, 2), slice(None, 1), (1, 1), (1, slice(1, 2)), -2, ...]
    for key in (*keys, (slice(1, 2), 1), None, np.array([1]), slice(np.int64(1), 3)):
        for _ in range(2):
            part = x[key]
            assert np.array_equal((part * 2).numpy(), array[key] * 2), key
            assert np.array_equal(part.numpy(), array[key]), key
    for _ in range(2):
        with pytest.raises(BadIndex, match="index 3 is outside axis 0"):
            x[3]


def test_a_slice_has_several_readers(cpu: Device) -> None:
    """What was sliced may be assigned to meanwhile, also from its own slice."""
    array = np.arange(16, dtype=np.float32)
    x = Tensor(array, device=cpu)
    for _ in range(3):
        part = x[2:9]
        twice, total = part * 2, part.sum()
        x[1:] = x[:-1] + 1
        changed = array.copy()
        changed[1:] = array[:-1] + 1
        assert np.array_equal(x.numpy(), changed)
        assert np.array_equal(twice.numpy(), array[2:9] * 2)
        assert total.item() == array[2:9].sum() and np.array_equal(part.numpy(), array[2:9])
        array = changed


def test_a_result_in_use_keeps_what_it_is_made_of(cpu: Device) -> None:
    """An assignment to a source leaves what was built before as it was."""
    x, y = (Tensor(np.full(16, n, np.float32), device=cpu) for n in (1, 2))
    (x + y).realize()
    waiting = x + y
    x[:4] = 10.0
    assert waiting.tolist() == [3.0] * 16
    assert (x + y).tolist() == [12.0] * 4 + [3.0] * 12


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


@pytest.mark.parametrize("size", [recipe.LONG, recipe.LONG + 3])
def test_long_sources_wake_a_device_early(cpu: Device, size: int) -> None:
    """And compute the same, at sizes that vectors divide and at others."""
    array = np.arange(size, dtype=np.int32)
    for part in (array, array[: recipe.LONG - 1]):
        tensor = Tensor(part, device=cpu)
        once = Node("neg", tensor.dtype, part.shape, (tensor.node,))
        known = recipe_of([tensor.node], once)
        assert known is not None and known.long == (len(part) >= recipe.LONG)
        assert ((-tensor).numpy() == -part).all()


def test_what_a_recipe_can_repeat(cpu: Device) -> None:
    source = Node("buffer", Tensor(1.0, device=cpu).dtype, (4,))
    once = Node("neg", source.dtype, (4,), (source,))
    known = recipe_of([source], Node("exp", source.dtype, (4,), (once,)))
    assert known is not None and not known.long
    made = known.apply(source)
    assert (made.op, made.sources[0].op, made.sources[0].sources) == ("exp", "neg", (source,))
    assert made.recipe is known and made.sources[0].recipe is None
    assert recipe_of([source], source) is None
    other = Tensor(np.ones(4, "f4"), device=cpu).node
    assert recipe_of([source], Node("add", source.dtype, (4,), (once, other))) is None
    assert recipe_of([source, other], once) is None
    both = recipe_of([source, other], Node("add", source.dtype, (4,), (once, other)))
    assert both is not None and both.sources == 2
    left, right = both.apply(source, other).sources
    assert (left.op, left.sources, right) == ("neg", (source,), other)


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
        device.driver.core.failure = failure
        waiting = tensor.sum()
        with pytest.raises(BadArgument, match="played"):
            waiting.realize()
        device.reset()
        assert waiting.item() == LONG
