"""`ugpu record`: a boot kept, shown by name, replayed, compared."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.amd.am_navi31 import build_chip
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, FirmwareRejected
from ugpu.hcq.state.clock import Clock, Work
from ugpu.hcq.transport.recorded.accesses import Access
from ugpu.hcq.transport.recorded.format import Failure, Recording
from ugpu.tools import cli
from ugpu.tools.base.recorded import Steps, first_difference
from ugpu.virtual.amd.options import ChipOptions, FaultPlan

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from ugpu import hcq
with hcq.open() as device:
    with device.alloc(64) as buffer:
        buffer.copy_from(bytes(range(64)))
"""


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "boot.txt"
    assert cli.main(["record", "virtual:navi31", str(path)]) == 0
    return path


def changed(boot: Path, name: str, old: str, new: str) -> Path:
    """A copy in which the first `old` of a line is `new`."""
    text = boot.read_text()
    assert old in text
    path = boot.with_name(name)
    path.write_text(text.replace(old, new, 1))
    return path


def test_the_summary_names_registers(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", "show", str(boot)]) == 0
    shown = capsys.readouterr().out
    assert "1002:744c (AMD Navi31)" in shown
    assert "MP0_SMN_C2PMSG_35" in shown and "of shared memory" in shown
    assert cli.main(["record", "show", "--all", str(boot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "write RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN 0x1  [BIF_DOORBELL_APER_EN 0x1]" in lines


def test_it_replays(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", "replay", str(boot)]) == 0
    assert "as recorded" in capsys.readouterr().out


def test_a_device_that_is_not_there_leaves_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.txt"
    assert cli.main(["record", "virtual:nothing", str(path)]) != 0
    assert "nothing" in capsys.readouterr().err and not path.exists()


def test_two_boots_are_the_same(
    boot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    assert cli.main(["record", "virtual:navi31", str(other)]) == 0
    assert cli.main(["record", "compare", str(boot), str(other)]) == 0
    assert "no difference" in capsys.readouterr().out


def test_a_boot_that_looks_late_is_the_same(
    boot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is busy finds answered at its first look what another one has to wait for."""

    wait_until = Clock.wait_until

    def late(clock: Clock, probe: Any, **options: Any) -> Any:
        until(lambda: clock.work() is Work.NONE, "the model to have done all it can")
        return wait_until(clock, probe, **options)

    monkeypatch.setattr(Clock, "wait_until", late)
    other = tmp_path / "late.txt"
    assert cli.main(["record", "virtual:navi31", str(other)]) == 0
    assert cli.main(["record", "compare", str(boot), str(other)]) == 0


def test_the_first_difference_is_named(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accesses = Recording.load(boot.read_text()).entries
    # The doorbell BAR's opening, by the value of its only field.
    opening = next(
        str(entry)
        for entry in accesses
        if isinstance(entry, Access) and entry.is_write and entry.value == 1 and entry.window == 5
    )
    other = changed(boot, "write.txt", opening, opening.replace(" 0x1", " 0x0"))
    assert cli.main(["record", "compare", str(boot), str(other)]) == 1
    shown = capsys.readouterr().out
    assert "another value was written" in shown
    assert "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN" in shown
    assert "BIF_DOORBELL_APER_EN: 0x1 < > 0x0" in shown


def test_a_recording_that_ends_early_is_named(
    boot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = boot.read_text().splitlines()
    writes = [at for at, line in enumerate(text) if line.startswith("write bar5")]
    at = writes[len(writes) // 2]
    cut = boot.with_name("cut.txt")
    cut.write_text("\n".join(text[:at]) + "\n")
    assert cli.main(["record", "--json", "compare", str(boot), str(cut)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["what"] == "one of them ends" and report["right"] == "the end"
    assert len(report["before"]) == 5


def test_a_command_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, path = tmp_path / "script.py", tmp_path / "work.txt"
    script.write_text(SCRIPT.format(root=str(ROOT)))
    command = [sys.executable, str(script)]
    assert cli.main(["record", "virtual:navi31", str(path), "--", *command]) == 0
    shown = capsys.readouterr().out
    assert f"ugpu record replay {path}" in shown and "changes of memory" in shown
    assert any("allocation" in line for line in shown.splitlines())
    assert cli.main(["record", "--json", "replay", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["exit"] == 0
    script.write_text(SCRIPT.format(root=str(ROOT)) + "    device.alloc(1 << 20).fill(1)\n")
    assert cli.main(["record", "replay", str(path)]) == 1, "another program strays"


def test_a_program_s_work_that_is_not_named_is_not_taken_for_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "work.txt"
    with hcq.open("virtual:navi31", record=path) as device, device.alloc(64) as buffer:
        buffer.copy_from(bytes(64))
    assert cli.main(["record", "replay", str(path)]) == 1
    assert f"run that program with UGPU_DEVICE=recording:{path}" in capsys.readouterr().err
    with hcq.open(f"recording:{path}") as device, device.alloc(64) as buffer:
        buffer.copy_from(bytes(64))  # the images that the driver read are in the recording


def test_every_byte_is_compared(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reply of the PSP is a block whose status lies behind its first 864 bytes."""
    recording = Recording.load(boot.read_text())
    place, reply = next(
        (place, entry)
        for place, entry in enumerate(recording.entries)
        if isinstance(entry, Access) and not entry.is_write and len(entry.data or b"") > 864
    )
    data = bytearray(reply.data or b"")
    data[864:868] = (0xF).to_bytes(4, "little")
    recording.entries[place] = replace(reply, data=bytes(data))
    other = boot.with_name("reply.txt")
    other.write_text(recording.save())
    assert cli.main(["record", "compare", str(boot), str(other)]) == 1
    shown = capsys.readouterr().out
    assert "the device answered otherwise" in shown and "at 0x360: 0x0 < > 0xf" in shown


def test_a_failure_is_named_with_its_stage(
    boot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "failed.txt"
    chip = build_chip(ChipOptions(faults=FaultPlan(psp_reject={"RS64_MEC"})))
    with pytest.raises(FirmwareRejected):
        hcq.open("virtual:navi31", chip=chip, record=path)
    chip.close()
    assert cli.main(["record", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "stages: config space, board firmware," in shown
    assert "failed in stage IP firmware: FirmwareRejected" in shown
    assert cli.main(["record", "show", "--all", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "stage IP firmware" in lines
    assert any(line.startswith("failed: FirmwareRejected") for line in lines)
    assert cli.main(["record", "--json", "compare", str(boot), str(path)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["stage"] == "IP firmware" and report["failures"][0] is None
    assert report["failures"][1].startswith("failed in stage IP firmware: FirmwareRejected")
    assert cli.main(["record", "compare", str(boot), str(path)]) == 1
    assert "boot.txt: the device came up" in capsys.readouterr().out


def test_a_failure_outside_of_stages_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "failed.txt"
    with pytest.raises(BadArgument, match="leave must be 'warm' or 'cold'"):
        hcq.open("virtual:navi31", record=path, leave="hot")
    entries = Recording.load(path.read_text()).entries
    assert entries == [Failure("BadArgument", "leave must be 'warm' or 'cold' (leave=hot)")]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cpu", "no PCI device behind it"),
        ("virtual:gh100", "ugpu sniff device virtual:gh100"),
        ("virtual:a630", "ugpu sniff device virtual:a630"),
        ("nvrm:0", "ugpu sniff device nvrm:0"),
    ],
)
def test_devices_without_registers_are_refused(
    device: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["record", device, str(tmp_path / "file")]) == 2
    told = capsys.readouterr().err
    assert said in told and "expected one of pci:ADDRESS" in told and "option" not in told
    assert not (tmp_path / "file").exists()


def test_help_names_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", "--help"]) == 0
    shown = capsys.readouterr().out
    for form in ("DEVICE FILE -- CMD", "replay FILE", "show FILE", "compare FILE FILE"):
        assert form in shown


def test_what_is_refused(tmp_path: Path, boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record"]) == 2
    assert cli.main(["record", "compare", str(boot)]) == 2
    assert cli.main(["record", "virtual:navi31", str(tmp_path / "none" / "file")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert cli.main(["record", "show", str(tmp_path / "none")]) == 2
    nothing = [sys.executable, "-c", "pass"]
    assert cli.main(["record", "virtual:navi31", str(tmp_path / "file"), "--", *nothing]) == 2
    assert "nothing was recorded" in capsys.readouterr().err
    (tmp_path / "noise").write_text("noise\n")
    assert cli.main(["record", "show", str(tmp_path / "noise")]) == 2


def test_what_an_earlier_run_recorded_is_not_taken_for_this_one(
    tmp_path: Path, boot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept.txt"
    path.write_bytes(boot.read_bytes())
    nothing = [sys.executable, "-c", "pass"]
    assert cli.main(["record", "virtual:navi31", str(path), "--", *nothing]) == 2
    assert "nothing was recorded" in capsys.readouterr().err
    assert not path.exists()
    path.write_bytes(boot.read_bytes())
    assert cli.main(["record", "virtual:nothing", str(path)]) != 0
    assert not path.exists() or path.read_bytes() == boot.read_bytes()


def test_how_often_was_looked_is_no_difference() -> None:
    """Polls of one register, of two in turn, and one that ends at once are the same steps."""
    head = "identity 1002:744c 0xc8 1002:0e3b 0x30000\nwindow 5 0x100000\n"
    write = "write bar5 0x100 4 0x1\n"
    one, two = "read bar5 0x200 4 {}\n", "read bar5 0x204 4 {}\n"
    polls = [
        one.format("0x1") + two.format("0x2"),
        one.format("0x0") * 3 + one.format("0x1") + two.format("0x2"),
        (one.format("0x0") + two.format("0x0")) * 2 + one.format("0x1") + two.format("0x2"),
    ]
    recordings = [Recording.load(head + write + poll + write) for poll in polls]
    for other in recordings[1:]:
        assert first_difference(Steps(recordings[0]), Steps(other)) is None
    failed = Recording.load(head + write + one.format("0x1") + two.format("0x3") + write)
    found = first_difference(Steps(recordings[0]), Steps(failed))
    assert found is not None and found.what == "the device answered otherwise"


def test_what_a_driver_does_by_the_clock_is_no_step() -> None:
    """A ring of interrupts is emptied when its driver gets to it; navi31's pointers of two."""
    head = "identity 1002:744c 0xc8 1002:0e3b 0x30000\nwindow 5 0x100000\n"
    write = "write bar5 {} 4 0x1\n"
    plain = Recording.load(head + write.format("0x100"))
    for place in ("0x378c", "0x448c"):
        other = Recording.load(head + write.format(place) + write.format("0x100"))
        assert list(Steps(other)) == list(Steps(plain))


def test_reads_that_repeat_are_one_step_that_counts_them(boot: Path) -> None:
    recording = Recording.load(boot.read_text())
    reads = [e for e in recording.entries if isinstance(e, Access) and not e.is_write]
    (one, other) = list({e.offset: e for e in reads if e.window == reads[-1].window}.values())[-2:]
    write = next(e for e in recording.entries if isinstance(e, Access) and e.is_write)
    made = replace(recording, entries=[one, other, one, one, write, one])
    steps = list(Steps(made))
    assert [(step.verb, step.repeated) for step in steps] == [
        ("read", 1), ("read", 3), ("write", 1), ("read", 1),
    ]  # fmt: skip
    assert str(steps[1]).endswith("(3 times)") and "times" not in str(steps[0])
