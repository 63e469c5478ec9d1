"""The command line with what people get wrong: each is one line on stderr, the right exit code, and
JSON where that was asked for; no traceback."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ugpu.hcq.find import registry
from ugpu.hcq.state import trace
from ugpu.hcq.state.config import config
from ugpu.tools import cli
from ugpu.tools.base.console import READER_LEFT

LONG = "x" * 300  # a name that no file system takes
LONGER = "/" + "x/" * 3000  # and a path that the kernel does not
NOBODY = "~nosuchuser/x"

# (words, settings, exit code, what is said). {file}: no folder, {folder}: no file, {script}: runs.
CASES: tuple[tuple[str, Mapping[str, str], int, str], ...] = (
    ("fly", {}, 2, "unknown VERB 'fly'; known: "),
    ("-v", {}, 2, "required"),
    ("info", {}, 2, "device"),
    ("ls", {"UGPU_CACHE": NOBODY}, 2, "UGPU_CACHE"),
    ("smi cpu", {"UGPU_TRACE": NOBODY}, 2, "UGPU_TRACE"),
    ("doctor", {"UGPU_RECORD": NOBODY}, 2, "UGPU_RECORD"),
    ("ls", {"UGPU_FIRMWARE": "/lib:" + NOBODY}, 2, "UGPU_FIRMWARE"),
    ("ls", {"UGPU_LOG": "loud"}, 2, "UGPU_LOG"),
    ("info cpu", {"UGPU_TRACE": "{folder}"}, 2, "Is a directory"),
    ("info cpu", {"UGPU_TRACE": "{file}/x"}, 2, "Not a directory"),
    ("info cpu", {"UGPU_TRACE": LONG}, 2, "too long"),
    ("info virtual:navi31", {"UGPU_RECORD": "{folder}"}, 2, "Is a directory"),
    ("info virtual:navi31", {"UGPU_RECORD": LONG}, 2, "too long"),
    (f"info pci:{LONGER}", {}, 2, "not a PCI address"),
    (f"info recording:{LONGER}", {}, 2, "cannot open"),
    (f"info vfio-user:/{LONG}", {}, 2, "107 bytes"),
    ("info vfio-user:{folder}/none", {}, 2, "none"),
    (f"info nvrm:{'9' * 300}", {}, 1, "nvidia"),
    ("smi {folder}", {}, 1, ""),
    ("demo --device pci:none", {}, 2, "not a PCI address"),
    ("record virtual:navi31 {folder}", {}, 2, "Is a directory"),
    ("record virtual:navi31 {file}/x", {}, 2, "does not exist"),
    (f"record virtual:navi31 {LONG}", {}, 2, "too long"),
    (f"record virtual:navi31 {LONGER}", {}, 2, "does not exist"),
    ("record virtual:navi31 /dev/full", {}, 1, "No space left"),
    ("record virtual:navi31 {folder} -- true", {}, 2, "Is a directory"),
    ("record show {folder}", {}, 2, "Is a directory"),
    (f"record show {LONGER}", {}, 2, "too long"),
    ("record compare {file} {file}", {}, 2, "identity"),
    ("record replay /dev/null", {}, 2, "identity"),
    ("sniff -o {folder} --driver 580.142 -- true", {}, 2, "Is a directory"),
    (f"sniff -o {LONG} --driver 580.142 -- true", {}, 2, "too long"),
    ("sniff -o {folder} --driver 580.142 device virtual:gh100", {}, 2, "Is a directory"),
    ("sniff show {folder}", {}, 2, "Is a directory"),
    (f"sniff compare {LONGER} {LONGER}", {}, 2, "too long"),
    *(
        (f"serve --vram={size} --vfio-user {{folder}}/s virtual:navi31", {}, 2, "--vram")
        for size in ("nan", "-1", "inf", "-inf", "1e-9", "1e300", "much")
    ),
    ("serve --firmware {file} --vfio-user {folder}/s virtual:navi31", {}, 2, "firmware"),
    (f"serve --vfio-user /tmp/{LONG} virtual:navi31", {}, 2, "107 bytes"),
    ("serve --vfio-user {file} virtual:navi31", {}, 2, "not a socket"),
    ("serve --vfio-user {file}/s virtual:navi31", {}, 1, "Not a directory"),
    *((f"{verb} {LONGER}", {}, 2, "does not exist") for verb in ("explain", "tune")),
    *((f"{verb} {{folder}}", {}, 2, "does not exist") for verb in ("explain", "tune")),
    *((f"{verb} {{zeros}}", {}, 2, "not a Python program") for verb in ("explain", "tune")),
    *((f"{verb} {{words}}", {}, 2, "not a Python program") for verb in ("explain", "tune")),
    *(
        (f"tune --budget={budget} {{script}}", {}, 2, "above zero")
        for budget in ("inf", "nan", "0", "-1")
    ),
    ("tune --beam 0 {script}", {}, 2, "above zero"),
    ("tune --beam x {script}", {}, 2, "invalid int"),
    *((f"{verb} pci:{LONGER}", {}, 2, "") for verb in ("bind", "unbind", "eject")),
)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    script, file, zeros, words = (tmp_path / name for name in ("run.py", "file", "z.py", "w.py"))
    script.write_text("print('ran')\n")
    file.write_text("words\n")
    zeros.write_bytes(b"print(1)\0\n")
    words.write_text("to be or\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    found = {"script": script, "file": file, "zeros": zeros, "words": words, "folder": folder}
    return {name: str(path) for name, path in found.items()}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Settings are read once in a process, and a trace is begun once."""
    monkeypatch.chdir(tmp_path)
    config.cache_clear()
    registry._start_tracing.cache_clear()
    monkeypatch.setattr(registry, "_recorded", itertools.count(1))
    yield
    config.cache_clear()
    registry._start_tracing.cache_clear()


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize(
    ("words", "settings", "code", "said"),
    [pytest.param(*case, id=f"{n}-{case[0][:30]}") for n, case in enumerate(CASES)],
)
def test_it_is_one_line(
    words: str, settings: Mapping[str, str], code: int, said: str, as_json: bool,
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(**places))
    verb, *rest = words.format(**places).split() or [""]
    argv = [*([verb] if verb else []), *(["--json"] if as_json else []), *rest]
    assert cli.main(argv) == code
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    if verb == "smi" and code == 1:  # a row for each device
        assert "DeviceNotFound" in told.out and not told.err
        return
    assert said in told.err and told.err.startswith("ugpu: ") and told.err.count("\n") == 1
    if as_json:
        report = json.loads(told.out)
        assert report["error"] in told.err and said in report["message"]


# ---- stdout ------------------------------------------------------------------------------------

SPOKEN = (
    "ls", "info cpu", "smi cpu", "demo --device cpu", "doctor", "explain {script}", "tune {script}",
    "record show {recording}", "sniff show {sniffed}", "info nothing:0", "--help",
)  # fmt: skip
SNIFFED = (
    '{"ugpu-sniff": 1, "driver": "580.142", "backend": "node", "prefix": "/dev/nvidia", '
    '"command": ["x"]}\n'
)
RECORDED = "identity 1002:744c 0xc8 1002:0e3b 0x30000\nread config 0x0 4 0x744c1002\n"


@contextlib.contextmanager
def stdout(kind: str) -> Iterator[None]:
    """A full disk, a pipe whose reader has left, or none at all, in place of stdout."""
    former = sys.stdout
    if kind == "none":
        sys.stdout = None  # what Python makes of `>&-`
        try:
            yield
        finally:
            sys.stdout = former
        return
    if kind == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    with open(descriptor, "w", encoding="utf-8") as sys.stdout:
        try:
            yield
        finally:
            sys.stdout.flush()  # as the interpreter does in the end
    sys.stdout = former


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("kind", ["full", "pipe", "none"])
@pytest.mark.parametrize("words", SPOKEN)
def test_stdout_that_takes_nothing(
    words: str, kind: str, as_json: bool, places: dict[str, str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, text in (("recording", RECORDED), ("sniffed", SNIFFED)):
        (tmp_path / name).write_text(text)
        places[name] = str(tmp_path / name)
    verb, *rest = words.format(**places).split()
    failing = 2 if "nothing" in words else 0
    with stdout(kind):
        code = cli.main([verb, *(["--json"] if as_json else []), *rest])
    told = capsys.readouterr().err
    assert "Traceback" not in told
    lines = [line for line in told.splitlines() if line.startswith("ugpu: ")]
    if kind == "none":
        assert code == 1 and lines == ["ugpu: HostError: stdout is closed"]
        return
    spoke = as_json or not failing
    if kind == "full":
        assert code == (failing or 1 if verb != "doctor" else 1)
        assert ("ugpu: HostError: stdout: No space left on device" in lines) is spoke
    else:
        assert code in ((failing or READER_LEFT), 1 if verb == "doctor" else -1)
        assert len(lines) == (1 if failing else 0)


def test_a_script_s_own_errors_are_python_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "bad.py"
    script.write_text("def f():\n    return [][1]\nopen('/nowhere/file') if 0 else f()\n")
    for verb in ("explain", "tune"):
        assert cli.main([verb, "--json", str(script)]) == 1
        told = capsys.readouterr()
        assert json.loads(told.out)["exit"] == 1
        shown = told.err.splitlines()
        assert shown[0].startswith("Traceback") and str(script) in shown[1]
        assert shown[-1].startswith("IndexError")


def test_a_trace_that_fills_the_disk_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trace.bus, "listeners", ())
    monkeypatch.setenv("UGPU_TRACE", "/dev/full")
    assert cli.main(["info", "virtual:navi31"]) == 0
    told = capsys.readouterr().err
    assert told.count("the trace in /dev/full was stopped") == 1 and "Traceback" not in told
