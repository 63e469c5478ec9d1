"""The check of import rules sees each kind of breach; `make check` runs it on the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.house import layers, sizes


@pytest.mark.parametrize(
    ("file", "module", "broken"),
    [
        ("hcq/device.py", "am.device", True),
        ("hcq/device.py", "hcq.queue", False),
        ("am/device.py", "compiler", True),
        ("am/device.py", "nv", True),
        ("am/device.py", "am.virtual.gpu", True),
        ("am/device.py", "am.regs", False),
        ("am/virtual/firmware/psp.py", "am.psp", True),
        ("am/virtual/firmware/psp.py", "am.chips.navi31.hal", True),
        ("am/virtual/firmware/psp.py", "am.chips.navi31.facts", False),
        ("nv/virtual/chip.py", "nv.chips.facts.ChipFacts", False),
        ("nv/virtual/chip.py", "nv.device", True),
        ("am/virtual/firmware/psp.py", "am.regs", False),
        ("am/virtual/firmware/psp.py", "hcq.errors", False),
        ("am/virtual/firmware/psp.py", "am.virtual.chip", False),
        ("compiler/tensor.py", "am.device", True),
        ("compiler/tensor.py", "hcq.device", False),
        ("compiler/tensor.py", "compiler.runtime.runtime", False),
        ("compiler/tensor.py", "compiler.front.jit", True),
        ("compiler/runtime/runtime.py", "compiler.search.tune", True),
        ("compiler/graph/node.py", "compiler.pattern.cost", True),
        ("compiler/graph/node.py", "compiler.Tensor", True),
        ("compiler/__init__.py", "compiler.front.jit", False),
        ("compiler/novel.py", "compiler.dtype", True),
        ("compiler/kernel/host/tiles.py", "compiler.kernel.choices", False),
        ("compiler/kernel/host/tiles.py", "compiler.kernel", False),
        ("compiler/kernel/host/tiles.py", "compiler.kernel.gpu.tiles", True),
        ("compiler/kernel/choices.py", "compiler.kernel.host.tiles", True),
        ("tools/cli.py", "am.device", False),
        ("am/device.py", "tests.support", True),
        ("am/device.py", ".regs", True),
        ("tools/cli.py", ".console", False),
        ("tools/cli.py", "tools.console", True),
        ("ugpu/__init__.py", "compiler", False),
        ("ugpu/__init__.py", "am", True),
        ("hcq/device.py", "ugpu", True),
    ],
)
def test_each_rule_is_seen(file: str, module: str, broken: bool) -> None:
    item = layers.Import(Path(file), 1, module)
    assert (layers.fault_of(item) is not None) is broken


def test_imports_inside_functions_count(tmp_path: Path) -> None:
    for package in layers.PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "hcq" / "sly.py").write_text("def f():\n    from am import device\n")
    assert layers.check(tmp_path) == [
        "hcq/sly.py:2: imports am: hcq may not import am",
        "hcq/sly.py:2: imports am.device: hcq may not import am",
    ]


def planted(root: Path, **files: str) -> list[str]:
    """The faults of a tree of empty packages and these files, `__` standing for a slash."""
    for package in layers.PACKAGES:
        (root / package).mkdir()
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return layers.check(root)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from compiler.front.jit import jit\n", 1),
        ("def late():\n    from compiler.front.jit import jit\n", 2),
        ("if TYPE_CHECKING:\n    from compiler.front.jit import jit\n", 2),
    ],
)
def test_an_import_from_a_higher_floor_is_seen(tmp_path: Path, text: str, line: int) -> None:
    faults = planted(tmp_path, compiler__graph__node=text, compiler__front__jit="jit = 1\n")
    said = "compiler.front is not below compiler.graph"
    assert faults == [
        f"compiler/graph/node.py:{line}: imports compiler.front.jit: {said}",
        f"compiler/graph/node.py:{line}: imports compiler.front.jit.jit: {said}",
    ]


def test_the_whole_of_a_package_is_not_imported_from_inside(tmp_path: Path) -> None:
    assert planted(tmp_path, compiler__graph__node="import compiler\n") == [
        "compiler/graph/node.py:1: imports compiler: imports the whole of compiler; name the module"
    ]


def test_a_circle_is_seen(tmp_path: Path) -> None:
    one, other = "from hcq.two import b\n", "from hcq import one\n"
    assert planted(tmp_path, hcq__one=one, hcq__two=other) == [
        "modules load each other: hcq.one <- hcq.two <- hcq.one"
    ]


def test_modules_that_load_each_other_late_are_no_circle(tmp_path: Path) -> None:
    later = "def f():\n    from hcq.one import a\nif TYPE_CHECKING:\n    import hcq.one\n"
    assert planted(tmp_path, hcq__one="from hcq.two import b\n", hcq__two=later) == []


def test_an_import_of_nothing_is_seen(tmp_path: Path) -> None:
    assert planted(tmp_path, hcq__one="from hcq.two import b\nimport hcq.three\n") == [
        "hcq/one.py:1: imports hcq.two.b: there is no such module",
        "hcq/one.py:2: imports hcq.three: there is no such module",
    ]


def test_a_long_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "hcq").mkdir()
    (tmp_path / "hcq" / "long.py").write_text("x = 1\n" * 501)
    (tmp_path / "hcq" / "table.py").write_text("# Generated from a header.\n" + "x = 1\n" * 600)
    reason = '"""A table.\n\nLonger than 500 lines: it is one list.\n"""\n'
    (tmp_path / "hcq" / "listed.py").write_text(reason + "x = 1\n" * 600)
    assert sizes.check(tmp_path) == ["hcq/long.py: 501 lines, at most 500"]
