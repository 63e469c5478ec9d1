"""What kernels on leases of `cpu` may ask of the system: nothing. They are code of the client."""

from __future__ import annotations

import errno
import os
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.support.kernels import compile_ir, contract_object
from tests.support.service.daemon import DaemonProcess, Running, scaled, started
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.device.device import core_of
from ugpu.hcq.errors import DeviceLost, HostError
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.tools.service.daemon.cards.confinement import sandbox

x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernel is x86-64 assembly")
# A system call by its number, with up to four arguments; others are 0.
CALL = r"""
target triple = "{triple}"
@call.ugpu = constant {{ i32, i32, [64 x i8] }} {{ i32 2, i32 48,
  [64 x i8] c"ptr out, i64 number, i64 a, i64 b, i64 c, i64 d\00{padding}" }}
define void @call(ptr %kernarg, ptr %launch) {{
  %out = load ptr, ptr %kernarg
  %p1 = getelementptr i64, ptr %kernarg, i64 1
  %p2 = getelementptr i64, ptr %kernarg, i64 2
  %p3 = getelementptr i64, ptr %kernarg, i64 3
  %p4 = getelementptr i64, ptr %kernarg, i64 4
  %p5 = getelementptr i64, ptr %kernarg, i64 5
  %number = load i64, ptr %p1
  %a = load i64, ptr %p2
  %b = load i64, ptr %p3
  %c = load i64, ptr %p4
  %d = load i64, ptr %p5
  %r = call i64 asm sideeffect "syscall",
    "={{rax}},{{rax}},{{rdi}},{{rsi}},{{rdx}},{{r10}},{{r8}},{{r9}},~{{rcx}},~{{r11}},~{{memory}}"
    (i64 %number, i64 %a, i64 %b, i64 %c, i64 %d, i64 0, i64 0)
  store i64 %r, ptr %out
  ret void
}}
"""
OPENAT, SOCKET, KILL, PTRACE, EXECVE, FORK, PIDFD, VM_READ, PRLIMIT = (
    257, 41, 62, 101, 59, 57, 434, 310, 302,
)  # fmt: skip
GETPID, CLONE, CLONE3, IO_URING, MEMFD, UNLINK = 39, 56, 435, 425, 319, 87
WRITE, MMAP, SHUTDOWN = 1, 9, 48


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = started(tmp_path_factory.mktemp("s"), count=1)
    yield made
    made.close()


def system_call(gpu: Any, number: int, *arguments: int) -> int:
    """What the system answers a kernel; negative: an errno."""
    declared = "ptr out, i64 number, i64 a, i64 b, i64 c, i64 d"
    padding = r"\00" * (63 - len(declared))
    text = CALL.format(triple=gpu.target.triple, padding=padding)
    llvm.initialize_native_asmparser()
    image = compile_ir(text, gpu.target.triple, gpu.target.cpu)
    given = [np.uint64(each % (1 << 64)) for each in (*arguments, 0, 0, 0, 0)[:4]]
    with gpu.load(image) as program, gpu.alloc(64) as out:
        with gpu.queue() as queue:
            arguments_ = (out, np.uint64(number), *given)
            queue.launch(program["call"], grid=(1,), block=(1,), args=arguments_)
        gpu.synchronize()
        return int(out.numpy(np.int64)[0])


@x86
@pytest.mark.parametrize("shared", [False, True], ids=["whole", "shared"])
def test_a_kernel_reaches_no_file_no_process_and_no_network(running: Running, shared: bool) -> None:
    options = {"shared": True, "memory": "64M"} if shared else {}
    with running.lease("cpu", wait_s=60, **options) as gpu, gpu.alloc(64) as text:
        text.copy_from(np.frombuffer(b"/etc/passwd".ljust(64, b"\0"), np.uint8))
        path, own, ugpud = int(text.address), system_call(gpu, GETPID), os.getpid()
        assert own > 0 and own != ugpud
        for call in (
            (OPENAT, -100, path, os.O_RDONLY), (OPENAT, -100, path, os.O_RDWR | os.O_CREAT, 0o666),
            (UNLINK, path), (MEMFD, path, 0),
            (SOCKET, 1, 1, 0), (SOCKET, 2, 1, 0),
            (KILL, ugpud, 0), (KILL, -1, 0), (PIDFD, ugpud, 0),
            (PTRACE, 16, ugpud), (VM_READ, ugpud, path, 1, path),
            (PRLIMIT, ugpud, 7, 0, path),
            (EXECVE, path, 0, 0), (FORK,), (CLONE, signal.SIGCHLD, 0, 0, 0),
            (IO_URING, 8, path),
        ):  # fmt: skip
            assert system_call(gpu, *call) == -errno.EPERM, call
        assert system_call(gpu, CLONE3, path, 64) == -errno.ENOSYS
        assert scaled(gpu)


def descriptors(gpu: Any) -> tuple[list[int], list[int]]:
    """The sockets that a kernel has, and its other descriptors: shutdown(2) in no known way."""
    answers = {number: system_call(gpu, SHUTDOWN, number, 99) for number in range(3, 48)}
    sockets = [number for number, answer in answers.items() if answer == -errno.EINVAL]
    others = [number for number, answer in answers.items() if answer == -errno.ENOTSOCK]
    assert len(sockets) + len(others) + list(answers.values()).count(-errno.EBADF) == len(answers)
    return sockets, others


@x86
def test_a_kernel_has_no_descriptor_of_another_lease(running: Running) -> None:
    """The server that forks the processes has two of each: its status is told by one."""
    shared = {"shared": True, "memory": "64M", "wait_s": 60}
    with (
        running.lease("cpu", **shared) as first,
        running.lease("cpu", **shared),
        running.lease("cpu", **shared) as last,
    ):
        before, after = descriptors(first), descriptors(last)
        assert len(before[0]) == len(after[0]) == 1, "the connection to ugpud"
        assert len(after[1]) == len(before[1])


@x86
def test_a_kernel_has_memory_up_to_a_limit(running: Running) -> None:
    anonymous = 0x22 | 0x4000  # MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    with running.lease("cpu", wait_s=60) as gpu:
        assert system_call(gpu, MMAP, 0, 1 << 20, 3, anonymous) > 0
        assert system_call(gpu, MMAP, 0, 1 << 44, 3, anonymous) == -errno.ENOMEM
        assert scaled(gpu)


@x86
def test_what_a_kernel_writes_to_the_log_is_escaped_and_limited() -> None:
    forged = b"\x1b[2J\ncpu: ready\n"
    flood = b"x" * (128 << 10)
    with DaemonProcess(["cpu"]) as daemon, hcq.lease("cpu", daemon=daemon.socket, wait_s=60) as gpu:
        with gpu.alloc(len(flood)) as text:
            for content in (forged, flood):
                text.copy_from(np.frombuffer(content.ljust(len(flood), b"\0"), np.uint8))
                left = len(content)
                while left:
                    wrote = system_call(gpu, WRITE, 2, int(text.address), left)
                    assert wrote > 0
                    left -= wrote
        until(lambda: "from now on is dropped" in daemon.log(), "the end of the flood")
        log = daemon.log()
    assert "\x1b" not in log
    (line,) = [line for line in log.splitlines() if "[2J" in line]
    assert line.startswith("process ") and line.endswith(r": \x1b[2J")
    assert "cpu: ready" in log and "\ncpu: ready" not in log
    assert len(log) < 80 << 10


def crash(gpu: Any) -> None:
    """Run a kernel that writes to address 8."""
    program, out = gpu.load(contract_object(gpu.target)), gpu.alloc(256)
    nowhere = Buffer(core_of(gpu), VirtAddr(8), 256, Placement.DEVICE)
    with gpu.queue() as queue:
        arguments = (nowhere, out, np.uint32(64), np.uint32(3))
        queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
    gpu.synchronize()


@pytest.mark.parametrize("shared", [False, True], ids=["whole", "shared"])
def test_a_kernel_that_crashes_ends_its_lease_alone(running: Running, shared: bool) -> None:
    options = {"shared": True, "memory": "64M"} if shared else {}
    with running.lease("cpu", wait_s=60, **options) as gpu:
        with pytest.raises(DeviceLost, match="cpu: its process was ended by SIGSEGV: a kernel acc"):
            crash(gpu)
        with pytest.raises(DeviceLost, match="SIGSEGV"):
            gpu.alloc(64)
        with pytest.raises(DeviceLost):
            gpu.reset()
    with running.lease("cpu", wait_s=60, **options) as gpu:
        assert scaled(gpu)
    assert running.daemon.history.records().get("cpu") is None, "not a failure of the device"


@pytest.mark.slow
def test_ugpud_survives_kernels_that_crash_with_all_other_leases() -> None:
    """The attack: address 8, on an exclusive and on a shared lease, beside a lease of a GPU."""
    with (
        DaemonProcess(["cpu", "virtual:navi31"]) as daemon,
        hcq.lease("virtual:navi31", daemon=daemon.socket) as other,
        other.alloc(64) as kept,
    ):
        kept.fill(7)
        ways: tuple[dict[str, Any], ...] = ({}, {"shared": True, "memory": "64M"})
        for options in ways * 5:
            gpu = hcq.lease("cpu", daemon=daemon.socket, wait_s=60, **options)
            with gpu, pytest.raises(DeviceLost):
                crash(gpu)
            assert daemon.process.poll() is None
            assert (kept.numpy(np.uint32) == 7).all() and scaled(other)


def confined(text: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that has confined itself."""
    code = (
        "import errno, mmap, os, signal, socket, sys, threading, time\n"
        "from ugpu.tools.service.daemon.cards.confinement.sandbox import confine\n"
        f"confine(1 << 30)\n{text}"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "text",
    [
        "open('/etc/passwd')",
        "open('/tmp/made', 'w')",
        "os.listdir('/')",
        "os.stat('/')",
        "socket.socket(socket.AF_UNIX)",
        "socket.socket(socket.AF_INET)",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getpid(), 0)",
        "os.pidfd_open(os.getpid())",
        "os.mkdir('/tmp/made')",
        "os.setpriority(os.PRIO_PROCESS, 0, 5)",
        "os.memfd_create('x')",
    ],
)
def test_a_confined_process_is_refused(text: str) -> None:
    done = confined(f"try:\n {text}\nexcept PermissionError:\n sys.exit(7)")
    assert done.returncode == 7, done.stderr


def test_a_confined_process_has_threads_memory_and_its_descriptors() -> None:
    done = confined(
        "found = []\n"
        "work = threading.Thread(target=lambda: found.append(len(mmap.mmap(-1, 1 << 20))))\n"
        "work.start(); work.join(); time.sleep(0)\n"
        "print(found, os.getpid() > 0, sum(bytearray(1 << 22)))"
    )
    assert done.returncode == 0 and done.stdout == f"[{1 << 20}] True 0\n", done.stderr


def test_threads_that_ran_before_are_confined_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c",
         "import threading, sys\n"
         "from ugpu.tools.service.daemon.cards.confinement.sandbox import confine\n"
         "go, told = threading.Event(), []\n"
         "def work():\n go.wait()\n try:\n  open('/etc/passwd')\n"
         " except PermissionError:\n  told.append(7)\n"
         "thread = threading.Thread(target=work); thread.start(); confine(1 << 30); go.set()\n"
         "thread.join(); print(told)"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "[7]\n", done.stderr


def test_a_confined_process_that_crashes_leaves_no_core() -> None:
    done = confined("import resource; print(resource.getrlimit(resource.RLIMIT_CORE))")
    refused = "PermissionError" in done.stderr  # prlimit is one of the calls
    assert refused or done.stdout == "(0, 0)\n"
    assert resource.RLIMIT_CORE >= 0


def test_a_system_that_cannot_confine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, before anything has been changed."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(HostError, match="cannot be confined on riscv64"):
        sandbox.confine(1 << 30)


def test_the_fork_server_that_dies_is_replaced(running: Running) -> None:
    from ugpu.tools.service.daemon.cards import forks

    with running.lease("cpu", wait_s=60) as gpu:
        assert scaled(gpu)
        server = forks._server
        assert server is not None
        server.process.kill()
        server.process.wait()
        assert scaled(gpu), "its workers go on"
    for _ in range(2):  # the second one is not the process that waited for the next lease
        with running.lease("cpu", wait_s=60) as gpu:
            assert scaled(gpu)
    until(lambda: forks._server is not server, "another server")
    assert Path(f"/proc/{forks._server.process.pid}").exists()  # type: ignore[union-attr]


def test_workers_get_no_secret_of_ugpuds_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from ugpu.tools.service.daemon.cards.forks import ForkServer

    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "UGPU_DAEMON_TOKEN", "UGPU_POWER_COMMAND"):
        monkeypatch.setenv(name, "a-secret")
    monkeypatch.setenv("UGPU_LOG", "info")
    server = ForkServer()
    try:
        told = Path(f"/proc/{server.process.pid}/environ")
        until(lambda: b"UGPU_LOG=info" in told.read_bytes(), "the server's program")
        assert b"a-secret" not in told.read_bytes()
    finally:
        server.close()
