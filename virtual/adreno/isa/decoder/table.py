"""The table of ir3's encodings (qcom/regs/ir3.txt), read for one GPU.

tools.clang2py.isaspec.read describes the rows. Expressions are Python expressions of names, numbers
and operators only, and are compiled once. Rows and expressions are read on first use, since a
kernel uses few of the encodings.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from types import CodeType
from typing import Any

from ugpu.hcq.errors import NotSupported

_NODES = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant,
    ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip
_INSTRUCTION = "#instruction"


@dataclass(frozen=True, eq=False)
class Expression:
    """A condition or number computed from fields."""

    name: str
    text: str

    @cached_property
    def code(self) -> CodeType:
        return _compiled(self.text)


@dataclass(frozen=True, eq=False)
class Field:
    """Bits low..high of an encoding, or a number computed from others. kind: "int", "uint", "bool",
    ...; "enum" with its texts, or "bitset" with its encodings. text: shown where a bool is true.
    parameters: names that the inner encoding sees, by the names that they have here."""

    name: str
    low: int
    mask: int
    width: int
    kind: str
    expression: Expression | None
    text: str | None
    texts: Mapping[int, str]
    root: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Case:
    """Values that apply where the expression holds (or always). template: text and field names in
    turn. asserted: (low, mask, value) that the bits should have."""

    expression: Expression | None
    template: tuple[str, ...] | None
    fields: Mapping[str, Field]
    asserted: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, eq=False)
class Encoding:
    """One layout of bits."""

    name: str
    shown: str
    mask: int
    match: int
    dontcare: int
    read: Callable[[], tuple[Case, ...]]

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        return self.read()


class Table:
    """All encodings of one GPU, by the root of their hierarchy."""

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu
        rows = _rows()
        enums = {r[1]: r[2].items() for r in rows if r[0] == "enum"}
        self._enums = {name: {int(k, 0): v for k, v in each} for name, each in enums.items()}
        texts = {r[1]: r[2] for r in rows if r[0] == "expr"}
        self._expressions = {name: Expression(name, t) for name, t in texts.items()}
        bitsets = [r for r in rows if r[0] == "bitset"]
        self._roots = {r[3] for r in bitsets}
        self.encodings: dict[str, list[Encoding]] = {}
        for row in bitsets:
            if row[4] <= gpu <= row[5]:
                self.encodings.setdefault(row[3], []).append(self._encoding(row))
        # instructions by their category, bits 63..61
        self.categories: list[list[Encoding]] = [
            [
                e for e in self.encodings[_INSTRUCTION]
                if not ((e.match >> 61) ^ category) & (e.mask >> 61)
            ]
            for category in range(8)
        ]  # fmt: skip

    def _encoding(self, row: list[Any]) -> Encoding:
        _, name, shown, _, _, _, match, dontcare, mask, cases = row
        ignored = int(dontcare, 16)
        return Encoding(
            name, shown, int(mask, 16) & ~ignored, int(match, 16), ignored,
            lambda: tuple(self._case(case) for case in cases),
        )  # fmt: skip

    def _case(self, row: list[Any]) -> Case:
        expression, template, fields = row
        made = {f[0]: self._field(f) for f in fields if f[3] != "assert"}
        asserted = tuple(
            (f[1], (1 << f[2] - f[1] + 1) - 1, f[5]) for f in fields if f[3] == "assert"
        )
        return Case(
            self._expressions[expression] if expression is not None else None,
            _split(template) if template is not None else None,
            made,
            asserted,
        )

    def _field(self, row: list[Any]) -> Field:
        name, low, high, kind, expression, text, parameters = row
        texts: Mapping[int, str] = {}
        root = ""
        if kind in self._enums:
            texts, kind = self._enums[kind], "enum"
        elif kind in self._roots:
            root, kind = kind, "bitset"
        width = high - low + 1
        return Field(
            name, low, (1 << width) - 1, width, kind,
            self._expressions[expression] if expression is not None else None,
            text, texts, root, {inner: outer for outer, inner in parameters},
        )  # fmt: skip


def _rows() -> list[list[Any]]:
    text = resources.files("ugpu.qcom.regs").joinpath("ir3.txt").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if not line.startswith("#")]


def _split(template: str) -> tuple[str, ...]:
    """Split a template: plain text at even places, names of fields at odd ones."""
    parts: list[str] = []
    for piece in template.split("{"):
        parts += piece.split("}", 1) if parts else [piece]
    return tuple(parts)


def _compiled(text: str) -> CodeType:
    tree = ast.parse(text, mode="eval")
    assert all(isinstance(node, _NODES) for node in ast.walk(tree)), text
    return compile(tree, "<ir3 expression>", "eval")


@lru_cache(maxsize=4)
def table(gpu: int) -> Table:
    """Return the table of a GPU of generation 6 or 7, numbered as in Mesa (630, 740 ...)."""
    if not 600 <= gpu < 800:
        raise NotSupported("expected a GPU from 600 to 799", found=gpu)
    return Table(gpu)
