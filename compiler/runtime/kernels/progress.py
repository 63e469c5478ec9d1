"""One line on a terminal about kernels that take long to compile; nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TextIO

AFTER_S = 1.0  # of compiling
CLEAR = "\r\x1b[K"  # ECMA-48: to the start of the line, and erase it


class Progress:
    """A context manager around the compilation of `count` kernels; it removes its line."""

    def __init__(
        self, count: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._start = clock()
        self._done = 0
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stream.write(CLEAR)
            self._stream.flush()

    def await_one(self, future: Future[Any] | None) -> None:
        """Return when the next kernel is compiled, or has failed. None: it needs no compiler."""
        if future is not None and not future.done() and self._on_terminal():
            wait([future], max(0.0, self._start + AFTER_S - self._clock()))
            if not future.done():
                self._show()
                wait([future])
        self._done += 1

    def _on_terminal(self) -> bool:
        return not self._stream.closed and self._stream.isatty()

    def _show(self) -> None:
        line = f"ugpu: compiling kernels, {self._done} of {self._count} done"
        self._stream.write(CLEAR + line)
        self._stream.flush()
        self._shown = True
