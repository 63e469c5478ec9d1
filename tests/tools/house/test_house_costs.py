"""Which tests `make test` leaves to `make test-slow`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import costs
from tests.costs import LIMIT_S, ROOT, Costs, listed, renewed


def test_listed_tests_are_there(request: pytest.FixtureRequest) -> None:
    """Of all files that this run of pytest has collected: `make test` has collected every one."""
    if not costs.collected_whole_files(request.config):
        pytest.skip("of some files, not all tests were collected")
    assert costs.stale(listed(), request.config.stash[costs.COLLECTED]) == []


#: a device of each family and generation that a driver or a model tells apart
FAMILIES = ("cpu", "navi31", "tu102", "ga102", "ad102", "gh100", "gb202", "a630", "a740", "ugpud:")


def test_what_make_test_runs_has_every_folder_and_family(request: pytest.FixtureRequest) -> None:
    config = request.config
    if [Path(argument).resolve() for argument in config.args] != [ROOT / "tests"]:
        pytest.skip("not the whole suite was collected")
    collected, fast = config.stash[costs.COLLECTED], config.stash[costs.FAST]
    folders, those_of_fast = (
        {Path(name.partition("::")[0]).parent for name in names} for names in (collected, fast)
    )
    foreign = {folder for folder in folders if "foreign" in folder.parts}  # needs other programs
    assert folders - those_of_fast - foreign == set()
    cases = " ".join(name.partition("[")[2] for name in fast)
    assert [family for family in FAMILIES if cases.count(family) < 5] == []


def test_names_that_are_no_tests_are_stale() -> None:
    here = "tests/tools/house/test_house_costs.py::"
    names = (f"{here}there", f"{here}gone", "tests/no_such_file.py::it", "tests/test_docs.py::it")
    assert costs.stale(names, {f"{here}there", f"{here}another"}) == [
        "tests/no_such_file.py::it",
        f"{here}gone",
    ]


def test_the_list_is_as_it_is_written() -> None:
    assert costs.written(listed()) == costs.LIST.read_text("utf-8")
    costs_of_two = {"b::it[x y]": 0.5, "a::it": 1234.5}
    assert listed(costs.written(costs_of_two)) == costs_of_two


BEFORE = {
    "a::slow": 1.0,
    "a::fast_now": 1.0,
    "a::noise": 1.0,
    "a::lacking": 1.0,
    "b::elsewhere": 1.0,
}
COSTS = Costs(
    {
        "a::slow": 2.0,
        "a::fast_now": LIMIT_S - 0.02,
        "a::noise": 1.1,
        "a::lacking": 0.0,
        "a::new": LIMIT_S + 0.02,
        "a::quick": 0.01,
        "a::marked": 0.02,
    },
    marked=frozenset({"a::marked", "a::lacking"}),
    skipped=frozenset({"a::lacking"}),
)
AFTER = {"a::slow": 2.0, "a::noise": 1.0, "a::lacking": 1.0, "a::new": LIMIT_S + 0.02}


def test_tests_that_did_not_run_keep_their_line() -> None:
    assert renewed(BEFORE, COSTS) == AFTER | {"b::elsewhere": 1.0}
    assert COSTS.fast_s() == pytest.approx(LIMIT_S - 0.01)


def test_names_that_are_no_tests_go() -> None:
    whole = replace(COSTS, collected=frozenset(COSTS.seconds))
    assert renewed(BEFORE, whole) == AFTER
    assert renewed(BEFORE | {"a::renamed": 1.0}, whole) == AFTER


MEASURED = """
import os
import time
import pytest

def test_busy():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass

@pytest.mark.slow
def test_marked():
    assert "UGPU_TEST_COSTS" not in os.environ

@pytest.mark.slow
def test_lacking():
    pytest.skip("not here")
"""


def test_costs_are_taken_at_the_pace_of_the_list() -> None:
    before = {f"a::{number}": 1.0 for number in range(costs.LEAST)}
    measured = Costs(dict.fromkeys(before, 2.0) | {"a::new": 3.0, "a::0": 9.0})
    assert measured.at_pace_of(before).seconds["a::new"] == 1.5
    assert measured.at_pace_of({"a::1": 1.0}) == measured


def test_what_other_runs_measured_is_compared_with_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow.txt").write_text(costs.written({"a::slow": 1.0, "a::fast_now": 1.0}))
    measured = tmp_path / "measured"
    measured.mkdir()
    (measured / "1").write_text("2.000 a::slow\n0.010 a::fast_now\n0.500 a::new\n")
    monkeypatch.setattr(costs, "LIST", tmp_path / "slow.txt")
    monkeypatch.setattr(costs, "ROOT", tmp_path)
    assert costs.main(["--read", str(measured)]) == 0
    written = (tmp_path / "build" / "slow.txt").read_text()
    assert listed(written) == {"a::slow": 2.0, "a::new": 0.5}
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "not in slow.txt: 0.50 s a::new"
    assert said[1].endswith("2 tests; 1 of the list are not slow now")


@pytest.mark.parametrize("processes", ["0", "1"])
def test_costs_are_measured(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_it.py").write_text(MEASURED)
    folder = tmp_path / "costs"
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.conftest",
    ]
    environment = os.environ | {"UGPU_TEST_COSTS": str(folder)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    found = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    measured = costs.read(folder)
    busy, marked, lacking = (f"test_it.py::test_{name}" for name in ("busy", "marked", "lacking"))
    assert set(measured.seconds) == measured.collected == {busy, marked, lacking}
    assert measured.seconds[busy] >= 0.19
    assert (measured.marked, measured.skipped) == ({marked, lacking}, {lacking})
    assert set(measured.slow()) == {busy}


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
