"""Names of results: a local variable is named by what it is, in the folders where all are.

A reader of `found` or `one` has to look the type up; `kernel` or `lease` needs no look. The check
runs with the other promises (tools.house.promises). Parameters are not checked: a text that
compares has `expected` and `found`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

VAGUE = frozenset(("each", "found", "given", "known", "made", "one", "wanted"))
# Folders whose results are all named by what they are. Folders are added, none is removed.
NAMED = (
    "hcq/cpu", "hcq/disk", "hcq/find", "hcq/objects", "hcq/registers", "hcq/remote",
    "hcq/state", "hcq/transport", "qcom", "tools/base", "tools/ci", "tools/clang2py",
    "tools/compile", "tools/control", "tools/debug", "tools/house", "tools/inspect",
    "tools/service/daemon/cards", "tools/service/daemon/outlets",
    "tools/service/metrics", "tools/service/page", "tools/service/top", "usbgpu",
)  # fmt: skip


def names(root: Path) -> Iterator[str]:
    """Check that no result in these folders has a name that only says that it is one."""
    for folder in NAMED:
        for file in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"), str(file))):
                if isinstance(node, ast.Name) and _is_vague(node):
                    where = f"{file.relative_to(root)}:{node.lineno}"
                    yield f"{where}: {node.id}; name the result by what it is (STYLE.md, 1)"


def _is_vague(node: ast.Name) -> bool:
    return node.id in VAGUE and isinstance(node.ctx, ast.Store)
