"""Products with a short side, and reductions whose operands lie in different directions of memory,
on the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.compiler.compiler_cases import HOST, NUMPY_TYPES, buffer, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import Range
from ugpu.compiler.expression.value import Value, walk
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.ir import Loop, Statement, Store
from ugpu.hcq.device.device import Device


def _product(rows: int, depth: int, columns: int, turned: bool = False) -> Node:
    """rows x depth @ depth x columns. turned: the right factor's memory runs along the depth."""
    shape = (rows, columns, depth)
    left = graph.expand(graph.reshape(buffer(rows, depth, dtype=float32), (rows, 1, depth)), shape)
    if turned:
        right = graph.reshape(buffer(columns, depth, dtype=float32), (1, columns, depth))
    else:
        right = graph.permute(buffer(depth, columns, dtype=float32), (1, 0))
        right = graph.reshape(right, (1, columns, depth))
    return _sum_of_product(left, graph.expand(right, shape))


def _sum_of_product(left: Node, right: Node) -> Node:
    return graph.reduce("sum", graph.elementwise("mul", float32, left, right), (2,))


def _innermost(body: Iterable[Statement]) -> Iterator[tuple[Range, list[Value]]]:
    """The loops without loops inside, and their loads from parameters."""
    for statement in body:
        if not isinstance(statement, Loop):
            continue
        if any(isinstance(inner, Loop) for inner in statement.body):
            yield from _innermost(statement.body)
            continue
        reads = [
            node
            for inner in statement.body
            if isinstance(inner, Store)
            for node in walk(inner.value)
            if node.op == "load" and node.arg.memory.space == "global"
        ]
        yield statement.range, reads


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", range(1, 9))
def test_few_rows_read_the_long_factor_in_order(rows: int, turned: bool) -> None:
    for kernel in kernels_of(_product(rows, 96, 320, turned), HOST):
        loops = list(_innermost(kernel.body))
        assert any(reads for _, reads in loops)
        for counter, reads in loops:
            for read in reads:
                step = read.arg.index.coefficient(counter)
                assert step in (0, read.lanes), (counter, read.arg.index)


@pytest.mark.parametrize("places", [2, 4, 7])
def test_few_places_of_many_channels_are_a_product(places: int) -> None:
    """A convolution at the end of a network: the long side has the vectors' lanes."""
    turned = graph.permute(buffer(96, places, dtype=float32), (1, 0))
    shape = (320, places, 96)
    right = graph.expand(graph.reshape(turned, (1, places, 96)), shape)
    weight = graph.reshape(buffer(320, 96, dtype=float32), (320, 1, 96))
    (kernel,) = kernels_of(_sum_of_product(graph.expand(weight, shape), right), HOST)
    assert any(memory.lanes > 1 for memory in kernel.locals)


@given(
    st.integers(0, 1 << 30), st.integers(1, 9), st.integers(1, 67), st.integers(1, 131),
    st.booleans(), st.booleans(), st.sampled_from(NUMPY_TYPES),
)  # fmt: skip
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_thin_products_equal_numpys(
    cpu: Device, seed: int, rows: int, depth: int, columns: int, turn: bool, swap: bool, name: str
) -> None:
    rng = np.random.default_rng(seed)
    left = rng.integers(0, 2, (rows, depth)).astype(name)
    right = rng.integers(0, 2, (columns, depth) if turn else (depth, columns)).astype(name)
    x, y = Tensor(left, device=cpu), Tensor(right, device=cpu)
    if turn:
        y, right = y.permute(1, 0), right.T
    if swap:
        x, y, left, right = y.permute(1, 0), x.permute(1, 0), right.T, left.T
    result = (x @ y).numpy()
    assert (result == (left @ right).astype(result.dtype)).all()


@given(
    st.integers(0, 1 << 30), st.integers(1, 40), st.integers(1, 70),
    st.sampled_from(["sum", "max", "min", "prod"]), st.sampled_from(["int32", "float32"]),
)  # fmt: skip
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_columns_are_reduced_with_weights_along_them(
    cpu: Device, seed: int, depth: int, columns: int, operation: str, name: str
) -> None:
    """A factor for each row of memory does not turn the walk over columns around."""
    rng = np.random.default_rng(seed)
    array = rng.integers(-1, 2, (depth, columns)).astype(name)
    weights = rng.integers(-1, 2, (depth, 1)).astype(name)
    given_ = Tensor(array, device=cpu) * Tensor(weights, device=cpu)
    result = getattr(given_, operation)(0).numpy()
    assert (result == getattr(array * weights, operation)(0).astype(result.dtype)).all()


def test_a_chain_down_columns_with_a_bias_for_each_row_walks_rows_of_memory() -> None:
    x = buffer(40, 300, dtype=float32)
    bias = graph.expand(graph.reshape(buffer(40, dtype=float32), (40, 1)), (40, 300))
    biased = graph.elementwise("add", float32, x, bias)
    largest = graph.expand(graph.reduce("max", biased, (0,)), (40, 300))
    (kernel,) = kernels_of(graph.elementwise("sub", float32, biased, largest), HOST)
    for counter, reads in _innermost(kernel.body):
        for read in reads:
            step = read.arg.index.coefficient(counter)
            assert step in (0, read.lanes), (counter, read.arg.index)
