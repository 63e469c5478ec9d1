"""`ugpu fw|waves|ring|vm|mem|reg` over recordings: the state at one moment, as far as it goes."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from ugpu import hcq
from ugpu.hcq.errors import BadArgument, UgpuError
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.transport.recorded.accesses import Access
from ugpu.hcq.transport.recorded.format import LongWrite, Recording, Reset, Stage
from ugpu.hcq.transport.recorded.replay import ReplayTransport
from ugpu.tools import cli
from ugpu.tools.base.device_files import Moment, kept

REGISTERS = 5  # BAR of the registers of Navi31


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "boot.rec"
    with hcq.open("virtual:navi31", record=path) as gpu:
        gpu.alloc(4096).close()
    return path


@pytest.fixture(scope="module")
def at_work(boot: Path) -> int:
    """The last access before the driver closed the device."""
    recording = Recording.load(boot.read_text())
    moment = Moment("boot", recording)
    with moment.chip() as (chip, _):
        place: Any = chip
        index = place.gc.CP_HQD_DEQUEUE_REQUEST.index
    accesses = [e for e in recording.entries if isinstance(e, Access | LongWrite)]
    return next(
        number
        for number, one in enumerate(accesses)
        if isinstance(one, Access)
        and (one.window, one.offset, one.value) == (REGISTERS, 4 * index, 1)
    )


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    capsys.readouterr()
    code = cli.main([str(word) for word in (words[0], "--json", *words[1:])])
    return code, json.loads(capsys.readouterr().out)


def test_states_are_those_that_the_recording_has(
    boot: Path, at_work: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = answer(capsys, "fw", "state", boot, "--at", at_work)
    states = {one["unit"]: one for one in found}
    assert code == 0
    assert states["PSP"]["name"] == "secure OS" and states["SMU"]["name"] == "running"
    assert states["RLC"]["name"] == "running" and states["IH"]["name"] == "on"
    assert states["MMHUB"]["ok"] is None and states["MMHUB"]["name"] == "not recorded"
    assert states["MMHUB"]["meaning"] == "MMVM_L2_PROTECTION_FAULT_STATUS"
    _, before = answer(capsys, "fw", "state", f"{boot}@discovery")
    assert {one["unit"]: one["name"] for one in before}["PSP"] == "not recorded"
    assert cli.main(["fw", "state", str(boot)]) == 0
    assert "not recorded  ?" in capsys.readouterr().out


def test_queues_waves_and_page_tables(
    boot: Path, at_work: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = answer(capsys, "ring", boot, "--at", at_work)
    assert code == 0 and [(one["pipe"], one["queue"]) for one in found[:-1]] == [(0, 0)]
    assert found[0]["registers"]["CP_HQD_PQ_BASE"] and found[0]["registers"]["CP_HQD_VMID"] == 8
    assert re.fullmatch(r"\d+ of \d+ queues are not recorded", found[-1]["more"])
    assert answer(capsys, "ring", boot)[1][:-1] == []  # stopped at the end
    code, found = answer(capsys, "waves", boot)
    assert code == 0 and "SIMDs are not recorded" in found[0]["more"]
    live = answer(capsys, "vm", "walk", "--boot", "virtual:navi31", "0x200000000000")[1]
    code, found = answer(capsys, "vm", "walk", boot, "0x200000000000", "--at", at_work)
    assert code == 0 and [one["at"] for one in found["steps"]] == [
        one["at"] for one in live["steps"]
    ]
    assert answer(capsys, "vm", "walk", boot, "0x200000000000")[0] == 1  # closed: context off
    code, found = answer(capsys, "vm", "walk", boot, "0x200000000000", "--vmid", 3)
    assert code == 2 and found["message"].startswith("not recorded: GCVM_CONTEXT3_CNTL")


def test_memory_of_a_recording(
    boot: Path, at_work: int, capsys: pytest.CaptureFixture[str]
) -> None:
    walk = answer(capsys, "vm", "walk", boot, "0x200000000000", "--at", at_work)[1]
    root = walk["steps"][0]
    code, found = answer(capsys, "mem", "read", boot, root["at"], 8, "--at", at_work)
    assert code == 0 and int.from_bytes(bytes.fromhex(found["bytes"]), "little") == root["entry"]
    code, found = answer(capsys, "mem", "read", boot, 0, 64)
    assert code == 2 and "not recorded: bar0 0x0" in found["message"]
    end = _end_of_what_is_recorded(boot, at_work, root["at"] // 4096 * 4096)
    code, found = answer(capsys, "mem", "read", boot, end - 8, 16, "--at", at_work)
    assert code == 0 and found["words"][2:] == [None, None] and None not in found["words"][:2]
    assert cli.main(["mem", "read", str(boot), str(end - 8), "16", "--at", str(at_work)]) == 0
    said = capsys.readouterr().out
    assert "-------- --------" in said and "2 of 4 words are not recorded" in said


def _end_of_what_is_recorded(boot: Path, at: int, page: int) -> int:
    with Moment("boot", Recording.load(boot.read_text()), at).chip() as (found, _):
        chip: Any = found
        for place in range(page, page + (64 << 20), 4096):
            try:
                chip.vram.read(place, 4)
            except hcq.errors.NotRecorded:
                return place
    raise AssertionError("all of it is recorded")


def test_registers_at_an_access(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording.load(boot.read_text())
    code, shown = answer(capsys, "trace", "filter", boot, "MP0_SMN_C2PMSG_81", "--only", "read")
    first, last = shown[0], shown[-1]
    assert code == 0 and first["value"] == 0 and last["value"] != 0
    for one in (first, last):
        _, found = answer(capsys, "reg", "read", boot, "MP0_SMN_C2PMSG_81", "--at", one["access"])
        assert found[0]["value"] == one["value"]
    assert answer(capsys, "reg", "read", boot, "*", "--at", 0)[0] == 2
    accesses = sum(isinstance(one, Access | LongWrite) for one in recording.entries)
    code, found = answer(capsys, "reg", "read", boot, "*", "--at", accesses + 1)
    assert code == 2 and f"from 0 to {accesses}" in found["message"]
    code, found = answer(capsys, "reg", "diff", boot, boot, "mp0.*C2PMSG_81", "--at",
                         first["access"])  # fmt: skip
    assert code == 1 and found["different"][0]["left"] == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["fw", "state", "--boot", None], "only devices can be booted"),
        (["mem", "write", "--yes", None, "0", "1"], "only memory of devices can be written"),
        (["mem", "write", "--yes", "--at", "3", None, "0", "1"], "cannot be written"),
        (["reg", "write", "--yes", None, "CP_STAT=1"], "only registers of devices"),
        (["reg", "watch", "--at", "3", None, "CP_STAT"], "--at is for read and diff"),
        (["fw", "state", "--at", "3", "virtual:navi31"], "require a recording"),
    ],
)
def test_refusals(
    words: list[str | None], text: str, boot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word or str(boot) for word in words]) == 2
    assert text in capsys.readouterr().err


def test_a_recording_without_the_discovery_table(
    boot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for at in (0, 5):
        code, found = answer(capsys, "fw", "state", boot, "--at", at)
        assert code == 2 and found["message"].startswith("not recorded: ")


def test_values_before_a_reset_are_not_served(boot: Path, at_work: int) -> None:
    recording = Recording.load(boot.read_text())
    recording.entries.append(Reset(ResetKind.BUS))
    with Moment("boot", recording).chip() as (found, module):  # which no reset changes
        chip: Any = found
        assert chip.vram.size
        with pytest.raises(hcq.errors.NotRecorded, match="after the reset"):
            chip.gc.SCRATCH_REG7.read()
        assert all(one["ok"] is None for one in module.look(chip, "states"))
    recording.entries[-1] = Reset(ResetKind.BUS, "NotSupported no slot")
    with Moment("boot", recording).chip() as (found, _):
        chip = found
        assert chip.gc.SCRATCH_REG7.read()


def test_page_tables_are_kept_and_firmware_is_not(boot: Path) -> None:
    recording = Recording.load(boot.read_text())
    writes = [one for one in recording.entries if isinstance(one, LongWrite)]
    assert any(one.data is not None and one.width == 4096 for one in writes)
    assert any(one.data is None for one in writes)
    assert Recording.load(recording.save()) == recording
    with hcq.open(f"recording:{boot}") as gpu:  # a replay holds the driver to their digests
        gpu.alloc(4096).close()
        transport = gpu.transport
    assert isinstance(transport, ReplayTransport)


def test_what_only_a_digest_is_known_of(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording.load(boot.read_text())
    lost = next(e for e in recording.entries if isinstance(e, LongWrite) and e.data is None)
    at = [e for e in recording.entries if isinstance(e, Access | LongWrite)].index(lost) + 1
    code, found = answer(capsys, "mem", "read", boot, lost.offset, 16, "--at", at)
    assert code == 2
    assert f"of a write of {lost.width} bytes" in found["message"]


WORDS = (
    ["fw", "state"], ["waves"], ["ring"], ["vm", "walk"], ["mem", "read"], ["reg", "read"],
    ["trace", "show"], ["record", "show"],
)  # fmt: skip


def _commands(path: Path) -> list[list[str]]:
    more = {"vm": ["0x200000000000"], "mem": ["0x400000", "16"], "reg": ["*"]}
    return [[*words, str(path), *more.get(words[0], [])] for words in WORDS]


def test_a_recording_that_was_cut_off(
    boot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end of a line it is a shorter recording, elsewhere the last line is left out, which
    else might have another value; each command says so or names what is missing."""
    text = boot.read_text()
    path = tmp_path / "cut.rec"
    chosen = random.Random(14)
    for at in sorted({0, 1, len(text) - 1, *chosen.sample(range(len(text)), 6)}):
        path.write_text(text[:at])
        for words in _commands(path):
            assert cli.main(words) in (0, 1, 2), words
            said = capsys.readouterr()
            assert "Traceback" not in said.err
            if text[at - 1 : at] != "\n" and text[:at].count("\n"):
                assert "cut off in line" in said.out + said.err, words
    path.write_text(text[:-1])
    with pytest.raises(BadArgument, match=r"line \d+ of the recording is incomplete"):
        Recording.load(path.read_text())
    assert cli.main(["record", "replay", str(path)]) == 2


def test_a_short_recording_cut_at_every_byte(boot: Path, tmp_path: Path) -> None:
    """Every length gives the whole lines, or an error of ours; never another value."""
    recording = Recording.load(boot.read_text())
    recording.firmware.clear()
    recording.entries = [e for e in recording.entries if not isinstance(e, Stage)][:60]
    text = "".join(f"{line}\n" for line in recording.save().splitlines() if len(line) < 200)
    whole = Recording.load(text)
    path = tmp_path / "cut.rec"
    for at in range(len(text)):
        path.write_text(text[:at])
        try:
            found = kept(str(path))
        except UgpuError:
            assert text[:at].count("\n") == 0
            continue
        assert isinstance(found, Moment)
        assert found.recording.entries == whole.entries[: len(found.recording.entries)]
        assert found.recording.cut == (0 if text[at - 1] == "\n" else text[:at].count("\n") + 1)
        try:
            with found.chip():
                pass
        except UgpuError:
            pass


@pytest.mark.parametrize(
    "line",
    [
        "read bar5 0x0 99999999999 0x1",
        "write bar5 0x0 99999999999999 sha256 " + 64 * "0",
        "read bar5 -0x8 4 0x1",
        "read bar5 0x0 4 0x123456789",
        "read config 0x0 0 0x0",
    ],
)
def test_lines_that_no_recorder_writes(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.rec"
    path.write_text(f"identity 1002:744c 0xc8 1002:0e3b 0x30000\nwindow 5 0x100000\n{line}\n")
    for words in _commands(path):
        assert cli.main(words) in (0, 1, 2), words
        assert "Traceback" not in capsys.readouterr().err


def test_what_is_known_is_not_hidden_by_what_is_not(boot: Path, at_work: int) -> None:
    """A fault whose address was not read, engines whose activity was not read."""
    recording = Recording.load(boot.read_text())
    with Moment("boot", recording).chip() as (found, _):
        chip: Any = found
        status = chip.gc.GCVM_L2_PROTECTION_FAULT_STATUS
        value = status.register.encode(VMID=8, RW=1)
    recording.entries.append(Access(REGISTERS, 4 * status.index, 4, False, value))
    with Moment("boot", recording).chip() as (chip, module):
        states = {one["unit"]: one for one in _states(module, chip)}
    assert states["GFXHUB"]["ok"] is False and states["GFXHUB"]["name"] == "page fault"
    assert states["GFXHUB"]["meaning"] == (
        "a write to an address that is not recorded by VMID 8 faulted"
    )
    with Moment("boot", recording, at_work).chip() as (chip, module):
        states = {one["unit"]: one for one in _states(module, chip)}
    for unit, register in (("MEC", "GRBM_STATUS"), ("SDMA0", "SDMA0_STATUS_REG")):
        assert states[unit]["name"] == "started" and register in states[unit]["meaning"]


def _states(module: Any, chip: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = module.look(chip, "states")
    return found
