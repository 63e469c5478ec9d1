"""`ugpu crash`: bundles listed, shown, compared, handed on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ugpu.hcq.disk import bundle
from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import PageFault
from ugpu.hcq.registers.value_file import RegisterFile
from ugpu.hcq.state.config import Config
from ugpu.tools import cli
from ugpu.tools.base import bundles


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = tmp_path / "crashes"
    monkeypatch.setattr(bundles, "config", lambda: Config(crash_folder=kept))
    return kept


def keep(folder: Path, at: float, status: int, **facts: object) -> Path:
    evidence = Evidence()
    values = {"gc.CP_HQD_ACTIVE": 1, "gc.GRBM_STATUS": status}
    evidence.take("registers.json", RegisterFile("card", "navi31", values).dumps)
    evidence.take("program.bin", lambda: bytes(range(40)))
    evidence.take("waves.json", lambda: 1 / 0)
    error = PageFault("card: a write faulted", address=0x1000, **facts)
    return bundle.write(folder, "card", error, evidence, now=at)


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code = cli.main(["crash", "--json", *map(str, words)])
    return code, json.loads(capsys.readouterr().out)


def test_the_newest_is_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "ls") == (0, [])
    old, new = keep(folder, 0, 0), keep(folder, 60, 0)
    (folder / f"2{bundle.SUFFIX}").write_text("damaged")
    code, found = answer(capsys, "ls")
    assert code == 0
    assert [Path(each["path"]) for each in found[1:]] == [new, old]
    assert "not a crash bundle" in found[0]["error"]
    assert found[1]["error"] == "PageFault" and found[1]["message"] == "card: a write faulted"


def test_show_and_its_parts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keep(folder, 0, 0x8000_0000)
    assert cli.main(["crash", "show", "1"]) == 0
    said = capsys.readouterr().out
    assert "PageFault: card: a write faulted" in said and "0x1000" in said
    assert "ZeroDivisionError" in said
    assert cli.main(["crash", "show", str(path), "program.bin"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "000020  20212223 24252627"
    code, refused = answer(capsys, "show", path, "waves.json")
    assert code == 2 and "ZeroDivisionError" in refused["message"]
    code, refused = answer(capsys, "show", "9")
    assert code == 2 and "names 0 of 1 bundles" in refused["message"]


def test_registers_of_a_bundle(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keep(folder, 0, 0x8000_0000)
    assert cli.main(["reg", "read", str(path), "gc.GRBM*"]) == 0
    assert "GUI_ACTIVE=0x1" in capsys.readouterr().out
    assert cli.main(["reg", "read", "--from", "1", "GRBM_STATUS.GUI_ACTIVE"]) == 0
    assert "gc.GRBM_STATUS.GUI_ACTIVE  0x1" in capsys.readouterr().out


def test_queues_and_the_walk_of_a_bundle(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = Evidence()
    values = RegisterFile("card", "navi31", {"gc.GRBM_STATUS": 0})
    evidence.take("registers.json", values.dumps)
    queue = {"pipe": 1, "queue": 2, "registers": {"CP_HQD_PQ_RPTR": 0x20}}
    evidence.take("hqd.json", lambda: [queue])
    steps = [{"level": 0, "at": 0x400120, "entry": 0}]
    walk = {"address": 0x5000, "vmid": 8, "root": 0x400000, "steps": steps, "end": "no valid entry"}
    evidence.take("walk.json", lambda: walk)
    path = bundle.write(
        folder, "card", PageFault("a write faulted", address=0x5000), evidence, now=0
    )
    assert cli.main(["reg", "read", "1", "CP_HQD_*RPTR"]) == 0
    shown = capsys.readouterr().out
    assert "gc[1.2].CP_HQD_PQ_RPTR" in shown and "CONSUMED_OFFSET=0x20" in shown
    assert cli.main(["vm", "walk", "0x5678", "--from", str(path)]) == 1  # it leads nowhere
    assert "0x400120" in capsys.readouterr().out
    assert cli.main(["vm", "walk", "1", "0x6000"]) == 2
    assert "has the entries for 0x5000 alone" in capsys.readouterr().err
    assert cli.main(["mem", "read", "1", "0"]) == 2
    assert "a crash bundle has no device memory" in capsys.readouterr().err


def test_diff_names_the_first_register(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(folder, 0, 0, kernel="one")
    keep(folder, 60, 0x8000_0000, kernel="two")
    assert cli.main(["crash", "diff", "2", "1"]) == 1
    said = capsys.readouterr().out
    assert "GUI_ACTIVE 0x0 / 0x1" in said and "CP_HQD_ACTIVE" not in said
    assert "one" in said and "two" in said
    assert cli.main(["crash", "diff", "1", "1"]) == 0


def test_export(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keep(folder, 0, 0)
    assert cli.main(["crash", "export", "1", str(tmp_path / "one.zip")]) == 0
    assert (tmp_path / "one.zip").read_bytes() == path.read_bytes()
    assert cli.main(["crash", "export", "1", f"{tmp_path}/open/"]) == 0
    names = sorted(each.name for each in (tmp_path / "open").iterdir())
    assert names == ["manifest.json", "program.bin", "registers.json"]
    assert cli.main(["crash", "export", "1", str(tmp_path / "one.zip")]) == 2
    assert "exists" in capsys.readouterr().err


def test_without_a_folder(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(bundles, "config", Config)
    assert cli.main(["crash", "ls"]) == 2
    assert "UGPU_CRASHES" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["show"], ["diff", "1"], ["export", "1"], ["ls", "1"]])
def test_usage(folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["crash", *words]) == 2
    assert "usage" in capsys.readouterr().err
