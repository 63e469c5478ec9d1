"""A sum of two products that a pad, a cat or an upsampling reads stays two products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.hcq.device.device import Device

SIZE = 24


def _product(rows: int, depth: int, columns: int) -> Node:
    shape = (rows, columns, depth)
    left = graph.reshape(buffer(rows, depth, dtype=float32), (rows, 1, depth))
    right = graph.reshape(buffer(columns, depth, dtype=float32), (1, columns, depth))
    both = (graph.expand(each, shape) for each in (left, right))
    total = graph.reduce("sum", graph.elementwise("mul", float32, *both), (2,))
    return graph.reshape(total, (rows, columns))


def _padded(source: Node) -> Node:
    return graph.pad(source, ((1, 1), (2, 0)), 0.0)


def _joined(source: Node) -> Node:
    return graph.cat([source, buffer(3, SIZE, dtype=float32)], 0)


def _twice_as_large(source: Node) -> Node:
    apart = graph.reshape(source, (SIZE, 1, SIZE, 1))
    return graph.reshape(graph.expand(apart, (SIZE, 2, SIZE, 2)), (2 * SIZE, 2 * SIZE))


@pytest.mark.parametrize("reader", [_padded, _joined, _twice_as_large])
def test_products_are_not_computed_element_by_element(reader: Callable[[Node], Node]) -> None:
    summed = graph.elementwise("add", float32, _product(SIZE, 40, SIZE), _product(SIZE, 40, SIZE))
    kernels = kernels_of(reader(summed), HOST)
    in_tiles = [k for k in kernels if any(memory.lanes > 1 for memory in k.locals)]
    assert len(in_tiles) == 2
    assert len(kernels) == 3


def test_a_row_maximum_that_is_padded_stays_in_its_kernel() -> None:
    """What a pad lies around, but an expand repeats, is a chain still."""
    x = buffer(64, 100, dtype=float32)
    largest = graph.expand(graph.reduce("max", x, (1,)), (64, 100))
    rest = graph.elementwise("sub", float32, x, largest)
    assert len(kernels_of(rest, HOST)) == 1


@given(
    st.integers(0, 1 << 30), st.integers(1, 20), st.integers(1, 20), st.integers(1, 20),
    st.sampled_from(["pad", "cat", "repeat"]), st.sampled_from(["float32", "int32", "uint8"]),
)  # fmt: skip
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_readers_of_sums_of_products_equal_numpys(
    cpu: Device, seed: int, rows: int, depth: int, columns: int, how: str, name: str
) -> None:
    rng = np.random.default_rng(seed)
    shapes = ((rows, depth), (depth, columns)) * 2
    a, b, c, d = (rng.integers(0, 3, shape).astype(name) for shape in shapes)
    x, y, z, w = (Tensor(each, device=cpu) for each in (a, b, c, d))
    result, wanted = x @ y + z @ w, a @ b + c @ d
    if how == "pad":
        result, wanted = result.pad(((1, 0), (2, 3))), np.pad(wanted, ((1, 0), (2, 3)))
    elif how == "cat":
        result, wanted = Tensor.cat([result, x @ y]), np.concatenate([wanted, a @ b])
    else:
        result = result.reshape((rows, 1, columns, 1)).expand((rows, 2, columns, 2))
        wanted = np.broadcast_to(wanted.reshape(rows, 1, columns, 1), (rows, 2, columns, 2))
    assert (result.numpy() == wanted.astype(result.numpy().dtype)).all()
