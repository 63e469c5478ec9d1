"""The contract between the virtual chip's front end and its streaming multiprocessors.

The front end (host, compute class, QMD) decodes a launch into a `GridLaunch` and runs it on a
`Multiprocessors`. The model cannot execute machine code, so the SMs execute the PTX that our code
objects carry beside it. They access memory only through `virtual.shader` address spaces. These walk
the page tables of the model, and cache translations, which stay in use until they are invalidated.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ugpu.virtual.shader.memory import Abort, LaneMemory


class GridSpace(LaneMemory, Protocol):
    """The address space of a grid."""

    def peek(self, address: int, size: int) -> bytes | None:
        """Read for a debugger without raising a fault; None if a byte is not mapped."""
        ...


INSTRUCTION_BYTES = 16  # of a PTX instruction, as program counters count here


@dataclass(frozen=True)
class GridLaunch:
    """One grid as the QMD describes it. Addresses are GPU virtual, sizes are bytes.

    ptx, entry: the PTX module and the name of its `.entry`, from the note before the program.
    parameters: the entry's parameter space, from constant bank 0. shared_size: of a group, static
    and dynamic, without the part reserved for the system. local_size: of a thread. shared_window,
    local_window: generic addresses of the group's shared and the thread's local memory (16 MiB
    each; the shared memory of a cluster's groups follows the first window). target: "sm_90".
    variables: where the loader has placed the module's variables of `.global` and `.const`, and
    the values of pointers to its functions.
    cluster: groups of a cluster, if the launch states it. registers: of a thread; 0: not known.
    environment: %envreg0 to 31; all 0 if there are none.
    """

    ptx: str
    entry: str
    target: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: bytes
    shared_size: int
    local_size: int
    shared_window: int
    local_window: int
    program_address: int
    sm_count: int
    variables: tuple[tuple[str, int], ...] = ()
    cluster: tuple[int, int, int] | None = None
    registers: int = 0
    environment: tuple[int, ...] = ()


class SmEnding(enum.Enum):
    """Reason why a grid ended."""

    DONE = "done"
    ABORTED = "aborted"  # `Abort.set` was called
    BAD_LAUNCH = "bad launch"  # the SMs cannot launch the grid; `detail` contains the reason
    ILLEGAL_INSTRUCTION = "illegal instruction"  # `trap`, or PTX that cannot execute
    ILLEGAL_ADDRESS = "illegal address"  # shared or local memory out of range
    MISALIGNED_ADDRESS = "misaligned address"
    MMU_FAULT = "MMU fault"  # latched by the address space; the grid was stopped
    ASSERT = "assertion"  # `brkpt`


@dataclass(frozen=True)
class SmOutcome:
    """program_counter: of the offending instruction, as an offset into the program. The model has
    no machine code and counts PTX instructions of 16 bytes each. line: of the PTX. address: the
    address accessed. violations: errors that boards tolerate, each with its line."""

    ending: SmEnding
    detail: str = ""
    program_counter: int = 0
    group: tuple[int, int, int] = (0, 0, 0)
    warp: int = 0
    lane_mask: int = 0
    line: int = 0
    address: int = 0
    violations: tuple[str, ...] = ()


class Attention(Abort):
    """An abort flag that can also ask a running grid to yield to another group's time slice.

    Warps check it at every backward branch and before every group, and then call `wait_aside`,
    which the owner overrides. It returns when the grid may continue or must end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_program = False  # whether the channel runs a grid
        # Two bytes of the one word that warps check: each is written separately.
        self._end, self._aside = (self.flag.view(np.uint8)[at : at + 1] for at in (0, 1))

    def set(self) -> None:
        self._end[0] = 1

    def clear(self) -> None:
        self._end[0] = 0

    @property
    def ending(self) -> bool:
        """Whether the grid must end."""
        return bool(self._end[0])

    @property
    def aside(self) -> bool:
        """Whether the work must yield."""
        return self.in_grid_aside

    @aside.setter
    def aside(self, value: bool) -> None:
        self.in_grid_aside = value

    @property
    def in_grid_aside(self) -> bool:
        """Whether a running grid must yield: the flag that its warps check."""
        return bool(self._aside[0])

    @in_grid_aside.setter
    def in_grid_aside(self, value: bool) -> None:
        self._aside[0] = value

    def wait_aside(self) -> None:
        """Block until the grid may continue. Called by each thread that must yield."""
        raise NotImplementedError


class Multiprocessors(Protocol):
    """All SMs of the chip. `run` blocks until the grid has ended. Several threads may call it, each
    with its own address space, if all but one of them have been asked to yield."""

    def run(self, launch: GridLaunch, memory: GridSpace, abort: Abort) -> SmOutcome: ...
    def close(self) -> None: ...
