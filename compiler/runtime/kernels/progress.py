"""One line on a terminal or in a notebook about kernels that take long to compile; nothing
elsewhere."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TextIO

AFTER_S = 1.0  # of compiling
CLEAR = "\r\x1b[K"  # ECMA-48: to the start of the line, and erase it


class TerminalLine:
    """A line on a terminal that later text replaces."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, text: str) -> None:
        """Replace the line; an empty text removes it."""
        self._stream.write(CLEAR + text)
        self._stream.flush()


class NotebookLine:
    """A line in the output of a notebook's cell that later text replaces."""

    def __init__(self, display: Any) -> None:  # the module IPython.display, which has no types
        self._display = display
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Replace the line; an empty text removes it."""
        data = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display.display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


Line = TerminalLine | NotebookLine


def line_for(stream: TextIO) -> Line | None:
    """Return where a line can be shown: a terminal, else the notebook that this process runs for;
    None if there is neither."""
    if not stream.closed and stream.isatty():
        return TerminalLine(stream)
    python = sys.modules.get("IPython")  # a notebook has imported it
    shell = None if python is None else python.get_ipython()
    if shell is None or type(shell).__name__ == "TerminalInteractiveShell":
        return None
    return NotebookLine(importlib.import_module("IPython.display"))


class Progress:
    """A context manager around the compilation of `count` kernels; it removes its line."""

    def __init__(
        self, count: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._line = line_for(sys.stderr if stream is None else stream)
        self._clock = clock
        self._start = clock()
        self._done = 0
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None and self._shown:
            self._line.show("")

    def await_one(self, future: Future[Any] | None) -> None:
        """Return when the next kernel is compiled, or has failed. None: it needs no compiler."""
        if future is not None and not future.done() and self._line is not None:
            wait([future], max(0.0, self._start + AFTER_S - self._clock()))
            if not future.done():
                self._line.show(f"ugpu: compiling kernels, {self._done} of {self._count} done")
                self._shown = True
                wait([future])
        self._done += 1
