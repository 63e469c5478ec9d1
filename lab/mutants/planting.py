"""Planted bugs: the lists beside this file, and how a bug is put into a file's text.

A line `@ FILE : TEST ...` of a list names a file and the tests that belong to it; then each mutant
is `- TEXT` and `+ TEXT`, what is there and what is put in its place. The text occurs once in the
file, or a line `> TEXT` before says behind which text it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One bug. list_: the name of its list. after: the line its text stands behind, or empty."""

    list_: str
    file: str
    tests: tuple[str, ...]
    after: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}: {self.old.strip()!r} -> {self.new.strip()!r}"

    def place(self, text: str) -> int:
        """Where in the file's text the bug is planted. ValueError where its place is not found, or
        not once."""
        start = 0
        if self.after:
            start = text.find(self.after)
            if start < 0:
                raise ValueError(f"{self}: the file has no {self.after!r}")
            start += len(self.after)
        found = text.count(self.old, start)
        if not found or (found > 1 and not self.after):
            raise ValueError(f"{self}: expected the text once, found it {found} times")
        return text.index(self.old, start)

    def planted(self, text: str) -> str:
        """The file's text with the bug. ValueError as `place`."""
        at = self.place(text)
        return text[:at] + self.new + text[at + len(self.old) :]

    def lines(self, text: str) -> range:
        """The lines of the statement that the bug changes, of a compound one those of its head."""
        first = text.count("\n", 0, self.place(text)) + 1
        found = range(first, first + 1)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                whole = _head(node)
                if first in whole and (len(found) == 1 or len(whole) < len(found)):
                    found = whole
        return found

    def has_place(self) -> bool:
        """Whether the bug can be planted in the file as it is now."""
        try:
            self.place((ROOT / self.file).read_text("utf-8"))
        except (ValueError, FileNotFoundError):
            return False
        return True


def _head(node: ast.stmt | ast.excepthandler | ast.match_case) -> range:
    """Lines of a statement without the statements in it."""
    body = getattr(node, "body", None)
    if isinstance(node, ast.match_case):
        return range(node.pattern.lineno, node.body[0].lineno)
    end = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno or node.lineno
    return range(node.lineno, max(node.lineno, end) + 1)


def parse(name: str, text: str) -> Iterator[Mutant]:
    """The mutants of a list. ValueError names the line that is not understood."""
    file, after, tests = "", "", ()  # type: str, str, tuple[str, ...]
    old: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        kind, rest = line[:2], line[2:]
        if kind == "@ ":
            file, _, listed = (part.strip() for part in rest.partition(" : "))
            tests = tuple(listed.split())
        elif kind == "> ":
            after = rest
        elif kind == "- ":
            old = rest
        elif kind.strip() == "+" and file and old is not None:
            yield Mutant(name, file, tests, after, old, rest)
            after, old = "", None
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{name}, line {number}: expected @, >, - or +, got {line!r}")


def listed() -> list[Mutant]:
    """All mutants of all lists."""
    paths = sorted(LISTS.glob("*.txt"))
    return [mutant for path in paths for mutant in parse(path.stem, path.read_text("utf-8"))]
