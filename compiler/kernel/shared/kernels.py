"""A kernel of one computation, and the places of its groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ugpu.compiler.expression.accumulate import replace
from ugpu.compiler.expression.algebra import Index, Range
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.value import Memory, Value, substitute
from ugpu.compiler.kernel.ir import (
    Fetch,
    GroupProduct,
    If,
    Kernel,
    Loop,
    Statement,
    Store,
    TileStep,
    group_range,
)


def groups_at(ranges: Sequence[Range], axis: int) -> dict[Range, Index]:
    """Return the value of each range where a grid axis has a group for each of their places."""
    return places_at(ranges, group_range(axis, elements(ranges)).index())


def kernel_of(
    computation: Computation,
    local: tuple[Memory, ...],
    grid: tuple[int, int, int],
    block: int,
    body: tuple[Statement, ...],
    cluster: int = 1,
) -> Kernel:
    """Return a kernel of one computation: outputs first, then inputs."""
    outputs = len(computation.outputs)
    parameters = (*computation.outputs, *computation.inputs)
    return Kernel(
        "kernel", parameters, local, grid, block, body, outputs=outputs, cluster=cluster
    )  # fmt: skip


def kernel_over(
    computation: Computation, grid: tuple[int, int, int], block: int, body: Sequence[Statement]
) -> Kernel:
    """Return the same, whose own memories are those that its body writes."""
    written = dict.fromkeys(_written(body))
    own = tuple(memory for memory in written if memory.space != "global")
    return kernel_of(computation, own, grid, block, tuple(body))


def _written(body: Sequence[Statement]) -> Iterator[Memory]:
    for statement in body:
        if isinstance(statement, Loop | If):
            yield from _written(statement.body)
        elif isinstance(statement, GroupProduct):
            yield statement.totals
        elif isinstance(statement, Store | TileStep | Fetch) and statement.memory is not None:
            yield statement.memory


def stores(
    computation: Computation, root: Value, places: Mapping[Range, Index]
) -> tuple[Store, ...]:
    """Return the stores of all results at places. root: their values, as the computation has
    them."""
    position = computation.position.substitute(places)
    results = computation.results(substitute(root, places))
    return tuple(Store(memory, position, each) for memory, each in results)


def result(
    computation: Computation, places: Mapping[Range, Index], total: Value, reduce: Value | None
) -> Store:
    """Return the store of a result at `places`. total: of its reduction; without one, the result
    itself."""
    if reduce is not None:
        root = substitute(computation.value, places)
        total = replace(root, substitute(reduce, places), total)
    return Store(computation.output, computation.position.substitute(places), total)
