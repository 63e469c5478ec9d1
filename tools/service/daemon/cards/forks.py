"""The fork server: a process that has loaded the code of a worker, and forks one for each lease.

A worker (tools.service.daemon.cards.inner) starts in milliseconds this way; loading the code takes
seconds. ugpud itself cannot fork, because it has threads. All daemons of a process use one fork
server, which ends with the process. If it dies, the next lease starts another one.

Each request is a message on the server's socket: the worker's settings, with two descriptors, the
worker's connection and a socket for reports. On the latter the server sends the worker's process
number and a pidfd, and its exit status when it has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading

from ugpu.hcq.errors import HostError
from ugpu.hcq.state.life import ModuleLock

# Threads of libraries would not exist in the server's children; bundles are written by ugpud.
_START = (
    "import os, sys; os.environ.update(OPENBLAS_NUM_THREADS='1', OMP_NUM_THREADS='1', "
    "MKL_NUM_THREADS='1', UGPU_CRASHES='0'); "
    "sys.path[:] = {path!r}; from ugpu.tools.service.daemon.cards.inner import main; main()"
)
# TIMEOUT: for a server that loads its code on a busy host, and then forks
STARTS_S = 120.0
# TIMEOUT: for the report on a process that has ended: the server may be forking on a busy host
STATUS_S = 60.0
_NUMBER = 32  # bytes of a report
MOST = 1 << 16  # bytes of a worker's settings
_lock = ModuleLock()


def readable(descriptor: int, limit_s: float) -> bool:
    """Wait until a descriptor is readable, or at its end. Unlike select(2), whatever its number."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1e3 * limit_s))


class Worker:
    """A process of the fork server. pid: its number."""

    def __init__(self, reports: socket.socket) -> None:
        """HostError if the server does not report it in time."""
        self._reports = reports
        self._status: int | None = None
        self._waiting = threading.Lock()
        self._lock = threading.Lock()  # of the handle, which `kill` must have without waiting
        reports.settimeout(STARTS_S)
        handles: list[int] = []
        try:
            number, handles, _, _ = socket.recv_fds(reports, _NUMBER, 1)
            self.pid = int(number)
            (self._handle,) = handles
        except (OSError, ValueError) as error:
            for handle in handles:
                os.close(handle)
            reports.close()
            raise HostError(f"the fork server has started no process: {error}") from None

    def kill(self) -> None:
        """End the process by SIGKILL. Idempotent."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._status is None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit status as `wait` does; None while the process lives."""
        return self.wait(0.0)

    def wait(self, limit_s: float) -> int | None:
        """Wait for the end; return the exit status (negative: a signal), or None after the time."""
        with self._waiting:
            if self._status is None and readable(self._handle, limit_s):
                status = self._reported()
                with self._lock:
                    self._status = status
                    os.close(self._handle)
                    self._reports.close()
            return self._status

    def _reported(self) -> int:
        """Return the status of the process, which has ended."""
        self._reports.settimeout(STATUS_S)
        with contextlib.suppress(OSError, ValueError):
            if told := self._reports.recv(_NUMBER):
                return int(told)
        return -signal.SIGKILL  # the server has died too


class ForkServer:
    """The server of this process; see `worker`."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", _START.format(path=sys.path), str(number)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[number],
                    start_new_session=True,  # Ctrl-C reaches only ugpud, which ends its leases
                )  # fmt: skip
            except OSError as error:
                self._socket.close()
                raise HostError(f"cannot start the fork server: {error}") from None

    def worker(self, settings: bytes, connection: socket.socket) -> Worker:
        """Fork a worker that serves a connection."""
        if len(settings) > MOST:
            raise HostError(f"a worker's settings have at most {MOST} bytes", size=len(settings))
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                descriptors = [connection.fileno(), theirs.fileno()]
                socket.send_fds(self._socket, [settings], descriptors)
        except OSError as error:
            ours.close()
            raise HostError(f"the fork server has ended: {error}") from None
        return Worker(ours)

    def close(self) -> None:
        """End the server; its workers go on. Idempotent."""
        self._socket.close()
        self.process.wait()


_server: ForkServer | None = None


def warm() -> None:
    """Start the fork server, so that it loads its code meanwhile. HostError."""
    global _server
    with _lock.lock:
        if _server is None:
            _server = ForkServer()
            atexit.register(_close)


def worker(settings: bytes, connection: socket.socket) -> Worker:
    """Return a new worker for one connection, which is passed on. HostError."""
    global _server
    warm()
    server = _server
    assert server is not None
    try:
        return server.worker(settings, connection)
    except HostError:
        if server.process.poll() is None:
            raise
    with _lock.lock:  # it has died, for example for lack of memory
        if _server is server:
            server.close()
            _server = ForkServer()
        server = _server
    assert server is not None
    return server.worker(settings, connection)


def _close() -> None:
    if _server is not None:
        _server.close()
