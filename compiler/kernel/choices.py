"""Choices of lowering, as data: one record type for each shape of kernel.

Lowering a computation with the same record gives the same kernel. A search can therefore try
records and keep the best, and a record can be stored as text and read back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args


@dataclass(frozen=True)
class Tile:
    """A product on the host. height x vectors: rows of a panel of the left factor, vectors of a
    panel of the right. rows, columns: steps of the axes' main ranges in a tile."""

    height: int
    vectors: int
    rows: int
    columns: int


@dataclass(frozen=True)
class MatrixTiles:
    """A product on matrix units. waves: waves of a group, down and across. fragments: of a wave,
    down and across. depth: depth of a slice. buffers: slices in local memory, 1 or 2."""

    unit: str
    waves: tuple[int, int]
    fragments: tuple[int, int]
    depth: int
    buffers: int


@dataclass(frozen=True)
class RingTiles:
    """A product on NVIDIA's matrix units. unit: of one wave, or of a group of four. waves: units of
    a group, down and across. fragments: of each unit, down and across. stages: slices in local
    memory."""

    unit: str
    waves: tuple[int, int]
    fragments: tuple[int, int]
    stages: int


@dataclass(frozen=True)
class BulkTiles(RingTiles):
    """A product of packed factors on Hopper, where one wave fetches the slices for the others.
    unit: of a group of four waves. cluster: groups below each other that share fetched data, 1 or
    2."""

    cluster: int = 1


@dataclass(frozen=True)
class Tiles:
    """A product on a GPU without matrix units. size: a group's tile, block: a thread's tile, each
    down and across. depth: depth of a slice; unroll: unrolled steps of the depth."""

    size: tuple[int, int]
    block: tuple[int, int]
    depth: int
    unroll: int


@dataclass(frozen=True)
class Dots:
    """A product with few results and a long depth on a GPU. block: results of a group, down and
    across; lanes: threads of a group, along the depth."""

    block: tuple[int, int]
    lanes: int


@dataclass(frozen=True)
class Threads:
    """Element-wise on a GPU. width: elements of a thread; block: maximum threads of a group."""

    width: int
    block: int


@dataclass(frozen=True)
class Sharing:
    """A reduction on a GPU. way: which threads add up a result: "threads" (one each), "lanes"
    (`lanes` threads), or "columns" (a group for a wave of results). block: maximum threads of a
    group."""

    way: str
    lanes: int
    block: int


@dataclass(frozen=True)
class Rows:
    """A chain of reductions over rows on a GPU. lanes: threads of a row (a part of a wave, or whole
    waves); block: threads of a group; width: elements that a thread moves at once; held: maximum
    number of elements that a thread keeps from one pass to the next."""

    lanes: int
    block: int
    width: int
    held: int


@dataclass(frozen=True)
class Attention:
    """Attention on a GPU. form: what computes a row: "thread", "group" (for few rows, or one) or
    "matrix" (a wave for a few rows, on matrix units). block: threads of a group; keys: number that
    a thread or a wave takes together; lanes: threads of a key, where a group computes a row.
    buffers: tiles of keys and values in local memory, 1 or 2, on matrix units."""

    form: str
    block: int
    keys: int
    lanes: int
    buffers: int = 1


@dataclass(frozen=True)
class Chunk:
    """Loops on the host. size: approximate number of elements of work for a group."""

    size: int


@dataclass(frozen=True)
class Form:
    """Choice among several graphs that compute the same value (compiler.search.forms)."""

    name: str


@dataclass(frozen=True)
class Packing:
    """Choice to pack a product's factors first (compiler.plan.packing)."""

    pays: bool


Choices = (
    MatrixTiles
    | RingTiles
    | BulkTiles
    | Tiles
    | Dots
    | Threads
    | Sharing
    | Rows
    | Attention
    | Chunk
    | Tile
    | Packing
    | Form
)
KINDS: Mapping[str, type[Any]] = {  # Any: a record's fields are checked by name
    kind.__name__: kind for kind in get_args(Choices)
}


@dataclass(frozen=True)
class Space:
    """Records of one kind that a computation can be lowered with. options: the values of each field
    that may change. fits: whether a record makes a kernel that the target can run."""

    start: Choices
    options: Mapping[str, tuple[Any, ...]]  # Any: of the field's type
    fits: Callable[[Any], bool]

    def contains(self, choices: Choices) -> bool:
        """Return whether a record is in this space."""
        if type(choices) is not type(self.start):
            return False
        for name, value in vars(choices).items():
            usual = getattr(self.start, name)
            if type(value) is not type(usual) or value not in (usual, *self.options.get(name, ())):
                return False
        return self.fits(choices)

    def fits_kind(self, choices: Choices) -> bool:
        """Return whether a record is of this space's kind, and has its unit if the record has
        one."""
        unit = getattr(self.start, "unit", None)
        return type(choices) is type(self.start) and getattr(choices, "unit", None) == unit

    def neighbours(self, choices: Choices) -> Iterator[Choices]:
        """Yield the records that differ in one field."""
        for name, options in self.options.items():
            for option in options:
                if option != getattr(choices, name):
                    other = replace(choices, **{name: option})
                    if self.fits(other):
                        yield other


def to_text(choices: Choices) -> str:
    """Return JSON that `from_text` reads."""
    return json.dumps({"kind": type(choices).__name__, **asdict(choices)})


def from_text(text: str) -> Choices:
    """Return the record. ValueError if the text is not a valid record."""
    try:
        given = json.loads(text)
    except RecursionError as error:
        raise ValueError("the text is nested too deeply") from error
    if not isinstance(given, dict) or given.get("kind") not in KINDS:
        raise ValueError("the text is not a record of choices")
    kind = KINDS[given.pop("kind")]
    if {field.name for field in fields(kind)} != set(given):
        raise ValueError("the record has unexpected fields")
    made: Choices = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
    return made


def shown(choices: Choices) -> str:
    """Return readable text such as "tiles size=64x64 block=4x4 depth=16 unroll=4"."""
    parts = []
    for name, value in asdict(choices).items():
        text = "x".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
        parts.append(f"{name}={text}")
    return " ".join([type(choices).__name__.lower(), *parts])
