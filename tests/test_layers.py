"""The import rules hold in the tree, and the check can see each kind of breach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.house import layers, sizes

ROOT = Path(__file__).resolve().parent.parent


def test_the_tree_keeps_the_rules() -> None:
    assert layers.check(ROOT) == []


def test_files_stay_short() -> None:
    assert sizes.check(ROOT) == []


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


def test_a_long_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "hcq").mkdir()
    (tmp_path / "hcq" / "long.py").write_text("x = 1\n" * 501)
    (tmp_path / "hcq" / "table.py").write_text("# Generated from a header.\n" + "x = 1\n" * 600)
    assert sizes.check(tmp_path) == ["hcq/long.py: 501 lines, at most 500"]
