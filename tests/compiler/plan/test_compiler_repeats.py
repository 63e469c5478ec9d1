"""Repeated structure is planned once, and as it would be: the same kernels, places and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compiler import models
from ugpu.compiler import Tensor
from ugpu.compiler.graph.node import Node
from ugpu.compiler.plan.plan import Plan, kernels, make_plan, structure
from ugpu.compiler.plan.repeats import KEPT, copied, find_repeats, repeating, shortened, stretched
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(roots: list[Node]) -> Plan:
    return make_plan(schedule(roots), structure(roots)[1])


def by_layers(roots: list[Node]) -> Plan | None:
    """What the runtime does for a graph it has no plan of."""
    key, nodes = structure(roots)
    for found in find_repeats(key):
        short = shortened(key, found)
        copies = copied(short, nodes, found)
        again, _ = structure([copies[root] for root in short[-1]])
        assert again == short  # a graph like any other, of fewer layers
        groups = schedule([copies[root] for root in short[-1]])
        layers = repeating(make_plan(groups, copies), kernels(groups), copies, found)
        if layers is not None:
            return stretched(layers, found)[0]
    return None


def zeros(device: Device) -> Callable[..., Tensor]:
    return lambda *shape: Tensor(np.zeros(shape, np.float32), device=device)


def norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdims=True)
    return centred * (centred.square().mean(-1, keepdims=True) + 1e-5).rsqrt()


# a step takes what flows, what came two steps before, a weight of its own, and what all share
STEPS: dict[str, Step] = {
    "product": lambda x, past, own, shared: x @ own,
    "bias": lambda x, past, own, shared: x + own[0],
    "residual": lambda x, past, own, shared: x + past,
    "shared": lambda x, past, own, shared: x * shared,
    "relu": lambda x, past, own, shared: x.relu(),
    "exp": lambda x, past, own, shared: x.exp() + x,
    "softmax": lambda x, past, own, shared: x.softmax(),
    "norm": lambda x, past, own, shared: norm(x),
    "turned": lambda x, past, own, shared: (x.T.contiguous() * 2).T,
    "halves": lambda x, past, own, shared: Tensor.cat([x[:, 4:], x[:, :4] * 2], 1),
    "pieces": lambda x, past, own, shared: Tensor.cat([x[:, i : i + 1] for i in range(8)], 1) + 1,
    "total": lambda x, past, own, shared: x + x.sum(),
    "columns": lambda x, past, own, shared: x - x.max(0),
    "repeated": lambda x, past, own, shared: x * (past.sum(-1, keepdims=True).sigmoid() + own[0]),
    "mask": lambda x, past, own, shared: (x > 0).where(x, shared),
    "half": lambda x, past, own, shared: x.half().float() + own,
}


STARTS: list[Callable[[Tensor], Tensor]] = [norm, Tensor.exp, lambda x: x @ x]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_as_without(cpu: Device, data: st.DataObject) -> None:
    make = zeros(cpu)
    names = data.draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=9))
    layers = data.draw(st.integers(KEPT + 1, 12))
    x, shared = make(8, 8), make(8, 8)
    if data.draw(st.booleans()):
        x = data.draw(st.sampled_from(STARTS))(x)
    if data.draw(st.integers(0, 3)) == 0:
        shared = shared * 2 + 1  # computed, for all of them
    seen = [x]
    for _ in range(layers):
        past = x
        for name in names:
            x, past = STEPS[name](x, past, make(8, 8), shared), x
        seen.append(x)
    end = data.draw(st.sampled_from(["", "sum", "first", "all", "middle"]))
    wanted = [x.sum(1) if end == "sum" else x]
    if end == "first":
        wanted = [x + seen[1]]
    elif end == "middle":
        wanted.append(seen[layers // 2])
    elif end == "all":
        wanted += seen[1:-1]
    roots = [each.node for each in wanted if each.node.storage is None]
    roots = [Node("contiguous", r.dtype, r.shape, (r,)) if r.op == "reshape" else r for r in roots]
    found = by_layers(roots)
    assert found is None or found == plain(roots)


@pytest.mark.parametrize("layers", [7, 12, 31])
def test_a_decoder_is_planned_by_layers(cpu: Device, layers: int) -> None:
    network = models.transformer(zeros(cpu), layers=layers, width=48, heads=3, length=8)
    found = by_layers([network.node])
    assert found is not None and found == plain([network.node])


def layer(x: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    return x + (norm(x) @ weight).relu().softmax() * mask


def test_runs_as_numpy_and_plans_the_same_layers_once(cpu: Device) -> None:
    runtime = use_cache(cpu, None)
    random = np.random.default_rng(0)
    mask = random.random((4, 16)).astype(np.float32)
    for layers in (14, 12, 18, 14):
        weights = [random.random((16, 16)).astype(np.float32) for _ in range(layers)]
        x = random.random((4, 16)).astype(np.float32)
        found, shared = Tensor(x, device=cpu), Tensor(mask, device=cpu)
        for weight in weights:
            found = layer(found, Tensor(weight, device=cpu), shared)
        for weight in weights:
            centred = x - x.mean(-1, keepdims=True)
            centred = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
            raised = np.exp(np.maximum(centred @ weight, 0))
            x = x + raised / raised.sum(-1, keepdims=True) * mask
        np.testing.assert_allclose(found.numpy(), x, rtol=2e-4)
    known: dict[Any, Any] = runtime._layers
    taken = [layers for layers, _ in known.values() if layers is not None]
    assert len(known) == 2 and len(taken) == 1  # every second layer does the same


def test_few_or_no_layers(cpu: Device) -> None:
    make = zeros(cpu)
    x = make(8, 8)
    for _ in range(KEPT):
        x = layer(x, make(8, 8), x)
    assert find_repeats(structure([x.node])[0]) == []
    chain = make(8, 8)
    for _ in range(60):  # one kernel could hold several of these: their borders move
        chain = (chain * 2 + 1).relu() - 3
    found = by_layers([chain.node])
    assert found is None or found == plain([chain.node])
