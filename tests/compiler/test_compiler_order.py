"""Any order of a schedule that keeps sources before their readers computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler import Tensor
from compiler.graph.node import Node
from compiler.schedule.group import Group
from compiler.schedule.grouping import schedule
from compiler.schedule.plan import make_plan, memory_plan, structure
from hcq.device import Device

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
    waiting, ready, order = list(groups), [], []
    computed: set[int] = set()
    roots = {id(group.root) for group in groups}
    while waiting or ready:
        for group in [g for g in waiting if _sources(g) & roots <= computed]:
            waiting.remove(group)
            ready.append(group)
        group = ready.pop(data.draw(st.integers(0, len(ready) - 1)))
        computed.add(id(group.root))
        order.append(group)
    return order


def _sources(group: Group) -> set[int]:
    return {id(node) for node in group.inputs}


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
        made.add(step.root)
    assert memory_plan([root]).peak >= memory_plan([root]).results > 0
