"""The pieces of a cat as one kernel: each group works for one of them.

before: computations that store where their elements go in one output, of other inputs each.
after: groups for all of them, so that no element looks at other pieces. Pieces that differ in what
they read and where they write alone share their code: a group chooses the arrays by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.index.algebra import (
    Index,
    Opaque,
    at_least_zero,
    both,
    constant,
    unflatten,
    within,
)
from compiler.index.lookup import atoms
from compiler.index.ranges import Computation
from compiler.kernel.grid import moved
from compiler.kernel.ir import (
    If,
    Kernel,
    Loop,
    Memory,
    Statement,
    Store,
    Value,
    group_range,
    indices_of,
    load,
    rebuild,
    thread_range,
)


@dataclass(frozen=True)
class _Alike:
    """Pieces that compute the same. memories: of each, what it reads in the order of `first`;
    step: elements from where one writes to where the next does."""

    first: Computation
    memories: tuple[tuple[Memory, ...], ...]
    step: int


def side_by_side(computation: Computation, lower: Callable[[Computation], Kernel]) -> Kernel:
    """One kernel for a computation in pieces; `lower` makes one for a piece."""
    shares = [(alike, lower(alike.first)) for alike in _found(computation.pieces)]
    counts = [_groups(kernel) * len(alike.memories) for alike, kernel in shares]
    block = max(kernel.block for _, kernel in shares)
    group = group_range(0, sum(counts)).index()
    thread = thread_range(block).index()
    body: list[Statement] = []
    start = 0
    for (alike, kernel), count in zip(shares, counts, strict=True):
        mine = both(
            within(group, start, start + count), at_least_zero(constant(kernel.block - 1) - thread)
        )
        inside = _share(alike, kernel, group - start, thread)
        body += (If(mine, inside),) if mine else inside
        start += count
    parameters = (*computation.outputs, *computation.inputs)
    return Kernel("kernel", parameters, (), (start, 1, 1), block, tuple(body))


def _groups(kernel: Kernel) -> int:
    x, y, z = kernel.grid
    return x * y * z


def _share(alike: _Alike, kernel: Kernel, group: Index, thread: Index) -> tuple[Statement, ...]:
    """What the groups of some pieces do; `group` counts them all."""
    x, y, z = kernel.grid
    which, number = group // _groups(kernel), group % _groups(kernel)
    places = unflatten(number, (z, y, x))
    values = {group_range(2 - axis, (z, y, x)[axis]): places[axis] for axis in range(3)}
    values[thread_range(kernel.block)] = thread
    chosen = {
        memories[0]: memories[0] if len(set(memories)) == 1 else _one_of(memories, which)
        for memories in zip(*alike.memories, strict=True)
    }
    statements = [moved(statement, values) for statement in kernel.body]
    return _redirected(statements, chosen, which * alike.step)


def _one_of(memories: tuple[Memory, ...], which: Index) -> Memory:
    names = "_".join(memory.name for memory in memories)
    return replace(memories[0], name=f"{names}_by_{which}", among=memories, which=which)


def _redirected(
    body: Iterable[Statement], chosen: Mapping[Memory, Memory], shift: Index
) -> tuple[Statement, ...]:
    made: list[Statement] = []
    for statement in body:
        if isinstance(statement, Store):
            value = _reading(statement.value, chosen)
            made.append(Store(statement.memory, statement.index + shift, value))
        else:
            assert isinstance(statement, Loop | If), statement
            made.append(replace(statement, body=_redirected(statement.body, chosen, shift)))
    return tuple(made)


def _reading(root: Value, chosen: Mapping[Memory, Memory]) -> Value:
    """The same from other memories."""

    def change(node: Value, _: tuple[Value, ...]) -> Value | None:
        if node.op != "load":
            return None
        access = node.arg
        return load(
            chosen.get(access.memory, access.memory), access.index, access.conditions, node.lanes
        )

    return rebuild(root, change)


# ---- which are alike ---------------------------------------------------------------------------


def _found(pieces: Sequence[Computation]) -> list[_Alike]:
    sets: dict[object, list[tuple[Computation, tuple[Memory, ...]]]] = {}
    kept: list[Value] = []  # so that ids stay those of these values
    for number, piece in enumerate(pieces):
        memories = _memories(piece.value)
        key: object = number
        if memories is not None:
            named = {m: replace(m, name=f"piece{i}") for i, m in enumerate(memories)}
            shape = _reading(piece.value, named)
            kept.append(shape)
            key = (id(shape), piece.ranges, piece.position.terms)
        sets.setdefault(key, []).append((piece, memories or ()))
    found: list[_Alike] = []
    for listed in sets.values():
        found += _in_steps(listed)
    return found


def _memories(root: Value) -> tuple[Memory, ...] | None:
    """What a value reads, in order; None where that is also chosen by an index from memory."""
    if any(isinstance(atom, Opaque) for index in indices_of(root) for atom in atoms(index)):
        return None
    found: dict[Memory, None] = {}

    def see(node: Value, _: tuple[Value, ...]) -> None:
        if node.op == "load":
            found[node.arg.memory] = None

    rebuild(root, see)
    return tuple(found)


def _in_steps(listed: Sequence[tuple[Computation, tuple[Memory, ...]]]) -> list[_Alike]:
    """Together where they write at equal distances; else each by itself."""
    starts = [piece.position.constant for piece, _ in listed]
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    if any(start != starts[0] + number * step for number, start in enumerate(starts)):
        return [_Alike(piece, (memories,), 0) for piece, memories in listed]
    return [_Alike(listed[0][0], tuple([memories for _, memories in listed]), step)]
