"""Options and fixtures shared by all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import costs, left_open
from tests.support.collector import COLLECTOR
from tests.support.folders import Folders

FOLDERS = Folders.prepare()  # before anything reads the environment

# TIMEOUT: no deadline per example, as a busy machine would fail tests that are right. The same
# examples each time, so that a failure can be repeated.
# Hypothesis makes its own profile for continuous integration the parent where CI is set.
PARENT = settings.get_profile("default")
settings.register_profile("ugpu", PARENT, deadline=None, derandomize=True)
settings.register_profile(
    "ugpu-random", PARENT, deadline=None, database=None, print_blob=True, derandomize=False
)
settings.load_profile("ugpu")

ROOT = Path(__file__).resolve().parent.parent


class _FoldersAlone:
    """Refuses the names of the checkout's folders as packages: they are parts of `ugpu`."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """See importlib.abc.MetaPathFinder."""
        if path is None and (ROOT / "ugpu" / name).is_symlink():
            raise ImportError(f"import ugpu.{name}; {name} alone is a folder of the checkout")


sys.meta_path.insert(0, _FoldersAlone)


def pytest_xdist_auto_num_workers() -> int:
    """One more than processors: some tests wait for the limit of a wait to pass."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        action="append",
        metavar="NAME",
        help="run the contract suite on this device instead of the usual ones; may be repeated",
    )
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the files under tests/golden instead of comparing with them",
    )


def pytest_configure(config: pytest.Config) -> None:
    costs.record(config)
    left_open.pytest_configure(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    with COLLECTOR.off():  # nothing of what is collected becomes garbage
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    COLLECTOR.enter(item.getparent(pytest.Module))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of tests/slow.txt are slow, as `python -m tests.costs` has measured."""
    slow = costs.listed()
    for item in items:
        if item.nodeid in slow and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.costly)
    left = {"slow", "hardware", "foreign"}
    fast = (item.nodeid for item in items if left.isdisjoint(m.name for m in item.iter_markers()))
    config.stash[costs.COLLECTED] = frozenset(item.nodeid for item in items)
    config.stash[costs.FAST] = frozenset(fast)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and FOLDERS.strays():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for path in FOLDERS.strays():
        terminalreporter.write_line(f"a test wrote to the home folder: {path}", red=True)


def pytest_unconfigure() -> None:
    FOLDERS.close()


class Golden:
    """Compares text with a committed file; `make golden` rewrites the files instead."""

    def __init__(self, update: bool) -> None:
        self.update = update

    def check(self, name: str, text: str) -> None:
        """Compare `text` with tests/golden/<name>. A missing file fails."""
        path = ROOT / "tests" / "golden" / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"golden file {name} is missing; `make golden` writes it"
        assert text == path.read_text(encoding="utf-8"), f"differs from golden {name}"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Mark users with @pytest.mark.golden so that `make golden` finds them."""
    return Golden(bool(request.config.getoption("--update-golden")))
