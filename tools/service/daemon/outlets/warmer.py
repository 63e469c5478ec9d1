"""Kernels that ugpud compiles before its clients need them: `[cache]` of its configuration.

Each listed program runs once on a lease of each kind of device (target), as an ordinary client of
the lowest priority, in a process of its own and at the lowest priority of the processor. Its
compiler's cache is the folder from which clients of this machine read kernels that they lack
(hcq.disk.cache). A program that fails is logged; it costs clients nothing but its kernels.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ugpu.hcq.errors import HostError
from ugpu.hcq.state import threads
from ugpu.hcq.state.config import without_secrets
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.config import CacheSettings

log = logging.getLogger(__name__)

_SAID = 2000  # bytes of a failed program's output that are logged
_PART = 64 << 10
_PROGRAM = f"{__package__}.warming"  # which loads the compiler
_END_S = 5.0  # TIMEOUT: for a program that was asked to stop


class Cards(Protocol):
    """What this module needs of the daemon: all devices, and when they have booted."""

    owned: list[Owned]

    def wait_until_booted(self) -> None:
        """Return when no device is booting any more."""
        ...


class Warmer:
    """Runs the programs, one at a time; an Outlet of the daemon. HostError if the folder cannot be
    made or a program is missing: before any device is opened."""

    def __init__(self, settings: CacheSettings, socket: Path, cards: Cards) -> None:
        self.settings = settings
        self.shown = f"kernels of {len(settings.warm)} programs are kept in {settings.folder}"
        self._socket = socket
        self._cards = cards
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ugpud kernels", daemon=True)
        self._child: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()
        missing = [str(path) for path in settings.warm if not path.is_file()]
        if missing:
            raise HostError(f"[cache] warm: {missing[0]} is not a file")
        try:
            settings.folder.mkdir(parents=True, exist_ok=True)
            settings.folder.chmod(0o755)
        except OSError as error:
            raise HostError(f"[cache] folder: {settings.folder}: {error.strerror}") from None

    def start(self) -> None:
        """Begin in a thread."""
        threads.start(self._thread)

    def close(self) -> None:
        """End the program that runs. Idempotent."""
        self._closed.set()
        with self._guard:
            child = self._child
        if child is not None:
            _stop(child)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        self._cards.wait_until_booted()
        for device in self._devices().values():
            for program in self.settings.warm:
                if self._closed.is_set():
                    return
                self._warm(program, device)

    def _devices(self) -> Mapping[object, str]:
        """Return the name of one device of each target."""
        names: dict[object, str] = {}
        for owned in list(self._cards.owned):
            with contextlib.suppress(Exception):  # a device that has not booted
                names.setdefault(owned.target()[0], owned.name)
        return names

    def _warm(self, program: Path, device: str) -> None:
        try:
            code, said = self._ended(program, device)
        except OSError as error:
            log.warning("kernels of %s for %s: %s", program, device, error)
            return
        if self._closed.is_set():
            return
        _publish(self.settings.kernels)
        if code:
            log.warning("kernels of %s for %s: it ended with %d: %s", program, device, code, said)
        else:
            log.info("kernels of %s for %s are in %s", program, device, self.settings.folder)

    def _ended(self, program: Path, device: str) -> tuple[int, str]:
        """Run a program on a lease; return its exit code and the end of what it said."""
        environment = {
            **without_secrets(),
            "UGPU_CACHE": str(self.settings.folder),
            "UGPU_TIERS": "0",  # the versions that run fast, which clients then find
        }
        command = ["nice", "-n", "19", sys.executable, "-m", _PROGRAM, str(self._socket),
                   device, str(self.settings.limit_s), str(program)]  # fmt: skip
        with self._guard:
            if self._closed.is_set():
                return 0, ""
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._child = child
        assert child.stdout is not None
        try:
            said = _last(child.stdout.fileno(), self.settings.limit_s)
        finally:
            _stop(child)
            child.stdout.close()
            with self._guard:
                self._child = None
        return child.returncode, said.decode(errors="replace").strip()


def _last(pipe: int, limit_s: float) -> bytes:
    """Read a pipe to its end, or until a time limit; return the last bytes."""
    end, said = time.monotonic() + limit_s, b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while (left := end - time.monotonic()) > 0:
        if poll.poll(min(left, 1e6) * 1e3):
            part = os.read(pipe, _PART)
            if not part:
                return said
            said = (said + part)[-_SAID:]
    return said + b"\n(ended at its time limit)"


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a program and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_S)
            return


def _publish(kernels: Path) -> None:
    """Let other users read the kernels, and only these."""
    with contextlib.suppress(OSError):
        kernels.chmod(0o755)
        with os.scandir(kernels) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    os.chmod(entry.path, 0o644)
