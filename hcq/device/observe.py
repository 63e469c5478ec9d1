"""The observer interface: the process that owns a device serves its telemetry, read-only.

An owner listens on a UNIX socket, one for each device, in a folder that only its user can enter. A
reader connects, sends a line, and receives one line of JSON (hcq.state.telemetry.Telemetry) for
each line it sends. There are no other requests, and none that changes the device. Thus a monitor
never maps a card that another process drives.

Readings cost the owner time. The interval between two new answers is at least SHARE times the
duration of the last one, so that sampling costs the owner less than 1%, even if a device answers
slowly. Earlier requests get the last answer, which contains the time it was made. Each device has a
thread, which sleeps in the kernel while no client is connected. A device that hangs delays only its
own readers. Facts that need no hardware (owner, counters, failure) are always answered, a failure
immediately.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import selectors
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.errors import Closed, DeviceNotFound, TransportError, UgpuError
from ugpu.hcq.state.life import inherits
from ugpu.hcq.state.telemetry import Sample, Telemetry, loads
from ugpu.hcq.state.threads import start, was_started

if TYPE_CHECKING:
    from ugpu.hcq.device.state import CoreState

log = logging.getLogger(__name__)

SUFFIX = ".sock"
# Interval to the next answer, in multiples of the duration of the last one. Costs that its own
# clock does not count (thread switches, cold caches) are as large again (bench_observe).
SHARE = 300
LEAST_S = 0.25  # between two answers
_LOCK_S = 0.05  # TIMEOUT: how long a reading waits for the device's lock; else the last values
_CLIENTS = 16
_BACKLOG = 4 * _CLIENTS
_LONGEST_REQUEST = 256  # bytes
_LONGEST_ANSWER = 1 << 16
_STOP_S = 1.0  # TIMEOUT: how long `stop` waits for a hanging reading, which finds a closed device
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_NAME = re.compile(r".*\.(\d+)\.\d+\.sock")
_LONGEST_NAME = 80  # of a socket's file; its whole address may have 107 bytes (unix(7))
_numbers = itertools.count()


def _place(device: str) -> str:
    return quote(device, safe=":")[:_LONGEST_NAME]


def device_of(path: Path) -> str:
    """Return the device whose telemetry a socket serves, by the socket's name."""
    return unquote(path.name.rsplit(".", 3)[0])


class Sampler:
    """Makes the telemetry of one device.

    Attributes:
        clock: seconds; injected by tests.
        beside: returns the kernels that others have submitted to the same device.
    """

    def __init__(
        self,
        core: CoreState,
        clock: Callable[[], float] = time.monotonic,
        beside: Callable[[], int] = lambda: 0,
    ) -> None:
        self.core = core
        self._beside = beside
        self._clock = clock
        self._since = clock()
        self._samples: tuple[Sample, ...] = ()
        self._read_at: float | None = None
        self._next = float("-inf")
        self._made: tuple[object, bytes] | None = None  # the last answer's state, and the answer
        self._trouble = ""
        self._last = 0, 0
        self._held = 0.0  # seconds for which the last reading kept the device's lock
        self._command = _command()

    def answer(self) -> bytes:
        """Return a line of JSON: a new one if the interval is over, or if the device's state has
        changed since the last one."""
        begin, work = self._clock(), time.thread_time()
        state = self.core.failure, self.core.resets, self.core.closer
        if self._made is not None and begin < self._next and self._made[0] == state:
            return self._made[1]
        line = json.dumps(self.take(read=begin >= self._next).as_json()).encode() + b"\n"
        self._made = state, line
        now, work = self._clock(), time.thread_time() - work
        # The clock counts time under the device's lock, for which others wait; processor time
        # counts work that needs no lock.
        self._next = max(self._next, now + max(LEAST_S, SHARE * max(self._held, work)))
        return line

    def take(self, read: bool = True) -> Telemetry:
        """Read the sensors if the device works, and return all known facts."""
        core = self.core
        self._held = 0.0
        if read and core.failure is None:
            self._read()
        now, failure = self._clock(), core.failure
        last, reached = self._progress()
        return Telemetry(
            device=core.name,
            target=core.driver.target.name,
            state="failed" if failure else "ok" if core.closer is None else "closing",
            pid=os.getpid(),
            command=self._command,
            time=time.time(),
            failure=f"{type(failure).__name__}: {failure}" if failure else "",
            open_s=now - self._since,
            samples=self._samples,
            samples_age_s=None if self._read_at is None else now - self._read_at,
            trouble=self._trouble,
            launches=core.launches + self._beside(),
            submissions=last,
            queue_depth=max(0, last - reached),
            resets=core.resets,
            errors=dict(core.errors),
        )

    def _progress(self) -> tuple[int, int]:
        """Return the number of submissions so far, and how many have ended."""
        if not self.core.closed:
            timelines = [queue.timeline for queue in self.core.driver.all_queues()]
            with contextlib.suppress(UgpuError):  # behind a bridge that is gone
                # ORDER: read the ended count first, or it might exceed the count of submissions.
                reached = [timeline.value for timeline in timelines]
                self._last = sum(timeline.last for timeline in timelines), sum(reached)
        return self._last

    def _read(self) -> None:
        """Read every sensor; if one fails, keep the last values and record the error."""
        if not self.core.lock.acquire(timeout=_LOCK_S):
            self._trouble = "the device was in use"
            return
        begin = self._clock()
        found: list[Sample] = []
        trouble = ""
        try:
            if self.core.closed or self.core.closer is not None:
                return
            for sensor in self.core.driver.sensors():
                value = sensor.read()
                found.append(Sample(sensor.name, sensor.unit, value, sensor.label))
            self._samples, self._read_at = tuple(found), begin
        except (UgpuError, OSError) as error:
            trouble = f"{type(error).__name__}: {error}"
        finally:
            self.core.lock.release()
            self._held = self._clock() - begin
        self._trouble = trouble


def _command() -> str:
    """Return a name for this process that a person recognises: the program and its script, without
    arguments, which may be confidential."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main or sys.executable).name


class Observer:
    """Serves the telemetry of one device until `stop`."""

    def __init__(self, core: CoreState, folder: Path, sampler: Sampler | None = None) -> None:
        """Make the socket and start the thread. OSError if the folder or the socket cannot be
        made."""
        self.sampler = sampler or Sampler(core)
        self.path = folder / f"{_place(core.name)}.{os.getpid()}.{next(_numbers)}{SUFFIX}"
        self._wake, self._woken = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        name = f"observer of {core.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            with ownfolder.opened(folder, make=True) as handle:
                with contextlib.suppress(FileNotFoundError):  # of an old process with our number
                    os.unlink(self.path.name, dir_fd=handle)
                self._listener.bind(_within(handle, self.path.name))
                self._listener.listen(_BACKLOG)
            start(self._thread)
        except BaseException:
            if was_started(self._thread):  # a Ctrl-C
                self.stop()
            self._close()
            raise
        inherits(self)

    def stop(self) -> None:
        """Remove the socket and end the thread; idempotent. Must not be called under the device's
        lock."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(_STOP_S)
        self._close()

    def abandon(self) -> None:
        """Drop the socket in a forked child: it belongs to the parent. See
        hcq.state.life.Inherited."""
        for each in (self._listener, self._wake, self._woken):
            each.close()

    def _close(self) -> None:
        for each in (self._listener, self._wake):
            each.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        clients: dict[socket.socket, bytearray] = {}
        with selectors.DefaultSelector() as selector, self._woken:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    found = key.fileobj
                    if found is self._woken:
                        for client in clients:
                            client.close()
                        return
                    if found is self._listener:
                        self._accept(selector, clients)
                    elif isinstance(found, socket.socket) and not self._serve(found, clients):
                        selector.unregister(found)
                        del clients[found]
                        found.close()

    def _accept(
        self, selector: selectors.BaseSelector, clients: dict[socket.socket, bytearray]
    ) -> None:
        with contextlib.suppress(OSError):  # the client may have left
            client, _ = self._listener.accept()
            credentials = client.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
            )
            _, user, _ = _CREDENTIALS.unpack(credentials)
            if user not in (0, os.geteuid()) or len(clients) >= _CLIENTS:
                client.close()
                return
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ)
            clients[client] = bytearray()

    def _serve(self, client: socket.socket, clients: dict[socket.socket, bytearray]) -> bool:
        """Answer the lines that a client has sent; return whether it stays connected. A client that
        sends no lines, or does not read its answers, is disconnected."""
        pending = clients[client]
        try:
            received = client.recv(_LONGEST_REQUEST)
            pending += received
            if not received or len(pending) > _LONGEST_REQUEST:
                return False
            lines = pending.count(b"\n")
            if lines:
                del pending[: pending.rindex(b"\n") + 1]
                answer = self.sampler.answer()
                for _ in range(lines):
                    if client.send(answer) < len(answer):
                        return False
        except OSError:
            return False
        except Exception:  # a driver's sensor failed unexpectedly: the device continues
            log.exception("telemetry of %s", self.sampler.core.name)
            return False
        return True


def offer(core: CoreState, folder: Path) -> Observer | None:
    """Serve a device's telemetry; None, with a warning in the log, if the system refuses. A device
    works without it."""
    try:
        return Observer(core, folder)
    except (OSError, UgpuError) as error:
        log.warning("%s: telemetry is not available to other processes: %s", core.name, error)
        return None


class Reader:
    """A connection to one owner. A context manager.

    Attributes:
        path: its socket.
    """

    def __init__(self, path: Path, limit_s: float = 1.0) -> None:
        """Connect to the owner. DeviceNotFound if it is gone (its socket is then removed);
        TransportError if it does not answer within `limit_s`, or if another user could have made
        the socket."""
        self.path = path
        self._rest = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(limit_s)
            with ownfolder.opened(path.parent) as handle:
                status = os.stat(path.name, dir_fd=handle, follow_symlinks=False)
                if not stat.S_ISSOCK(status.st_mode):
                    raise TransportError(f"{path} is not a socket")
                try:
                    self._socket.connect(_within(handle, path.name))
                except ConnectionRefusedError:
                    _remove_stale(handle, path.name)
                    raise
        except (FileNotFoundError, ConnectionRefusedError):
            self._socket.close()
            raise DeviceNotFound(f"the process that owned {path.name} has ended") from None
        except OSError as error:
            self._socket.close()
            raise TransportError(f"{path}: {error.strerror or error}") from None
        except BaseException:
            self._socket.close()
            raise

    def read(self) -> Telemetry:
        """Request one answer. Closed if the owner has closed the device; TransportError if the
        answer is late or malformed."""
        try:
            self._socket.sendall(b"telemetry\n")
            while b"\n" not in self._rest:
                received = self._socket.recv(_LONGEST_ANSWER)
                if not received:
                    raise Closed(f"{self.path.name}: its owner has closed the device")
                self._rest += received
                if len(self._rest) > _LONGEST_ANSWER:
                    raise TransportError(f"{self.path.name}: more than {_LONGEST_ANSWER} bytes")
        except TimeoutError:
            limit = self._socket.gettimeout()
            raise TransportError(
                f"{self.path.name}: no response within {limit} s", limit_s=limit
            ) from None
        except OSError as error:
            raise Closed(f"{self.path.name}: its owner has ended: {error.strerror}") from None
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return loads(line)
        except TransportError as error:
            raise TransportError(f"{self.path.name}: {error.message}", **error.facts) from None

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sockets(folder: Path | None) -> list[Path]:
    """Return the sockets of devices that are open in processes of this user; some may be stale.
    folder None: the settings have no folder."""
    if folder is None:
        return []
    try:
        with ownfolder.opened(folder) as handle:
            return sorted(folder / name for name in os.listdir(handle) if _NAME.fullmatch(name))
    except OSError:
        return []


def find(device: str, folder: Path | None, limit_s: float = 0.5) -> Telemetry | None:
    """Return the telemetry of a device that a process owns; None if no process serves it in
    time."""
    place = _place(device)
    for path in sockets(folder):
        if path.name.startswith(f"{place}."):
            with contextlib.suppress(UgpuError), Reader(path, limit_s) as reader:
                found = reader.read()
                if found.device == device:
                    return found
    return None


def _within(folder: int, name: str) -> str:
    """Return a path to a socket in an opened folder: sun_path takes 107 bytes, whatever the
    folder."""
    return f"/proc/self/fd/{folder}/{name}"


def _remove_stale(folder: int, name: str) -> None:
    """Remove the socket of a killed process. RACE: another process may have its number by now, but
    has made no socket of this name, or it would listen."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
