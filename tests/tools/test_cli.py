"""The `ugpu` command: every verb, as text and as JSON, and its errors."""

from __future__ import annotations

import argparse
import importlib.util
import json

import pytest

from tests.support.adreno.mesa import needs_mesa
from ugpu.tools import cli
from ugpu.tools.base.console import Output
from ugpu.tools.compile import demo
from ugpu.tools.verbs import verb
from ugpu.tools.verbs.verb import TITLES, load


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, object]:
    code = cli.main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_ls(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ls"]) == 0
    assert "virtual:navi31" in capsys.readouterr().out
    code, listed = run_json(capsys, "ls")
    assert code == 0
    assert isinstance(listed, list)
    assert {"cpu", "virtual:navi31"} <= {entry["name"] for entry in listed}
    (navi,) = [entry["facts"] for entry in listed if entry["name"] == "virtual:navi31"]
    assert navi["isa"] == "gfx1100" and "RX 7900 XTX" in navi["products"]
    assert navi["proven_on_silicon"] == "no"


@pytest.mark.parametrize(
    ("device", "target"),
    [("cpu", "cpu"), ("virtual:navi31", "gfx1100"), ("virtual:gh100", "sm_90a")],
)
def test_info(capsys: pytest.CaptureFixture[str], device: str, target: str) -> None:
    code, facts = run_json(capsys, "info", device)
    assert code == 0
    assert isinstance(facts, dict)
    assert facts["target"] == target
    assert any(reading["name"] == "memory_used_bytes" for reading in facts["sensors"])
    assert cli.main(["info", device]) == 0
    assert "sensor memory used" in capsys.readouterr().out


def test_shared_options_may_precede_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--json", "-v", "info", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "cpu"
    assert cli.main(["-v"]) == 2
    assert "VERB" in capsys.readouterr().err


def test_unknown_device_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "virtual:nothing"]) == 2
    assert "DeviceNotFound" in capsys.readouterr().err
    code, said = run_json(capsys, "info", "virtual:nothing")
    assert code == 2
    assert isinstance(said, dict) and said["error"] == "DeviceNotFound"


def test_devices_not_built_yet_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "kfd:0"]) == 1
    assert "NotSupported" in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run_json(capsys, "doctor")
    assert isinstance(report, dict)
    assert code == (0 if report["ready"] else 1)
    assert cli.main(["doctor"]) == code
    text = capsys.readouterr().out
    assert all(finding["check"] in text for finding in report["findings"])


ADRENO = [
    pytest.param(f"virtual:{chip}", marks=[needs_mesa, pytest.mark.slow])
    for chip in ("a630", "a660", "a740", "a750")
]


@pytest.mark.parametrize("device", ["cpu", "virtual:navi31", "virtual:gh100", *ADRENO])
def test_demo_finds_the_labels_numpy_finds(capsys: pytest.CaptureFixture[str], device: str) -> None:
    assert cli.main(["demo", "--device", device]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("demo: PASS accuracy=0.98")
    assert "boot_ms=" in last and "kernels=" in last


def test_demo_fails_when_the_device_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: object) -> object:
        nearest = right(*arguments)
        nearest[::2] = 0
        return nearest

    right = demo.neighbours_on
    monkeypatch.setattr(demo, "neighbours_on", wrong)
    code, report = run_json(capsys, "demo", "--device", "cpu")
    assert code == 1
    assert isinstance(report, dict) and report["verdict"] == "FAIL"


def test_demo_names_the_missing_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name)
    )
    assert cli.main(["demo"]) == 2
    assert "pip install 'ugpu[demo]'" in capsys.readouterr().err


def test_wrong_verb() -> None:
    assert cli.main(["fly"]) == 2


def test_every_verb_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    for each in load().values():
        assert f"  {each.name:<10}{each.help}" in overview
        assert TITLES[each.group] in overview
        assert cli.main([each.name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def test_a_verb_is_added_by_registering_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ugpu.tools.verbs.verb.REGISTERED", dict(load()))
    monkeypatch.setattr(cli, "REGISTERED", verb.REGISTERED)

    @verb.register("look", "show one word", lambda parser: parser.add_argument("word"))
    def shout(arguments: argparse.Namespace, out: Output) -> int:
        out.say(arguments.word.upper())
        return 3

    assert cli.main(["shout", "heard"]) == 3
    assert capsys.readouterr().out == "HEARD\n"


def test_peek(capsys: pytest.CaptureFixture[str]) -> None:
    code, read = run_json(capsys, "peek", "virtual:navi31", "mmhub.MMVM_L2_CNTL", "CP_HQD_AC*")
    assert code == 0
    assert isinstance(read, list)
    assert [each["register"] for each in read] == ["mmhub.MMVM_L2_CNTL", "gc.CP_HQD_ACTIVE"]
    assert read[0]["fields"]["ENABLE_L2_CACHE"] == 1
    assert cli.main(["peek", "virtual:navi31", "mmvm_l2_cntl"]) == 0
    assert "ENABLE_L2_CACHE=0x1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "register", "text"),
    [
        ("virtual:navi31", "gc.GRBM_STATUZ", "near: GRBM_STATUS"),
        ("virtual:navi31", "ABSENT", "no register 'ABSENT'"),
        ("virtual:navi31", "nothing.CP_STAT", "unknown block 'nothing'"),
        ("virtual:navi31", "gc.*", "expected 1 to 200"),
        ("virtual:gh100", "CP_STAT", "has no registers"),
        ("cpu", "CP_STAT", "has no registers"),
    ],
)
def test_peek_refuses(
    capsys: pytest.CaptureFixture[str], device: str, register: str, text: str
) -> None:
    assert cli.main(["peek", device, register]) in (1, 2)
    assert text in capsys.readouterr().err
