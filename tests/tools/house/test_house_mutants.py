"""Planting bugs: lists are understood, bugs are planted, and whether tests find them is told."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path

import pytest

mutants = importlib.import_module("lab.mutants.__main__")
planting = importlib.import_module("lab.mutants.planting")

LIST = """
# a comment
@ code.py : test_code.py
- a + b
+ a - b
> def second
- return 1
+ return 2
"""
CODE = """
def total(a, b):
    return a + b
def first():
    return 1
def second():
    return 1
"""


def test_a_list_is_read_and_planted() -> None:
    one, two = planting.parse("list", LIST)
    assert (one.list_, one.file, one.tests) == ("list", "code.py", ("test_code.py",))
    assert one.planted(CODE) == CODE.replace("a + b", "a - b")
    assert two.planted(CODE) == CODE[: CODE.rindex("1")] + "2\n"


@pytest.mark.parametrize("line", ["what is this", "+ put where?", "* a"])
def test_a_line_that_is_not_understood_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        list(planting.parse("list", f"@ code.py : test_code.py\n{line}\n"))


@pytest.mark.parametrize(("after", "old"), [("", "return 1"), ("", "gone"), ("no such", "a + b")])
def test_a_place_that_is_not_one_is_refused(after: str, old: str) -> None:
    mutant = planting.Mutant("list", "code.py", (), after, old, "x")
    with pytest.raises(ValueError, match=r"code\.py"):
        mutant.planted(CODE)


def test_most_mutants_have_a_place_and_tests() -> None:
    """Code moves; `make mutants` names those that have lost their place."""
    found = [mutant for mutant in planting.listed() if mutant.has_place()]
    assert len(found) >= 100
    for mutant in found:
        text = (planting.ROOT / mutant.file).read_text("utf-8")
        compile(mutant.planted(text), mutant.file, "exec")
    tests = {test for mutant in found for test in mutant.tests}
    assert sum((planting.ROOT / test).exists() for test in tests) > 0.9 * len(tests)


SPREAD = """
def total(a, b):
    if (
        a > b
    ):
        return [
            a,
            b,
        ]
    return 0
"""


@pytest.mark.parametrize(
    ("old", "lines"), [("a > b", (3, 5)), ("a,", (6, 9)), ("0", (10, 10)), ("total", (2, 2))]
)
def test_the_lines_of_a_bug_are_those_of_its_statement(old: str, lines: tuple[int, int]) -> None:
    after = "return [" if old == "a," else "]" if old == "0" else ""
    mutant = planting.Mutant("list", "code.py", (), after, old, "x")
    found = mutant.lines(SPREAD)
    assert (found[0], found[-1]) == lines


@pytest.mark.slow
def test_what_survives_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "test_code.py").write_text(
        "from code import total\ndef test_it():\n    assert total(2, 2) == 4\n"
    )
    (tmp_path / "conftest.py").write_text(
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('code', 'code.py')\n"
        "sys.modules['code'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(sys.modules['code'])\n"
    )
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "all.txt").write_text(LIST)
    (tmp_path / ".gitignore").write_text("copies\n")
    subprocess.run(("git", "init", "-q"), cwd=tmp_path, check=True)
    reach = tmp_path / "lab" / "mutants" / "reach.py"
    reach.parent.mkdir(parents=True)
    shutil.copy(planting.ROOT / "lab" / "mutants" / "reach.py", reach)
    for module in (mutants, planting):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(planting, "LISTS", tmp_path / "lists")
    monkeypatch.setattr(mutants, "COPIES", tmp_path / "copies")
    assert mutants.main([]) == 1
    said = capsys.readouterr().out
    assert "killed   code.py: 'a + b' -> 'a - b'" in said
    assert "SURVIVED code.py: 'return 1' -> 'return 2'" in said
    assert said.endswith(
        "all: 1 of 2\nsurvived: code.py: 'return 1' -> 'return 2'\nmutants: 1 of 2 killed\n"
    )
    assert (tmp_path / "code.py").read_text() == CODE
