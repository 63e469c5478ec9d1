"""`ugpu trace`: what a program does to its device, by name and time."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.debug.test_tools_record import ROOT, SCRIPT
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.transport.recorded.format import Moment, Recording, Stage
from ugpu.tools import cli


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    script, path = folder / "work.py", folder / "trace.txt"
    script.write_text(SCRIPT.format(root=str(ROOT)))
    words = ["trace", "-o", str(path), "--device", "virtual:navi31", "--"]
    assert cli.main([*words, sys.executable, str(script)]) == 0
    return path


def lines(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    assert cli.main(["trace", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_every_access_with_time_name_and_fields(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = lines(capsys, "show", trace)
    assert "-- PSP ring" in shown
    line = next(one for one in shown if "write RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN" in one)
    _, seconds, what = line.split(maxsplit=2)
    assert what == "write RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN 0x1  [BIF_DOORBELL_APER_EN 0x1]"
    columns = [(one[:6].strip(), float(one[6:17])) for one in shown if not one.startswith("--")]
    times = [seconds for _, seconds in columns]
    numbers = [int(number) for number, _ in columns if number]
    assert numbers == sorted(numbers) and numbers[0] == 1
    assert times == sorted(times) and 0 < float(seconds) < times[-1]
    assert any("  memory " in one and " bytes at 0x" in one for one in shown)


def test_accesses_are_chosen(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [one for one in lines(capsys, "filter", trace, "CP_HQD_*", "--only", "write")
             if not one.startswith("--")]  # fmt: skip
    assert found and all(" write CP_HQD_" in one for one in found)
    found = [one for one in lines(capsys, "filter", trace, "--stage", "PSP r*") if one[:2] == "--"]
    assert found == ["-- PSP ring"]
    assert cli.main(["trace", "filter", str(trace), "NO_SUCH_*"]) == 1
    assert "no access fits" in capsys.readouterr().out
    active = lines(capsys, "filter", trace, "--field", "BIF_DOORBELL_APER_EN=1")
    assert any(" write RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN 0x1 " in one for one in active)
    assert all("DOORBELL_APER_EN" in one for one in active if not one.startswith("--"))
    assert cli.main(["trace", "filter", str(trace), "--field", "BIF_DOORBELL_APER_EN=2"]) == 1
    capsys.readouterr()
    everything = json_of(capsys, "show", trace)
    middle = everything[len(everything) // 2]["time_s"]
    late = json_of(capsys, "filter", trace, "--since", middle)
    early = json_of(capsys, "filter", trace, "--until", middle)
    assert late and early and all(one["time_s"] >= middle for one in late)
    assert all(one["time_s"] <= middle for one in early)


def json_of(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert cli.main(["--json", "trace", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_repeated_reads_are_one_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "show", trace)
    pairs = itertools.pairwise(found)
    assert not [one for one, after in pairs if one.get("place") and one["what"] == "read"
                and (one["what"], one["place"], one["value"]) ==
                (after["what"], after.get("place"), after.get("value"))
                and not one["place"].split()[0].isdecimal()]  # fmt: skip


def test_an_exported_trace_has_the_shape_that_perfetto_reads(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The members that the Trace Event Format requires of each phase."""
    target = tmp_path / "trace.json"
    lines(capsys, "export", trace, target)
    events = json.loads(target.read_text())["traceEvents"]
    needed = {"M": {"name", "args"}, "X": {"name", "cat", "ts", "dur"}, "i": {"name", "ts", "s"}}
    for event in events:
        assert event.keys() >= needed[event["ph"]] | {"pid", "tid", "ph"}
        assert event["ph"] == "M" or event["ts"] >= 0
    slices = [event for event in events if event["ph"] == "X"]
    assert [one["name"] for one in slices] == [
        entry.name for entry in Recording.load(trace.read_text()).entries
        if isinstance(entry, Stage)
    ]  # fmt: skip
    for one, after in itertools.pairwise(slices):
        assert one["ts"] + one["dur"] == pytest.approx(after["ts"])
    threads = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert threads.keys() == {"stages", "registers", "shared memory"}
    doorbells = [e for e in events if e["name"].endswith("RCC_DOORBELL_APER_EN")]
    assert {"value": "0x1", "BIF_DOORBELL_APER_EN": 1} in [one["args"] for one in doorbells]


def test_two_traces_are_compared(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "diff", str(trace), str(trace)]) == 0
    other = trace.with_name("other.txt")
    other.write_text(trace.read_text().replace("stage PSP ring", "stage PSP rings", 1))
    assert cli.main(["trace", "diff", str(trace), str(other)]) == 1
    assert "stage PSP rings" in capsys.readouterr().out


@pytest.mark.parametrize("words", [
    ["show"], ["export", "a"], ["filter"], ["filter", "a", "--only", "neither"], ["what", "a"],
    ["--"], [],
])  # fmt: skip
def test_wrong_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", *words]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_field_that_is_no_number_and_a_file_that_is_none(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", "filter", str(trace), "--field", "BIF_DOORBELL_APER_EN=x"]) == 2
    assert "a field's value must be a number" in capsys.readouterr().err
    assert cli.main(["trace", "show", str(trace.with_name("none"))]) == 2
    assert cli.main(["trace", "export", str(trace), "/nowhere/x.json"]) == 2
    assert "cannot write /nowhere/x.json" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["at", "at soon", "at -1", "at nan", "at inf"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(BadArgument, match="line 2"):
        Recording.load(f"identity 1002:744c 0xc8 1002:0e3b 0x30000\n{text}\n")
    loaded = Recording.load("identity 1002:744c 0xc8 1002:0e3b 0x30000\nat 0.5\n")
    assert loaded.entries == [Moment(0.5)] and "at 0.500000" in loaded.save()
