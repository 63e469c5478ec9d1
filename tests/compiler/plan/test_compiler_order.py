"""Any order of a schedule that keeps sources before their readers computes the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ugpu.compiler import Tensor
from ugpu.compiler.graph.node import Node, topological
from ugpu.compiler.plan.plan import make_plan, memory_plan, structure
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.compiler.schedule.group import Group
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

Array = NDArray[Any]


def build(data: st.DataObject, device: Device) -> tuple[list[Tensor], list[Array]]:
    """A random graph with sharing, reductions, products, reshapes; beside it, what NumPy says."""
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    arrays = [random.uniform(0.5, 1.5, (6, 6)).astype(np.float32) for _ in range(2)]
    tensors = [Tensor(array, device=device) for array in arrays]
    expected = [array.astype(np.float64) for array in arrays]
    for _ in range(data.draw(st.integers(2, 9))):
        one = data.draw(st.integers(0, len(tensors) - 1))
        two = data.draw(st.integers(0, len(tensors) - 1))
        kind = data.draw(st.integers(0, 5))
        x, y, a, b = tensors[one], tensors[two], expected[one], expected[two]
        if kind == 0:
            made, true = x + y, a + b
        elif kind == 1:
            made, true = x @ y * 0.1, a @ b * 0.1
        elif kind == 2:
            made, true = x / x.sum(1, keepdims=True) + y, a / a.sum(1, keepdims=True) + b
        elif kind == 3:
            made, true = (x.transpose() * 0.5).contiguous(), a.T * 0.5
        elif kind == 4:
            made, true = x.sin() * y.flip(0), np.sin(a) * b[::-1]
        else:
            made, true = x - y.max(0), a - b.max(0)
        tensors.append(made)
        expected.append(true)
    return tensors, expected


def shuffled(groups: list[Group], data: st.DataObject) -> list[Group]:
    """A random order that keeps sources first."""
    waiting, order = list(groups), []
    ready: list[Group] = []
    computed: set[int] = set()
    roots = {id(root) for group in groups for root in group.roots}
    while waiting or ready:
        for group in [g for g in waiting if _sources(g) & roots <= computed]:
            waiting.remove(group)
            ready.append(group)
        group = ready.pop(data.draw(st.integers(0, len(ready) - 1)))
        computed |= {id(root) for root in group.roots}
        order.append(group)
    return order


def _sources(group: Group) -> set[int]:
    return {id(node) for node in group.sources}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_order_computes_the_same(cpu: Device, data: st.DataObject) -> None:
    tensors, expected = build(data, cpu)
    roots = [tensors[-1], tensors[len(tensors) // 2]]
    nodes = [tensor.node for tensor in roots if tensor.node.storage is None]
    groups = schedule(nodes)
    for group in shuffled(groups, data):
        # one kernel at a time, each in its place of that order
        Tensor.realize(_tensor(group.root, cpu))
    for tensor, value in zip(roots, (expected[-1], expected[len(expected) // 2]), strict=True):
        np.testing.assert_allclose(tensor.numpy(), value, rtol=1e-3, atol=1e-3)


def _tensor(node: Node, device: Device) -> Tensor:
    made = object.__new__(Tensor)
    made.node, made.device = node, device
    return made


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_memory_of_every_order_is_not_reused_too_early(cpu: Device, data: st.DataObject) -> None:
    """Whatever the order, a plan's memory is free again only after its last reader."""
    tensors, _ = build(data, cpu)
    root = tensors[-1].node
    if root.storage is not None:
        return
    _, nodes = structure([root])
    groups = shuffled(schedule([root]), data)
    plan = make_plan(groups, nodes)
    made: set[int] = set()
    for number, step in enumerate(plan.steps):
        for place in step.inputs:
            assert nodes[place].storage is not None or place in made
            assert plan.last_use[place] >= number
        made.update(step.results)
    assert memory_plan([root]).peak >= memory_plan([root]).results > 0


def any_order(data: st.DataObject) -> Callable[..., list[Node]]:
    """As compiler.graph.node.topological, in any order that keeps its promise."""

    def order(roots: Sequence[Node], earlier: Mapping[int, Sequence[Node]]) -> list[Node]:
        waiting = topological(roots, earlier)
        known = {id(node) for node in waiting}
        needs = {
            id(node): {id(each) for each in (*node.sources, *earlier.get(id(node), ()))} & known
            for node in waiting
        }
        result: list[Node] = []
        done: set[int] = set()
        while waiting:
            ready = [node for node in waiting if needs[id(node)] <= done]
            node = ready[data.draw(st.integers(0, len(ready) - 1))]
            waiting.remove(node)
            done.add(id(node))
            result.append(node)
        return result

    return order


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_order_of_the_graph_runs_right(cpu: Device, data: st.DataObject) -> None:
    """Through fusion, joining, memory and assignment: whatever order the graph is walked in."""
    tensors, expected = build(data, cpu)
    roots = {len(tensors) - 1, len(tensors) // 2, data.draw(st.integers(2, len(tensors) - 1))}
    state, truth = Tensor(np.ones((6, 6), np.float32), device=cpu), np.ones((6, 6))
    for place in data.draw(st.lists(st.sampled_from(sorted(roots)), max_size=3)):
        tensors.append(state.transpose() + tensors[place])
        expected.append(truth.T + expected[place])
        roots.add(len(tensors) - 1)
        box = slice(*sorted((data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6)))))
        state[box] = tensors[place][box] * 2
        truth[box] = expected[place][box] * 2
    wanted = [tensors[place] for place in sorted(roots)] + [state]
    runtime_of(cpu)._plans.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ugpu.compiler.schedule.grouping.topological", any_order(data))
        wanted[0].realize(*wanted[1:])
    for place in roots:
        np.testing.assert_allclose(tensors[place].numpy(), expected[place], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(state.numpy(), truth, rtol=1e-3, atol=1e-3)
    runtime_of(cpu)._plans.clear()
