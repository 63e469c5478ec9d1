"""The contract between the virtual GPU's command processor and its shader processors.

The command processor fills a `Dispatch` from the SP_CS_* registers and the state that packets have
loaded, and runs it on `Processors` (virtual/adreno/sp). The shader processors access memory only
through `ShaderMemory`, which walks the SMMU's page tables and, as the GPU does, keeps stale
translations until they are invalidated.
Source of names: Mesa 25.0.7, src/freedreno/registers/adreno/a6xx.xml.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.shader.memory import Abort, Access, LaneMemory

NO_REGISTER = 0xFC  # r63.x: the value of a register field that names no register
MOST_CONSTANTS = 4 * 512  # words of the largest constant file
SHARED_CONSTANTS, SHARED_CONSTANTS_END = 504 * 4, 512 * 4  # c504.x: see Dispatch.shared_constants


@dataclass(frozen=True)
class Accessing:
    """The instruction that accesses memory, and what is known of its wave.

    pc: its GPU address. text: its disassembly. lane: the lowest lane of the wave whose access
    touches the page, -1 where unknown. group: the workgroup. wave: the wave's number in it.
    """

    pc: int
    text: str
    lane: int
    group: tuple[int, int, int]
    wave: int


class ShaderMemory(LaneMemory, Protocol):
    """One context's address space as the shader processors see it, page by page."""

    def refill(
        self,
        tlb: NDArray[np.uint64],
        address: int,
        access: Access,
        who: Callable[[], Accessing] | None = None,
    ) -> int:
        """See LaneMemory. who: called after a fault, on the calling thread, before this returns.

        To end the dispatch at a fault, set the `Abort` of the launch; the waves end soon.
        """
        ...

    def fetch(self, address: int, size: int) -> bytes | None:
        """Read instructions; None after a fault (not mapped, not executable). The fault is
        latched."""
        ...

    def peek(self, address: int, size: int) -> bytes | None:
        """Read for a debugger: None where a byte is not mapped; latches no fault."""
        ...


@dataclass(frozen=True)
class Table:
    """Descriptors in memory: `count` of them at `base`. A count of 0: there are none."""

    base: int = 0
    count: int = 0


@dataclass(frozen=True)
class Dispatch:
    """One CP_EXEC_CS, as registers and loaded state describe it.

    Addresses are GPU virtual, sizes are in bytes, registers are number * 4 + component (0xfc:
    none).
    gpu_id: three digits, as Mesa numbers GPUs; determines the generation and the encodings.
    code_address: SP_CS_OBJ_START. code_size: SP_CS_INSTRLEN in bytes.
    groups, threads: the grid in workgroups, and a workgroup in threads (HLSQ_CS_NDRANGE).
    thread_size: lanes of a wave, 64 or 128 (SP_CS_CTRL_REG0.THREADSIZE).
    full_registers, half_registers: footprints in vec4; merged_registers: MERGEDREGS.
    branch_stack: BRANCHSTACK, the depth of divergence.
    group_register, thread_register, linear_register: the registers that receive the number of the
    workgroup (three registers), of the thread in it (three), and the thread's linear number in it
    (one).
    constants: words of the constant file from c0.x on, as loaded by CP_LOAD_STATE6 and the driver's
    constants. constant_limit: number of words that the kernel may read (CONSTLEN); words beyond it
    are undefined. shared_constants: the words from c504.x on are also readable; generation 6 maps
    its shared constants there.
    ubos: descriptors of constant buffers, 8 bytes each. uavs: of images and buffers, 64 bytes each
    (IBOs). textures: 64 bytes each. samplers: 16 bytes each. border_colours: address of their
    table, 128 bytes each. bindless: bases of descriptor sets, each 64-byte aligned; 0 where there
    is none.
    local_size: bytes of a workgroup's memory.
    private_base: SP_CS_PVT_MEM_ADDR. private_size: bytes of one thread. private_per_wave: the words
    of a wave's threads are interleaved (PERWAVEMEMLAYOUT). private_stride: bytes of one shader
    processor (TOTALPVTMEMSIZE).
    early_preamble: EARLYPREAMBLE. scalar_unit, predication_nops: see qcom.chips.facts.
    immediates: words of HLSQ_SHARED_CONSTS_IMM (generation 7). `stsc c[D], S, N` copies N of them,
    from number S on, to the constants from D on.
    """

    gpu_id: int
    code_address: int
    code_size: int
    groups: tuple[int, int, int]
    threads: tuple[int, int, int]
    thread_size: int = 64
    full_registers: int = 48
    half_registers: int = 0
    merged_registers: bool = True
    branch_stack: int = 0
    group_register: int = NO_REGISTER
    thread_register: int = NO_REGISTER
    linear_register: int = NO_REGISTER
    constants: Sequence[int] | NDArray[np.uint32] = ()
    constant_limit: int = MOST_CONSTANTS
    shared_constants: bool = False
    ubos: Table = field(default_factory=Table)
    uavs: Table = field(default_factory=Table)
    textures: Table = field(default_factory=Table)
    samplers: Table = field(default_factory=Table)
    border_colours: int = 0
    bindless: Sequence[int] = ()
    local_size: int = 0
    private_base: int = 0
    private_size: int = 0
    private_per_wave: bool = False
    private_stride: int = 0
    early_preamble: bool = False
    scalar_unit: bool = False
    predication_nops: bool = False
    immediates: Sequence[int] = ()

    def has_constant(self, word: int) -> bool:
        """Return whether the kernel may read a word of the constant file."""
        if self.shared_constants and SHARED_CONSTANTS <= word < SHARED_CONSTANTS_END:
            return True
        return word < self.constant_limit

    @property
    def generation(self) -> int:
        """Return the GPU's generation, 6 or 7."""
        return self.gpu_id // 100


class Ending(enum.Enum):
    """Reason why a dispatch ended."""

    DONE = "done"
    ILLEGAL_INSTRUCTION = "illegal instruction"  # at `pc`: not an encoding of this GPU
    NOT_IMPLEMENTED = "not implemented"  # at `pc`: ir3 that these processors do not execute
    FETCH_FAULT = "fetch fault"  # instruction page not executable; the memory has latched it
    CODE_END = "end of code"  # execution left the code: SP_CS_INSTRLEN is too short
    BAD_DISPATCH = "bad dispatch"  # registers that cannot launch a wave; `detail` has the reason
    BARRIER = "barrier"  # some lanes of a wave miss a barrier that others reach: a hang
    ABORTED = "aborted"  # `Abort.set` was called


@dataclass(frozen=True)
class Outcome:
    """Result of a dispatch. pc: GPU address of the instruction at fault; word: its encoding; text:
    its disassembly. lane: the lowest active lane. violations: rules that the code breaks and whose
    violation shows as wrong results on a GPU, such as a missing (sy). Each is listed once, whether
    or not the instruction was executed."""

    ending: Ending
    detail: str = ""
    pc: int = 0
    word: int = 0
    text: str = ""
    group: tuple[int, int, int] = (0, 0, 0)
    wave: int = 0
    lane: int = -1
    violations: tuple[str, ...] = ()


class ShaderProcessors(Protocol):
    """All shader processors of a GPU. `launch` blocks until the dispatch ends; one thread calls."""

    def launch(self, dispatch: Dispatch, memory: ShaderMemory, abort: Abort) -> Outcome: ...
    def close(self) -> None: ...
