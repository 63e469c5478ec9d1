"""A ugpud of the tests: in this process, or a process of its own, and what asks it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tests.support.kernels import contract_object
from tests.support.waiting import LIMIT_S
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.remote.address import Address
from ugpu.hcq.remote.connection import Connection
from ugpu.tools.service.daemon.config import Settings
from ugpu.tools.service.daemon.config import parse as parse_config
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.tools.service.daemon.listen import Listeners

ROOT = Path(__file__).resolve().parents[3]


def settings_text(
    folder: Path,
    devices: Sequence[str],
    more: str = "",
    count: int = 1,
    *,
    inside: bool | None = None,
) -> str:
    """A configuration with a socket and state in `folder`. inside: virtual cards are in ugpud's
    process, where a test reaches them, or each in its own; None: as is usual."""
    where = "" if inside is None else f"apart = {str(not inside).lower()}\n"
    rows = "".join(f'[[device]]\nname = "{name}"\ncount = {count}\n{where}' for name in devices)
    return (
        f'[daemon]\nsocket = "{folder}/ugpud.sock"\nstate = "{folder}/state"\n' + more + "\n" + rows
    )


class DaemonProcess:
    """A running ugpud. A context manager; `close` stops it by SIGTERM. folder: short, since the
    path of a socket has 107 bytes at most."""

    def __init__(
        self, devices: Sequence[str], more: str = "", count: int = 1, *, last: bool = False
    ) -> None:
        """more: further lines; last: of the device, not in front of it."""
        self._folder = tempfile.TemporaryDirectory(prefix="ugpud-")
        self.folder = Path(self._folder.name)
        self.socket = str(self.folder / "ugpud.sock")
        self.config = self.folder / "ugpud.toml"
        text = settings_text(self.folder, devices, "" if last else more, count)
        self.config.write_text(text + (more if last else ""))
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        """Start it, and return when it listens."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ugpu.tools.service.daemon.main", "--config", str(self.config)],
            stdout=subprocess.PIPE,
            stderr=(self.folder / "log").open("ab"),
            text=True,
            cwd=ROOT,
            env={**os.environ, "UGPU_CRASHES": "0"},
        )
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith("ugpud listens at"):
                return
        raise AssertionError(f"ugpud did not start: {self.log()}")

    def log(self) -> str:
        """What it has written to stderr."""
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self._wait()

    def stop(self) -> None:
        """End it as systemd does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._wait()

    def close(self) -> None:
        """End it, and remove its folder."""
        self.stop()
        self._folder.cleanup()

    def _wait(self) -> None:
        self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Running:
    """A daemon in this process, its sockets served by a thread."""

    def __init__(self, settings: Settings, daemon: Daemon | None = None) -> None:
        self.settings = settings
        self.daemon = daemon if daemon is not None else Daemon(settings)
        self.listeners = Listeners(settings, self.daemon.serve, {})
        self.socket = str(settings.socket)
        self.daemon.start()
        self.daemon.wait_until_booted()
        self._thread = threading.Thread(target=self.listeners.run)
        self._thread.start()

    def lease(self, device: str = "*", **options: Any) -> Any:
        return hcq.lease(device, daemon=self.socket, **options)

    def connect(self) -> Connection:
        return Connection(Address(self.socket))

    def listed(self) -> dict[str, Any]:
        with self.connect() as connection:
            found: dict[str, Any] = connection.call("leases").arguments[0]
            return found

    def settle(self) -> None:
        """Wait until no client is left but those with a lease."""
        with self.daemon._parted:
            while any(client.lease is None for client in self.daemon.clients):
                self.daemon._parted.wait(60)

    def close(self) -> None:
        self.listeners.stop()
        self._thread.join()
        self.listeners.close()
        self.daemon.close()


def recorded(daemon: Daemon) -> None:
    """Wait until the history has been written."""
    concurrent.futures.wait([daemon.history._last], LIMIT_S)


def started(
    folder: Path, more: str = "", count: int = 2, device: str = "cpu", *, inside: bool | None = None
) -> Running:
    return Running(parse_config(settings_text(folder, [device], more, count, inside=inside)))


def scaled(gpu: Device) -> bool:
    """Whether a kernel works."""
    with gpu.load(contract_object(gpu.target)) as program, gpu.alloc(256) as a, gpu.alloc(256) as b:
        a.copy_from(np.arange(64, dtype=np.uint32))
        with gpu.queue() as queue:
            args = (b, a, np.uint32(64), np.uint32(3))
            queue.launch(program["scale"], grid=(1,), block=(64,), args=args)
        return bool((b.numpy(np.uint32) == 3 * np.arange(64)).all())


def until_closed(made: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while made.recv(4096):
            pass
