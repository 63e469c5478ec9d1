"""`ugpu fw|waves|ring|vm|mem` on devices and on bundles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ugpu.hcq.disk import bundle
from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import DeviceHang, UsageError
from ugpu.hcq.find import offline as window
from ugpu.hcq.registers.value_file import RegisterFile
from ugpu.tools import cli
from ugpu.tools.base.console import Output
from ugpu.tools.inspect import internals as inside
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.gpu import attach


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code = cli.main([str(word) for word in (words[0], "--json", *words[1:])])
    return code, json.loads(capsys.readouterr().out)


def test_states_of_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "fw", "state", "virtual:navi31")
    assert code == 0 and [one["ok"] for one in found] == [True] * len(found)
    assert cli.main(["fw", "state", "--boot", "virtual:navi31"]) == 0
    assert "the secure OS runs" in capsys.readouterr().out


def test_the_first_that_is_wrong_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = Evidence()
    state = {"unit": "SMU", "name": "hung or at work", "ok": False, "meaning": "it is silent",
             "remedy": "reset it", "registers": {"C2PMSG_90": 0}}  # fmt: skip
    evidence.take("states.json", lambda: [state])
    evidence.missing["hqd.json"] = "the chip does not answer"
    path = bundle.write(tmp_path, "card", DeviceHang("it hangs"), evidence)
    assert cli.main(["fw", "state", str(path)]) == 1
    said = capsys.readouterr().out
    assert "first: SMU, hung or at work (C2PMSG_90 0x0)" in said and "try: reset it" in said
    assert cli.main(["ring", str(path)]) == 2
    assert "the chip does not answer" in capsys.readouterr().err
    assert cli.main(["waves", str(path)]) == 2


def test_waves_and_rings(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "waves", "virtual:navi31") == (0, [])
    assert cli.main(["waves", "virtual:navi31"]) == 0
    assert capsys.readouterr().out == "no wave is on the chip\n"
    code, found = answer(capsys, "ring", "--boot", "virtual:navi31")
    assert code == 0 and [(one["pipe"], one["queue"]) for one in found] == [(0, 0)]


def test_a_walk(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "vm", "walk", "--boot", "virtual:navi31", "0x200000000000")
    assert code == 0 and found["vmid"] == 8 and len(found["steps"]) == 4
    code, found = answer(capsys, "vm", "walk", "virtual:navi31", "0x1000", "--vmid", "3")
    assert code == 1 and not found["enabled"]
    assert cli.main(["vm", "walk", "virtual:navi31", "0x1000", "--vmid", "16"]) == 2


def test_memory_is_read_and_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attachment = attach("navi31")
    assert isinstance(attachment.chip, Chip)
    monkeypatch.setattr(window, "attach_virtual", lambda name: attachment)
    monkeypatch.setattr(attachment.transport, "close", lambda: None)
    with pytest.raises(UsageError, match="nothing was written"):
        inside.write_memory("virtual:navi31", 0x1000, [1, 2], Output(), ask=lambda _: "no")
    code, before = answer(capsys_cleared(capsys), "mem", "read", "virtual:navi31", "0x1000", "8")
    assert code == 0
    code, done = answer(capsys, "mem", "write", "--yes", "virtual:navi31", "0x1000", "1", "0x20")
    assert code == 0 and done["before"] == before["bytes"]
    code, after = answer(capsys, "mem", "read", "virtual:navi31", "0x1000", "8")
    assert after["bytes"] == "0100000020000000"


def capsys_cleared(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    capsys.readouterr()
    return capsys


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["mem", "read", "virtual:navi31", "2"], "multiples of 4"),
        (["mem", "read", "virtual:navi31", "0", "0x200000"], "up to 1048576 bytes"),
        (["mem", "write", "--yes", "virtual:navi31", "0", "0x100000000"], "32-bit words"),
        (["mem", "write", "virtual:navi31", "0"], "usage"),
        (["fw", "state", "cpu"], "expected pci:ADDRESS"),
        (["fw", "state", "--boot", "cpu"], "does not expose its internal state"),
        (["waves", "virtual:gh100"], "belong to a kernel driver"),
    ],
)
def test_refusals(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) in (1, 2)
    assert text in capsys.readouterr().err


def test_a_file_of_registers_names_the_verb_that_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "registers.json"
    path.write_text(RegisterFile("card", "navi31", {"gc.CP_STAT": 1}).dumps())
    for verb in (["fw", "state"], ["waves"], ["ring"]):
        assert cli.main([*verb, str(path)]) == 2
        assert f"`ugpu reg read {path} REGISTER`" in capsys.readouterr().err
    path.write_text("a shopping list\n")
    for verb in (["fw", "state"], ["waves"], ["ring"]):
        assert cli.main([*verb, str(path)]) == 2
        said = capsys.readouterr().err
        assert "is not a recording, a crash bundle or a register file" in said
