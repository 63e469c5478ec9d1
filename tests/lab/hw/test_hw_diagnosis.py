"""What a run on hardware leaves when something fails: calls, the machine, and all in one call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.hw import __main__ as suite
from lab.hw import calls, first_contact, ladder, machine, process
from lab.hw.budget import Budget
from lab.hw.sections import contract
from tests.support.nvidia.nv_machine import powered
from ugpu.hcq.errors import DriverRefused
from ugpu.hcq.find.catalogue import load
from ugpu.virtual.nvidia.gpu import attach

FAILING = """
import pytest, time
@pytest.fixture
def device(): return None
def test_of_no_device(): pass
def test_good(device): pass
def test_bad(device): assert 1 == 2, "one is not two"
@pytest.mark.skip(reason="not now")
def test_skipped(device): pass
def test_hangs(device):
    open("hanging", "w").close()
    while True: time.sleep(0.01)
"""


def test_the_calls_before_a_failure_are_decoded(tmp_path: Path) -> None:
    kept = calls.LastCalls()
    attachment = calls.watched(load("ugpu.virtual.nvidia.gpu:attach")(), kept)
    with load("ugpu.nv.device.device:open_device")("nvrm:0", attachment) as device:
        with pytest.raises(DriverRefused):
            gpu = device.driver.gpu
            gpu.client.ask(gpu.subdevice, "NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS")
        kept.save(tmp_path / "calls")
    told = calls.told(tmp_path / "calls")
    assert told[0] == "refused:"
    text = "\n".join(told)
    assert "NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS -> NV_ERR_NOT_SUPPORTED" in text
    assert "last:" in told
    assert len(kept.kept) <= calls.MOST
    assert calls.told(tmp_path / "nothing") == []


def test_other_drivers_are_left_as_they_are() -> None:
    kept = calls.LastCalls()
    attachment = object()
    assert calls.watched(attachment, kept) is attachment


def _suite(folder: Path) -> list[dict[str, str]]:
    """Run the toy suite until it hangs, and end it."""
    (folder / "test_toy.py").write_text(FAILING, encoding="ascii")
    told = folder / "told"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir",
               str(folder), "-p", "lab.hw.calls", f"--hw-tests={told}",
               f"--hw-calls={folder / 'calls'}", str(folder / "test_toy.py")]  # fmt: skip
    variables = {**os.environ, "PYTHONPATH": str(suite.ROOT)}
    with subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.DEVNULL) as running:
        end = time.monotonic() + 60
        while time.monotonic() < end and running.poll() is None:
            if (folder / "hanging").exists():
                break
            time.sleep(0.05)
        running.terminate()
    return calls.lines_of(told)


def test_a_suite_that_hangs_has_told_what_it_found(tmp_path: Path) -> None:
    lines = _suite(tmp_path)
    assert (tmp_path / "calls").exists()
    assert "test_toy.py" in calls.stacks_of(tmp_path / "calls").read_text()
    trouble = "was ended by force after 1 s"
    found = {each.name: each for each in contract.unfinished(lines, trouble)}
    assert found["suite"].value == 1
    assert "1 passed, 1 failed, 1 skipped; then it was ended by force" in found["suite"].remark
    assert "assert 1 == 2" in found["test_bad"].remark or "not two" in found["test_bad"].remark
    assert found["test_hangs"].remark == "had not ended when the time was over"


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text('{"a": 1}\n{"a": 2', encoding="ascii")
    assert calls.lines_of(tmp_path / "lines") == [{"a": 1}]
    assert calls.lines_of(tmp_path / "none") == []


def test_the_machine_is_described_whatever_is_there(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX 580.142")
    (tmp_path / "proc/version").write_text("Linux version 4.4.0 (gVisor)")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert machine.system(tmp_path)["sandbox"] == "gVisor"
    assert "580.142" in machine.files(tmp_path)[str(tmp_path / "proc/driver/nvidia/version")]
    (node,) = machine.nodes(tmp_path).values()
    assert "may" in node
    found = machine.facts()
    json.dumps(found)
    manager = found["resource manager"]
    assert isinstance(manager, dict)
    assert "version" in manager or "trouble" in manager


def test_a_device_that_does_not_open_leaves_a_diagnosis(tmp_path: Path) -> None:
    report = suite.examine("nvrm:31", ["life"], 1e12, tmp_path)
    assert [each.outcome for each in report.failures] == ["failed"]
    assert report.diagnostics["opening"]
    assert any('"resource manager"' in line for line in report.diagnostics["machine"])
    page = (tmp_path / f"{report.stem}.md").read_text()
    assert "## Diagnostics: machine" in page


def test_the_report_is_there_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Watching(suite.Runner):
        def section(self, name: str, share_s: float) -> list[suite.Result]:
            for path in tmp_path.glob("*.json"):
                seen.append(json.loads(path.read_text())["unfinished"])
            return [] if name != "opening" else super().section(name, share_s)

    monkeypatch.setattr(suite, "Runner", Watching)
    suite.examine("cpu", ["life", "rates"], 1e12, tmp_path)
    assert seen == [["life", "rates"], ["rates"]]


@pytest.mark.slow
def test_first_contact_brings_everything_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    code = first_contact.main(
        [str(folder), "--device", "virtual:gh100", "--minutes", "20", "--only", "faults"]
    )
    summary = (folder / "summary.md").read_text()
    assert code == 0, summary
    assert "| the machine | well |" in summary
    assert "| record cuda-launch | " in summary
    assert "| record ours | well |" in summary
    assert "| the suite | well |" in summary
    assert "NV_ESC" not in (folder / "calls.txt").read_text()  # decoded
    assert "HOPPER_COMPUTE_A" in (folder / "calls.txt").read_text()
    assert "| record ours-launch | well |" in summary
    assert "| record ours-cluster | well |" in summary
    with tarfile.open(folder / "recordings.tar") as archive:
        assert "recordings/ours.jsonl.gz" in archive.getnames()
    (report,) = folder.glob("virtual-*.json")
    assert json.loads(report.read_text())["failed"] == 0
    assert "| the ladder | well |" in summary
    assert json.loads((folder / "ladder.json").read_text())["compute"]["trouble"] == ""
    found = list(folder.iterdir())
    assert len(found) <= 8 and all(path.is_file() for path in found), "few files are brought home"


def test_recordings_fit_what_is_brought_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest ones stay behind, and the summary says so."""
    visit = first_contact.Visit("cpu", tmp_path / "out", 100.0, tmp_path / "kept", now=lambda: 0.0)
    (tmp_path / "kept/small.jsonl").write_text("x" * 1000)
    (tmp_path / "kept/large.jsonl").write_bytes(os.urandom(1 << 17))
    monkeypatch.setattr(first_contact, "MOST_ARCHIVE", 1 << 16)
    visit.write_texts()
    with tarfile.open(tmp_path / "out/recordings.tar") as archive:
        assert archive.getnames() == ["recordings/small.jsonl.gz"]
    assert (tmp_path / "out/recordings.tar").stat().st_size <= 1 << 16
    assert "large.jsonl.gz" in (tmp_path / "out/summary.md").read_text()


def test_a_ladder_without_time_says_so(tmp_path: Path) -> None:
    told = tmp_path / "ladder.json"
    assert not ladder.climb("virtual:gh100", told, ["files", "client"], all_s=0.0)
    found = json.loads(told.read_text())
    assert [found[rung]["trouble"] for rung in ("files", "client")] == ["no time was left"] * 2


def test_banks_are_compared_and_brought_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the program on CUDA prints goes to the comparison, and both go home."""
    real = process.run
    printed = json.dumps({"capability": [9, 0], "words": list(range(132))}) + "\n"

    def run(command: list[str], limit: float, **options: object) -> process.Ended:
        if "lab.hw.cuda_program" in command:
            return process.Ended(0, printed, "", "")
        return real(command, limit, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "run", run)
    end = time.monotonic() + 120
    visit = first_contact.Visit("virtual:gh100", tmp_path / "out", end, tmp_path / "kept")
    visit.banks()
    text = (tmp_path / "out/calls.txt").read_text()
    assert printed in text
    assert "~ 0x028: 0x0000000a | 0x00fffdc0  stack" in text
    assert [step.outcome for step in visit.steps] == ["well", "different"]


def test_a_rung_that_breaks_leaves_the_last_calls(tmp_path: Path) -> None:
    """One that is asked to end leaves them too, with where it stood."""
    program = """
import signal, sys
from pathlib import Path
from ugpu.hcq.errors import ChipError
from lab.hw import ladder

def rung(device):
    with ladder.bare(device) as made:
        yield "capability", made.gpu.capability
        if sys.argv[2] == "ended":
            signal.raise_signal(signal.SIGTERM)
        raise ChipError("planted", register="X")

sys.exit(ladder.try_rung(rung, "virtual:gh100", Path(sys.argv[1])))
"""
    for how in ("broken", "ended"):
        kept = tmp_path / how
        command = [sys.executable, "-c", program, str(kept), how]
        done = process.run(command, 120, folder=suite.ROOT)
        facts = list(ladder._facts(done.output))
        assert facts[0] == ["capability", [9, 0]]
        found = ladder._diagnosis(done, kept)
        assert "last:" in found["calls"], found
        if how == "broken":
            error = "ChipError: planted (register=X)"
            assert facts[1] == ["error", {"error": error, "register": "X"}]
            assert done.code == 1 and "ChipError: planted" in done.trouble
        else:
            assert any("rung" in line for line in found["stacks"])


def test_first_contact_says_when_time_is_over(tmp_path: Path) -> None:
    visit = first_contact.Visit("cpu", tmp_path, 0.0, tmp_path / "kept", now=lambda: 10.0)
    visit.step("late", ["this"], 5)
    assert "no time was left" in (tmp_path / "summary.md").read_text()


def test_a_budget_knows_where_calls_go(tmp_path: Path) -> None:
    assert Budget(1.0).calls is None
    assert Budget(1.0, calls=tmp_path).calls == tmp_path


def test_the_ladder_goes_on_where_a_rung_breaks(tmp_path: Path) -> None:
    told = tmp_path / "ladder.json"
    assert not ladder.climb("virtual:nothing", told, ["files", "client"])
    found = json.loads(told.read_text())
    assert "DeviceNotFound" in found["files"]["trouble"] and found["client"]["errors"]
    ((kind, facts),) = found["files"]["facts"]
    assert kind == "error" and "no virtual chip 'nothing'" in facts["error"]
    assert found["files"]["calls"] == [] and "kernel log" in found
    assert ladder.climb("virtual:gh100", told, ["client"])
    found = json.loads(told.read_text())
    assert ["branch", "580"] in found["client"]["facts"]


@pytest.mark.parametrize("rung", ladder.RUNGS, ids=lambda rung: rung.__name__)
def test_each_rung_tells_facts(rung: Callable[[str], Iterator[ladder.Fact]]) -> None:
    facts = dict(rung("virtual:gh100"))
    assert facts
    assert facts.get("right", True) is True
    if rung is ladder.copy_engines:
        told = [value for key, value in facts.items() if key != "engines"]
        assert [value["right"] for value in told] == [True] * 3
        assert [value.get("physical engines") for value in told] == [12, 2, None]
        for value in told:
            assert list(value["GB/s"]) == [
                "to the device", "within the device", "from the device",
            ]  # fmt: skip
            assert all(rate > 0 for rate in value["GB/s"].values())
    if rung is ladder.fault:
        assert [facts[name]["access"] for name in ("read", "write")] == ["read", "write"]


def test_a_copy_engine_that_cannot_be_had_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with powered() as machine:
        monkeypatch.setattr(ladder, "attach", lambda device: attach(chip=machine))
        machine.inject("NO_CHANNELS")
        facts = dict(ladder.copy_engines("virtual:gh100"))
    told = [value for key, value in facts.items() if key != "engines"]
    error = told[0]["error"]
    assert "OutOfMemory" in error or "DriverRefused" in error, error
    assert [value["right"] for value in told[1:]] == [True, True]


def test_reports_do_not_name_one_board() -> None:
    lines = [
        "    Serial Number                                      : 1753024029283",
        "    GPU UUID                                           : GPU-facbf655-0c04-8468-108a",
        "[   47.8] NVRM: GPU at PCI:0000:00:06: GPU-facbf655-0c04-8468-108a-986422890b85",
        "[   47.8] NVRM: Xid (PCI:0000:00:06): 31, pid=758, channel 0x0100000a, MMU Fault",
        "    VBIOS Version                                      : 96.00.DA.00.0C",
    ]
    assert machine.anonymous(lines) == lines[3:]


def test_what_the_driver_says_does_not_name_one_board(tmp_path: Path) -> None:
    place = tmp_path / "proc/driver/nvidia/gpus/0000:00:06.0/information"
    place.parent.mkdir(parents=True)
    place.write_text("Model: \t NVIDIA H100\nGPU UUID: \t GPU-facbf655-0c04-8468-108a\nIRQ: 41\n")
    assert machine.files(tmp_path) == {str(place): "Model: \t NVIDIA H100\nIRQ: 41"}
