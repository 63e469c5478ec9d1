"""Byte layouts that Python and the generated native code share: worker context and wave state.

Nothing here is the chip's: it is our own interface between launcher, runtime and kernels.
"""

from __future__ import annotations

# Worker context: one a worker thread, 64-byte aligned.
TLB = 0  # address of the worker's native TLB
REFILL = 8  # address of the refill callback: u64 (u64 address, u32 access)
ABORT = 16  # address of the abort flag (u32)
LDS = 24  # address of the workgroup's local memory
LDS_SIZE = 32  # u64 bytes that the dispatch allocated
SCRATCH = 40  # GPU address of this worker's first wave slot of scratch
SCRATCH_WAVE = 48  # u64 bytes of one wave's scratch
WAVE_SCRATCH = 56  # GPU address of the running wave's scratch
SHARED_HIGH = 64  # u64 high half of the shared aperture's base
PRIVATE_HIGH = 72  # u64 high half of the private aperture's base
COUNTER = 80  # address of the dispatch's shared next-workgroup counter (u64)
TOTAL = 88  # u64 number of workgroups
GROUPS_X = 96  # u32
GROUPS_Y = 100  # u32
WAVES = 104  # u32 waves in a workgroup
MXCSR = 108  # u32 floating-point control of the host while kernels run
SGPR_TEMPLATE = 112  # address of 128 u32
VGPR_TEMPLATE = 120  # address of [waves][passes][32] u32, v0 of each wave
EXEC_TEMPLATE = 128  # address of [waves] u64
STATES = 136  # address of the first wave state
STATE_STRIDE = 144  # u64 bytes from one wave state to the next
SLOT_X = 152  # u32 index of the scalar register of the workgroup's x (a dead slot when disabled)
SLOT_Y = 156
SLOT_Z = 160
SLOT_INFO = 164  # u32 index of the scalar register of the workgroup information
CODE_BASE = 168  # GPU address of byte offset 0 of the code
HALT_PC = 176  # u64 byte offset at which a wave halted
HALT_GROUP = 184  # u64 linear workgroup of that wave
HALT_WAVE = 192  # u32
SAVED_MXCSR = 196  # u32
RESUME_GROUP = (
    200  # u64 workgroup to go on with after an indirect jump to unknown code, else all ones
)
RESUME_WAITING = 208  # u32 waves of that group that already wait at a barrier
STOP = 216  # address of the dispatch's own stop flag (u32): a wave elsewhere has halted
ACCESS_PC = 224  # u32 byte offset of the instruction that accesses memory by a runtime function
FIRST_LANE = 232  # u64 lane of the wave that the running pass begins with
WAVE_SHIFT = 240  # u64: a wave has 1 << so many lanes
IO = 256  # 24 columns of 32 u32 through which data passes to and from the runtime functions
IO_COLUMN = 128
ROWS = 3328  # 32 rows of 16 bytes: one access of each lane
ADDRESSES = 3840  # 32 u64
PAGES = 4096  # 32 u64
SPARE = 4352  # 16 bytes that disabled lanes may read and write
VISITED = 4416  # where each of some loads' rows were when it last ran: VISITS u64
VISITS = 128
CONTEXT_SIZE = VISITED + 8 * VISITS

# Wave state: saved at barriers, read at entry.
STATE_SGPR = 0  # 128 u32 (VCC 106, M0 125, EXEC 126)
STATE_DEAD_SLOT = 128  # index behind the registers, for disabled workgroup ids
STATE_SCC = 528  # u32
STATE_RESUME = 532  # u32 resume point of the kernel
STATE_DONE = 536  # u32
STATE_VGPR = 640  # 32 u32 for each register; all registers of the first pass, then of the next
REGISTER = 128  # bytes of a register, of one pass

SGPR_VCC = 106
SGPR_TTMP = 108
SGPR_NULL = 124
SGPR_M0 = 125
SGPR_EXEC = 126

# What a kernel's native function returns.
FINISHED = 0
AT_BARRIER = 1
HALTED = 2  # illegal instruction at HALT_PC
ABORTED = 3
NO_CODE = 4  # instruction fetch at HALT_PC failed
JUMPED = 5  # indirect jump: resume at the byte offset in STATE_RESUME
UNKNOWN_CODE = 6  # indirect jump to code not yet translated, at HALT_PC
SET_HALT = 8  # s_sethalt at HALT_PC
FAR_CODE = 7  # indirect jump to HALT_PC, further away than offsets of code reach


def register_at(number: int, turn: int, count: int) -> int:
    """Return where the wave state has the lanes of one pass of a vector register, of `count`."""
    return STATE_VGPR + REGISTER * (number + turn * count)
