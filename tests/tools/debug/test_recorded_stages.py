"""`ugpu record --states`: units, queues and waves after each stage of the boot, in a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ugpu import hcq
from ugpu.hcq.errors import BadArgument, FirmwareRejected, NotRecorded
from ugpu.hcq.transport.recorded.accesses import Access
from ugpu.hcq.transport.recorded.format import Look, Recording, Reset, driven
from ugpu.tools import cli
from ugpu.tools.base.device_files import Moment
from ugpu.tools.base.recorded import Steps, first_difference, names_of
from ugpu.virtual.amd.options import FaultPlan


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "boot.rec"
    with hcq.open("virtual:navi31", record=path, record_states=True) as gpu:
        gpu.alloc(4096).close()
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    capsys.readouterr()
    code = cli.main([str(word) for word in (words[0], "--json", *words[1:])])
    return code, json.loads(capsys.readouterr().out)


def states(capsys: pytest.CaptureFixture[str], source: str) -> dict[str, str]:
    _, found = answer(capsys, "fw", "state", source)
    return {one["unit"]: one["name"] for one in found}


def test_each_stage_has_all_states(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    early, late = states(capsys, f"{boot}@PSP ring"), states(capsys, f"{boot}@GFX")
    assert (early["PSP"], early["SMU"], early["RLC"]) == (
        "secure OS", "not loaded", "autoload not complete",
    )  # fmt: skip
    assert (late["SMU"], late["RLC"], late["MEC"]) == ("running", "running", "idle")
    assert "not recorded" not in {*early.values(), *late.values()}
    assert answer(capsys, "waves", f"{boot}@GFX") == (0, [])
    code, found = answer(capsys, "ring", f"{boot}@compute queue")
    assert code == 0 and [(one["pipe"], one["queue"]) for one in found] == [(0, 0)]


def test_a_replay_and_a_comparison_leave_looks_out(
    boot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Recording.load(boot.read_text())
    assert Recording.load(recording.save()) == recording
    looks = [one.begins for one in recording.entries if isinstance(one, Look)]
    assert looks and looks == [True, False] * (len(looks) // 2)
    assert len(driven(recording.entries)) < len(recording.entries) // 4
    with hcq.open(f"recording:{boot}") as gpu:
        gpu.alloc(4096).close()
    plain = tmp_path / "plain.rec"
    with hcq.open("virtual:navi31", record=plain) as gpu:
        gpu.alloc(4096).close()
    assert first_difference(Steps(recording), Steps(Recording.load(plain.read_text()))) is None
    assert cli.main(["trace", "filter", str(boot), "SQ_IND_DATA", "--stage", "look"]) == 0
    assert "SQ_IND_DATA" in capsys.readouterr().out


def test_a_boot_that_fails_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plan = tmp_path / "bad.rec", FaultPlan(psp_reject={"SOS"})
    with pytest.raises(FirmwareRejected):
        hcq.open("virtual:navi31", faults=plan, record=path, record_states=True)
    found = states(capsys, str(path))
    assert found["SMU"] == "not loaded" and found["SDMA0"] == "halted"
    assert "not recorded" not in found.values()


def test_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="record_states requires record"):
        hcq.open("virtual:navi31", record_states=True)


def test_a_reset_by_firmware_ends_what_is_known(tmp_path: Path) -> None:
    """The order is recognised where it is written; what is read later is known again."""
    path = tmp_path / "reset.rec"
    with hcq.open("virtual:navi31", record=path) as gpu:
        gpu.reset(to="mode1")
    recording = Recording.load(path.read_text())
    assert not any(isinstance(one, Reset) for one in recording.entries)
    order = next(place for place, one in enumerate(recording.entries) if orders(recording, one))
    with Moment("after", recording).chip() as (found, _):
        chip: Any = found
        chip.mp1.MP1_SMN_C2PMSG_90.read()
    recording.entries = recording.entries[: order + 1]
    with Moment("ordered", recording).chip() as (found, _):
        chip = found
        assert chip.vram.size  # which no reset changes
        with pytest.raises(NotRecorded, match="after the reset"):
            chip.mp1.MP1_SMN_C2PMSG_90.read()
    recording.entries.pop()
    with Moment("before", recording).chip() as (found, _):
        chip = found
        chip.mp1.MP1_SMN_C2PMSG_90.read()


def orders(recording: Recording, entry: object) -> bool:
    """Whether it writes the SMU's debug mailbox or the message register with a mode1 reset."""
    if not isinstance(entry, Access) or not entry.is_write:
        return False
    name = names_of(recording)(entry.window, entry.offset)
    modes = {"MP1_SMN_C2PMSG_75": 2, "MP1_SMN_C2PMSG_66": 0x2F}  # smu_v13_0_0_ppsmc.h: Mode1Reset
    return name in modes and entry.value == modes[name]
