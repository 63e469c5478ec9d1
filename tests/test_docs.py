"""The programs in the documentation run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("your-own-kernel.md",)
_PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)


def programs() -> list[tuple[str, str]]:
    return [
        (f"{page}:{number}", text)
        for page in PAGES
        for number, text in enumerate(_PROGRAM.findall((DOCS / page).read_text("utf-8")), 1)
    ]


@pytest.mark.parametrize(("where", "text"), programs(), ids=[name for name, _ in programs()])
def test_a_program_runs(where: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A comment behind a `print` is what it prints."""
    exec(compile(text, where, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for expected in re.findall(r"print\(.*\)  # (.*)", text):
        assert expected in printed
