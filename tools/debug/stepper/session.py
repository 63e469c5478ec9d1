"""State of a debugging session: what halts a wave, and why it has halted.

`Session` is the `hcq.device.debugging.Debugger` of the process. A kernel's thread calls `halted`.
The prompt runs on a thread of its own meanwhile, because a kernel's thread has the floating-point
mode of its chip.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from types import FrameType

from ugpu.hcq.device.debugging import Code, Halted
from ugpu.hcq.errors import UsageError
from ugpu.tools.debug.stepper.places import Breakpoint, Devices, Known, breakpoint_at


class Way(Enum):
    """Way in which a halted wave continues."""

    CONTINUE = auto()
    STEP = auto()  # to the next instruction of this wave
    LINE = auto()  # to the next line of this wave
    FINISH = auto()  # to the end of this wave: the first instruction of another, or a barrier


@dataclass
class Watch:
    """Memory whose change halts the program. value: the last value seen, None while the memory is
    not mapped."""

    number: int
    address: int
    size: int
    value: bytes | None = None


@dataclass
class Halt:
    """Why and where a wave has halted."""

    wave: Halted
    kernel: Known
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Last:
    """The instruction that ran last."""

    where: str
    group: tuple[int, int, int]
    wave: int
    line: int


class Session:
    """One run of a program under the debugger. prompt: called at each halt; it sets `way` and
    returns when the wave is to continue."""

    def __init__(self, prompt: Callable[[Halt], None]) -> None:
        self.devices = Devices()
        self.breakpoints: dict[int, Breakpoint] = {}
        self.watches: dict[int, Watch] = {}
        self.way = Way.CONTINUE
        self.steps = 1  # left for `way`
        self.halt: Halt | None = None
        self.quitting = False
        self.detached = False
        self.error: BaseException | None = None  # raised by the prompt
        self.kernels: set[str] = set()  # names seen so far
        self.placed: set[int] = set()  # breakpoints that have a place in a kernel that ran
        self._prompt = prompt
        self._numbers = 0
        self._last: _Last | None = None
        self._asked = False  # Ctrl-C was pressed
        self._code: Code | None = None
        self._console = ThreadPoolExecutor(1, "debugger")
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # only one of several devices halts at a time

    # ---- breakpoints and watches --------------------------------------------------------------

    def add_breakpoint(self, text: str, *, once: bool = False) -> Breakpoint:
        """Halt at a place from now on. UsageError for an invalid place."""
        current = self.halt.kernel.name if self.halt is not None else ""
        if text.isdecimal() and not current:
            raise UsageError(f"expected KERNEL:LINE while no kernel runs, got {text!r}")
        point = breakpoint_at(self._numbers + 1, text, current, once)
        self._numbers += 1
        self.breakpoints[point.number] = point
        return point

    def add_watch(self, address: int, size: int) -> Watch:
        """Halt when these bytes of global memory change."""
        self._numbers += 1
        watch = self.watches[self._numbers] = Watch(self._numbers, address, size)
        if self.halt is not None:
            watch.value = self.halt.wave.memory(address, size)
        return watch

    def delete(self, number: int) -> None:
        """Delete a breakpoint or a watch. UsageError for an unknown number."""
        if self.breakpoints.pop(number, None) is None and self.watches.pop(number, None) is None:
            raise UsageError(f"expected the number of a breakpoint or watch, got {number}")

    # ---- Debugger -----------------------------------------------------------------------------

    def opened(self, device: object) -> None:
        """See hcq.device.debugging.Debugger."""
        self.devices.opened.append(device)

    def stops(self, code: Code) -> Collection[int] | None:
        """See hcq.device.debugging.Debugger."""
        if self.quitting:
            return None  # from here on each wave ends at its first instruction
        if self.detached:
            return ()
        kernel = self.devices.kernel(code)
        self.kernels.add(kernel.name)
        with self._lock:
            self._code = code
            if self._asked or self.watches or self.way is not Way.CONTINUE:
                return None
        addresses: set[int] = set()
        for point in self.breakpoints.values():
            if places := point.addresses(kernel):
                self.placed.add(point.number)
                addresses |= places
        return addresses

    def place(self, address: int) -> str:
        """See hcq.device.debugging.Debugger."""
        row = self.devices.row(address)
        return "" if row is None else f"{row.file}:{row.line}"

    def missed(self) -> list[str]:
        """Return a text for each breakpoint that had no place in any kernel that ran."""
        ran = ", ".join(sorted(self.kernels)) or "none"
        return [
            f"breakpoint {point.number} ({point.text}) had no place in the kernels that ran: {ran}"
            for point in self.breakpoints.values()
            if point.number not in self.placed and not (self.detached or self.quitting)
        ]

    @property
    def active(self) -> bool:
        """See hcq.device.debugging.Debugger."""
        return not (self.detached or self.quitting)

    def halted(self, wave: Halted) -> bool:
        """See hcq.device.debugging.Debugger."""
        with self._turn:
            return self._halted(wave)

    def _halted(self, wave: Halted) -> bool:
        if not self.active:
            return not self.quitting
        kernel = self.devices.kernel(wave.code)
        row = kernel.row(wave.pc)
        line = row.line if row is not None else 0
        reasons = list(self._reasons(wave, kernel, line))
        self._last = _Last(kernel.where(wave.pc), wave.group, wave.wave, line)
        if not reasons:
            return True
        self.halt = Halt(wave, kernel, reasons)
        self.way, self.steps = Way.CONTINUE, 1
        try:
            self._console.submit(self._prompt, self.halt).result()
        except BaseException as error:  # raised by a command of a file: the program ends
            self.error = error
            self.quit()
        finally:
            self.halt = None
        return not self.quitting

    def _reasons(self, wave: Halted, kernel: Known, line: int) -> Iterator[str]:
        last = self._last
        for watch in self.watches.values():
            value = wave.memory(watch.address, watch.size)
            if value != watch.value:
                before, watch.value = watch.value, value
                who = f" by {last.where}" if last is not None else ""
                yield (
                    f"watch {watch.number}: {watch.address:#x} {_shown(before)} ->"
                    f" {_shown(value)}{who}"
                )
        for point in list(self.breakpoints.values()):
            if wave.pc in point.addresses(kernel):
                if point.once:
                    del self.breakpoints[point.number]
                yield f"breakpoint {point.number}: {point.text}"
        with self._lock:
            asked, self._asked = self._asked, False
        if asked:
            yield "interrupted"
        if self._stepped(wave, line):
            yield "step"

    def _stepped(self, wave: Halted, line: int) -> bool:
        last = self._last
        if self.way is Way.CONTINUE or last is None:
            return False
        same = (last.group, last.wave) == (wave.group, wave.wave)
        if self.way is Way.FINISH:
            return not same
        if same and self.way is Way.LINE and line == last.line:
            return False
        self.steps -= 1
        return self.steps <= 0

    # ---- from the program's thread ------------------------------------------------------------

    def pause(self) -> bool:
        """Halt at the next instruction; return False if that was already requested. From any
        thread."""
        with self._lock:
            if self._asked:
                return False
            self._asked = True
            if self._code is not None:
                self._code.halt_everywhere()
            return True

    def quit(self) -> None:
        """End the program: its kernels immediately, its own thread as soon as it notices."""
        self.quitting = True
        _thread.interrupt_main()

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """While the block runs, Ctrl-C halts a kernel; a second one ends the program."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self.quitting:
                raise SystemExit(0)
            if self.halt is None and (self.detached or not self.pause()):
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def close(self) -> None:
        """End the prompt's thread."""
        self.detached = True
        self._console.shutdown()


def _shown(data: bytes | None) -> str:
    """Return memory as one little-endian number, as programs read it."""
    return "not mapped" if data is None else f"0x{data[::-1].hex()}"
