"""Code shared by shader cores whose waves a debugger can halt; see `hcq.device.debugging`.

Before each instruction, stepped code checks a byte of a table and calls a function if the byte is
set. One thread then runs all waves, so that each instruction is followed by the next one of the
same wave up to a barrier or the wave's end.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Generic, TypeVar

import numpy as np

from ugpu.hcq.device.debugging import Debugger, Halted
from ugpu.virtual.shader.text import Text
from ugpu.virtual.shader.threads.worker import NativeWorker, Run

_STEP = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)


class Stops:
    """One byte for each instruction of a kernel: whether waves halt there.

    base: GPU address of the first instruction. count: number of instructions. size: bytes of each.
    """

    def __init__(self, base: int, count: int, size: int) -> None:
        self._base, self._size = base, size
        self.table = np.zeros(count + 1, np.uint8)
        self.asked = 0  # number of calls of `everywhere`

    @property
    def address(self) -> int:
        """Host address of the table."""
        return int(self.table.ctypes.data)

    def everywhere(self) -> None:
        """Halt at every instruction. Any thread may call."""
        self.asked += 1
        self.table[:] = 1

    def nowhere(self) -> None:
        """Halt at no instruction."""
        self.table[:] = 0

    def set(self, stops: Collection[int] | None) -> None:
        """Halt at these GPU addresses, None for all; addresses outside the kernel are ignored."""
        if stops is None:
            self.everywhere()
            return
        self.nowhere()
        for pc in stops:
            place = (pc - self._base) // self._size
            if 0 <= place < len(self.table):
                self.table[place] = 1


class KernelCode:
    """A kernel as a debugger sees it; with a listing a `hcq.device.debugging.Code`.

    base: GPU address of instruction 0. count, size: of instructions, and bytes of each.
    """

    kernel = ""

    def __init__(self, entry: int, digest: str, base: int, count: int, size: int) -> None:
        self.entry, self.digest = entry, digest
        self.stops = Stops(base, count, size)
        self._base, self._size = base, size

    def address(self, index: int) -> int:
        """Return the address of an instruction."""
        return self._base + self._size * index

    def listing(self) -> list[tuple[int, str, int]]:
        """See Code."""
        raise NotImplementedError

    def halt_everywhere(self) -> None:
        """See Code."""
        self.stops.everywhere()


W = TypeVar("W", bound=NativeWorker)
R = TypeVar("R", bound=Run[Any])
C = TypeVar("C", bound=KernelCode)


class StepCall(ABC, Generic[W, R, C]):
    """The function that stepped code calls where it halts. Used by one thread at a time.

    address: of the function, `u32 (context, wave, place)`, which returns whether the wave
    continues.
    """

    def __init__(self, debugger: Debugger) -> None:
        self.debugger = debugger
        self._step = _STEP(self._called)
        self.address = ctypes.cast(self._step, ctypes.c_void_p).value or 0
        self._at: tuple[W, R, C] | None = None

    @property
    def entered(self) -> tuple[W, R, C]:
        """The running worker, launch and kernel."""
        assert self._at is not None
        return self._at

    @abstractmethod
    def wave(self, context: int, wave: int, place: int) -> Halted:
        """Return the halted wave, by the host addresses of its context and its state."""

    def active(self) -> bool:
        """Return whether wait limits are suspended."""
        return self.debugger.active

    def begin(self, worker: W, run: R, code: C) -> None:
        """Query the debugger where waves halt, before a worker runs waves of a kernel."""
        self._at = worker, run, code
        self._arm(code)

    def _arm(self, code: C) -> None:
        before = code.stops.asked
        code.stops.set(self.debugger.stops(code))
        if code.stops.asked != before:  # RACE: by another thread, and `set` may have undone it
            code.stops.everywhere()

    def _called(self, context: int, wave: int, place: int) -> int:
        worker, run, code = self.entered
        try:
            goes_on = self.debugger.halted(self.wave(context, wave, place))
            self._arm(code)
            return int(goes_on)
        except BaseException as error:  # must not cross native code: the launch's thread raises it
            code.stops.nowhere()
            worker.error = error
            run.stop[0] = 1
            return 0


def look(e: Text, number: int, place: int, ended: int) -> None:
    """Emit a halt if byte `number` of %steps is set: %step is called with the place; if it returns
    0 the function of %context and %wave ends with the code `ended`."""
    at = e.value(f"getelementptr i8, ptr %steps, i64 {number}")
    asked = e.value(f"icmp ne i8 {e.value(f'load volatile i8, ptr {at}')}, 0")
    halt, on, end = (e.new_label(stem) for stem in ("halt", "on", "end"))
    e.do(f"br i1 {asked}, label %{halt}, label %{on}, !prof !1")
    e.begin(halt)
    goes_on = e.value(f"call i32 %step(ptr %context, ptr %wave, i32 {place})")
    e.do(f"br i1 {e.value(f'icmp ne i32 {goes_on}, 0')}, label %{on}, label %{end}")
    e.begin(end)
    e.do(f"ret i32 {ended}")
    e.begin(on)


def found(steps: int, step: int) -> list[str]:
    """Return the lines that load %steps and %step from these offsets of a context."""
    lines = []
    for name, offset in (("steps", steps), ("step", step)):
        lines.append(f"  %{name}.p = getelementptr i8, ptr %context, i64 {offset}")
        lines.append(f"  %{name} = load ptr, ptr %{name}.p")
    return lines
