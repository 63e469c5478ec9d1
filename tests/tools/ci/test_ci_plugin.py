"""The pytest plugin: loans, second runs, verdicts, reports; with pytest-xdist too."""

from __future__ import annotations

import sqlite3
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.tools.ci.plugged import own_locks, run, verdicts

pytest_plugins = ["pytester"]
__all__ = ["own_locks"]


def test_a_test_borrows_a_device_that_fits(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.gpu(bus="c*")
def test_one(gpu):
    with gpu.alloc(64) as buffer:
        buffer.copy_from(bytes(64))

@pytest.mark.gpu(count=2)
def test_two(gpu):
    assert [one.name for one in gpu] == ["cpu:a", "cpu:b"]

def test_without_marker(gpu):
    assert gpu.name == "cpu:a"
""",
        "--gpu-device=cpu:a", "--gpu-device=cpu:b",
    )  # fmt: skip
    result.assert_outcomes(passed=3)
    assert verdicts(result) == []


def test_a_bug_fails_twice_and_is_the_tests(pytester: pytest.Pytester, tmp_path: Path) -> None:
    result = run(
        pytester, "def test_bug(gpu):\n    assert gpu.name == 'cpu:c'\n",
        "--gpu-device=cpu:a", "--gpu-device=cpu:b", f"--gpu-html={tmp_path / 'page.html'}",
        f"--junitxml={tmp_path / 'junit.xml'}", f"--gpu-history={tmp_path / 'h.sqlite'}",
    )  # fmt: skip
    result.assert_outcomes(failed=1)
    (line,) = verdicts(result)
    assert line.startswith("test ") and "it failed on cpu:a too" in line
    page = (tmp_path / "page.html").read_text()
    assert "1 test" in page and "cpu:b" in page and "<script" not in page
    found = ElementTree.parse(tmp_path / "junit.xml").iter("property")
    properties = {one.get("name"): one.get("value") for one in found}
    assert properties["gpu_verdict"] == "test" and properties["gpu_devices"] == "cpu:b"
    with sqlite3.connect(tmp_path / "h.sqlite") as database:
        rows = list(database.execute("SELECT device, passed, sick FROM attempt"))
    assert rows == [("cpu:a", 0, 0), ("cpu:b", 0, 0)]


def test_a_device_that_fails_is_blamed_and_left_out(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_first(gpu):
    if gpu.name == "cpu:rots":
        raise DeviceLost("cpu:rots has left the bus")

def test_second(gpu):
    assert gpu.name == "cpu:b"
""",
        "--gpu-device=cpu:rots", "--gpu-device=cpu:b",
    )  # fmt: skip
    result.assert_outcomes(passed=2)
    (line,) = verdicts(result)
    assert line.startswith("device ") and "cpu:rots" in line and "run on cpu:b" in line


def test_what_fails_once_on_healthy_devices_is_flaky(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
COUNT = []

def test_now_and_then(gpu):
    COUNT.append(1)
    assert len(COUNT) > 1
""",
        "--gpu-device=cpu:a",
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    (line,) = verdicts(result)
    assert line.startswith("flaky ") and "run again, it passed" in line


def test_sick_devices_are_not_lent(pytester: pytest.Pytester) -> None:
    code = "def test_one(gpu):\n    assert gpu.name == 'cpu:b'\n"
    devices = ["--gpu-device=cpu:dead", "--gpu-device=cpu:sick", "--gpu-device=cpu:b"]
    run(pytester, code, *devices).assert_outcomes(passed=1)
    result = run(pytester, code, *devices[:2])
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*cpu:dead: DeviceLost: cpu:dead does not answer*"])
    result.stdout.fnmatch_lines(["*cpu:sick: memory: 3 of 4 words differ*"])


def test_a_fault_in_flight_at_the_end_is_the_tests(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_leaves_work(gpu, monkeypatch):
    def broken():
        raise DeviceLost("gone at the end")
    gpu.synchronize = broken
""",
        "--gpu-device=cpu:a",
    )  # fmt: skip
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("arch='gfx*'", "expected 1 device with arch=gfx"),
        ("memory='lots'", "memory must be a size"),
        ("count=0", "must be at least 1"),
        ("speed=3", "no keyword 'speed'; it takes arch, bus, count"),
        ("count=2", "expected 2 devices"),
        ("'gfx11*'", "accepts only keywords"),
    ],
)
def test_what_cannot_be_lent_is_an_error(
    pytester: pytest.Pytester, marker: str, words: str
) -> None:
    code = f"@pytest.mark.gpu({marker})\ndef test_one(gpu):\n    pass\n"
    result = run(pytester, code, "--gpu-device=cpu:a")
    result.assert_outcomes(errors=1)
    assert words in result.stdout.str()


def test_no_device_names_where_to_name_some(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_one(gpu):\n    pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*--gpu-device, gpu_devices, UGPU_TEST_DEVICES*"])


def test_other_fixtures_named_gpu_and_skips_are_left_alone(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
class TestOther:
    @pytest.fixture
    def gpu(self):
        return 3

    def test_own(self, gpu):
        assert gpu == 3

def test_skipped(gpu):
    pytest.skip("not today")
""",
        "--gpu-device=cpu:a",
    )  # fmt: skip
    result.assert_outcomes(passed=1, skipped=1)
    assert verdicts(result) == []


@pytest.mark.slow
def test_processes_of_xdist_take_turns(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import os, pathlib, time

@pytest.mark.parametrize("number", range(6))
def test_alone(gpu, number):
    mark = pathlib.Path(os.environ["XDG_RUNTIME_DIR"]) / "busy"
    mark.mkdir()  # fails where another test has the device now
    assert number != 3 or not (mark.parent / "once").exists()
    mark.rmdir()
""",
        "--gpu-device=cpu:a", "-n2",
    )  # fmt: skip
    result.assert_outcomes(passed=6)
