"""Byte layouts shared by Python and the generated native code: worker context and wave state.

None of them is defined by the GPU: they are our own interface between launcher, runtime and
kernels.
"""

from __future__ import annotations

from ugpu.virtual.adreno.shader import MOST_CONSTANTS
from ugpu.virtual.shader import context

# Worker context: one per worker thread; its beginning is `virtual.shader.context`.
CONSTANTS = context.END  # address of this worker's constant file
IDS = 72  # address of [waves][4][lanes] u32: x, y, z and linear number of each thread
EXECS = 80  # address of [waves] masks of 16 bytes
HALT_AT = 88  # u64 index of the instruction at which a wave cannot continue
HALT_LANES = 112  # u64 twice: its active lanes
ACCESS = 128  # u32 index of the instruction that accesses memory
RUNNING = 152  # address of the running wave's state
PRIVATE = 160  # GPU address of this worker's private memory
TABLES = 168  # address of the launch's tables, see below
PREAMBLE = 216  # u32: the preamble has run here
GROUP = 220  # u32 three times: where the running group is

PRIVATE_SIZE = 232  # u32 bytes of a thread

ACCESSED = context.SIZE  # u32 of 128 lanes: low halves of what ACCESS accesses, then high ones
ACCESSING = ACCESSED + 8 * 128  # mask of the lanes that do, 16 bytes
ACCESSED_BASE = ACCESSING + 16  # u64 that is added to them
TEXTURE = ACCESSED_BASE + 8  # GPU addresses of the descriptors that an image instruction uses
SAMPLER = TEXTURE + 8
IMAGES = SAMPLER + 8  # address of the callback that executes it: void(u32 instruction)
IMAGE_COLUMN = 4 * 128  # bytes from one operand to the next
IMAGE_IN = ACCESSING + 64  # operands of all lanes, u32
IMAGE_OUT = IMAGE_IN + 12 * IMAGE_COLUMN
SIZE = IMAGE_OUT + 4 * IMAGE_COLUMN

# Tables of a launch: (base, count) u64 pairs.
UBOS, UAVS, TEXTURES, SAMPLERS, BINDLESS = 0, 16, 32, 48, 64
TABLES_SIZE = BINDLESS + 8 * 8
BORDERS = TABLES_SIZE  # u64 base of the border colours
TABLES_BYTES = 256

# Wave state: made by the launcher, saved at barriers.
RESUME = 0  # u32
DONE = 4  # u32
GROUP_X, GROUP_Y, GROUP_Z, NUMBER = 8, 12, 16, 20  # u32
EXEC = 32  # 16 bytes
PREDICATED = 48  # 16 bytes
PREDICATES = 64  # 4 masks of 16 bytes
A1 = 128  # u32
SHARED = 192  # 32 u32, from r48.x on
A0 = 384  # u16 of each lane
REGISTERS = 640  # u32 of each lane of r0.x, and so on

# Contents of registers before they are written, and of constants beyond CONSTLEN.
UNDEFINED = 0xBAD0BAD1
CONSTANT_WORDS = MOST_CONSTANTS
IMMEDIATES = CONSTANT_WORDS + 16  # HLSQ_SHARED_CONSTS_IMM, behind the constants and a sink
IMMEDIATE_WORDS = 64

# Return values of a kernel's native function, in addition to those of
# `virtual.shader.threads.waves`.
ILLEGAL = 2
NO_CODE = 4
NOT_IMPLEMENTED = 6
CODE_END = 7
MISSED_BARRIER = 8


def register_at(number: int, lanes: int) -> int:
    """Return the offset of a register in a wave state."""
    return REGISTERS + 4 * lanes * number


def state_size(registers: int, lanes: int) -> int:
    """Return the bytes of a wave state with `registers` registers."""
    return register_at(registers, lanes)
