"""Running a program for a while: it ends by itself, or is asked to, or is ended, or is given up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: seconds between being asked to end (SIGTERM) and being ended, and then to being given up
ASKED_S, ENDED_S = 4.0, 4.0
MOST_OUTPUT = 20_000


@dataclass(frozen=True)
class Ended:
    """How it went. code: None where it did not end by itself. trouble: in words, or empty."""

    code: int | None
    output: str
    errors: str
    trouble: str


def run(
    command: Sequence[str],
    limit_s: float,
    *,
    folder: Path,
    leader: bool = True,
    more: Mapping[str, str] | None = None,
    most: int = MOST_OUTPUT,
) -> Ended:
    """Run a program in `folder`, at most `limit_s` and what it takes to end it.

    most: bytes that are kept of the end of what it says.

    leader: it leads a group of processes, which ends with it. more: variables of its environment.
    One that hangs inside the kernel cannot be ended: it is left behind, and said so.
    """
    # Files, not pipes: a process that is left behind would keep a pipe open for ever.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            made = subprocess.Popen(
                list(command), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=leader, env={**os.environ, **more} if more else None,
            )  # fmt: skip
        except OSError as error:
            return Ended(None, "", "", f"did not start: {error}")
        trouble = _wait(made, limit_s, leader)
        output, errors = _text(out, most), _text(err, MOST_OUTPUT)
    if not trouble and made.returncode:
        said = (errors.strip().splitlines() or ["nothing"])[-1]
        trouble = f"ended with {made.returncode}: {said}"[:300]
    return Ended(made.returncode, output, errors, trouble)


def _wait(made: subprocess.Popen[bytes], limit_s: float, leader: bool) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        made.wait(limit_s)
        return ""
    for number, patience in ((signal.SIGTERM, ASKED_S), (signal.SIGKILL, ENDED_S)):
        _send(made, number, leader)
        with contextlib.suppress(subprocess.TimeoutExpired):
            made.wait(patience)
            if leader:
                _send(made, signal.SIGKILL, leader)  # what it started and left behind
            return f"was ended by force after {limit_s:.0f} s"
    return f"was ended by force after {limit_s:.0f} s, and goes on: it hangs inside the kernel"


def _send(made: subprocess.Popen[bytes], number: signal.Signals, leader: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if leader:
            os.killpg(made.pid, number)
        else:
            made.send_signal(number)


def _text(file: IO[bytes], most: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - most))
    return file.read().decode("utf-8", "replace")
