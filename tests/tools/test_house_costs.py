"""Which tests `make test` leaves to `make test-slow`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import costs
from tests.costs import LIMIT_S, ROOT, listed, renewed


def test_listed_tests_are_there() -> None:
    for name in listed():
        file, _, rest = name.partition("::")
        assert f"def {rest.partition('[')[0].rpartition('::')[2]}(" in (ROOT / file).read_text(), (
            name
        )


def test_the_list_is_sorted() -> None:
    lines = costs.LIST.read_text("utf-8").splitlines()
    assert lines == sorted(set(lines))


def test_tests_that_did_not_run_keep_their_line() -> None:
    before = frozenset({"a::slow", "a::fast_now", "b::elsewhere"})
    measured = {
        "a::slow": LIMIT_S + 1,
        "a::fast_now": 0.1,
        "a::new": LIMIT_S + 0.1,
        "a::quick": 0.0,
    }
    assert renewed(before, measured) == ["a::new", "a::slow", "b::elsewhere"]


def test_a_listed_test_is_slow_and_costs_are_measured(tmp_path: Path) -> None:
    name = "tests/tools/test_house_costs.py::test_tests_that_did_not_run_keep_their_line"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.costs"]
    environment = os.environ | {"UGPU_TEST_COSTS": str(tmp_path)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    found = subprocess.run([*command, name], cwd=ROOT, env=environment, capture_output=True)
    assert found.returncode == 0, found.stdout
    assert list(costs._read(tmp_path)) == [name]


def test_listed_tests_are_left_out() -> None:
    name = min(name for name in listed() if name.startswith("tests/nv/"))
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    for marks, there in (("slow", True), ("not slow", False)):
        found = subprocess.run(
            [*command, "-m", marks, name.partition("::")[0]],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert (name in found.stdout.splitlines()) is there
