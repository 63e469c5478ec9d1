"""Both recorders watch a real program that calls on files named like NVIDIA's nodes."""

from __future__ import annotations

import errno
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nvidia import nv_calls
from ugpu.hcq.errors import BadArgument, HostError, MissingDependency, UsageError
from ugpu.nv import abi
from ugpu.tools.base.console import Output
from ugpu.tools.debug.sniff import preload
from ugpu.tools.debug.sniff.command import SniffOptions, run, running_driver
from ugpu.tools.debug.sniff.decode import Decoder
from ugpu.tools.debug.sniff.recording import Recording, read

PROGRAM = [sys.executable, str(Path(nv_calls.__file__))]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sniff-cache")


def _usable(backend: str) -> None:
    if backend == "preload" and preload.compiler() is None:
        pytest.skip("no C compiler")
    if backend == "ptrace" and platform.machine() != "x86_64":
        pytest.skip("ptrace knows x86-64")


def _record(backend: str, folder: Path, cache: Path) -> tuple[int, Recording]:
    _usable(backend)
    prefix = nv_calls.make_nodes(folder)
    options = SniffOptions(
        folder / "calls.jsonl", cache, backend, prefix=str(prefix), driver="580.142"
    )
    code = run([*PROGRAM, str(folder)], options, Output(as_json=False))
    return code, read(options.output)


@pytest.fixture(params=["preload", "ptrace"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path, cache: Path) -> tuple[int, Recording]:
    return _record(request.param, tmp_path, cache)


def test_every_call_on_the_nodes_is_recorded_and_no_other(
    recorded: tuple[int, Recording],
) -> None:
    code, recording = recorded
    assert code == 7
    told = [(call.kind, call.path.rpartition("/")[2]) for call in recording.calls]
    expected = [("open", "nvidiactl"), *[("ioctl", "nvidiactl")] * 7]
    expected += [("open", "nvidia-uvm"), ("ioctl", "nvidia-uvm"), ("mmap", "nvidiactl")]
    assert told[: len(expected)] == expected
    rest = [each for each in told[len(expected) :] if each != ("close", "nvidiactl")]
    assert rest == [
        ("open", "nvidia9"),
        ("close", "nvidia-uvm"),
        ("open", "nvidia0"),
        ("close", "nvidia0"),
    ]
    for call in recording.calls:
        wanted = {"ioctl": errno.ENOTTY}.get(call.kind, 0)
        assert call.errno == (errno.ENOENT if call.path.endswith("nvidia9") else wanted), call


def test_blocks_are_recorded_and_decoded(recorded: tuple[int, Recording]) -> None:
    decoded = [each for each in Decoder(abi.select("580.142")).all(recorded[1]) if each.own]
    assert [each.title for each in decoded] == [
        "RM_ALLOC NV01_DEVICE_0",
        "RM_ALLOC NV01_DEVICE_0",
        "RM_ALLOC",
        "RM_ALLOC NV01_DEVICE_0",
        "RM_CONTROL NV0080_CTRL_CMD_GPU_GET_CLASSLIST",
        "ioctl 0xc0ff46fe",
        "RM_CONTROL NV0080_CTRL_CMD_GPU_GET_CLASSLIST",
        "UVM_INITIALIZE",
    ]
    first, broken, unreadable, older, control = decoded[:5]
    assert first.own and first.own.before and first.own.before["hObjectNew"] == 0x5C000001
    assert first.blocks[0].struct == "NV0080_ALLOC_PARAMETERS"
    assert first.blocks[0].before and first.blocks[0].before["hClientShare"] == 0x1001
    assert broken.blocks[0].before is None
    assert unreadable.own and unreadable.own.before is None
    assert older.own and older.own.struct == "NVOS21_PARAMETERS"
    assert control.blocks[0].struct == "NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS"
    assert control.blocks[1].before == {"bytes": bytes.fromhex("6fc80000c0cb0000b5c80000")}


def test_threads_and_children_are_told_apart(recorded: tuple[int, Recording]) -> None:
    calls = recorded[1].calls
    assert len({call.pid for call in calls}) == 2
    threads = {call.thread for call in calls if call.pid == calls[0].pid}
    assert len(threads) == 2
    times = [call.time for call in calls]
    assert times == sorted(times)


def test_both_recorders_agree(tmp_path: Path, cache: Path) -> None:
    found = []
    for backend in ("preload", "ptrace"):
        folder = tmp_path / backend
        folder.mkdir()
        found.append(_record(backend, folder, cache)[1])
    left, right = (
        [(c.kind, c.fd, c.request, c.errno, len(c.blocks)) for c in each.calls] for each in found
    )
    assert left == right


@pytest.mark.parametrize("backend", ["preload", "ptrace"])
def test_a_program_that_makes_no_call_is_no_success(
    tmp_path: Path, cache: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _usable(backend)
    options = SniffOptions(tmp_path / "a", cache, backend, driver="580.142")
    assert run([sys.executable, "-c", ""], options, Output(as_json=False)) == 1
    said = capsys.readouterr().out
    assert "0 calls recorded" in said
    assert "opened no file whose path begins with /dev/nvidia" in said


def test_a_program_that_a_signal_ends_and_one_that_is_not_there(
    tmp_path: Path, cache: Path
) -> None:
    _usable("ptrace")
    options = SniffOptions(tmp_path / "a", cache, "ptrace", driver="580.142")
    out = Output(as_json=False)
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert run([sys.executable, "-c", kill], options, out) == 128 + 15
    assert run([str(tmp_path / "nothing")], options, out) == 127
    assert read(options.output).calls == []


def test_the_library_is_built_once(cache: Path) -> None:
    _usable("preload")
    path = preload.library(cache)
    made = path.stat().st_mtime_ns
    assert preload.library(cache) == path
    assert path.stat().st_mtime_ns == made
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_without_a_compiler_it_says_what_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preload, "compiler", lambda: None)
    with pytest.raises(MissingDependency, match="ptrace"):
        preload.library(tmp_path)


def test_a_compiler_that_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _usable("preload")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "recorder.c").write_text("int main(void) { return", encoding="ascii")
    monkeypatch.setattr(preload, "SOURCES", broken)
    with pytest.raises(HostError, match="failed to compile"):
        preload.library(tmp_path)
    assert list((tmp_path / "sniff").iterdir()) == []


def test_wrong_usage_is_refused_before_anything_runs(tmp_path: Path, cache: Path) -> None:
    out = Output(as_json=False)
    ran = tmp_path / "ran"
    command = ["touch", str(ran)]
    with pytest.raises(UsageError):
        run([], SniffOptions(tmp_path / "a", cache, driver="580.142"), out)
    with pytest.raises(UsageError, match="auto"):
        run(command, SniffOptions(tmp_path / "a", cache, "other", driver="580.142"), out)
    with pytest.raises(UsageError, match="--driver"):
        run(command, SniffOptions(tmp_path / "a", cache, proc=tmp_path), out)
    with pytest.raises(BadArgument, match="version"):
        run(command, SniffOptions(tmp_path / "a", cache, driver="newest"), out)
    with pytest.raises(BadArgument):
        run(command, SniffOptions(tmp_path / "no" / "a", cache, driver="580.142"), out)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release", "580.142"),
        ("something else", ""),
    ],
)
def test_the_running_driver_is_read(text: str, version: str, tmp_path: Path) -> None:
    folder = tmp_path / "driver" / "nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(text + "\nGCC version: 12.2.0\n", encoding="ascii")
    assert running_driver(tmp_path) == version


def test_the_tracer_refuses_other_machines(tmp_path: Path) -> None:
    code = (
        "import platform; platform.machine = lambda: 'riscv64'; import sys; "
        "from ugpu.tools.debug.sniff.tracer import main; "
        f"sys.exit(main(['--log', {str(tmp_path / 'a')!r}, '--prefix', '/x', "
        "'--driver', '580.142', '--', 'true']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "x86-64" in done.stderr
