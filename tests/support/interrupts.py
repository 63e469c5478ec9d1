"""Exceptions at any line of the driver: what a Ctrl-C or a MemoryError may do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ugpu.hcq.errors import UgpuError

PACKAGE = Path(__file__).resolve().parents[2] / "ugpu"
DRIVERS = ("am", "hcq", "nv", "qcom", "usbgpu")
#: Models stand for hardware, which no exception stops; what they call does too.
ELSEWHERE = ("/virtual/", "/hcq/objects/jit", "/hcq/objects/stack", "/compiler/",
             "/nv/code/assemble", "/hcq/disk/cache")  # fmt: skip
#: Functions without effects: an exception in them is one at the line that calls them.
PURE = ("/nv/abi/", "/nv/code/cubin", "/nv/code/image", "/nv/packets/launch", "/hcq/objects/elf",
        "/hcq/objects/linking", "/hcq/objects/code_object", "/hcq/objects/ir3_object",
        "/hcq/registers/layout", "/hcq/registers/fields", "/am/packets/dispatch",
        "/hcq/state/checks", "/qcom/packets/pm4", "/qcom/packets/dispatch",
        "/qcom/regs")  # fmt: skip


class Interrupted(BaseException):
    """What is raised; no `except Exception` catches it."""


class Interrupter:
    """Raises Interrupted at the n-th line that this thread executes in the driver. Lines count
    `each` time they are executed, or once, however often that is."""

    def __init__(self, number: int, *, each: bool = False) -> None:
        self.left = number
        self.each = each
        self.seen: set[tuple[str, int]] = set()
        self.place: tuple[str, int] | None = None
        self.blocked: FrameType | None = None  # in a model, until it returns

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.blocked is not None:
            return None
        path = frame.f_code.co_filename
        # Python reports what a finalizer or a callback of a weak reference raises, and goes on.
        finalizer = frame.f_code.co_name in ("__del__", "died")
        if finalizer or any(part in path for part in (*ELSEWHERE, *PURE)):
            self.blocked = frame
            frame.f_trace_lines = False
            return self._elsewhere
        folder = path.removeprefix(f"{PACKAGE}/").partition("/")[0]
        return self._line if folder in DRIVERS else None

    def _elsewhere(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return" and frame is self.blocked:
            self.blocked = None
        return self._elsewhere

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "line":
            return self._line
        place = (frame.f_code.co_filename.removeprefix(str(PACKAGE)), frame.f_lineno)
        if self.each or place not in self.seen:
            self.seen.add(place)
            self.left -= 1
            if self.left < 0:
                self.place = place
                sys.settrace(None)
                raise Interrupted(place)
        return self._line


def interrupted(
    operation: Callable[[], object],
    *,
    prepare: Callable[[], object] = lambda: None,
    each: bool = False,
) -> Iterator[tuple[str, int]]:
    """Run `operation` again and again, cut off at one line more each time; yields the place. Ends
    when it is no longer cut off. prepare is called before each, and not cut off. each: see
    Interrupter."""
    number = 0
    while True:
        prepare()
        interrupter = Interrupter(number, each=each)
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
        number += 1
