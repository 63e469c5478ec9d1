"""The README's examples run as they are printed, on the virtual chip."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ugpu.tools.verbs import verb

README = Path(__file__).parents[1] / "README.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    exec(examples()[0], {})
    rows = re.findall(r"\[+\s*([\d.e+-]+)", capsys.readouterr().out)
    assert rows and all(0 <= float(first) <= 1 for first in rows)


def test_training() -> None:
    names: dict[str, Any] = {}
    exec(examples()[1], names)
    before = names["loss"].item()
    assert 1 < before < 4, "about the entropy of ten classes"
    assert all(each.grad is not None for each in names["model"].parameters())


def test_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    exec(examples()[2], {})
    assert capsys.readouterr().out == "[0. 2. 4. 6.]\n"


def test_there_are_three_examples() -> None:
    assert len(examples()) == 3


def test_each_verb_is_listed_once() -> None:
    command = README.read_text(encoding="utf-8").split("## The command")[1].split("\n## ")[0]
    listed = re.findall(r"^    ugpu ([a-z-]+) ", command, re.MULTILINE)
    listed += re.findall(r"`(unbind|eject)`", command)  # in the line of `bind`
    assert sorted(listed) == sorted(verb.load())
