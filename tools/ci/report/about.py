"""When, where and of which commit a run of tests was."""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

# TIMEOUT: of git, which reads a few files; longer on a file system that does not respond. Our
# choice.
_GIT_S = 10.0


@dataclass(frozen=True)
class About:
    """Facts about a run. folder: of the tests. commit: its checkout's, with "+" after it if files
    are changed; empty outside of a checkout."""

    folder: Path
    started: datetime.datetime = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    )
    host: str = field(default_factory=lambda: socket.gethostname() or "localhost")
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Duration of the run until now."""
        return time.monotonic() - self.begun

    @property
    def commit(self) -> str:
        commit = _git(self.folder, "rev-parse", "HEAD").strip()
        changed = commit and _git(self.folder, "status", "--porcelain", "--untracked-files=no")
        return f"{commit}+" if changed else commit


def _git(folder: Path, *words: str) -> str:
    """Return the output of a command of git; empty if git or the checkout is missing."""
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True,
            timeout=_GIT_S, stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
