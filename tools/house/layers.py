"""The import rules of the design, checked on every import in the tree.

Run as `python -m tools.house.layers`; tests/test_layers.py runs the same check. Imports inside
functions, and imports for type checkers only, count too. The registry in hcq loads drivers by name
at run time, and imports none.

In a package with floors, a module imports only modules on lower floors. In all packages, imports at
load time form no cycle, and every imported module exists.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGES = ("am", "compiler", "hcq", "nv", "qcom", "tools", "ugpu", "usbgpu")
VENDORS = ("am", "nv", "qcom")
# The packages that each package may import, apart from itself.
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
# Folders and modules of a package, lowest floor first. Entries of one floor do not import each
# other; the package's __init__ is above all floors.
FLOORS: Mapping[str, Sequence[Sequence[str]]] = {
    "compiler": (
        ("dtype",),
        ("expression",),
        ("graph", "pattern"),
        ("schedule", "kernel"),
        ("plan", "codegen"),
        ("runtime",),
        ("methods", "search"),
        ("tensor",),
        ("front",),
    ),
    "compiler.kernel": (
        ("ir", "choices", "matrix_units"),
        ("text", "verify", "shared"),
        ("host", "gpu"),
        ("attention", "nvidia", "scatter"),
        ("lower",),
    ),
}
# Heavy modules that no path from `import hcq` may load at import time.
OPTIONAL = ("llvmlite", "rich", "textual", "elftools", "msgpack", "sklearn", "zstandard", "clang")


@dataclass(frozen=True)
class Import:
    """One import statement: the imported module, and its place. loading: whether it runs when its
    module is loaded. whole: `import a.b`, which gives access to all of a."""

    file: Path
    line: int
    module: str
    loading: bool = True
    whole: bool = False


def imports_of(file: Path, root: Path) -> Iterator[Import]:
    """Yield every import of a file, at any place; `from a import b` gives a and a.b."""
    where = file.relative_to(root)
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    stack: list[tuple[ast.AST, bool]] = [(tree, True)]
    while stack:
        node, loading = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(where, node.lineno, alias.name, loading, True)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield Import(where, node.lineno, "." * node.level + (node.module or ""), loading)
            elif node.module is not None:
                yield Import(where, node.lineno, node.module, loading)
                for alias in node.names:
                    yield Import(where, node.lineno, f"{node.module}.{alias.name}", loading)
        elif isinstance(node, ast.stmt | ast.mod | ast.excepthandler | ast.match_case):
            inside = loading and not _is_late(node)
            stack.extend((child, inside) for child in reversed(list(ast.iter_child_nodes(node))))


def _is_late(node: ast.AST) -> bool:
    """Return whether the body does not run when the module is loaded."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        return node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _above(item: Import) -> str | None:
    """Return how an import breaks the floors of a package, or None."""
    home, target = item.file.with_suffix("").parts, item.module.split(".")
    for package, floors in FLOORS.items():
        parts = package.split(".")
        depth = len(parts)
        if list(home[:depth]) != parts or target[:depth] != parts or home[depth] == "__init__":
            continue
        level = {name: floor for floor, names in enumerate(floors) for name in names}
        if home[depth] not in level:
            return f"{package}.{home[depth]} is on no floor; add it to FLOORS"
        if len(target) == depth:
            if item.whole:
                return f"imports the whole of {package}; name the module"
            continue
        mine, other = home[depth], target[depth]
        if other not in level:
            return f"{package}.{other} is on no floor of {package}"
        if mine != other and level[other] >= level[mine]:
            return f"{package}.{other} is not below {package}.{mine}"
    return None


def fault_of(item: Import) -> str | None:
    """Return the fault of an import, or None."""
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
                or pieces[1:3] in (["chips", "facts"], ["generations", "facts"])
                or item.module == home
            )
            if not shared:
                return "a model may import only regs, abi and facts of chips of its driver"
    return _above(item)


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def check(root: Path) -> list[str]:
    """Return one line per broken rule."""
    files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    known = {_module(file.relative_to(root)) for file in files}
    known |= {parent for name in known for parent in _parents(name)}
    faults = []
    loads: dict[str, set[str]] = {}
    for file in files:
        home = _module(file.relative_to(root))
        for item in imports_of(file, root):
            fault = fault_of(item)
            if fault is not None:
                faults.append(f"{item.file}:{item.line}: imports {item.module}: {fault}")
                continue
            module = _absolute(item)
            there = {module} if item.whole else {module, module.rpartition(".")[0]}
            if module.split(".")[0] in PACKAGES and not there & known:
                faults.append(f"{item.file}:{item.line}: imports {module}: there is no such module")
            if item.loading and module in known and not _within(home, module):
                loads.setdefault(home, set()).add(module)
    try:
        TopologicalSorter(loads).prepare()
    except CycleError as circle:
        faults.append(f"modules load each other: {' <- '.join(circle.args[1])}")
    return faults


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _absolute(item: Import) -> str:
    """Return the absolute name of the imported module."""
    name = item.module.lstrip(".")
    level = len(item.module) - len(name)
    return ".".join((*item.file.parts[:-level], *filter(None, [name]))) if level else name


def main() -> int:
    faults = check(Path.cwd())
    for fault in faults:
        print(fault)
    print(f"layers: {len(faults)} broken rules" if faults else "layers: kept")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
