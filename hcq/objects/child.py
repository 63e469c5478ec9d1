"""A child process that answers one message at a time, and may die or hang without harm.

A message is its length (8 bytes, little-endian) and that many bytes, over a socket.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ugpu.hcq.errors import HostError

LENGTH = struct.Struct("<Q")
IDLE = 10  # times its limit of processor time a process may take, on a busy host
SLICES = 20  # of a limit, between looks at the processor time
TAIL = 4096  # bytes kept of the end of a process's output
ROOT = Path(__file__).parents[3]  # the folder that contains the package ugpu
START = "import runpy, sys; sys.path[:] = {path!r}; runpy.run_module({module!r}, None, '__main__')"


def send(channel: socket.socket, message: bytes) -> None:
    channel.sendall(LENGTH.pack(len(message)) + message)


def receive(channel: socket.socket) -> bytes:
    """Return the next message; EOFError if the other side has closed the connection."""
    return _exactly(channel, LENGTH.unpack(_exactly(channel, LENGTH.size))[0])


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def serve(
    channel: socket.socket, answer: Callable[[bytes], bytes], idle_s: float, limit_s: float
) -> None:
    """Answer messages in the child until the other side closes the connection, or sends none for
    `idle_s`. limit_s: of processor time for each; the system ends the process if it takes twice as
    long."""
    while select.select([channel], [], [], idle_s)[0]:
        try:
            message = receive(channel)
        except (EOFError, ConnectionError):
            return
        _limit(limit_s)
        send(channel, answer(message))


def _limit(limit_s: float) -> None:
    """Let the system end this process if LLVM does not, and the process that would end it is gone.
    setrlimit(2): RLIMIT_CPU is in seconds of processor time, from the process's start."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(time.process_time() + 2 * limit_s)
    if most == resource.RLIM_INFINITY or limit < most:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, most))


class Ended(Exception):
    """The process ended instead of answering. code: its exit status, negative for a signal; said:
    the last line it wrote to stderr, LLVM's own if there is one."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"{how(code)}: {said}")
        self.code = code
        self.said = said


def how(code: int) -> str:
    """Return an exit status as text: "SIGSEGV" or "status 1"."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"status {code}"


def _processor_time(pid: int) -> float:
    """Return the seconds that a child, which is not waited for yet, has used of processors. The
    clock is that of clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


class Process:
    """`python -m module SOCKET arguments...`, started by the first message and again after it has
    ended. Only one thread may use it at a time."""

    def __init__(self, module: str, arguments: tuple[str, ...] = ()) -> None:
        self.module = module
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.errors = -1  # the process's stderr: an anonymous file

    def start(self) -> None:
        """Start the process. HostError if it cannot be started."""
        ours, theirs = socket.socketpair()
        code = START.format(path=[str(ROOT), *sys.path], module=self.module)
        self.errors = os.memfd_create("ugpu-child")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno()), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            ours.close()
            self.close()
            raise HostError(f"cannot start a child process: {error}") from None
        finally:
            theirs.close()
        self.channel = ours

    def ask(self, message: bytes, limit_s: float) -> bytes:
        """Return the answer. TimeoutError if the process has used `limit_s` of a processor without
        one, or IDLE times as long has passed; Ended. In both cases the process is gone, and the
        next message starts another."""
        if self.process is None:
            self.start()
        assert self.channel is not None
        self.channel.settimeout(IDLE * limit_s)
        try:
            send(self.channel, message)
            self._await(limit_s)
            return receive(self.channel)
        except TimeoutError:
            self.close()
            raise
        except (EOFError, ConnectionError):
            raise self._end() from None

    def _await(self, limit_s: float) -> None:
        """Block until the answer begins, or the process has ended. TimeoutError; see `ask`."""
        assert self.process is not None and self.channel is not None
        begin, used = time.monotonic(), _processor_time(self.process.pid)
        while not select.select([self.channel], [], [], limit_s / SLICES)[0]:
            spent = _processor_time(self.process.pid) - used
            if max(spent, (time.monotonic() - begin) / IDLE) >= limit_s:
                raise TimeoutError

    def _end(self) -> Ended:
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
        return Ended(code, (fatal or said or ["it said nothing"])[-1])

    def kill(self) -> None:
        """End the process, from any thread: the one that uses it gets Ended."""
        process = self.process
        if process is not None:
            process.kill()

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
