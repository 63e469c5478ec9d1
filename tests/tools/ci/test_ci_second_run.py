"""The second run of a test: what it proves, its limits, and what one fault counts for."""

from __future__ import annotations

import sqlite3
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.tools.ci.plugged import own_locks, run, verdicts

pytest_plugins = ["pytester"]
__all__ = ["own_locks"]

DEVICES = ("--gpu-device=cpu:a", "--gpu-device=cpu:b")
FIRST = "def first(gpu): return gpu.name == 'cpu:a'\n"

PROVE_NOTHING = {
    "skips": "if not first(gpu): pytest.skip('only there')",
    "fails as expected": "if not first(gpu): pytest.xfail('not yet')",
    "returns": "if not first(gpu): return",
}


@pytest.mark.parametrize("name", PROVE_NOTHING)
def test_a_failure_stays_where_the_second_run(
    name: str, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    code = f"def test_one(gpu):\n    {PROVE_NOTHING[name]}\n    assert 1 + 1 == 3\n"
    result = run(pytester, FIRST + code, *DEVICES, f"--junitxml={tmp_path / 'j.xml'}")
    result.assert_outcomes(failed=1)
    (line,) = verdicts(result)
    assert line.startswith("test ") and "proves nothing" in line
    assert result.ret == 1
    found = ElementTree.parse(tmp_path / "j.xml").iter("property")
    properties = {one.get("name"): one.get("value") for one in found}
    assert properties["gpu_verdict"] == "test" and properties["gpu_devices"] == "cpu:a"


def test_a_failure_of_the_device_stays_too(pytester: pytest.Pytester) -> None:
    code = (
        "def test_one(gpu):\n    if not first(gpu): pytest.skip('only there')\n"
        "    raise DeviceLost('it left the bus')\n"
    )
    result = run(pytester, FIRST + code, *DEVICES)
    result.assert_outcomes(failed=1)
    assert verdicts(result)[0].startswith("device ")


def test_work_in_flight_is_cleared_by_work_alone(pytester: pytest.Pytester) -> None:
    """The first device fails at the end, where no statement of the test is to blame."""
    code = """
def lost(gpu):
    def broken():
        raise DeviceLost("gone at the end")
    gpu.synchronize = broken

def submit(gpu):
    with gpu.queue() as queue, gpu.alloc(64) as buffer:
        queue.fill(buffer, 0)
        queue.timeline.wait(queue.submit())

@pytest.mark.parametrize("works", [True, False])
def test_one(gpu, works):
    if first(gpu):
        submit(gpu)
        lost(gpu)
    elif works:
        submit(gpu)
"""
    result = run(pytester, FIRST + code, *DEVICES)
    result.assert_outcomes(passed=1, failed=1)
    lines = verdicts(result)
    assert "test_one[False]" in lines[0] and "it gave its device no work" in lines[0]
    assert "test_one[True]" in lines[1] and "the test passed" in lines[1]


XFAILED = """
@pytest.mark.xfail(strict=True, reason="known")
def test_expected(gpu):
    assert gpu.name == "another"

def test_says_so(gpu):
    pytest.xfail("not yet")

@pytest.mark.xfail(strict=True, reason="known")
def test_unexpected(gpu):
    assert first(gpu)

@pytest.mark.xfail(reason="known", raises=KeyError)
def test_other_error(gpu):
    raise ValueError("other")
"""


def test_expected_failures_are_not_repeated(pytester: pytest.Pytester, tmp_path: Path) -> None:
    page, history = tmp_path / "page.html", tmp_path / "h.sqlite"
    result = run(
        pytester, FIRST + XFAILED, *DEVICES, f"--gpu-html={page}", f"--gpu-history={history}"
    )
    result.assert_outcomes(xfailed=2, failed=2)
    other, unexpected = verdicts(result)
    assert other.startswith("test ") and "it failed on cpu:a too: ValueError: other" in other
    assert unexpected.startswith("test ") and "XPASS(strict)] known (it was run once)" in unexpected
    assert "2 xfailed" in page.read_text()
    with sqlite3.connect(history) as database:
        rows = dict(database.execute("SELECT test, verdict FROM judged"))
    assert [verdict for _, verdict in sorted(rows.items())] == ["passed", "test", "passed", "test"]


CLASS = """
import unittest

class TestOne(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def borrow(self, gpu):
        self.gpu = gpu

    def test_early(self):
        if not first(self.gpu):
            return
        self.fail("wrong")

    def test_flaky(self):
        self.assertFalse(first(self.gpu))
"""


def test_methods_of_unittest_are_judged_alike(pytester: pytest.Pytester) -> None:
    result = run(pytester, FIRST + CLASS, *DEVICES)
    result.assert_outcomes(failed=1, passed=1)
    early, flaky = verdicts(result)
    assert early.startswith("test ") and "did not reach" in early
    assert flaky.startswith("flaky ")


SUBTESTS = """
def test_one(gpu, subtests):
    with subtests.test("a"):
        assert not first(gpu)
    with subtests.test("b"):
        pass
"""


def test_a_failed_subtest_is_not_repeated(pytester: pytest.Pytester) -> None:
    result = run(pytester, FIRST + SUBTESTS, *DEVICES)
    assert result.ret == 1
    (line,) = verdicts(result)
    assert "test_one: 1 of its subtests failed, AssertionError" in line
    assert "(it was run once)" in line


STUCK = """
import pathlib, threading
RUNS = []

@pytest.mark.timeout(1{method})
def test_stuck(gpu):
    RUNS.append(gpu.name)
    pathlib.Path("runs").write_text(" ".join(RUNS))
    threading.Event().wait({first} if len(RUNS) == 1 else 60)
    assert len(RUNS) > 2
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 60])
def test_the_limit_by_signal_holds_in_both_runs(first: int, pytester: pytest.Pytester) -> None:
    code = STUCK.format(method="", first=first)
    result = run(pytester, code, *DEVICES, "-p", "pytest_timeout")
    result.assert_outcomes(failed=1)
    assert Path("runs").read_text() == "cpu:a cpu:b"
    (line,) = verdicts(result)
    assert line.startswith("test ") and "Timeout" in line


@pytest.mark.slow
def test_the_limit_by_thread_holds_in_the_second_run(pytester: pytest.Pytester) -> None:
    """It ends the process."""
    code = STUCK.format(method=", method='thread'", first=0)
    result = run(pytester, code, *DEVICES, "-p", "pytest_timeout", subprocess=True)
    assert result.ret == 1 and Path("runs").read_text() == "cpu:a cpu:b"
    result.stdout.fnmatch_lines(["*Timeout*"])
    assert "passed" not in result.stdout.str()


def test_no_second_run_after_the_sessions_limit(pytester: pytest.Pytester) -> None:
    code = "COUNT = []\ndef test_one(gpu):\n    COUNT.append(1)\n    assert len(COUNT) > 1\n"
    result = run(pytester, code, *DEVICES, "-p", "pytest_timeout", "--session-timeout=0.000001")
    result.assert_outcomes(failed=1)
    assert "(it was run once)" in verdicts(result)[0]


CLOSES = """
def test_closes(gpu):
    with gpu as device:
        assert device.name

def test_closes_and_fails(gpu):
    with gpu:
        assert gpu.name == "another"

def test_uses_it_afterwards(gpu):
    gpu.close()
    gpu.alloc(64)

def test_next(gpu):
    gpu.alloc(64).close()
    assert gpu.name == "cpu:a"
"""


def test_a_device_that_the_test_closes_is_the_tests_doing(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    history = tmp_path / "h.sqlite"
    result = run(pytester, CLOSES, *DEVICES, f"--gpu-history={history}")
    result.assert_outcomes(failed=3, passed=1)
    lines = verdicts(result)
    assert [line.split()[0] for line in lines] == ["test"] * 3
    assert "the test has closed cpu:a" in lines[0]
    assert "excluded" not in result.stdout.str()
    with sqlite3.connect(history) as database:
        assert [*database.execute("SELECT sum(sick) FROM attempt")] == [(0,)]


ONE_FAULT = """
from ugpu.hcq.errors import DeviceLost, DeviceHang

def failing(gpu, error):
    def broken(*_, **__):
        raise error
    gpu.synchronize = gpu.alloc = broken
    return error

def test_call(gpu):
    raise failing(gpu, DeviceLost("gone"))

@pytest.fixture
def data(gpu):
    yield gpu
    gpu.alloc(64)

def test_fixture(data):
    raise failing(data, DeviceLost("gone"))

def test_assertion(gpu):
    failing(gpu, DeviceHang("it hangs"))
    assert gpu.name == "another"
"""


def test_one_fault_is_one_failure(pytester: pytest.Pytester) -> None:
    result = run(pytester, ONE_FAULT, *DEVICES)
    result.assert_outcomes(failed=3)
    assert any("DeviceHang: it hangs" in line for line in verdicts(result))


def test_a_device_that_fails_before_its_test_has_a_verdict(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    code = "def test_one(gpu): pass\ndef test_two(gpu): pass\n"
    files = [f"--junitxml={tmp_path / 'j.xml'}", f"--gpu-history={tmp_path / 'h.sqlite'}"]
    result = run(pytester, code, "--gpu-device=cpu:dead", *files)
    result.assert_outcomes(errors=2)
    assert [line.split()[0] for line in verdicts(result)] == ["device", "device"]
    cases = [*ElementTree.parse(tmp_path / "j.xml").iter("testcase")]
    for case in cases:
        found = {one.get("name"): str(one.get("value")) for one in case.iter("property")}
        assert found["gpu_verdict"] == "device"
        assert "cpu:dead does not answer" in found["gpu_reason"]
    with sqlite3.connect(tmp_path / "h.sqlite") as database:
        assert [*database.execute("SELECT device, sick FROM attempt")] == [("cpu:dead", 1)]
    result = run(pytester, code, "--gpu-device=cpu:dead", "--gpu-device=cpu:b")
    result.assert_outcomes(passed=2)
    assert verdicts(result) == []
    result.stdout.fnmatch_lines(["*GPUs excluded from the run*", "cpu:dead: DeviceLost: *"])


def test_the_page_does_not_replace_another_file(pytester: pytest.Pytester, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("print('mine')")
    result = run(pytester, "def test_nothing(gpu): pass\n", *DEVICES, f"--gpu-html={mine}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*mine.py exists and is not a page of verdicts*"])
    assert mine.read_text() == "print('mine')"


def test_the_page_says_when_where_and_what(pytester: pytest.Pytester, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code = "def test_bug(gpu):\n    print('so <far>')\n    assert gpu.name == 'cpu:c'\n"
    run(pytester, code, *DEVICES, f"--gpu-html={page}")
    text = page.read_text()
    for words in (" UTC, host ", "commit ", " s</p>", "so &lt;far&gt;", "0 skipped"):
        assert words in text, words
