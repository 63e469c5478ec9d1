"""The contract between the virtual chip's front end and its streaming multiprocessors.

The front end (host, compute class, QMD) decodes a launch into a `GridLaunch` and runs it on a
`Multiprocessors`. The SMs execute PTX, which our code objects carry beside the machine code, as
machine code is opaque to the model. They reach memory only through `hcq.emu` address spaces, which
walk the page tables that the model keeps, with stale translations until they are invalidated.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hcq.emu.memory import Abort, LaneMemory


class GridSpace(LaneMemory, Protocol):
    """The address space of a grid."""

    def peek(self, address: int, size: int) -> bytes | None:
        """Read for a debugger, without a fault; None where a byte is not mapped."""
        ...


INSTRUCTION_BYTES = 16  # of an instruction of PTX, as program counters here count


@dataclass(frozen=True)
class GridLaunch:
    """One grid as the QMD describes it. Addresses are GPU virtual, sizes bytes.

    ptx, entry: the PTX module and the name of its `.entry`, as the note before the program says.
    parameters: the entry's parameter space, from constant bank 0. shared_size: of a group, static
    and dynamic, without what the system has of it. local_size: of a thread. shared_window,
    local_window: where generic addresses reach the group's shared and the thread's local memory
    (each 16 MiB; behind the first that of the groups of a cluster). target: "sm_90".
    variables: where the loader has put the module's variables of `.global` and `.const`, and what
    pointers to its functions are.
    cluster: groups of a cluster, where the launch says so. registers: of a thread; 0: not known.
    environment: %envreg0 to 31; all 0 without.
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
    BAD_LAUNCH = "bad launch"  # what the SMs cannot launch; `detail` says why
    ILLEGAL_INSTRUCTION = "illegal instruction"  # `trap`, or PTX that cannot execute
    ILLEGAL_ADDRESS = "illegal address"  # shared or local memory out of range
    MISALIGNED_ADDRESS = "misaligned address"
    MMU_FAULT = "MMU fault"  # latched by the address space; the grid was stopped
    ASSERT = "assertion"  # `brkpt`


@dataclass(frozen=True)
class SmOutcome:
    """program_counter: of the offending instruction, as an offset into the program: the model
    counts PTX instructions, 16 bytes each, since it has no machine code. line: of the PTX. address:
    that was accessed. violations: what boards forgive, with the line of each."""

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
    """An abort flag that can also ask a running grid to stand aside for another's time slice.

    Warps look at it on every backward branch and before every group, and then call `wait_aside`,
    which its owner overrides: it returns when the grid may go on, or is to end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_program = False  # the channel runs a grid
        # Two bytes of the one word that warps look at: each is written by itself.
        self._end, self._aside = (self.flag.view(np.uint8)[at : at + 1] for at in (0, 1))

    def set(self) -> None:
        self._end[0] = 1

    def clear(self) -> None:
        self._end[0] = 0

    @property
    def ending(self) -> bool:
        """The grid is to end."""
        return bool(self._end[0])

    @property
    def aside(self) -> bool:
        """The work is to stand aside."""
        return self.in_grid_aside

    @aside.setter
    def aside(self, value: bool) -> None:
        self.in_grid_aside = value

    @property
    def in_grid_aside(self) -> bool:
        """A grid that runs is to stand aside: what its warps look at."""
        return bool(self._aside[0])

    @in_grid_aside.setter
    def in_grid_aside(self, value: bool) -> None:
        self._aside[0] = value

    def wait_aside(self) -> None:
        """Called by each thread of a grid that is to stand aside."""
        raise NotImplementedError


class Multiprocessors(Protocol):
    """All SMs of the chip. `run` blocks until the grid ended; several threads may call it, each
    with another address space, where all but one have been asked to stand aside."""

    def run(self, launch: GridLaunch, memory: GridSpace, abort: Abort) -> SmOutcome: ...
    def close(self) -> None: ...
