"""Output of the programs: text for people, JSON for programs, progress on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from ugpu.hcq.state.text import lines
from ugpu.tools.base import tables

_WIDE = 1 << 12  # columns
READER_LEFT = 141  # a shell's exit code for a program that SIGPIPE ended


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the error to Output; rich would end the program."""
        raise


class Output:
    """Write to stdout. With `as_json`, `say` and `table` are silent and `result` prints JSON.

    If stdout fails (a full disk, a reader that has exited), the work continues without output, and
    `end` reports the failure.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = _Console(highlight=False, soft_wrap=True)
        if not self.console.is_terminal:
            self.console.width = _WIDE  # whole lines, without a screen to fit
        self.lost: OSError | None = None  # why stdout failed

    def say(self, line: str = "", style: str = "") -> None:
        """Print a line for people; plain if stdout is not a terminal."""
        if not self.as_json:
            with self._writing():
                self.console.print(Text(lines(line), style=style))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lost = self.lost or error
            # Discard buffered and later output; otherwise the interpreter reports an error at exit.
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, sys.stdout.fileno())
                os.close(nowhere)

    def end(self, code: int) -> int:
        """Flush the output. Return the program's exit code, given the `code` of its work."""
        with self._writing():
            sys.stdout.flush()
        if self.lost is None:
            return code
        if isinstance(self.lost, BrokenPipeError):
            return code or READER_LEFT
        print(f"ugpu: HostError: stdout: {self.lost.strerror}", file=sys.stderr)
        return code or 1

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table that fits the terminal (tools.base.tables)."""
        if self.as_json:
            return
        cells = [[lines(str(cell)) for cell in row] for row in rows]
        with self._writing():
            tables.show(self.console, columns, cells)

    def result(self, value: object) -> None:
        """Print the machine-readable result; only with --json."""
        if self.as_json:
            with self._writing():
                sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")

    @contextmanager
    def steps(self, title: str, total: int) -> Iterator[Progress | None]:
        """Show a progress bar over `total` steps on a terminal, one plain line elsewhere.

        Yields the Progress (task 0 is the bar), or None if nothing is drawn.
        """
        if self.as_json or not self.console.is_terminal:
            self.say(f"{title} ...")
            yield None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            progress.add_task(title, total=total)
            yield progress

    @contextmanager
    def activity(self, title: str) -> Iterator[Callable[[str], None]]:
        """Show one line with the elapsed time on a terminal, erased at the end; nothing elsewhere.

        Yields a function that replaces the line's text; any thread may call it.
        """
        if self.as_json or not self.console.is_terminal:
            yield lambda text: None
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            line = progress.add_task(title, total=None)
            yield lambda text: progress.update(line, description=text)


def count(number: int, what: str) -> str:
    """Return a number with its noun: 1 kernel, 2 kernels, 3 launches."""
    several = what + ("es" if what.endswith("ch") else "s")
    return f"{number} {what if number == 1 else several}"


def human(name: str, value: object) -> tuple[str, str]:
    """Return a fact in readable form: ("vram_bytes", 1 << 30) becomes ("vram", "1 GiB")."""
    if name.endswith("_bytes") and isinstance(value, int):
        name, value = name.removesuffix("_bytes"), human_size(value)
    return name if "." in name else name.replace("_", " "), str(value)


def human_size(size: float) -> str:
    """Return bytes in readable form: 24 GiB, 256 MiB, 17 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
