"""Rolls, pads and joins on the host: loops divided where conditions of loads change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import uint8
from ugpu.compiler.expression.value import walk
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.ir import If, Loop, Statement, Store
from ugpu.hcq.device.device import Device

SHAPES = [(3, 65), (2, 5, 64)]


def _around(x: Tensor) -> Tensor:
    steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    total = x.roll(steps[0], (-2, -1))
    for step in steps[1:]:
        total = total + x.roll(step, (-2, -1))
    return total


def _around_there(x: np.ndarray) -> np.ndarray:
    steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    return np.sum([np.roll(x, step, (-2, -1)) for step in steps], 0, dtype=x.dtype)


def _padded(x: Tensor) -> Tensor:
    pairs = [(0, 0)] * (x.ndim - 2)
    return x.pad([*pairs, (1, 2), (3, 0)], 7) + 1


def _padded_there(x: np.ndarray) -> np.ndarray:
    pairs = [(0, 0)] * (x.ndim - 2)
    return np.pad(x, [*pairs, (1, 2), (3, 0)], constant_values=7) + 1


def _all_axes(x: Tensor) -> Tensor:
    return Tensor.cat([x, x.roll(1, 0), x.flip(-1)], -1) * 2


def _all_axes_there(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.roll(x, 1, 0), np.flip(x, -1)], -1) * 2


def _many(x: Tensor) -> Tensor:
    """More sections than have code of their own."""
    total = x
    for step in range(1, 5):
        total = total + x.roll((step, step), (-2, -1))
    return total


def _many_there(x: np.ndarray) -> np.ndarray:
    rolled = [np.roll(x, (step, step), (-2, -1)) for step in range(5)]
    return np.sum(rolled, 0, dtype=x.dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(_around, _around_there), (_padded, _padded_there), (_all_axes, _all_axes_there),
     (_many, _many_there)],
    ids=["around", "padded", "all axes", "many"],
)  # fmt: skip
def test_against_numpy(
    cpu: Device, ours: Callable[[Tensor], Tensor], theirs: Callable[[np.ndarray], np.ndarray],
    shape: tuple[int, ...],
) -> None:  # fmt: skip
    x = np.random.default_rng(0).integers(0, 100, shape).astype(np.uint8)
    assert (ours(Tensor(x, device=cpu)).numpy() == theirs(x)).all()


def test_no_load_has_a_condition() -> None:
    x = buffer(64, 300, dtype=uint8)
    rows = graph.cat([_part(x, 0, 1, 64), _part(x, 0, 0, 1)], 0)
    both = graph.elementwise(
        "add", uint8, x, graph.cat([_part(rows, 1, 5, 300), _part(rows, 1, 0, 5)], 1)
    )
    (kernel,) = kernels_of(both, HOST)
    values = [node for store in _stores(kernel.body) for node in walk(store.value)]
    assert not [node for node in values if node.op == "gate"]
    assert not [node for node in values if node.op == "load" and node.arg.conditions]


def _part(x: Node, axis: int, start: int, stop: int) -> Node:
    pairs = [(0, size) for size in x.shape]
    pairs[axis] = (start, stop)
    return graph.shrink(x, tuple(pairs))


def _stores(body: tuple[Statement, ...]) -> list[Store]:
    stores: list[Store] = []
    for statement in body:
        if isinstance(statement, Store):
            stores.append(statement)
        elif isinstance(statement, Loop | If):
            stores += _stores(statement.body)
    return stores
