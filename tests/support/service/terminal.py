"""A Python module that runs on a terminal of its own, for tests that type."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from types import TracebackType

_STYLES = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
_LIMIT_S = 120.0  # TIMEOUT: only for tests that fail
# The first terminal that the leader of a session opens is its controlling one: ^C reaches it.
_ENTER = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(terminal, number)
os.close(terminal)
os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])
"""


class Terminal:
    """Types into a program and reads what it shows. Ends the program when it is closed."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._screen, device = pty.openpty()
        try:
            self._program = subprocess.Popen(
                [sys.executable, "-c", _ENTER, os.ttyname(device), module, *arguments],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TERM": "xterm", "INPUTRC": os.devnull},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._screen)
            os.close(device)
            raise
        self._device: int | None = device
        self.shown = ""

    def until(self, text: str) -> str:
        """Read up to a text; return what came with it, without colours."""
        found = ""
        while text not in _STYLES.sub("", found):
            more = self._read()
            assert more, f"the program ended before {text!r}:\n{self.shown}"
            found += more
        return _STYLES.sub("", found)

    def send(self, text: str) -> None:
        """Type keys; lines end with a newline."""
        os.write(self._screen, text.encode())

    def end(self) -> int:
        """Read to the end; return the exit code."""
        while self._read():
            pass
        return self._program.wait(_LIMIT_S)

    def _read(self) -> str:
        ready, _, _ = select.select([self._screen], [], [], _LIMIT_S)
        assert ready, f"the program shows nothing more:\n{self.shown}"
        try:
            data = os.read(self._screen, 1 << 16).decode(errors="replace").replace("\r\n", "\n")
        except OSError:  # EIO: no program has the terminal any more
            return ""
        if self._device is not None:  # the program has opened it: with its end, reads end
            os.close(self._device)
            self._device = None
        self.shown += data
        return data

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._program.kill()
        self._program.wait()
        for number in (self._screen, self._device):
            if number is not None:
                os.close(number)
