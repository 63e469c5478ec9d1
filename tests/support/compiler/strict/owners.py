"""Which group of a kernel stores each element of its results, from the kernel's IR alone.

Groups run in any order, and at the same time: an element that two of them store is undefined if
they disagree, and one that none stores is whatever memory had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import Tensor
from ugpu.compiler.expression.algebra import Index
from ugpu.compiler.expression.lookup import atoms
from ugpu.compiler.expression.table import Table
from ugpu.compiler.expression.value import Memory
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.plan.arrange import arrange
from ugpu.compiler.plan.packing import computation_of
from ugpu.compiler.plan.plan import kernels, structure
from ugpu.compiler.schedule.hazards import in_place
from ugpu.hcq.state.target import TargetSpec

MOST = 1 << 24  # stores of a kernel, with those that a bound cuts off; larger kernels are refused
NONE = -1  # the group of what is not stored

Array = NDArray[Any]


class Unknown(Exception):
    """Where a kernel stores depends on data, or it stores more than MOST elements."""


@dataclass
class _Walk:
    """values: of each range, by name, along an axis of its own. stored: the results."""

    values: dict[str, Any]  # arrays, where an index asks for numbers
    stored: frozenset[Memory]

    def at(self, index: Index) -> Array:
        known = dict(self.values)
        for atom in atoms(index):
            if isinstance(atom, Table):
                part = np.searchsorted(atom.starts, self.at(atom.number), side="right")
                known[atom.key] = np.asarray(atom.entries)[part]
        try:
            return np.asarray(index.evaluate(known))
        except KeyError as error:
            raise Unknown(f"{index} needs {error}") from error

    def stores(self, body: Sequence[Statement], active: Array) -> Iterator[tuple[Store, Array]]:
        """Yield each store to a result with where it is made."""
        for statement in body:
            if isinstance(statement, Store) and statement.memory in self.stored:
                yield statement, active
            elif isinstance(statement, If) and self.has(statement):
                held = active
                for condition in statement.conditions:
                    held = held & (self.at(condition) >= 0)
                yield from self.stores(statement.body, held)
            elif isinstance(statement, Loop) and self.has(statement):
                yield from self.loop(statement, active)

    def has(self, statement: Statement) -> bool:
        if isinstance(statement, Loop | If):
            return any(map(self.has, statement.body))
        return isinstance(statement, Store) and statement.memory in self.stored

    def loop(self, loop: Loop, active: Array) -> Iterator[tuple[Store, Array]]:
        """The loop's counter gets a first axis; those of all others move one to the right."""
        size = loop.range.size
        if size * active.size > MOST:
            raise Unknown(f"more than {MOST} stores")
        counter = np.arange(size).reshape(-1, *[1] * active.ndim)
        inside = np.broadcast_to(active, (size, *active.shape))
        if loop.bound is not None:
            inside = inside & (counter < self.at(loop.bound))
        outer = self.values
        self.values = outer | {loop.range.name: counter}
        yield from self.stores(loop.body, inside)
        self.values = outer


def owners(kernel: Kernel) -> dict[Memory, Array]:
    """Return for each result the flat number of the group that stores each of its elements, or
    NONE. AssertionError for one that two groups store. Unknown."""
    x, y, z = kernel.grid
    if x * y * z * kernel.block > MOST:
        raise Unknown(f"more than {MOST} threads")
    groups = np.arange(x * y * z)[:, None]
    values = {
        "group_x": groups % x, "group_y": groups // x % y, "group_z": groups // (x * y),
        "thread": np.arange(kernel.block)[None, :],
    }  # fmt: skip
    results = kernel.parameters[: kernel.outputs]
    found = {memory: np.full(memory.count, NONE) for memory in results}
    walk = _Walk(values, frozenset(results))
    for store, active in walk.stores(kernel.body, np.ones((groups.size, kernel.block), bool)):
        place = np.broadcast_to(walk.at(store.index), active.shape)[active]
        group = np.broadcast_to(groups, active.shape)[active]
        owner = found[store.memory]
        for lane in range(store.value.lanes):
            assert (place >= 0).all() and (place + lane < len(owner)).all(), format_kernel(kernel)
            at = place + lane
            before = np.where(owner[at] == NONE, group, owner[at])
            owner[at] = group  # of several groups, the last one's
            for other in (before, owner[at]):
                taken = other != group
                assert not taken.any(), (
                    f"{store.memory.name}[{at[taken][0]}] is stored by the groups "
                    f"{group[taken][0]} and {other[taken][0]} of\n{format_kernel(kernel)}"
                )
    return found


def lowered(result: Tensor, target: TargetSpec) -> list[Kernel]:
    """Return the kernels that compute a tensor on a target, which needs no device of its kind."""
    root = result.node
    while root.op == "reshape":
        root = root.sources[0]
    _, nodes = structure([root])
    groups = kernels(arrange([root], in_place(nodes, [root]), target), target)
    return [lower(computation_of(group), target) for group in groups]


def checked(computed: Iterable[Kernel]) -> tuple[int, list[str]]:
    """Return how many of these kernels store each element of their results by one group, and why
    it is unknown of others. AssertionError if one does not."""
    count, unknown = 0, []
    for kernel in computed:
        try:
            found = owners(kernel)
        except Unknown as error:
            unknown.append(f"{kernel.name}: {error}")
            continue
        for memory, owner in found.items():
            assert (owner != NONE).all(), (
                f"{memory.name}[{int(np.argmax(owner == NONE))}] is not stored by\n"
                f"{format_kernel(kernel)}"
            )
        count += 1
    return count, unknown
