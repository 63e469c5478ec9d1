"""Run one command with a time limit that the command may extend."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import UsageError

LEASE = "UGPU_CI_LEASE"  # file to which `ugpu ci extend` appends
GRACE_S = 5.0  # TIMEOUT: from SIGTERM to SIGKILL; our choice

NOT_STARTED = 127  # exit code, as in shells


@dataclass(frozen=True)
class Ended:
    """The end of a command. code: as subprocess reports it. expired_s: the limit that ended the
    command, or None."""

    code: int
    expired_s: float | None = None


def run(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path,
    limit_s: float, extensions: Path | None = None,
) -> Ended:  # fmt: skip
    """Run a command with its output in a file. At the limit all processes of the command's group
    are ended, unless the command has extended the limit in the file `extensions`. Processes that it
    leaves in its group end with it. Code NOT_STARTED: it cannot be started; the output has the
    reason."""
    with output.open("ab") as file:
        try:
            process = subprocess.Popen(
                words, env=dict(environment), cwd=folder, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            file.write(f"cannot run {words[0]}: {error.strerror or error}\n".encode())
            return Ended(NOT_STARTED)
    try:
        allowed_s = wait_s = limit_s
        expired = False
        while True:
            try:
                process.wait(wait_s)
                break
            except subprocess.TimeoutExpired:
                wait_s = limit_s + extended_s(extensions) - allowed_s
                allowed_s += wait_s
                if wait_s <= 0:
                    expired = True
                    break
        if expired:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        return Ended(_end(process), allowed_s if expired else None)
    except BaseException:
        _end(process)
        raise


def extend(environment: Mapping[str, str], seconds: float) -> None:
    """Extend the limit of the calling command of `ugpu ci run`. UsageError elsewhere."""
    path = environment.get(LEASE)
    if not path:
        raise UsageError("`ugpu ci extend` is for commands that `ugpu ci run` has started")
    if not 0 < seconds < float("inf"):
        raise UsageError(f"expected a positive number of seconds, got {seconds:g}")
    try:
        with open(path, "ab", buffering=0) as file:
            file.write(f"{seconds!r}\n".encode())
    except OSError as error:
        raise UsageError(f"cannot extend the lease: {path}: {error.strerror}") from None


def extended_s(path: Path | None) -> float:
    """Return the seconds that a command has added to its limit; other lines are ignored."""
    total = 0.0
    if path is not None and path.is_file():
        for line in path.read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError):
                seconds = float(line)
                total += seconds if 0 < seconds < float("inf") else 0.0
    return total


def _end(process: subprocess.Popen[bytes]) -> int:
    """Kill the rest of a command's group; return the command's exit code."""
    _signal(process, signal.SIGKILL)
    return process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
