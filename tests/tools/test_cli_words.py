"""What `ugpu` answers to somebody who does not know its words yet: help, usage lines, version,
misspelt verbs, options and devices."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ugpu
from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.find.offline import module_of_chip
from ugpu.tools import cli
from ugpu.tools.verbs.verb import load

ROOT = Path(__file__).parents[2]


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = cli.main(argv)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize("name", sorted(load()))
def test_a_usage_line_is_a_command_of_that_verb(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, text = said(capsys, name, "--help")
    usage = text.split("\n\n")[0]
    assert code == 0
    assert re.match(rf"usage: ugpu {name} ", usage), usage
    assert "VERB [--json]" not in usage


@pytest.mark.parametrize("words", [("ci", "run"), ("ci", "devices"), ("lease", "take")])
def test_a_usage_line_of_an_action(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, text = said(capsys, *words, "--help")
    assert code == 0
    assert text.startswith(f"usage: ugpu {' '.join(words)} ")


def test_no_word_at_all_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys)
    assert code == 0
    assert text.startswith("usage: ugpu VERB")
    assert "Look at devices:" in text


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert ugpu.__version__ == project["version"]
    assert said(capsys, "--version") == (0, f"ugpu {ugpu.__version__}\n")


def test_the_package_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "ugpu", "--version"]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stdout == f"ugpu {ugpu.__version__}\n"


@pytest.mark.parametrize(
    ("words", "hint", "see"),
    [
        (("inof", "cpu"), "did you mean info?", "see ugpu --help"),
        (("crash", "lss"), "did you mean ls?", "see ugpu crash --help"),
        (("ci", "runn"), "did you mean run?", "see ugpu ci --help"),
        (("lease", "tkae"), "did you mean take?", "see ugpu lease --help"),
        (("top", "--intervall"), "did you mean --interval?", "see ugpu top --help"),
        (("ci", "devices", "--device-s"), "did you mean --devices?", "see ugpu ci devices --help"),
        (("ls", "extra"), "unrecognized arguments: extra", "see ugpu ls --help"),
    ],
)
def test_a_misspelt_word(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], hint: str, see: str
) -> None:
    code, text = said(capsys, *words)
    assert code == 2
    assert hint in text and see in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("virtual:nav31", "did you mean virtual:navi31"),
        ("navi31", "did you mean virtual:navi31"),
        ("gh100", "did you mean virtual:gh100"),
        ("cpuu", "did you mean cpu?"),
        ("virtal:navi31", "did you mean virtual:navi31"),
        ("virtual:navi31+ubs", "did you mean virtual:navi31+usb"),
        ("virtual:nav31?smu_silent", "did you mean virtual:navi31"),
    ],
)
def test_a_misspelt_device(name: str, hint: str) -> None:
    with pytest.raises(ugpu.UgpuError) as refused:
        ugpu.open(name).close()
    assert hint in str(refused.value)


def test_a_misspelt_chip() -> None:
    with pytest.raises(DeviceNotFound, match=r"did you mean navi31"):
        module_of_chip("nav31")


def test_the_device_of_the_demo_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cpu"
    code, text = said(capsys, "demo", "cpu", "--device", "virtual:navi31")
    assert code == 2
    assert "cpu" in text and "virtual:navi31" in text


OWN = """
import ugpu
with ugpu.open("cpu") as gpu:
    (ugpu.Tensor([1.0], device=gpu) + 1).realize()
"""
DEFAULT = """
import ugpu
with ugpu.open() as gpu:
    print("runs on", gpu.name)
    (ugpu.Tensor([1.0], device=gpu) + 1).realize()
"""


@pytest.mark.parametrize("verb", ["explain", "tune", "debug"])
def test_an_option_without_effect_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str
) -> None:
    script, commands = tmp_path / "own.py", tmp_path / "commands"
    device = "virtual:gh100"
    own = OWN.replace('"cpu"', '"virtual:navi31"') if verb == "debug" else OWN
    script.write_text(own)
    commands.write_text("continue\n")
    options = ["--commands", str(commands)] if verb == "debug" else []
    code, text = said(capsys, verb, *options, "--device", device, str(script))
    assert code == 0
    opened = "virtual:navi31" if verb == "debug" else "cpu"
    assert f"--device {device} had no effect: the script opens {opened} itself" in text


@pytest.mark.parametrize("verb", ["explain"])
def test_the_option_is_what_open_without_a_name_opens(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str
) -> None:
    script = tmp_path / "default.py"
    script.write_text(DEFAULT)
    code, text = said(capsys, verb, "--device", "virtual:gh100", str(script))
    assert code == 0
    assert "runs on virtual:gh100" in text and "no effect" not in text
