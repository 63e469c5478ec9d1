"""The contract between the virtual chip's command processor and its shader cores.

The command processor (virtual/amd) fills a `Dispatch` from the COMPUTE_* registers and runs it on a
`ShaderCore` (virtual/amd/isa). The cores reach memory only through `ShaderMemory`, which walks the
driver's page tables and keeps stale translations until they are invalidated, as the chip does.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.shader.memory import Abort, Access, LaneMemory

_SIMDS = 4  # per WGP


class ShaderMemory(LaneMemory, Protocol):
    """One VMID's address space as the shader cores see it (clients TCP and SQC of the GFX hub)."""

    def refill(
        self,
        tlb: NDArray[np.uint64],
        address: int,
        access: Access,
        who: Callable[[], tuple[int, str]] | None = None,
    ) -> int:
        """Implement LaneMemory.refill. who: called after a fault; returns the address and the text
        of the instruction that accesses `address`."""
        ...

    def fetch(self, address: int, size: int) -> bytes | None:
        """Read instructions; None after a latched fault (not mapped or not executable)."""
        ...

    def peek(self, address: int, size: int) -> bytes | None:
        """Read for a debugger: None where a byte is not mapped for reading; latches no fault."""
        ...


@dataclass(frozen=True)
class Dispatch:
    """One DISPATCH_DIRECT as the registers describe it. Addresses are GPU virtual, sizes bytes.

    rsrc1..3: COMPUTE_PGM_RSRC1..3 as written. user_data: COMPUTE_USER_DATA_0..15.
    shared_aperture / private_aperture: base addresses from SH_MEM_BASES (field << 48).
    scratch_base: COMPUTE_DISPATCH_SCRATCH_BASE << 8; scratch_wave_size: TMPRING_SIZE.WAVESIZE in
    bytes. repeats: whether equal registers have come before, and will come with this object again.
    """

    code_address: int
    groups: tuple[int, int, int]
    threads: tuple[int, int, int]
    rsrc1: int
    rsrc2: int
    rsrc3: int
    user_data: Sequence[int]
    wave32: bool
    scratch_base: int = 0
    scratch_wave_size: int = 0
    scratch_waves: int = 0
    shared_aperture: int = 0
    private_aperture: int = 0
    repeats: bool = field(default=False, compare=False)


class Ending(enum.Enum):
    """Reason why a dispatch ended."""

    DONE = "done"
    ILLEGAL_INSTRUCTION = "illegal instruction"  # wave halted at pc
    HALTED = "wave halted"  # by an instruction at pc that requests it; it is never resumed
    FETCH_FAULT = "fetch fault"  # instruction page not executable; already latched
    ABORTED = "aborted"  # `Abort.set` was called
    BAD_DISPATCH = "bad dispatch"  # registers that the SPI cannot launch; `detail` has the reason


@dataclass(frozen=True)
class ShaderWave:
    """A halted wave, or a recent snapshot of a running wave.

    pc: address of the next instruction. wave: its number in the group. scalars: 128 words, VCC from
    106, M0 at 125, EXEC from 126. vectors: register number -> lanes; for a running wave only the
    registers that the program reads again. vgprs: number allocated to the wave. lds_bytes:
    allocated to its group. waits: True at a barrier.
    """

    dispatch: Dispatch
    pc: int
    group: tuple[int, int, int]
    wave: int
    scalars: Sequence[int]
    scc: bool
    vectors: Mapping[int, Sequence[int]] = field(default_factory=dict)
    vgprs: int = 0
    lds_bytes: int = 0
    waits: bool = False


@dataclass(frozen=True)
class Outcome:
    """Result of a dispatch. pc: GPU virtual address of the offending instruction. words: its
    encoding. state: state of the wave that halted; None if it never started. violations: what the
    program does that a chip does not check, if that is asked for."""

    ending: Ending
    pc: int = 0
    words: tuple[int, ...] = ()
    detail: str = ""
    group: tuple[int, int, int] = (0, 0, 0)
    wave: int = 0
    state: ShaderWave | None = field(default=None, compare=False, repr=False)
    violations: tuple[str, ...] = ()


class WavePlace(NamedTuple):
    """The SIMD that a wave runs on."""

    engine: int
    array: int
    wgp: int
    simd: int


def place_of(
    group: tuple[int, int, int], groups: tuple[int, int, int], sizes: tuple[int, int, int]
) -> WavePlace:
    """Return the SIMD that the waves of a group run on.

    Groups go round-robin to the shader engines, then to the arrays of an engine, the WGPs of an
    array and the SIMDs of a WGP. sizes: number of engines, arrays per engine, WGPs per array.

    UNSURE: no document states the order in which SPI distributes groups; HW_ID1 of waves on a board
    would settle it.
    """
    number = group[0] + groups[0] * (group[1] + groups[1] * group[2])
    rest, engine = divmod(number, sizes[0])
    rest, array = divmod(rest, sizes[1])
    rest, wgp = divmod(rest, sizes[2])
    return WavePlace(engine, array, wgp, rest % _SIMDS)


class ShaderCore(Protocol):
    """All compute units of the chip. `run` blocks until the dispatch ends; called by one thread."""

    def run(self, dispatch: Dispatch, memory: ShaderMemory, abort: Abort) -> Outcome: ...
    def look(self, abort: Abort, limit_s: float) -> list[ShaderWave]:
        """Return the running waves; called from another thread while `run` is in progress.

        Blocks until each wave has reached a backward branch, at most `limit_s` seconds. The state
        of a wave that has not is older: at worst the state at its start.
        """
        ...

    def close(self) -> None: ...
