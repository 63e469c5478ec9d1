"""Join neighbouring ranges if no index becomes more complex: one long loop beats two."""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.compiler.expression.algebra import Div, Index, Mod, Opaque, Range
from ugpu.compiler.expression.value import Value, indices_of, substitute


def merge_ranges(
    ranges: Sequence[Range], root: Value, indices: tuple[Index, ...]
) -> tuple[tuple[Range, ...], Value, tuple[Index, ...]]:
    """Merge ranges. indices: further expressions that depend on the ranges."""
    merged = list(ranges)
    position = len(merged) - 2
    while position >= 0:
        outer, inner = merged[position], merged[position + 1]
        joint = Range(outer.name, outer.size * inner.size)
        parts = {outer: joint.index() // inner.size, inner: joint.index() % inner.size}
        changed = substitute(root, parts)
        moved = tuple([index.substitute(parts) for index in indices])
        if _difficulty(changed, moved) <= _difficulty(root, indices):
            root, indices = changed, moved
            merged[position : position + 2] = [joint]
        position -= 1
    return tuple(merged), root, indices


def _difficulty(root: Value, others: Sequence[Index]) -> int:
    """Return the number of divisions in the distinct indices of an expression."""
    atoms: set[Div | Mod] = set()

    def visit(index: Index) -> None:
        for atom, _ in index.terms:
            if isinstance(atom, Opaque):
                for inner in atom.indices():
                    visit(inner)
            elif not isinstance(atom, Range) and atom not in atoms:
                atoms.add(atom)
                visit(atom.value)

    for index in (*indices_of(root), *others):
        visit(index)
    return len(atoms)
