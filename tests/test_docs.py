"""The programs and commands in the documentation run as they are printed."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ugpu.hcq.state.config import setting
from ugpu.tools import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ("debugging.md", "training.md", "tutorial.md", "your-own-kernel.md")
_PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)


def programs() -> list[tuple[str, str]]:
    return [
        (f"{page}:{number}", text)
        for page in PAGES
        for number, text in enumerate(_PROGRAM.findall((DOCS / page).read_text("utf-8")), 1)
    ]


@pytest.mark.parametrize(("where", "text"), programs(), ids=[name for name, _ in programs()])
def test_a_program_runs(
    where: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A comment behind a `print` is what it prints."""
    monkeypatch.chdir(tmp_path)  # for the files that it writes
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, where, "exec"), namespace)
    for device in namespace.get("devices", ()):  # those of a program that splits its work
        device.close()
    printed = capsys.readouterr().out
    for expected in re.findall(r"print\(.*\)  # (.*)", text):
        assert expected in printed


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert pages == {name for name in pages if f"]({name})" in index}


@pytest.mark.parametrize("page", sorted(DOCS.glob("**/*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        assert target.startswith(("http:", "https:")) or (page.parent / target).exists(), target


#: Pages that explain a mechanism; each ends with a table of the files that are it.
MECHANISMS = (
    "adreno", "am-bringup", "compiler", "compiler-design", "daemon", "debugging", "emulator-core",
    "generator", "nvrm", "page", "queues", "recovery", "sniff", "telemetry", "testing",
    "training", "transports", "vfio-user", "virtual-adreno", "virtual-navi31", "virtual-nv",
    "virtual-sm", "virtual-usb-bridge",
)  # fmt: skip
WHERE = "## Where this is in the code"
_ROW = re.compile(r"^\| \[([^\]]+)\]\(\.\./\1\) \| (.+) \|$", re.MULTILINE)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_page_leads_to_the_code_that_it_explains(name: str) -> None:
    """The section is the last one. The classes and functions of a row are in the row's files."""
    page = (DOCS / f"{name}.md").read_text("utf-8")
    section = page.rpartition("\n## ")[2]
    assert section.startswith(WHERE.removeprefix("## "))
    rows = _ROW.findall(section)
    assert len(rows) == section.count("\n| [") > 3
    for file, text in rows:
        quoted = re.findall(r"`([^` ]+)`", text)
        paths = [ROOT / part for part in (file, *(part for part in quoted if "/" in part))]
        source = "".join(path.read_text("utf-8") for path in paths if path.is_file())
        assert [path for path in paths if not path.exists()] == []
        for words in (part.split(".") for part in quoted if part.replace(".", "").isidentifier()):
            for word in words:
                assert re.search(rf"(?:class|def) {word}\b", source), f"{file} has no {word}"


_COMMAND = re.compile(r"^    (?:\$ )?(?:\.venv/bin/)?(ugpu .*)$", re.MULTILINE)
_COMMENT = re.compile(r"\s{2,}\S.*|\s+#.*|\s+> .*")  # also an explanation in columns
#: Commands that the test does not run, by what they contain, with the reason.
NOT_RUN = {
    "pci:": "requires a card",
    "nvrm:": "requires a card",
    "vfio-user:": "requires a server in another process; test_serve.py",
    "ugpu serve": "serves until it is stopped; test_serve.py",
    "ugpu lease": "requires a ugpud; test_daemon_leases.py",
    "ugpu metrics --expect": "serves until it is stopped; test_metrics.py",
    "ugpu metrics --textfile": "writes until it is stopped; test_metrics.py",
    "ugpu reg watch": "polls until Ctrl-C; test_registers.py",
    "ugpu reg write": "asks for confirmation; test_registers.py",
    "ugpu shell": "starts IPython; test_shell.py",
    "ugpu debug": "reads commands from a terminal; test_stepper_terminal.py",
    "ugpu tune": "searches for 10 s; test_tools_tune.py",
    "ugpu ci": "runs a laboratory's own suite; tests/tools/ci",
    "--from 1 0x123456789000": "stands for the address that faulted; test_inside.py",
    "model.gguf": "stands for a model of the reader; test_models.py",
    "CMD": "CMD stands for a program of the reader",
    "DEVICE": "DEVICE stands for a card of the reader",
    "train.py": "train.py is a program of the reader; test_sniff_backends.py",
    "ugpu sniff compare": "compares with one of train.py; test_sniff_recording.py",
    "ugpu sniff show": "shows a recording of train.py; test_sniff_recording.py",
    "ugpu sniff export": "exports a recording of a phone's program; test_sniff_kgsl.py",
    "good.txt": "good.txt is a recording of a card",
    "bad.txt": "bad.txt is a recording of a card",
}
#: Commands whose answer is the exit code: 1 if there is a difference, or a unit that failed.
ANSWERS = (" compare ", " diff ", " fw state ", "smu_silent", "smu_busy")

SLOW = ("ugpu sniff -o ours", "ugpu info 'virtual:navi31?smu_silent'")


def commands() -> list[tuple[str, str]]:
    return [
        (page.name, _COMMENT.sub("", line).strip())
        for page in sorted(DOCS.glob("*.md"))
        for line in _COMMAND.findall(page.read_text("utf-8"))
    ]


def reason(command: str) -> str:
    return next((why for part, why in NOT_RUN.items() if part in command), "")


RUN = [each for each in dict.fromkeys(commands()) if not reason(each[1])]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder, with the examples."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture
def reader(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Be in that folder, with the commands of this environment on PATH."""
    monkeypatch.chdir(desk)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with setting("UGPU_CRASHES", str(desk / "crashes")):
        yield desk


def run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(shlex.split(command)[1:])
    captured = capsys.readouterr()
    assert code in ((0, 1) if any(part in command for part in ANSWERS) else (0,)), captured.err
    assert "Traceback" not in captured.err


@pytest.mark.slow
def test_the_commands_of_the_page_on_debugging(
    reader: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are one session: a recording, a boot that fails, and what its bundle shows."""
    text = (DOCS / "debugging.md").read_text("utf-8")
    for program in _PROGRAM.findall(text):  # one makes bad.rec
        exec(compile(program, "debugging.md", "exec"), {"__name__": "__main__"})
    runpy.run_path("examples/fault_and_recovery.py", run_name="__main__")  # leaves a crash bundle
    session = [command for page, command in RUN if page == "debugging.md"]
    session.sort(key=lambda command: not command.startswith("ugpu record virtual"))
    for command in session:
        run(command, capsys)


@pytest.mark.parametrize(
    ("page", "command"),
    [
        pytest.param(*each, marks=pytest.mark.slow if each[1].startswith(SLOW) else ())
        for each in RUN
        if each[0] != "debugging.md"
    ],
    ids=lambda text: text,
)
def test_a_command_runs(
    page: str, command: str, reader: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(command, capsys)


def test_every_exception_is_needed() -> None:
    text = "\n".join(command for _, command in commands())
    assert [part for part in NOT_RUN if part not in text] == []


@pytest.mark.parametrize(
    ("page", "command"), [each for each in dict.fromkeys(commands()) if reason(each[1])]
)
def test_a_command_that_is_not_run_is_one_that_exists(page: str, command: str) -> None:
    words = shlex.split(command)[1:]
    cli.parser().parse_args(cli._source_in_place(cli._verb_first(words)))
