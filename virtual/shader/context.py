"""The start of every worker context: the part that the shared functions use.

A worker context is memory that Python and the native code of one thread share, at a multiple of 64.
From END on it belongs to the shader core; up to IO if memory is accessed by `virtual.shader.lanes`.
"""

from __future__ import annotations

TLB = 0  # address of the worker's native TLB
REFILL = 8  # address of the refill callback: u64 (u64 address, u32 access)
ABORT = 16  # address of the abort flag (u32)
STOP = 24  # address of the launch's own stop flag (u32): a wave elsewhere cannot continue
SHARED = 32  # address of the memory that the running group shares
SHARED_SIZE = 40  # u64 bytes of it
COUNTER = 48  # address of the launch's next-group counter (u64)
TOTAL = 56  # u64 number of groups
END = 64

# For waves that run one after another, see `virtual.shader.threads.waves`.
GROUPS_X = 96  # u32
GROUPS_Y = 100  # u32
WAVES = 104  # u32 waves in a group
MXCSR = 108  # u32 floating-point control of the host while kernels run
STATES = 136  # address of the first wave state
STATE_STRIDE = 144  # u64 bytes from one wave state to the next
HALT_GROUP = 184  # u64 linear group of the wave that runs, or cannot continue; NO_GROUP: none yet
HALT_WAVE = 192  # u32
SAVED_MXCSR = 196  # u32
RESUME_GROUP = 200  # u64 group to continue with, which cannot have ended; NO_GROUP: none
RESUME_WAITING = 208  # u32 waves of that group that already wait at a barrier
NO_GROUP = 0xFFFF_FFFF_FFFF_FFFF

# For lane memory.
IO = 256  # 24 columns of 32 u32 through which data passes to and from the functions
IO_COLUMN = 128
ROWS = 3328  # 32 rows of 16 bytes: one access of each lane
ADDRESSES = 3840  # 32 u64
SPARE = 4352  # 16 bytes that disabled lanes may read and write
VISITED = 4416  # for some loads, the address of their rows when they last ran: VISITS u64
VISITS = 128
STEPS = VISITED + 8 * VISITS  # address of one byte for each instruction: whether to halt there
STEP = STEPS + 8  # address of the function to call there, see hcq.device.debugging
SIZE = STEP + 8 + 48  # a multiple of 64
