"""Nested functions: values as without them, planned once; what they capture, keep and assign."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler import models
from ugpu import hcq
from ugpu.compiler import Tensor, function, jit
from ugpu.compiler.front.explain import watch
from ugpu.compiler.graph.call import Body
from ugpu.compiler.plan.arrange import arrange
from ugpu.compiler.plan.plan import kernels, structure
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.compiler.runtime.runtime import runtime_of, use_cache
from ugpu.compiler.schedule.calls import body_of
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

Array = NDArray[Any]


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def called(tensor: Tensor) -> list[Body]:
    """The bodies of the calls that a tensor needs, in order."""
    return [body_of(node) for node in structure([tensor.node])[1] if node.op == "call"]


def storage(tensor: Tensor) -> Storage:
    found = tensor.node.storage
    assert isinstance(found, Storage)
    return found


@function
def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    hidden = (x @ weight + bias).relu()
    return x + hidden.softmax()


def stacked(device: Device, count: int, wrapped: Callable[..., Tensor] = layer) -> Tensor:
    x = Tensor(numbers(0, 6, 16), device=device)
    for seed in range(count):
        weight = Tensor(numbers(seed + 1, 16, 16), device=device)
        x = wrapped(x, weight, Tensor(numbers(seed + 50, 16), device=device))
    return x


def expected(count: int) -> Array:
    x = numbers(0, 6, 16)
    for seed in range(count):
        hidden = np.maximum(x @ numbers(seed + 1, 16, 16) + numbers(seed + 50, 16), 0)
        raised = np.exp(hidden - hidden.max(-1, keepdims=True))
        x = x + raised / raised.sum(-1, keepdims=True)
    return x


@pytest.mark.parametrize("name", ["cpu", "virtual:navi31"])
def test_calls_compute_what_the_function_would(name: str) -> None:
    with hcq.open(name) as device:
        use_cache(device, None)
        np.testing.assert_allclose(stacked(device, 3).numpy(), expected(3), rtol=1e-4)


def test_layers_are_one_function(cpu: Device) -> None:
    result = stacked(cpu, 5)
    bodies = called(result)
    assert len(bodies) == 5 and len(set(map(id, bodies))) == 1
    assert len(bodies[0].parameters) == 3 and "layer" in repr(bodies[0])
    groups = schedule([result.node])
    assert len(groups) == 5, "a call each, and nothing else"
    assert len({id(group) for group in kernels(groups)}) == len(kernels(groups)) / 5


def test_a_function_is_scheduled_once(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layers, and also in a later run; and its kernels are looked for once."""
    counts: list[int] = []
    scheduled = arrange

    def counting(*given: Any) -> Any:
        groups = scheduled(*given)
        counts.append(len(groups))
        return groups

    monkeypatch.setattr("ugpu.compiler.plan.plan.arrange", counting)

    @function
    def own(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ((x @ weight).sin() + bias).softmax() * 0.123

    stacked(cpu, 12, own).realize()
    assert len(counts) == 1
    stacked(cpu, 7, own).realize()
    assert len(counts) == 1


def test_equal_content_is_one_function(cpu: Device) -> None:
    def make() -> Tensor:
        made = function(lambda x: (x * 3).softmax())(Tensor(numbers(1, 4, 4), device=cpu))
        assert isinstance(made, Tensor)
        return made

    (one,), (two,) = called(make()), called(make())
    assert one is two


def test_shapes_types_and_values_make_other_functions(cpu: Device) -> None:
    @function
    def scaled(x: Tensor, factor: float) -> Tensor:
        return (x.exp() * factor).contiguous()

    x = Tensor(numbers(0, 4, 4), device=cpu)
    variants = [scaled(x, 2), scaled(x, 3), scaled(x[:2], 2), scaled(x.to("float16"), 2)]
    assert len({id(called(each)[0]) for each in variants}) == 4
    np.testing.assert_allclose(variants[1].numpy(), np.exp(x.numpy()) * 3, rtol=1e-6)
    np.testing.assert_allclose(variants[2].numpy(), np.exp(x.numpy()[:2]) * 2, rtol=1e-6)


def test_methods_capture_their_weights(cpu: Device) -> None:
    class Layer:
        def __init__(self, seed: int) -> None:
            self.weight = Tensor(numbers(seed, 8, 8), device=cpu)

        @function
        def apply(self, x: Tensor) -> Tensor:
            return (x @ self.weight).relu()

    layers = [Layer(seed) for seed in range(4)]
    x = Tensor(numbers(9, 8, 8), device=cpu)
    wanted = x.numpy()
    for each in layers:
        x = each.apply(x)
        wanted = np.maximum(wanted @ each.weight.numpy(), 0)
    assert len(set(map(id, called(x)))) == 1
    layers[0].weight = Tensor(numbers(7, 8, 8), device=cpu)  # not that of the call
    np.testing.assert_allclose(x.numpy(), wanted, rtol=1e-4)


def test_what_is_captured_is_computed_once(cpu: Device) -> None:
    table = (Tensor(numbers(0, 32, 32), device=cpu) @ Tensor(numbers(1, 32, 32), device=cpu)).exp()
    mask = Tensor.arange(32, device=cpu) < 20

    @function
    def use(x: Tensor) -> Tensor:
        return mask.where(x * table, 0).sum(0, keepdims=True).expand(32, 32).contiguous()

    start = Tensor(numbers(2, 32, 32) * 0.01, device=cpu)
    result = use(use(use(start)))
    (body, *_) = called(result)
    assert len(body.parameters) == 2, "x and the table; the mask is index arithmetic"
    names = [node.op for node in body.nodes]
    assert "iota" in names and names.count("reduce") == 1
    array, wide = start.numpy(), table.numpy()
    for _ in range(3):
        array = np.broadcast_to((np.where(np.arange(32) < 20, array * wide, 0)).sum(0), (32, 32))
    np.testing.assert_allclose(result.numpy(), array, rtol=1e-3)


def test_a_captured_value_that_waits_for_an_argument(cpu: Device) -> None:
    """It was there before, so it is an argument too: no circle of calls comes of it."""
    x = Tensor(numbers(0, 16), device=cpu)
    half = (x * 0.5).exp()
    first = function(lambda t: (t + 1).contiguous())(half)
    second = function(lambda a, b: (half * a + b).contiguous())(x, first)
    wanted = np.exp(x.numpy() * 0.5)
    np.testing.assert_allclose(second.numpy(), wanted * x.numpy() + wanted + 1, rtol=1e-5)


def test_what_is_kept_inside_is_a_result(cpu: Device) -> None:
    kept: list[Tensor] = []

    @function
    def spy(x: Tensor) -> dict[str, Tensor]:
        hidden = (x @ x).contiguous()
        kept.append(hidden)
        return {"sum": hidden.sum()}

    x = Tensor(numbers(0, 8, 8), device=cpu)
    result = spy(x)["sum"]
    assert len(called(result)[0].roots) == 2
    result.realize()
    assert kept[0].node.storage is not None, "a call runs once"
    np.testing.assert_allclose(kept[0].numpy(), x.numpy() @ x.numpy(), rtol=1e-4, atol=1e-5)


def test_results_nobody_has_are_not_computed(cpu: Device) -> None:
    @function
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2).contiguous(), (x @ x).contiguous()

    x = Tensor(numbers(0, 8, 8), device=cpu)
    double, square = two(x)
    assert double.memory_plan().kernels == 2
    del square
    assert double.memory_plan().kernels == 1
    assert np.array_equal(double.numpy(), x.numpy() * 2)


def test_memory_between_kernels_serves_every_call(cpu: Device) -> None:
    """The peak of a chain of calls does not grow with their number."""

    @function
    def deep(x: Tensor) -> Tensor:
        for _ in range(4):
            x = (x + 1).contiguous()
        return x

    x = Tensor(np.zeros(1 << 14, np.float32), device=cpu)

    def chain(count: int) -> Tensor:
        y = x
        for _ in range(count):
            y = deep(y)
        return y

    assert chain(1).memory_plan().peak == chain(12).memory_plan().peak == 2 << 16
    assert chain(12).memory_plan().results == 1 << 16
    assert np.all(chain(12).numpy() == 48)


def test_movement_of_results_and_arguments_is_free(cpu: Device) -> None:
    @function
    def split(x: Tensor) -> tuple[Tensor, ...]:
        both = (x * 2).contiguous()
        return both.transpose(), both.reshape(32), both.flip(0)

    @function
    def turned(x: Tensor) -> Tensor:
        return (x + 1).contiguous()

    x = Tensor(numbers(0, 4, 8), device=cpu)
    one, two, three = split(x.transpose().reshape(4, 8))
    assert len(called(one)[0].roots) == 1
    plan = one.memory_plan(two, three)
    wanted = 2 * x.numpy().T.reshape(4, 8)
    assert np.array_equal(one.numpy(), wanted.T)
    assert np.array_equal(two.numpy(), wanted.reshape(32))
    assert np.array_equal(three.numpy(), wanted[::-1]) and plan.kernels == 3
    assert turned(x[1:3].transpose()).memory_plan().kernels == 1


def test_functions_that_compute_nothing(cpu: Device) -> None:
    x = Tensor(numbers(0, 4), device=cpu)
    assert function(lambda t: t)(x) is x
    assert called(function(lambda t: t.reshape(2, 2))(x)) == []
    assert called(function(lambda t: Tensor.zeros(4, device=cpu))(x)) == []
    assert function(lambda t: None)(x) is None
    assert function(lambda t: (t[:0] * 2).contiguous())(x).numpy().shape == (0,)
    mixed = function(lambda t: ((t[:0] + 1).contiguous(), (t + 1).contiguous()))(x)
    assert mixed[0].realize(mixed[1]).numpy().size == 0 and mixed[1].numpy().shape == (4,)


def test_functions_in_functions(cpu: Device) -> None:
    @function
    def inner(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        total = (x @ y).contiguous()
        return total, total.sum(0)

    @function
    def outer(x: Tensor) -> tuple[Tensor, Tensor]:
        first, row = inner(x, x)
        second, _ = inner(first, x + row)
        return inner(second, x)

    x = Tensor(numbers(0, 6, 6) * 0.3, device=cpu)
    result, row = outer(x)
    (body,) = called(result)
    inside = [id(body_of(node)) for node in body.nodes if node.op == "call"]
    assert len(inside) == 3 and len(set(inside)) == 2, "x times x reads one array"
    first = x.numpy() @ x.numpy()
    wanted = first @ (x.numpy() + first.sum(0)) @ x.numpy()
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(row.numpy(), wanted.sum(0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["cpu", "virtual:navi31"])
def test_replayed(name: str) -> None:
    with hcq.open(name) as device:
        use_cache(device, None)
        weights = [Tensor(numbers(seed, 8, 8), device=device) for seed in range(3)]
        total = Tensor(np.zeros(8, np.float32), device=device)

        @function
        def one(x: Tensor, weight: Tensor) -> Tensor:
            y = (x @ weight).softmax()
            total[...] = total + y.sum(0)
            return y

        @jit
        def network(x: Tensor) -> Tensor:
            for weight in weights:
                x = one(x, weight)
            total.realize()
            return x

        sums = np.zeros(8)
        for seed in range(6):
            x = numbers(seed, 4, 8)
            found = network(Tensor(x, device=device)).numpy()
            for weight in weights:
                raised = np.exp(x @ weight.numpy())
                x = raised / raised.sum(-1, keepdims=True)
                sums += x.sum(0)
            np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(total.numpy(), sums, rtol=1e-4)


def test_results_on_two_devices_are_refused(cpu: Device) -> None:
    with hcq.open("cpu", threads=1) as other:

        @function
        def both() -> list[Tensor]:
            return [Tensor([1.0], device=cpu) * 2, Tensor([1.0], device=other) * 2]

        with pytest.raises(NotSupported, match="on one device, got cpu and cpu"):
            both()


def test_errors_name_the_operation_and_leave_no_trace(cpu: Device) -> None:
    lazy = Tensor(numbers(0, 4), device=cpu) * 2

    @function
    def wrong(x: Tensor) -> Tensor:
        y = x + lazy
        return y + Tensor(numbers(0, 3), device=cpu)

    with pytest.raises(BadArgument, match=r"add: .*\[4\].*\[3\]"):
        wrong(Tensor(numbers(1, 4), device=cpu))
    assert np.array_equal(lazy.numpy(), numbers(0, 4) * 2)


def test_values_asked_for_inside_are_arguments(cpu: Device) -> None:
    @function
    def halved(x: Tensor) -> Tensor:
        most = (x * x).max()
        return (x / most.item() + most).contiguous()

    x = Tensor(numbers(0, 4), device=cpu)
    wanted = x.numpy() / (x.numpy() ** 2).max() + (x.numpy() ** 2).max()
    np.testing.assert_allclose(halved(x).numpy(), wanted, rtol=1e-6)


def test_nothing_is_kept_alive(cpu: Device) -> None:
    """A body has shapes, no data: what a call used is free when its results are there."""
    x = Tensor(np.zeros(1 << 16, np.float32), device=cpu)
    used = storage(x)
    result = layer_of_one(x).realize()
    del x
    assert sys.getrefcount(used) == 2, "this frame's, and the argument"
    assert result.numpy()[0] == 1


@function
def layer_of_one(x: Tensor) -> Tensor:
    return (x + 1).contiguous()


def test_a_transformer_takes_no_more_kernels(cpu: Device) -> None:
    def make(*shape: int) -> Tensor:
        return Tensor(np.zeros(shape, np.float32), device=cpu)

    wrapped = function(models.decoder_layer)
    plain, nested = (
        models.transformer(make, 3, 32, 2, 16, layer=each)
        for each in (models.decoder_layer, wrapped)
    )
    assert nested.memory_plan().kernels == plain.memory_plan().kernels
    assert nested.memory_plan().peak <= plain.memory_plan().peak
    assert len(set(map(id, called(nested)))) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_program(cpu: Device, data: st.DataObject) -> None:
    """A random program whose steps are functions, with sharing, state, and results left unread."""
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    arrays = [random.uniform(0.5, 1.5, (4, 4)).astype(np.float32) for _ in range(3)]
    tensors = [Tensor(array, device=cpu) for array in arrays]
    state, truth = Tensor(arrays[2], device=cpu), arrays[2].astype(np.float64)
    values = [array.astype(np.float64) for array in arrays]
    kept: list[Tensor] = []

    def body(x: Tensor, y: Tensor, kind: int) -> tuple[Tensor, Tensor]:
        hidden = x / x.sum(1, keepdims=True)
        if kind == 1:
            state[1:3] = hidden[1:3] + y[:2]
        if kind == 2:
            kept.append(hidden)
        if kind == 3:
            hidden, _ = step(hidden, y, 0)
        return hidden @ y * 0.5, (hidden - state).transpose()

    step = function(body)
    for _ in range(data.draw(st.integers(1, 6))):
        one, two = (data.draw(st.integers(0, len(tensors) - 1)) for _ in range(2))
        kind = data.draw(st.integers(0, 3))
        made = step(tensors[one], tensors[two], kind)
        a, b = values[one], values[two]
        hidden = a / a.sum(1, keepdims=True)
        if kind == 1:
            truth = truth.copy()
            truth[1:3] = hidden[1:3] + b[:2]
        if kind == 3:
            hidden = hidden / hidden.sum(1, keepdims=True) @ b * 0.5
        which = data.draw(st.sampled_from([(0,), (1,), (0, 1)]))
        pair = (hidden @ b * 0.5, (hidden - truth).T)
        tensors += [made[place] for place in which]
        values += [pair[place] for place in which]
        del made
        if data.draw(st.booleans()):
            tensors[-1].realize()
    order = data.draw(st.permutations(range(len(tensors))))
    for place in order[: data.draw(st.integers(1, len(order)))]:
        np.testing.assert_allclose(tensors[place].numpy(), values[place], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(state.numpy(), truth, rtol=1e-3, atol=1e-3)


def test_explained_once(cpu: Device) -> None:
    with watch() as runs:
        stacked(cpu, 3).realize()
    (run,) = runs
    assert run.graph.count("function layer gives") == 1 and run.graph.count("= parameter") == 3
    lines = run.schedule.splitlines()
    assert [line.count("call layer") for line in lines] == [1, *[0] * (len(lines) - 3), 1, 1]
    assert lines[-1].endswith("as before") and lines[1].startswith("    ")
    assert all(kernel.seconds is not None for kernel in run.kernels)
    assert len(run.calls) == 3 and len(run.kernels) == 3 * run.calls[0].kernels
    assert len(runtime_of(cpu)._plans) > 0
