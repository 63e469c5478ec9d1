"""Who may import whom: the import rules of the design, checked on every import in the tree.

Run as `python -m tools.house.layers`; tests/test_layers.py runs the same check. Imports inside
functions count too. The registry in hcq reaches drivers by name, at run time, and imports none.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("am", "compiler", "hcq", "nv", "qcom", "tools", "ugpu", "usbgpu")
VENDORS = ("am", "nv", "qcom")
# What each package may import of ours, besides itself.
MAY_IMPORT = {
    "hcq": (),
    "am": ("hcq",),
    "nv": ("hcq",),
    "qcom": ("hcq",),
    "usbgpu": ("hcq",),
    "compiler": ("hcq",),
    "ugpu": ("compiler", "hcq"),
    "tools": PACKAGES,
}
# Heavy modules that no path from `import hcq` may load at import time.
OPTIONAL = ("llvmlite", "rich", "elftools", "msgpack", "sklearn", "zstandard", "clang")


@dataclass(frozen=True)
class Import:
    """One import statement: the module named, and where it stands."""

    file: Path
    line: int
    module: str


def imports_of(file: Path, root: Path) -> Iterator[Import]:
    """Yield every import of a file, wherever it stands; `from a import b` gives a and a.b."""
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    where = file.relative_to(root)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(where, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield Import(where, node.lineno, "." * node.level + (node.module or ""))
            elif node.module is not None:
                yield Import(where, node.lineno, node.module)
                for alias in node.names:
                    yield Import(where, node.lineno, f"{node.module}.{alias.name}")


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def fault_of(item: Import) -> str | None:
    """Say what is wrong with an import, or None."""
    parts = item.file.with_suffix("").parts
    home = parts[0]
    if item.module.startswith("."):
        return None if home == "tools" else "relative import; write the absolute name"
    target = item.module.split(".")[0]
    if target == "tests":
        return "the product imports tests"
    if target not in PACKAGES:
        return None
    if target == home == "tools":
        return "absolute import; tools is installed as ugpu_tools, write the relative name"
    if target != home and target not in MAY_IMPORT[home]:
        return f"{home} may not import {target}"
    if home in VENDORS:
        in_model = len(parts) > 1 and parts[1] == "virtual"
        if not in_model and _within(item.module, f"{home}.virtual"):
            return "a driver may not import a model"
        if in_model and target == home:
            pieces = item.module.split(".")
            shared = (
                _within(item.module, f"{home}.virtual")
                or _within(item.module, f"{home}.regs")
                or _within(item.module, f"{home}.abi")
                or (len(pieces) >= 4 and pieces[1] == "chips" and pieces[3] == "facts")
                or (pieces[1:2] == ["chips"] and len(pieces) <= 3)
                or pieces[1:3] == ["chips", "facts"]
                or item.module == home
            )
            if not shared:
                return "a model may import only regs, abi and chips/*/facts.py of its driver"
    return None


def check(root: Path) -> list[str]:
    """Return one line per broken rule."""
    faults = []
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            for item in imports_of(file, root):
                fault = fault_of(item)
                if fault is not None:
                    faults.append(f"{item.file}:{item.line}: imports {item.module}: {fault}")
    return faults


def main() -> int:
    faults = check(Path.cwd())
    for fault in faults:
        print(fault)
    print(f"layers: {len(faults)} broken rules" if faults else "layers: kept")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
