"""Which commit this is, and which test files count as changed: tests.changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import changed
from tests.changed import Checkout, meaning

TEXT = (
    '"""Doc."""\nfrom ugpu import hcq\n\n\n'
    'def test_it():\n    assert hcq.open("cpu") is not None  # so\n'
)
IDENTITY = {
    f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """An empty repository, apart from the settings of the user and of this checkout."""
    for name in [name for name in os.environ if name.startswith(("GIT_", changed.NUMBER))]:
        monkeypatch.delenv(name)
    for name, value in (IDENTITY | {"GIT_CONFIG_GLOBAL": os.devnull}).items():
        monkeypatch.setenv(name, value)
    made = Checkout(tmp_path)
    made.git("init", "-q")
    return made


def commit(checkout: Checkout, **texts: str | None) -> None:
    """Write the files (a double underscore is a slash), or delete them, and commit."""
    for name, text in texts.items():
        path = checkout.folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
    checkout.git("add", "-A")
    checkout.git("commit", "-q", "--allow-empty", "-m", "x")


def test_layout_comments_docstrings_and_imports_mean_nothing() -> None:
    other = (
        'from ugpu.am import hcq\n\ndef test_it():\n  """It."""\n'
        '  assert (hcq.open("cpu")\n    is not None)\n'
    )
    assert meaning(other) == meaning(TEXT)
    assert meaning(TEXT.replace("cpu", "virtual:navi31")) != meaning(TEXT)
    assert meaning(TEXT.replace("not None", "None")) != meaning(TEXT)


def test_renames_and_new_imports_are_no_change(checkout: Checkout) -> None:
    commit(checkout, a__test_moved=TEXT, a__test_same=TEXT * 2, a__test_gone=TEXT * 3)
    commit(
        checkout,
        a__test_moved=None,
        b__test_moved=TEXT.replace("from ugpu import hcq", "from u import hcq"),
    )
    commit(checkout, a__test_gone=None, b__helper=TEXT * 3)
    assert checkout.changed() == []


def test_changed_files_come_in_the_order_of_their_last_commit(checkout: Checkout) -> None:
    commit(checkout, test_early=TEXT, test_late=TEXT * 2, test_old=TEXT * 3)
    commit(checkout, test_old=TEXT)
    commit(checkout, test_late=TEXT)
    commit(checkout, test_early=TEXT * 4, test_new=TEXT)
    commit(checkout, test_late=TEXT * 5)
    assert checkout.changed(3) == ["test_late.py", "test_early.py", "test_new.py"]
    assert checkout.changed() == ["test_late.py", "test_early.py", "test_new.py", "test_old.py"]


def test_the_number_counts_commits(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        commit(checkout)
    assert checkout.number() == 3
    monkeypatch.setenv(changed.NUMBER, "41")
    assert checkout.number() == 41


def test_a_shallow_clone_has_a_number_of_its_own(checkout: Checkout, tmp_path: Path) -> None:
    for _ in range(3):
        commit(checkout, test_it=TEXT)
    clone = tmp_path / "clone"
    checkout.git("clone", "-q", "--depth", "1", checkout.folder.as_uri(), str(clone))
    shallow = Checkout(clone)
    assert shallow.number() == int(checkout.git("rev-parse", "HEAD")[:8], 16)
    assert shallow.changed() == []


def test_without_history_nothing_is_known(tmp_path: Path, checkout: Checkout) -> None:
    assert not checkout.has_history()  # a repository without a commit
    assert (checkout.number(), checkout.changed()) == (0, [])
