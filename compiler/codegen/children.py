"""Compiling in child processes, so that LLVM can end one without harm.

A few warm processes (compiler.codegen.worker) are kept, each started when there is work for it;
several kernels are compiled at the same time. A process that dies or does not answer is replaced,
and its kernel is a CompileError that carries the IR.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from compiler.codegen import worker
from hcq.errors import CompileError
from hcq.target import TargetSpec

# TIMEOUT: the largest kernels of the tests take 2 s on a busy machine; LLVM may also never end
LIMIT_S = 120.0
MOST = 4  # processes, and no more than the host's processors
TAIL = 4096  # bytes of what a process said last
KEPT = 20  # IR files of failed kernels in their folder
ROOT = Path(__file__).resolve().parents[2]
START = "import runpy, sys; sys.path[:] = {path!r}; runpy.run_module({module!r}, None, '__main__')"


@dataclass(frozen=True)
class Compiled:
    """An object (or PTX), and the seconds that LLVM took for it."""

    image: bytes
    seconds: float


class Child:
    """One compiling process, restarted when it is gone. For one thread at a time."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.limit_s = limit_s
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.errors = -1  # what the process says: an anonymous file

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        code = START.format(path=[str(ROOT), *sys.path], module=worker.__name__)
        self.errors = os.memfd_create("ugpu-compile")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            ours.close()
            self.close()
            raise CompileError(f"no process to compile in: {error}") from None
        finally:
            theirs.close()
        self.channel = ours

    def compile(self, text: str, target: TargetSpec) -> Compiled:
        """Compile in the child; CompileError says how it ended otherwise."""
        for attempt in (1, 2):  # a process that had nothing to do may have ended by itself
            if self.process is None:
                self.start()
            assert self.channel is not None
            self.channel.settimeout(self.limit_s)
            try:
                worker.send(self.channel, worker.request(text, target))
                message = worker.receive(self.channel)
            except TimeoutError:
                self.close()
                raise CompileError("LLVM did not end in time", limit_s=self.limit_s) from None
            except (EOFError, ConnectionError):
                code, said = self.ended()
                if code == 0 and attempt == 1:
                    continue
                raise CompileError(f"LLVM ended its process ({_shown(code)}): {said}") from None
            status, seconds = worker.ANSWER.unpack_from(message)
            rest = message[worker.ANSWER.size :]
            if status == worker.DONE:
                return Compiled(rest, seconds)
            raise CompileError(f"LLVM refuses the code: {rest.decode(errors='replace')}")
        raise AssertionError("unreachable")

    def ended(self) -> tuple[int, str]:
        """The exit status of a process whose socket closed, and what it said last."""
        assert self.process is not None
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        size = os.fstat(self.errors).st_size
        tail = os.pread(self.errors, TAIL, max(0, size - TAIL))
        said = tail.decode(errors="replace").strip().splitlines()
        self.close()
        fatal = [line for line in said if "LLVM ERROR" in line]
        return code, (fatal or said or ["it said nothing"])[-1]

    def close(self) -> None:
        """End the process; idempotent."""
        if self.channel is not None:
            self.channel.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.errors >= 0:
            os.close(self.errors)
        self.process, self.channel, self.errors = None, None, -1


def _shown(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"status {code}"


class Children:
    """Up to `most` children, a thread each. Thread-safe."""

    def __init__(self, most: int, limit_s: float = LIMIT_S) -> None:
        self.owner = os.getpid()
        self.limit_s = limit_s
        self.local = threading.local()
        self.all: list[Child] = []
        self.threads = ThreadPoolExecutor(most, "ugpu-compile")

    def submit(
        self, text: str, target: TargetSpec, kernel: str, keep: Path | None = None
    ) -> Future[Compiled]:
        """Compile `text`. keep: a folder for the IR of a kernel that fails. The result's error is
        a CompileError that names the kernel and has the IR as `ir`."""
        return self.threads.submit(self._compile, text, target, kernel, keep)

    def _compile(self, text: str, target: TargetSpec, kernel: str, keep: Path | None) -> Compiled:
        child = getattr(self.local, "child", None)
        if child is None:
            child = self.local.child = Child(self.limit_s)
            self.all.append(child)
        try:
            return child.compile(text, target)
        except CompileError as error:
            facts: dict[str, object] = {"kernel": kernel, "target": target.name}
            path = _kept(text, kernel, keep)
            if path is not None:
                facts["ir_file"] = path
            found = CompileError(error.message, **facts, **error.facts)
            found.ir = text
            raise found from None

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        for child in self.all:
            child.close()


def _kept(text: str, kernel: str, keep: Path | None) -> Path | None:
    """Write the IR into a folder that keeps the last few; None where it cannot be written."""
    if keep is None:
        return None
    path = keep / f"{kernel}.ll"
    try:
        keep.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        files = sorted(keep.glob("*.ll"), key=lambda file: file.stat().st_mtime)
        for old in files[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


_lock = threading.Lock()
_shared: Children | None = None


def shared() -> Children:
    """The children of this process (a forked one gets its own); ended at exit."""
    global _shared
    with _lock:
        if _shared is None or _shared.owner != os.getpid():
            if _shared is None:
                atexit.register(_close)
            _shared = Children(min(MOST, len(os.sched_getaffinity(0))))
        return _shared


def _close() -> None:
    if _shared is not None and _shared.owner == os.getpid():
        _shared.close()
