"""What the process of a virtual card may ask of the system, tried in processes of that kind."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service.daemon import ROOT, DaemonProcess, scaled
from ugpu import hcq
from ugpu.tools.service.daemon.cards.confinement import fence, sandbox

landlock = pytest.mark.skipif(not fence.version(), reason="the system has no Landlock")
HEADERS = (
    Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    Path("/usr/include/asm-generic/unistd.h"),
)
_NUMBER = re.compile(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", re.MULTILINE)


def enclosed(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that may change files in `folder` alone."""
    code = (
        "import ctypes, errno, os, pathlib, resource, signal, socket, subprocess, sys, threading\n"
        "from ugpu.tools.service.daemon.cards.confinement import fence\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        f"fence.enclose([folder])\n{text}"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@landlock
@pytest.mark.parametrize(
    "text",
    [
        "open(folder.parent / 'kept', 'w')",
        "open(folder.parent / 'kept', 'r+')",
        "os.truncate(folder.parent / 'kept', 0)",
        "os.unlink(folder.parent / 'kept')",
        "os.rename(folder.parent / 'kept', folder / 'mine')",
        "os.mkdir(folder.parent / 'new')",
        "os.symlink('/etc', folder.parent / 'link')",
        "os.link(folder.parent / 'kept', folder / 'link')",
        "subprocess.run(['cp', '/etc/hostname', folder.parent / 'kept'], check=True)",
    ],
)
def test_files_elsewhere_stay_as_they_are(text: str, tmp_path: Path) -> None:
    folder, kept = tmp_path / "own", tmp_path / "kept"
    kept.write_text("kept")
    before = kept.stat()
    refused = "(OSError, subprocess.CalledProcessError)"
    done = enclosed(f"try:\n {text}\nexcept {refused}:\n sys.exit(7)", folder)
    assert done.returncode == 7, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "own"]
    after = kept.stat()
    assert kept.read_text() == "kept" and after.st_mtime_ns == before.st_mtime_ns
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "socket.socket(socket.AF_INET)",
        "socket.socket(socket.AF_INET6)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_UNIX).connect(str(folder / 'ugpud.sock'))",
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (64, 64))",
        "signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 0)",
    ],
)
def test_what_it_is_refused(text: str, tmp_path: Path) -> None:
    done = enclosed(f"try:\n {text}\nexcept PermissionError:\n sys.exit(7)", tmp_path)
    assert done.returncode == 7, done.stderr


def test_each_denied_call_fails(tmp_path: Path) -> None:
    """With arguments that would otherwise be other errors, or harmless."""
    done = enclosed(
        "import platform\n"
        "column = ('x86_64', 'aarch64').index(platform.machine())\n"
        "library = ctypes.CDLL(None, use_errno=True)\n"
        "for name, numbers in fence.DENIED.items():\n"
        " if numbers[column] < 0: continue\n"
        " ctypes.set_errno(0)\n"
        " answer = library.syscall(numbers[column], -1, -1, -1, -1, -1, -1)\n"
        " print(name, answer, ctypes.get_errno())\n"
        "for name, numbers in (('read', fence._READ), ('write', fence._WRITE_TO)):\n"
        " assert library.syscall(numbers[column], os.getpid(), 0, 0, 0, 0, 0) == 0, name\n"
        " answer = library.syscall(numbers[column], os.getppid(), 0, 0, 0, 0, 0)\n"
        " print(name, answer, ctypes.get_errno())",
        tmp_path,
    )
    lines = done.stdout.splitlines()
    assert len(lines) > 50, done.stderr
    assert [line for line in lines if not line.endswith(f" -1 {errno.EPERM}")] == []


@landlock
@pytest.mark.skipif(fence.version() < 6, reason="Landlock 6 keeps signals in")
def test_it_signals_what_it_has_started_alone(tmp_path: Path) -> None:
    done = enclosed(
        "child = subprocess.Popen(['sleep', '100'])\n"
        "child.kill(); print(child.wait())\n"
        "for pid in (os.getppid(), 1):\n"
        " try: os.kill(pid, 0)\n"
        " except PermissionError: print('refused')",
        tmp_path,
    )
    assert done.stdout == "-9\nrefused\nrefused\n", done.stderr


def test_what_it_needs_works(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    done = enclosed(
        "(folder / 'a').write_text('x'); os.rename(folder / 'a', folder / 'b')\n"
        "(folder / 'c').mkdir(); open(os.devnull, 'w').close()\n"
        "listener = socket.socket(socket.AF_UNIX); listener.bind(str(folder / 's'))\n"
        "listener.listen()\n"
        "found = []\n"
        "thread = threading.Thread(target=lambda: found.append(open('/etc/hostname').read()))\n"
        "thread.start(); thread.join(); assert found\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.nice(1)\n"
        "told = subprocess.run(['ls', str(folder)], capture_output=True, text=True).stdout\n"
        "print(told.split())",
        folder,
    )
    assert done.stdout == "['b', 'c', 's']\n", done.stderr


@landlock
def test_a_folder_that_cannot_be_made_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = enclosed(
        "try:\n folder.parent.write_text('x')\nexcept PermissionError:\n print('no')",
        tmp_path / "file" / "below",
    )
    assert done.stdout == "no\n", done.stderr


@pytest.mark.parametrize(("column", "header"), list(enumerate(HEADERS)), ids=["x86-64", "AArch64"])
def test_numbers_of_calls_are_those_of_the_headers(column: int, header: Path) -> None:
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    numbers = {name: int(number) for name, number in _NUMBER.findall(header.read_text())}
    for name, given in {**fence.DENIED, **sandbox._CALLS}.items():
        assert numbers.get(name, -1) == given[column], name


def test_the_process_of_a_card_is_enclosed() -> None:
    with (
        DaemonProcess(["virtual:navi31"]) as daemon,
        hcq.lease("virtual:navi31", daemon=daemon.socket, wait_s=60) as gpu,
    ):
        assert scaled(gpu)
        (status,) = [
            text
            for each in Path("/proc").glob("[0-9]*")
            if (text := _status(each, int(daemon.process.pid)))
        ]
        assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status


def _status(process: Path, daemon: int) -> str:
    """The status of the process of a card: a grandchild of ugpud."""
    try:
        text = (process / "status").read_text()
        parent = int(re.findall(r"PPid:\t(\d+)", text)[0])
        above = Path(f"/proc/{parent}/status").read_text()
    except (OSError, IndexError):
        return ""
    return text if f"PPid:\t{daemon}\n" in above else ""
