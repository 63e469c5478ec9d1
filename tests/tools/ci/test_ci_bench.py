"""`ugpu ci run`: commands on lent devices, hooks, limits, verdicts, reports."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.disk import bundle
from ugpu.hcq.errors import BadArgument, DeviceBusy, DeviceHang, DeviceLost, UgpuError, UsageError
from ugpu.tools import cli
from ugpu.tools.ci import command, suite
from ugpu.tools.ci.bench import Bench, Result, results_folder
from ugpu.tools.ci.demand import Demand
from ugpu.tools.ci.evidence import line, of_exit
from ugpu.tools.ci.health import Health
from ugpu.tools.ci.pool import Pool
from ugpu.tools.ci.report import junit, page
from ugpu.tools.ci.report.about import About
from ugpu.tools.ci.report.history import History
from ugpu.tools.ci.suite import Case, Suite
from ugpu.tools.ci.verdict import Verdict

LIMIT_S = 60.0


def opened(name: str) -> Device:
    device = hcq.open("cpu", threads=1)
    device.driver.core.name = name
    return device


def made(
    folder: Path, code: str, *, names: Sequence[str] = ("cpu:a", "cpu:b"), limit_s: float = LIMIT_S,
    sick: Callable[[str], str] = lambda name: "", before: str = "", after: str = "",
    opener: Callable[[str], Device] = opened, demand: Demand | None = None,
) -> tuple[Bench, Case]:  # fmt: skip
    case = Case("case", ("sh", "-c", code), demand if demand is not None else Demand(), limit_s)
    hooks = [("sh", "-c", words) if words else () for words in (before, after)]
    cases = Suite((case,), hooks[0], hooks[1], LIMIT_S, folder)
    pool = Pool(
        names, folder / "locks", "r", opener=opener, check=lambda device: Health(sick(device.name))
    )
    environment = {"PATH": os.environ["PATH"], "OUT": str(folder)}
    return Bench(pool, cases, folder / "out", environment), case


def run(folder: Path, code: str, **options: object) -> Result:
    bench, case = made(folder, code, **options)  # type: ignore[arg-type]
    return bench.run(case)


def verdict(result: Result) -> Verdict:
    assert result.judgement is not None
    return result.judgement.verdict


def devices(result: Result) -> list[str]:
    return [" ".join(one.devices) for one in result.attempts]


def test_a_command_gets_its_devices(tmp_path: Path) -> None:
    code = 'test "$UGPU_DEVICE $UGPU_CI_DEVICES $UGPU_CI_CASE" = "cpu:a cpu:a cpu:b case"'
    result = run(tmp_path, code, demand=Demand(count=2))
    assert result.passed and verdict(result) is Verdict.PASSED
    assert devices(result) == ["cpu:a cpu:b"]


def test_a_failing_command_is_run_elsewhere(tmp_path: Path) -> None:
    result = run(tmp_path, "echo wrong; exit 3")
    assert not result.passed and verdict(result) is Verdict.TEST
    assert devices(result) == ["cpu:a", "cpu:b"]
    assert result.attempts[0].error == "exit code 3" and result.output == "wrong\n"


def test_what_passes_the_second_time_is_flaky(tmp_path: Path) -> None:
    result = run(tmp_path, "test -e $OUT/once || { touch $OUT/once; exit 1; }", names=["cpu:a"])
    assert result.passed and verdict(result) is Verdict.FLAKY
    assert devices(result) == ["cpu:a", "cpu:a"]


def test_a_device_that_is_sick_afterwards_is_blamed(tmp_path: Path) -> None:
    def sick(name: str) -> str:
        return "memory differs" if name == "cpu:a" and (tmp_path / "ran").exists() else ""

    result = run(tmp_path, "touch $OUT/ran; test $UGPU_DEVICE = cpu:b", sick=sick)
    assert result.passed and verdict(result) is Verdict.DEVICE
    assert "memory differs" in result.row.reason


def test_a_device_that_does_not_open_again_is_blamed(tmp_path: Path) -> None:
    def opener(name: str) -> Device:
        if name == "cpu:a" and (tmp_path / "ran").exists():
            raise DeviceLost("it left the bus")
        return opened(name)

    result = run(tmp_path, "touch $OUT/ran; exit 1", opener=opener, names=["cpu:a"])
    assert verdict(result) is Verdict.DEVICE and len(result.attempts) == 1
    assert "it left the bus" in result.row.reason


def test_a_device_that_is_still_open_elsewhere_is_not_blamed(tmp_path: Path) -> None:
    def opener(name: str) -> Device:
        if name == "cpu:a" and (tmp_path / "ran").exists():
            raise DeviceBusy("a process has it")
        return opened(name)

    result = run(tmp_path, "touch $OUT/ran; exit 1", opener=opener)
    assert verdict(result) is Verdict.TEST and devices(result) == ["cpu:a", "cpu:b"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(DeviceLost, Verdict.DEVICE), (DeviceHang, Verdict.DEVICE), (BadArgument, Verdict.FLAKY)],
)
def test_a_bundle_is_evidence(error: type[UgpuError], expected: Verdict, tmp_path: Path) -> None:
    bundle.write(tmp_path / "kept", "cpu:a", error("it is gone"), bundle.Evidence())
    code = "test $UGPU_DEVICE = cpu:b || { cp -r $OUT/kept $UGPU_CRASHES; exit 1; }"
    result = run(tmp_path, code)
    assert verdict(result) is expected and result.passed
    assert error.__name__ in result.attempts[0].error
    assert bundle.read(Path(result.row.bundle)).manifest["device"] == "cpu:a"


def test_a_damaged_bundle_is_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK")
    found = of_exit(1, expired_s=None, bundles=[tmp_path / "x.zip"])
    assert found.error == "exit code 1" and not found.device_error


def ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_command_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    code = "sleep 600 & echo $! > $OUT/child.$UGPU_DEVICE; wait"
    result = run(tmp_path, code, limit_s=0.5)
    assert verdict(result) is Verdict.TEST
    assert [one.error for one in result.attempts] == ["still ran after 0.5 s"] * 2
    assert all(one.hang for one in result.attempts)
    for name in ("cpu:a", "cpu:b"):
        number = tmp_path / f"child.{name}"
        if not number.exists():
            continue  # ended before it came so far
        until(functools.partial(ended, int(number.read_text())), "the end of the child")


def test_a_limit_is_extended_explicitly(tmp_path: Path) -> None:
    lease = tmp_path / "lease"
    command.extend({command.LEASE: str(lease)}, 3)
    command.extend({command.LEASE: str(lease)}, 0.5)
    with lease.open("a") as file:
        file.write("nan\nlots\n-7\ninf\n")
    assert command.extended_s(lease) == 3.5
    command.extend({command.LEASE: str(lease)}, 600)
    words = ["sleep", "0.3"]
    ended = command.run(words, os.environ, tmp_path, tmp_path / "o", 0.01, lease)
    assert ended == command.Ended(0)
    for environment, seconds in (({}, 1.0), ({command.LEASE: str(lease)}, -1.0)):
        with pytest.raises(UsageError):
            command.extend(environment, seconds)


def test_code_77_skips_and_no_program_is_code_127(tmp_path: Path) -> None:
    result = run(tmp_path, "exit 77")
    assert result.passed and result.skipped and result.row.verdict == "skipped"
    ended = command.run(["./none"], {}, tmp_path, tmp_path / "o", 9)
    assert ended.code == 127 and "./none" in (tmp_path / "o").read_text()


def test_a_failure_stays_where_the_second_run_skips(tmp_path: Path) -> None:
    code = "echo $UGPU_DEVICE; test $UGPU_DEVICE = cpu:b && exit 77; exit 1"
    result = run(tmp_path, code)
    assert devices(result) == ["cpu:a", "cpu:b"] and verdict(result) is Verdict.TEST
    assert not result.passed and not result.skipped
    assert (
        "run on cpu:b, it skipped itself (exit code 77): this proves nothing" in result.row.reason
    )
    assert result.row.devices == "cpu:a" and result.output == "cpu:a\n"
    assert result.log is not None and result.log.read_text() == "cpu:a\n"


def test_a_device_that_fails_before_its_case_has_a_verdict(tmp_path: Path) -> None:
    def opener(name: str) -> Device:
        if name == "cpu:a":
            raise DeviceLost("it does not answer")
        return opened(name)

    result = run(tmp_path, "true", opener=opener)
    assert result.passed and verdict(result) is Verdict.PASSED and devices(result) == ["cpu:b"]
    assert result.excluded == ("cpu:a: DeviceLost: it does not answer",)
    bench, case = made(tmp_path / "2", "true", opener=opener, names=["cpu:a"])
    (tmp_path / "2").mkdir()
    for _ in range(2):  # the second time, it is excluded already
        result = bench.run(case)
        assert not result.passed and verdict(result) is Verdict.DEVICE
        assert "it does not answer" in result.row.reason and result.row.verdict == "device"


def test_the_end_of_a_long_output_begins_with_a_line(tmp_path: Path) -> None:
    code = "i=0; while test $i -lt 900; do echo line $i; i=$((i+1)); done; exit 1"
    result = run(tmp_path, code)
    assert result.output.startswith("line ") and result.output.endswith("line 899\n")
    assert 3900 < len(result.output) <= 4000


def test_a_long_reason_ends_with_a_word() -> None:
    found = line("\n\n" + "seven " * 60)
    assert found.endswith("seven ...") and 280 < len(found) <= 300
    assert len(line("x" * 500)) <= 301
    assert line("short\nand more") == "short"
    assert line("") == ""


def test_hooks_surround_each_lease(tmp_path: Path) -> None:
    log = "echo {} $UGPU_DEVICE >> $OUT/log"
    result = run(
        tmp_path, log.format("case") + "; exit 1",
        before=log.format("before"), after=log.format("after"),
    )  # fmt: skip
    assert verdict(result) is Verdict.TEST
    lines = (tmp_path / "log").read_text().split("\n")
    assert lines[:-1] == [f"{w} cpu:{d}" for d in "ab" for w in ("before", "case", "after")]


def test_a_hook_that_fails_keeps_its_device_out(tmp_path: Path) -> None:
    before = "echo no power; test $UGPU_DEVICE = cpu:b"
    result = run(tmp_path, "true", before=before)
    assert result.passed and devices(result) == ["cpu:b"]
    assert result.hooks == ("cpu:a: hook before: exit code 1 no power",)
    result = run(tmp_path / "2", "true", before="exit 1", after="touch $OUT/after.$UGPU_DEVICE")
    assert not result.passed and "hook before: exit code 1" in result.error
    assert (tmp_path / "2" / "after.cpu:b").exists()


def test_the_hook_after_runs_when_the_command_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, case = made(tmp_path, "true", after="touch $OUT/after")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_command", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.run(case)
    assert (tmp_path / "after").exists()
    assert {one.state for one in bench.pool.available()} == {"free"}


def test_availability_is_shown_before_a_lease(tmp_path: Path) -> None:
    bench, case = made(tmp_path, "true")
    lines: list[str] = []
    bench.say = lines.append
    loan = bench.pool.take(Demand())
    bench.run(case)
    lent, free = bench.pool.available()
    assert (lent.name, lent.state, lent.detail) == ("cpu:a", "lent", f"pid {os.getpid()}")
    assert free.state == "free"
    loan.release()
    assert "cpu:a lent, cpu:b free" in lines[0]
    bench.pool.quarantine("cpu:b", "it rattles")
    assert [one.state for one in bench.pool.available()] == ["free", "quarantined"]


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    pool = Pool(["cpu"], tmp_path, "r", opener=opened)
    code = (
        "import os, sys; from pathlib import Path; from ugpu.tools.ci.pool import Pool\n"
        "lock = Pool(['cpu'], Path(sys.argv[1]), 'r')._lock('cpu')\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"locked\n"
        assert pool.available()[0].detail == f"pid {process.pid}"
        process.kill()
        process.wait()
        assert pool.available()[0].state == "free"


def test_reports(tmp_path: Path) -> None:
    bench, case = made(tmp_path, "printf 'bad \\001 byte'; exit 1")
    bench.history = History(tmp_path / "h.sqlite")
    results = [bench.run(case), Result(Case("none", ("x",)), error="no device")]
    junit.write(tmp_path / "j.xml", "bench", results)
    suite_ = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite_.get("tests"), suite_.get("failures"), suite_.get("errors")) == ("2", "1", "1")
    found = {one.get("name"): one.get("value") for one in suite_.iter("property")}
    assert found["gpu_verdict"] == "test" and found["gpu_devices"] == "cpu:b"
    output = suite_.find("testcase/system-out")
    assert output is not None and output.text == "bad \N{REPLACEMENT CHARACTER} byte"
    assert results[1].row.verdict == "error"
    assert [one.tag for one in suite_] == [
        "properties", "testcase", "testcase", "system-out", "system-err"
    ]  # fmt: skip
    assert set(suite_.attrib) == {
        "name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id",
        "package",
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite_.attrib["timestamp"])
    for one in suite_.findall("testcase"):
        assert set(one.attrib) == {"classname", "name", "time", "status"}
        (fault,) = [*one.iter("failure"), *one.iter("error")]
        assert fault.get("type") and fault.get("message")
    assert Path(found["gpu_output"] or "").read_bytes() == b"bad \x01 byte"
    about = About(tmp_path)
    page.write(tmp_path / "p.html", [one.row for one in results], about, ["cpu:z: <dead>"])
    text = (tmp_path / "p.html").read_text()
    for words in (
        f"host {about.host}, commit unknown", 'href="./out/001-case.2/output"',
        "0 skipped, 1 error", "<li>cpu:z: &lt;dead&gt;",
    ):  # fmt: skip
        assert words in text, words
    assert bench.history.weak() == bench.history.flaky() == []


SUITE = """
limit_s = 60
[[case]]
name = "good"
command = ["sh", "-c", "test $WHERE = cpu"]
[[case]]
name = "bad"
command = ["false"]
[[case]]
name = "not here"
command = ["sh", "-c", "exit 77"]
"""


def test_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "s.toml").write_text(SUITE)
    words = ["ci", "run", str(tmp_path / "s.toml"), "--devices", "cpu", "--variable", "WHERE"]
    words += [f"--{name}={tmp_path / name}" for name in ("junit", "html", "history", "out")]
    assert cli.main(words) == 1
    text = capsys.readouterr().out
    assert "1 of 3 cases passed, 1 skipped;" in text and "bad: verdict test: exit code 1" in text
    text = (tmp_path / "html").read_text()
    assert "1 test" in text and "1 passed" in text and "1 skipped" in text
    found = ElementTree.parse(tmp_path / "junit").getroot()[0]
    assert (found.get("tests"), found.get("failures"), found.get("skipped")) == ("3", "1", "1")
    assert cli.main(words) == 2
    assert "--out must be a new or an empty folder" in capsys.readouterr().err
    assert cli.main(["ci", "devices", "--devices", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "cpu", "state": "free", "detail": ""}]
    monkeypatch.delenv("UGPU_TEST_DEVICES", raising=False)
    assert cli.main(["ci", "devices"]) == 2
    assert "UGPU_TEST_DEVICES" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = [", "is not TOML"),
        ("", "at least one"),
        ("case = 3", "at least one"),
        ("case = [3]", "must be a table"),
        ("speed = 1", "no key 'speed'; it takes limit_s, before"),
        ("limit_s = 0", "limit_s must be a positive number"),
        ("before = 'x'\ncase = [{name='a', command=['x']}]", "before must be a list of strings"),
        ("[[case]]\ncommand = ['x']", "name of a case must be a string"),
        ("[[case]]\nname = 'a'", "case 'a': command is missing"),
        ("[[case]]\nname = 'a'\ncommand = ['x']\ncount = 0", "count=) must be at least 1"),
        ("[[case]]\nname = 'a'\ncommand = ['x']\ncuont = 1", "no key 'cuont'"),
        ("case = [{name='a', command=['x']}, {name='a', command=['x']}]", "must differ"),
    ],
)
def test_what_a_suite_cannot_say(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        suite.read(path)
    assert words in caught.value.message and str(path) in caught.value.message
    with pytest.raises(UsageError, match="cannot read"):
        suite.read(tmp_path / "none")


def test_a_folder_of_results_is_new(tmp_path: Path) -> None:
    assert results_folder(tmp_path / "new") == (tmp_path / "new").resolve()
    (tmp_path / "old").touch()
    with pytest.raises(UsageError, match="new or an empty folder"):
        results_folder(tmp_path)
