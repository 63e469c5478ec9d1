"""Checks of promises in the style guide and the documents.

Run as `python -m ugpu.tools.house.promises`; tests/test_layers.py runs the same checks. The README
shows the verbs of the command. TODO comments name a key of docs/tasks.md. Modules, public classes
and public functions of more than one statement have a docstring. The names in `__all__` exist.
Tests wait for conditions; they do not read the clock and do not sleep. Product code waits with the
clock that it is given (hcq.state.clock). Only one module reads the environment. Texts do not
contain the phrases that the section "Voice" rules out. Results are named by what they are.
Records describe their fields.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ugpu.tools.house.fields import fields
from ugpu.tools.house.layers import PACKAGES
from ugpu.tools.house.names import names
from ugpu.tools.house.voice import voice
from ugpu.tools.verbs.verb import load

_TASKS = re.compile(r"^## ([a-z0-9-]+)$", re.MULTILINE)
_MARK = re.compile(r"TODO\[([^\]]*)\]")
_VERB = re.compile(r"^    ugpu ([\w-]+)(.*)$", re.MULTILINE)
_VERB_LINES = 40  # of the README's list of verbs: one screen
_BESIDE = re.compile(r"`(\w+)`(?= returns| removes)")  # verbs that share a line
_CLOCK = ("monotonic", "perf_counter", "process_time", "sleep", "time")
# What tests cost, and the waiting helpers of the other tests.
_BY_CLOCK = (
    "costs.py", "foreign/", "lab/hw/", "support/clocks.py", "support/collector.py",
    "support/waiting.py",
)  # fmt: skip
# The clock itself, and models whose programs run at the speed of this processor.
_SLEEPS = (
    "hcq/state/clock.py", "virtual/amd/isa/core.py", "virtual/nvidia/engines/grid.py",
    "virtual/nvidia/sm/runtime/launch/worker.py", "virtual/usb/attach.py",
)  # fmt: skip
_DRIVERS = ("am", "nv", "qcom", "usbgpu")
# Further exceptions: variables that service managers and CI runners set for the process, and
# variables that are passed on.
_ENVIRONMENT = (
    "hcq/state/config.py", "tools/ci/", "tools/service/daemon/main.py",
    "tools/verbs/ci.py",
)  # fmt: skip


def verbs(root: Path) -> Iterator[str]:
    """Check that the README and the command have the same verbs, and that the list is short."""
    shown: set[str] = set()
    lines = _VERB.findall((root / "README.md").read_text("utf-8"))
    for name, rest in lines:
        shown |= {name, *_BESIDE.findall(rest)}
    registered = set(load())
    for name in sorted(shown - registered):
        yield f"README.md: shows `ugpu {name}`, which the command does not have"
    for name in sorted(registered - shown):
        yield f"README.md: does not show `ugpu {name}`"
    if len(lines) > _VERB_LINES:
        yield f"README.md: {len(lines)} lines of verbs, at most {_VERB_LINES}; see `ugpu --help`"


def tasks(root: Path) -> Iterator[str]:
    """Check that each key in the code is in docs/tasks.md, which has each key once."""
    keys = _TASKS.findall((root / "docs" / "tasks.md").read_text("utf-8"))
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        yield f"docs/tasks.md: the key {key} occurs twice"
    for file in _sources(root, *PACKAGES):
        for key in _MARK.findall(file.read_text("utf-8")):
            if key not in keys:
                yield f"{file.relative_to(root)}: docs/tasks.md has no key {key!r}"


def docstrings(root: Path) -> Iterator[str]:
    """Check that modules, public classes and public functions have a docstring."""
    for file in _sources(root, *PACKAGES):
        tree, where = _parsed(file), file.relative_to(root)
        if tree.body and not ast.get_docstring(tree):
            yield f"{where}: the module has no docstring"
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and _is_undescribed(node):
                yield f"{where}:{node.lineno}: {node.name} has no docstring"


def _is_undescribed(node: ast.ClassDef | ast.FunctionDef) -> bool:
    if node.name.startswith("_") or node.name == "main" or ast.get_docstring(node):
        return False
    if isinstance(node, ast.ClassDef):
        return True
    # A verb's help is its description; a function of one statement explains itself.
    short = len(node.body) == 1 and isinstance(node.body[0], ast.Return | ast.Expr | ast.Assign)
    return not node.decorator_list and not short


def exports(root: Path) -> Iterator[str]:
    """Check that a list of exported names has each once, and that the module defines them."""
    for file in _sources(root, *PACKAGES):
        tree = _parsed(file)
        for node in tree.body:
            if isinstance(node, ast.Assign) and _names(node.targets[0]) == ["__all__"]:
                if not isinstance(node.value, ast.List | ast.Tuple):
                    continue  # built from other lists
                elements = node.value.elts
                listed = [str(e.value) for e in elements if isinstance(e, ast.Constant)]
                where = f"{file.relative_to(root)}:{node.lineno}"
                if len(set(listed)) < len(listed):
                    yield f"{where}: a name is exported twice"
                defined = set(_defined(tree))
                for name in listed:
                    if name not in defined and "__getattr__" not in defined:
                        yield f"{where}: exports {name}, which the module does not have"


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (name for target in node.targets for name in _names(target))
        elif isinstance(node, ast.AnnAssign):
            yield from _names(node.target)


def _names(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def clocks(root: Path) -> Iterator[str]:
    """Check that tests neither sleep nor read the clock, except those that exist for it."""
    for file in _sources(root, "tests"):
        inside = file.relative_to(root / "tests").as_posix()
        if inside.startswith(_BY_CLOCK):
            continue
        for line, name in _calls(file, "time", _CLOCK):
            yield (
                f"tests/{inside}:{line}: time.{name}() in a test; wait for a condition "
                "(tests.support.waiting), or inject a clock"
            )


def waits(root: Path) -> Iterator[str]:
    """Check that only clocks sleep, and that drivers ask their transport's clock for the time."""
    for file in _sources(root, *PACKAGES):
        where = file.relative_to(root)
        if where.as_posix() in _SLEEPS:
            continue
        driver = where.parts[0] in _DRIVERS
        for line, name in _calls(file, "time", ("sleep", *(("monotonic", "time") * driver))):
            yield f"{where}:{line}: time.{name}(); use the transport's clock (ugpu.hcq.state.clock)"


def environment(root: Path) -> Iterator[str]:
    """Check that only one module reads the environment; the others take settings."""
    for file in _sources(root, *PACKAGES):
        where = file.relative_to(root)
        if where.as_posix().startswith(_ENVIRONMENT):
            continue
        for node in ast.walk(_parsed(file)):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                place = f"{where}:{node.lineno}"
                yield f"{place}: os.{node.attr}; settings are read by hcq/state/config.py"


def _calls(file: Path, module: str, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each call of such a function, and of each import of one by its
    name."""
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in names)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in names
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == module
        ):
            yield node.lineno, node.func.attr


def _sources(root: Path, *folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((root / folder).rglob("*.py"))


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), str(file))


CHECKS = (verbs, tasks, docstrings, exports, clocks, waits, environment, voice, names, fields)


def check(root: Path) -> list[str]:
    """Return one line per promise that is not kept."""
    return [fault for promise in CHECKS for fault in promise(root)]


def main() -> int:
    faults = check(Path.cwd())
    for fault in faults:
        print(fault)
    print(f"promises: {len(faults)} not kept" if faults else "promises: kept")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
