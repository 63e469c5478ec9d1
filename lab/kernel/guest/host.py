"""Inside the guest: ask the outside for what only it can do (see lab.kernel.channel)."""

from __future__ import annotations

import json
import os
import select
import termios
import time
import tty
from pathlib import Path
from typing import Any

LINE = Path("/dev/ttyS1")
ANSWER_LIMIT_S = 30
PACE = Path("/mnt/lab/pace")


def within(seconds: float) -> float:
    """A time limit as it is on a machine as slow as this one: `seconds` at the usual pace."""
    return seconds * float(PACE.read_text())


class Host:
    """The line to the outside. One request at a time."""

    def __init__(self, line: Path = LINE) -> None:
        self._line = os.open(line, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        tty.setraw(self._line)
        termios.tcflush(self._line, termios.TCIOFLUSH)

    def ask(self, name: str, /, **arguments: Any) -> Any:
        """Have the outside do `name`; its result (JSON). OSError with its words on refusal."""
        limit_s = within(ANSWER_LIMIT_S)
        request = json.dumps({"do": name, "with": arguments}).encode() + b"\n"
        while request:
            request = request[os.write(self._line, request) :]
        answer, end = b"", time.monotonic() + limit_s
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self._line], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no answer to {name} within {limit_s} s")
            answer += os.read(self._line, 65536)
        reply = json.loads(answer)
        if "error" in reply:
            raise OSError(f"{name}: {reply['error']}")
        return reply["result"]

    def monitor(self, command: str, **arguments: Any) -> Any:
        """Run a command of QEMU's monitor."""
        return self.ask("qmp", command=command, **arguments)

    def close(self) -> None:
        os.close(self._line)
