"""Products whose factors are packed, for tests: graphs, their kernels, numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.dtype import bfloat16, float16, float32, int8
from ugpu.compiler.expression.value import interning
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.choices import BulkTiles
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.plan.packing import computation_of, packed
from ugpu.compiler.schedule.group import Group
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.state.target import TargetSpec, ptx_target

Array = NDArray[Any]
HOPPER = ptx_target("sm_90a", 132)
ELEMENTS = {"float16": float16, "bfloat16": bfloat16, "tf32": float32, "int8": int8}


def groups_of(*roots: Node, target: TargetSpec = HOPPER) -> list[Group]:
    with interning:
        return packed(schedule(list(roots)), target)


def lowered(group: Group, target: TargetSpec = HOPPER, tiles: BulkTiles | None = None) -> Kernel:
    with interning:
        return lower(computation_of(group), target, tiles)


def numbers(kind: str, shape: tuple[int, int, int], seed: int) -> tuple[Array, Array]:
    rows, depth, columns = shape
    random = np.random.default_rng(seed)
    dtype = {"tf32": "float32", "bfloat16": "float32"}.get(kind, kind)
    left = random.integers(-4, 5, (rows, depth)).astype(dtype)
    return left, random.integers(-4, 5, (depth, columns)).astype(dtype)


def times(one: Node, two: Node) -> Node:
    """Sums of one [rows][depth] and two [columns][depth]."""
    rows, depth = one.shape
    columns = two.shape[0]
    shape = (rows, columns, depth)
    left = graph.expand(graph.reshape(graph.cast(one, float32), (rows, 1, depth)), shape)
    right = graph.expand(graph.reshape(graph.cast(two, float32), (1, columns, depth)), shape)
    total = graph.reduce("sum", graph.elementwise("mul", float32, left, right), (2,))
    return graph.reshape(total, (rows, columns))
