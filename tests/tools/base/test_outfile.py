"""No command overwrites a file that is not of the kind it writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ugpu.am import chips
from ugpu.hcq import outfile
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.trace import JsonLines
from ugpu.tools import cli
from ugpu.tools.control.serve import write_firmware

SCRIPT = b"import ugpu\n\nprint(ugpu.list_devices())\n"
SUITE = '[[case]]\nname = "one"\ncommand = ["true"]\n'

#: a command with "OUT" where the file goes
COMMANDS = {
    "record": ("record", "virtual:navi31", "OUT"),
    "record command": ("record", "virtual:navi31", "OUT", "--", "true"),
    "trace": ("trace", "--device", "virtual:navi31", "-o", "OUT", "--", "true"),
    "trace export": ("trace", "export", "boot.rec", "OUT"),
    "sniff": ("sniff", "--driver", "580.142", "-o", "OUT", "--", "true"),
    "sniff device": ("sniff", "-o", "OUT", "device", "virtual:gh100"),
    "reg": ("reg", "read", "virtual:navi31", "GRBM_STATUS", "--save", "OUT"),
    "metrics": ("metrics", "--textfile", "OUT"),
    "junit": ("ci", "run", "suite.toml", "--devices", "cpu", "--junit", "OUT"),
    "html": ("ci", "run", "suite.toml", "--devices", "cpu", "--html", "OUT"),
    "compile": ("compile", "work.py", "--target", "cpu", "-o", "OUT"),
    "udev": ("doctor", "--write-udev", "OUT"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / "work.py").write_bytes(SCRIPT)
    (tmp_path / "boot.rec").write_text("identity 1002:744c 0xc8 1002:0e3b 0x30000\n")
    return tmp_path


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_script_is_not_overwritten(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = folder / "mine.py"
    target.write_bytes(SCRIPT)
    code = cli.main([str(target) if word == "OUT" else word for word in COMMANDS[name]])
    assert code == 2
    assert "mine.py" in capsys.readouterr().err
    assert target.read_bytes() == SCRIPT
    assert sorted(os.listdir(folder)) == ["boot.rec", "mine.py", "suite.toml", "work.py"]


@pytest.mark.parametrize("name", ["record", "trace export", "reg", "junit", "html", "udev"])
def test_a_file_of_its_kind_is_replaced(name: str, folder: Path) -> None:
    target = folder / "out"
    command = [str(target) if word == "OUT" else word for word in COMMANDS[name]]
    assert cli.main(command) == 0
    assert target.read_bytes()
    assert cli.main(command) == 0


def test_the_firmware_of_another_is_not_overwritten(tmp_path: Path) -> None:
    facts = chips.facts_of("navi31")
    write_firmware(facts, tmp_path)
    write_firmware(facts, tmp_path)
    image = sorted(tmp_path.iterdir())[-1]
    image.write_bytes(b"AMD's own")
    with pytest.raises(BadArgument, match="another content"):
        write_firmware(facts, tmp_path)
    assert image.read_bytes() == b"AMD's own"


def test_events_are_not_appended_to_a_script(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(SCRIPT)
    with pytest.raises(BadArgument, match="is not a file of trace events"):
        JsonLines(path)


def test_what_is_no_regular_file_is_written_to() -> None:
    outfile.check_file(Path(os.devnull), outfile.Kind("a recording", b"never"))


def test_a_folder_with_other_content(tmp_path: Path) -> None:
    outfile.check_folder(tmp_path, "a cache", ("kernels",))
    outfile.check_folder(tmp_path / "new", "a cache", ("kernels",))
    (tmp_path / "mine.py").write_bytes(SCRIPT)
    with pytest.raises(BadArgument, match="other content than a cache"):
        outfile.check_folder(tmp_path, "a cache", ("kernels",))
    (tmp_path / "kernels").mkdir()
    outfile.check_folder(tmp_path, "a cache", ("kernels",))
