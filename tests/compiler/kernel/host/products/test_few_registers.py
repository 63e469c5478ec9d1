"""Products of hosts with 16 vector registers: what is packed and prefetched, and their results on a
host that has more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.host.products.sides import NARROW
from ugpu.compiler.kernel.ir import If, Loop, Prefetch, Statement
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import Caches

SECOND = 256 << 10  # bytes of a Haswell's second-level cache


def product(rows: int, depth: int, columns: int) -> Node:
    shape = (rows, columns, depth)
    left = graph.reshape(buffer(rows, depth, dtype=float32), (rows, 1, depth))
    right = graph.permute(buffer(depth, columns, dtype=float32), (1, 0))
    right = graph.reshape(right, (1, columns, depth))
    pairs = (graph.expand(left, shape), graph.expand(right, shape))
    return graph.reduce("sum", graph.elementwise("mul", float32, *pairs), (2,))


def inside(body: tuple[Statement, ...]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, Loop | If):
            yield from inside(statement.body)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "beyond"),
    [(256, 256, 512, False), (257, 256, 512, True), (512, 512, 512, True), (512, 512, 256, True)],
)
def test_left_factors_beyond_the_second_level_are_packed_not_prefetched(
    lanes: int, rows: int, depth: int, columns: int, beyond: bool
) -> None:
    """With more registers they are read in place and prefetched; few columns read them once."""
    caches = Caches(32 << 10, SECOND)
    target = dataclasses.replace(HOST, cpu="haswell", vector_bytes=4 * lanes, caches=caches)
    assert beyond == (4 * rows * depth > SECOND)
    (kernel,) = kernels_of(product(rows, depth, columns), target)
    statements = list(inside(kernel.body))
    left = kernel.parameters[1]
    packed = any(isinstance(each, Loop) and each.range.name == "left_row" for each in statements)
    fetched = any(isinstance(each, Prefetch) and each.memory is left for each in statements)
    few = lanes == 8
    assert packed == (few and beyond and columns > NARROW)
    assert fetched != few


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(66, 300, 257), (131, 140, 300), (61, 530, 288)]
)
def test_results_of_a_packed_left_factor(cpu: Device, rows: int, depth: int, columns: int) -> None:
    """Rows, columns and depths that end inside panels, tiles and slices; sums are exact."""
    target = dataclasses.replace(
        cpu.target, vector_bytes=min(32, cpu.target.vector_bytes), caches=Caches(32 << 10, 64 << 10)
    )
    (kernel,) = kernels_of(product(rows, depth, columns), target)
    image = compile_text(emit(kernel, target), target)
    rng = np.random.default_rng(rows)
    left = rng.integers(-8, 9, (rows, depth)).astype(np.float32)
    right = rng.integers(-8, 9, (depth, columns)).astype(np.float32)
    with ExitStack() as stack:
        loaded = stack.enter_context(cpu.load(image))
        arrays = (np.full((rows, columns), np.nan, np.float32), left, right)
        buffers = [stack.enter_context(cpu.alloc(array.nbytes)) for array in arrays]
        for each, array in zip(buffers, arrays, strict=True):
            each.copy_from(array)
        with cpu.queue() as queue:
            queue.launch(loaded[kernel.name], grid=kernel.grid, block=(1, 1, 1), args=buffers)
        cpu.synchronize()
        result = buffers[0].numpy(np.float32).reshape(rows, columns)
    assert (result == left.astype(np.float64) @ right).all()
