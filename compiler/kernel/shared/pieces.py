"""Compute the pieces of a cat in one kernel: each group works on one of them.

before: computations with one output, each with its own inputs and positions in the output.
after: groups for all of them, so that no element reads other pieces. Pieces that differ only in
the memory they read and in where they write share their code: a group chooses the arrays by its
number. For many pieces that also differ in length, see compiler.kernel.shared.ragged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ugpu.compiler.expression.algebra import (
    Index,
    at_least_zero,
    both,
    constant,
    unflatten,
    within,
)
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import Memory, Value, indices_of, load, rebuild
from ugpu.compiler.kernel.ir import (
    If,
    Kernel,
    Loop,
    Statement,
    Store,
    group_range,
    guarded,
    thread_range,
)
from ugpu.compiler.kernel.shared.grid import moved
from ugpu.compiler.kernel.shared.ragged import Family, Piece, among, families, is_plain, piece_of
from ugpu.hcq.state.target import TargetSpec

FEW_CODES = 4  # pieces with their own code that a kernel may contain without harm


@dataclass(frozen=True)
class _Alike:
    """Pieces that compute the same. memories: those that each piece reads, in the order of the
    first; step: distance in elements between the starts of one piece's output and the next's."""

    computations: tuple[Computation, ...]
    memories: tuple[tuple[Memory, ...], ...]
    step: int

    @property
    def first(self) -> Computation:
        return self.computations[0]


@dataclass(frozen=True)
class _Share:
    """Statements of some of the groups, as a function of the group's and the thread's number."""

    groups: int
    block: int
    body: Callable[[Index, Index], tuple[Statement, ...]]


def side_by_side(
    computation: Computation, target: TargetSpec, lower: Callable[[Computation], Kernel]
) -> Kernel:
    """Return one kernel for a computation in pieces; `lower` makes a kernel for one piece."""
    shares = _shares(_found(computation.pieces), target, lower)
    block = max(share.block for share in shares)
    group = group_range(0, sum(share.groups for share in shares)).index()
    thread = thread_range(block).index()
    body: list[Statement] = []
    start = 0
    for share in shares:
        mine = both(
            within(group, start, start + share.groups),
            at_least_zero(constant(share.block - 1) - thread),
        )
        body += guarded(mine, *share.body(group - start, thread))
        start += share.groups
    parameters = (*computation.outputs, *computation.inputs)
    return Kernel("kernel", parameters, (), (start, 1, 1), block, tuple(body))


def _shares(
    found: Sequence[_Alike], target: TargetSpec, lower: Callable[[Computation], Kernel]
) -> list[_Share]:
    """Give each piece its own code if unlike pieces are few; if many, share code where possible."""
    shares: list[_Share] = []
    rest = list(found)
    if len(found) > FEW_CODES:
        owners: dict[int, _Alike] = {}  # by id of the piece
        pieces: list[Piece] = []
        for alike in found:
            made = [piece_of(each) for each in alike.computations]
            whole = [piece for piece in made if piece is not None]
            if len(whole) == len(made):
                pieces += whole
                owners |= {id(piece): alike for piece in whole}
        for listed in families(pieces):
            taken = {id(owners[id(piece)]) for piece in listed}
            if len(taken) > 1:
                family = Family(listed, target)
                shares.append(_Share(family.groups, family.block, family.body))
                rest = [alike for alike in rest if id(alike) not in taken]
    for alike in rest:
        kernel = lower(alike.first)
        count = _groups(kernel) * len(alike.memories)
        shares.append(_Share(count, kernel.block, partial(_share, alike, kernel)))
    return shares


def _groups(kernel: Kernel) -> int:
    x, y, z = kernel.grid
    return x * y * z


def _share(alike: _Alike, kernel: Kernel, group: Index, thread: Index) -> tuple[Statement, ...]:
    """Return the statements of the groups of some pieces; `group` numbers all of these groups."""
    x, y, z = kernel.grid
    which, number = group // _groups(kernel), group % _groups(kernel)
    places = unflatten(number, (z, y, x))
    values = {group_range(2 - axis, (z, y, x)[axis]): places[axis] for axis in range(3)}
    values[thread_range(kernel.block)] = thread
    chosen = {memories[0]: among(memories, which) for memories in zip(*alike.memories, strict=True)}
    statements = [moved(statement, values) for statement in kernel.body]
    return _redirected(statements, chosen, which * alike.step)


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
    """Return the same value, read from other memories."""

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
    kept: list[Value] = []  # keeps the values alive, so that their ids stay unique
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
    """Return the memories that a value reads, in order; None if an index from memory selects among
    them."""
    if not all(is_plain(index) for index in indices_of(root)):
        return None
    found: dict[Memory, None] = {}

    def see(node: Value, _: tuple[Value, ...]) -> None:
        if node.op == "load":
            found[node.arg.memory] = None

    rebuild(root, see)
    return tuple(found)


def _in_steps(listed: Sequence[tuple[Computation, tuple[Memory, ...]]]) -> list[_Alike]:
    """Group pieces that write at equal distances; otherwise each piece is alone."""
    starts = [piece.position.constant for piece, _ in listed]
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    if any(start != starts[0] + number * step for number, start in enumerate(starts)):
        return [_Alike((piece,), (memories,), 0) for piece, memories in listed]
    pieces, memories = zip(*listed, strict=True)
    return [_Alike(pieces, memories, step)]
