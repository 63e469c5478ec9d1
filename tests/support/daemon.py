"""A ugpud of the tests: a process with virtual devices, and how to end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parent.parent.parent


def settings_text(folder: Path, devices: Sequence[str], more: str = "", count: int = 1) -> str:
    """A configuration with a socket and state in `folder`."""
    rows = "".join(f'[[device]]\nname = "{name}"\ncount = {count}\n' for name in devices)
    return (
        f'[daemon]\nsocket = "{folder}/ugpud.sock"\nstate = "{folder}/state"\n' + more + "\n" + rows
    )


class DaemonProcess:
    """A running ugpud. A context manager; `close` stops it by SIGTERM. folder: short, since the
    path of a socket has 107 bytes at most."""

    def __init__(self, devices: Sequence[str], more: str = "", count: int = 1) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ugpud-")
        self.folder = Path(self._folder.name)
        self.socket = str(self.folder / "ugpud.sock")
        self.config = self.folder / "ugpud.toml"
        self.config.write_text(settings_text(self.folder, devices, more, count))
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        """Start it, and return when it listens."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.daemon.main", "--config", str(self.config)],
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

    def close(self) -> None:
        """End it as systemd does, and remove its folder."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._wait()
        self._folder.cleanup()

    def _wait(self) -> None:
        self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
