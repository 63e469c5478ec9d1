"""Fields of public records: described one by one, in the folders where all are.

`help()` and editors show a class's docstring; fields that are packed into its prose are not found
in it. The check runs with the other promises (tools.house.promises): each public field of a public
dataclass, named tuple or protocol has a line below "Attributes:", and each line a field.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

# Folders and files whose records all describe their fields. They are added, none is removed.
DESCRIBED = (
    "compiler/dtype.py", "compiler/front", "hcq/cpu", "hcq/device", "hcq/disk", "hcq/find",
    "hcq/objects", "hcq/paging", "hcq/registers", "hcq/remote", "hcq/state",
    "hcq/transport", "hcq/work",
)  # fmt: skip
_RECORDS = ("NamedTuple", "Protocol", "TypedDict")
_LINE = re.compile(r"^    (\w+): \S", re.MULTILINE)


def fields(root: Path) -> Iterator[str]:
    """Check that public records describe each field, and no other."""
    for name in DESCRIBED:
        place = root / name
        for file in (place,) if place.is_file() else sorted(place.rglob("*.py")):
            for node in ast.parse(file.read_text("utf-8"), str(file)).body:
                if isinstance(node, ast.ClassDef) and _is_record(node):
                    yield from _faults(f"{file.relative_to(root)}:{node.lineno}", node)


def _is_record(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(mark) for mark in (*node.decorator_list, *node.bases)]
    is_data = any(mark.startswith("dataclass") for mark in marks)
    return not node.name.startswith("_") and (is_data or not set(_RECORDS).isdisjoint(marks))


def _faults(where: str, node: ast.ClassDef) -> Iterator[str]:
    """Compare a class's fields with those that its docstring describes. Constants of a class, in
    capitals, are not fields."""
    named = {
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    expected = {name for name in named if not name.startswith("_") and not name.isupper()}
    section = (ast.get_docstring(node) or "").partition("\nAttributes:\n")[2]
    described = set(_LINE.findall(section))
    for name in sorted(expected - described):
        yield f"{where}: {node.name} does not describe {name} (STYLE.md, 6)"
    properties = {line.name for line in node.body if isinstance(line, ast.FunctionDef)}
    for name in sorted(described - named - properties):
        yield f"{where}: {node.name} describes {name}, which it does not have"
