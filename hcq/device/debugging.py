"""Interface between a step debugger and the models whose shader cores it halts.

A debugger is attached to this process before a device is opened. Shader cores made after that
translate kernels to code that checks at every instruction whether to halt; all others stay as they
are. Only models in this process can be halted: `check` rejects other devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ugpu.hcq.errors import NotSupported

Group = tuple[int, int, int]


@dataclass(frozen=True)
class WaveState:
    """A wave of the group that is on the shader core.

    Attributes:
        number: its index in the group.
        state: "halted", "waits at a barrier", "ready", "not begun" or "ended".
        pc: GPU address of its next instruction.
        execute: one bit for each active lane.
    """

    number: int
    state: str
    pc: int
    execute: int


class Code(Protocol):
    """A kernel that is about to run.

    Attributes:
        entry: GPU address of its first instruction.
        kernel: its name if the model executes named text, whose lines `listing` gives; else "".
        digest: of all its instructions.
    """

    entry: int
    kernel: str
    digest: str

    def listing(self) -> Sequence[tuple[int, str, int]]:
        """Return GPU address, text and source line (0 if unknown) of each instruction, in order."""
        ...

    def halt_everywhere(self) -> None:
        """Halt at the next instruction of any wave. Any thread may call."""
        ...


class Halted(Protocol):
    """A wave halted before an instruction. Valid until `Debugger.halted` returns.

    Attributes:
        pc: GPU address of the next instruction.
        group: the group's index along each axis.
        wave: its index in the group.
        lanes: number per wave.

    `execute` has one bit for each active lane.
    """

    pc: int
    group: Group
    wave: int
    lanes: int

    @property
    def code(self) -> Code: ...
    @property
    def execute(self) -> int: ...
    def waves(self) -> list[WaveState]:
        """Return all waves of the group."""
        ...

    def names(self, wave: int) -> tuple[list[str], list[str]]:
        """Return the names of a wave's scalar and vector registers."""
        ...

    def bits(self, name: str) -> int:
        """Return the width of a scalar register, or of a lane of a vector register."""
        ...

    def read(self, name: str, wave: int) -> int | list[int]:
        """Return a scalar register, or the lanes of a vector register. KeyError for others."""
        ...

    def write(self, name: str, value: int, wave: int, lane: int | None = None) -> None:
        """Set a scalar register, or one lane or all of a vector register. KeyError for others."""
        ...

    def memory(self, address: int, size: int) -> bytes | None:
        """Read global memory without a fault; None where a byte is not mapped."""
        ...

    def shared(self) -> bytes:
        """Return the group's shared memory."""
        ...


class Debugger(Protocol):
    """A step debugger. All methods but `opened` are called on the thread that runs the kernel.

    Attributes:
        active: wait limits are suspended while a kernel runs under the debugger. Any thread may
            read it.
    """

    @property
    def active(self) -> bool: ...

    def opened(self, device: object) -> None:
        """Note that a device was opened in this process."""
        ...

    def stops(self, code: Code) -> Collection[int] | None:
        """Return the addresses to halt at in a kernel, None for every instruction. Called before
        each launch, and after each halt."""
        ...

    def place(self, address: int) -> str:
        """Return the "file:line" of an instruction of a kernel that `stops` was called for; "" if
        it is unknown."""
        ...

    def halted(self, wave: Halted) -> bool:
        """Handle a halt before an instruction. Return True to let the wave continue; False ends
        it."""
        ...


_attached: list[Debugger] = []


def attached() -> Debugger | None:
    """Return the debugger of this process, if there is one."""
    return _attached[-1] if _attached else None


@contextlib.contextmanager
def attach(debugger: Debugger) -> Iterator[None]:
    """Run the block with a debugger: devices opened inside it can be halted."""
    _attached.append(debugger)
    try:
        yield
    finally:
        _attached.remove(debugger)


def opened(device: object) -> None:
    """Notify the debugger, if there is one, that a device was opened."""
    if _attached:
        _attached[-1].opened(device)


def check(name: str, *, steppable: Callable[[str], bool]) -> None:
    """Raise NotSupported if a debugger is attached and the device cannot be halted."""
    if not _attached or steppable(name):
        return
    why = "the step debugger requires a model in this process, no trap handler is loaded elsewhere"
    if name.startswith("virtual:"):
        why = "its model does not translate kernels to code that halts"
    raise NotSupported(f"{name} does not support breakpoints: {why}", device=name)
