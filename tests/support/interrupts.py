"""Exceptions at any line of the driver: what a Ctrl-C or a MemoryError may do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from hcq.errors import UgpuError

ROOT = Path(__file__).resolve().parents[2]
#: Models stand for hardware, which no exception stops; the compiler of kernels is not the driver.
ELSEWHERE = ("/virtual/", "/hcq/emu/", "/tests/", "/compiler/", "/nv/assemble", "/hcq/diskcache")


class Interrupted(BaseException):
    """What is raised; no `except Exception` catches it."""


class Interrupter:
    """Raises Interrupted at the n-th line, of those not seen before, that this thread executes in
    the driver. A line counts once, however often it is executed."""

    def __init__(self, number: int, skip: set[tuple[str, int]]) -> None:
        self.left = number
        self.seen: set[tuple[str, int]] = set(skip)
        self.place: tuple[str, int] | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(str(ROOT)) or any(part in path for part in ELSEWHERE):
            return None
        names = [each.f_code.co_name for each in (frame, frame.f_back) if each is not None]
        if "__del__" in names:
            return None  # Python reports what is raised there, and goes on
        return self._line

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "line":
            return self._line
        place = (frame.f_code.co_filename.removeprefix(str(ROOT)), frame.f_lineno)
        if place not in self.seen:
            self.seen.add(place)
            self.left -= 1
            if self.left < 0:
                self.place = place
                sys.settrace(None)
                raise Interrupted(place)
        return self._line


def interrupted(
    operation: Callable[[], object], skip: set[tuple[str, int]] | None = None, step: int = 1
) -> Iterator[tuple[str, int]]:
    """Run `operation` again and again, cut off at one line more each time; yields the place. Ends
    when it is no longer cut off. step: 1 takes every line. skip: lines not to cut off at."""
    number = 0
    while True:
        interrupter = Interrupter(number, skip or set())
        before = sys.gettrace()
        sys.settrace(interrupter)
        try:
            operation()
        except Interrupted:
            pass
        except UgpuError as error:
            raise AssertionError(f"cut off at {interrupter.place}: {error!r}") from error
        finally:
            sys.settrace(before)
        if interrupter.place is None:
            return
        yield interrupter.place
        number += step
