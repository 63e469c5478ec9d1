"""Exceptions at every line that an operation runs, as a Ctrl-C brings them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


class Interrupted(BaseException):
    """What is raised: nothing catches it by class, as with KeyboardInterrupt."""


class _Tracer:
    """Raises at the line with number `at`, counted over the files of `folders`; once."""

    def __init__(self, folders: tuple[str, ...], at: int) -> None:
        self.prefixes = tuple(f"{ROOT / folder}/" for folder in folders)
        self.left = at
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if self.where or not name.startswith(self.prefixes) or "/virtual/" in name:
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and not self.where:
            if not self.left:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise Interrupted(self.where)
            self.left -= 1
        return self._line


def interrupt(operation: Callable[[], object], at: int, *folders: str) -> str:
    """Run `operation` and raise at its line number `at` in files of `folders`, models left out;
    returns that line, "" where the operation has fewer."""
    tracer = _Tracer(folders, at)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        operation()
    except Interrupted:
        pass
    finally:
        sys.settrace(before)
    return tracer.where


def everywhere(operation: Callable[[], object], *folders: str) -> Iterator[str]:
    """Run `operation` again and again, interrupted at its first line, its second, and so on until
    it ends by itself; yields each line after its interruption."""
    for at in itertools.count():
        where = interrupt(operation, at, *folders)
        if not where:
            return
        yield where
