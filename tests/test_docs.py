"""The programs in the documentation run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("debugging.md", "tutorial.md", "your-own-kernel.md")
_PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)


def programs() -> list[tuple[str, str]]:
    return [
        (f"{page}:{number}", text)
        for page in PAGES
        for number, text in enumerate(_PROGRAM.findall((DOCS / page).read_text("utf-8")), 1)
    ]


@pytest.mark.parametrize(("where", "text"), programs(), ids=[name for name, _ in programs()])
def test_a_program_runs(
    where: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A comment behind a `print` is what it prints."""
    monkeypatch.chdir(tmp_path)  # for the files that it writes
    exec(compile(text, where, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for expected in re.findall(r"print\(.*\)  # (.*)", text):
        assert expected in printed


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert pages == {name for name in pages if f"]({name})" in index}


@pytest.mark.parametrize("page", sorted(DOCS.glob("**/*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        assert target.startswith(("http:", "https:")) or (page.parent / target).exists(), target
