"""Byte layout of what a group has in flight: asynchronous copies and products.

There is one area a worker; nothing of it is the chip's. Queues are rings; where one is full, its
oldest entry is carried out early, which asynchronous operations may always be.
"""

from __future__ import annotations

# One byte for each 16 bytes of shared memory: 0, or written by the generic proxy without a proxy
# fence: the number of the writing warp + 1, or PUBLISHED once that warp has synchronised.
MARKS = 0
MARK_SHIFT = 4
MARKS_SIZE = 1 << 14
PUBLISHED = 0xFF

# Copies in bulk of the group, in the order in which they were issued.
BULK_HEAD = MARKS + MARKS_SIZE  # u64: number of the oldest entry
BULK_TAIL = BULK_HEAD + 8  # u64: number of the next entry
BULK = BULK_HEAD + 64
BULK_ENTRIES = 512
BULK_SIZE = 64
BULK_KIND = 0  # u64, see below
BULK_GLOBAL = 8  # u64 address
BULK_SHARED = 16  # u64 host address
BULK_BYTES = 24  # u64
BULK_BARRIER = 32  # u64 host address of its mbarrier object
BULK_OWNER = 40  # u64: 32 * warp + lane that issued it
BULK_GROUP = 48  # u64: number of its bulk group
DONE, LOAD, STORE, MOVE = range(4)  # MOVE: from shared memory to shared memory

# Of each warp: copies of lanes, and what is counted for them.
WARP = BULK + BULK_ENTRIES * BULK_SIZE
COPY_GROUP = 0  # 32 u32: groups of cp.async that each lane has committed
BULK_COMMITTED = 128  # 32 u32: bulk groups that each lane has committed
COPY_HEAD = 256  # u64
COPY_TAIL = 264  # u64
WARP_HEADER = 320
COPIES = WARP_HEADER
COPY_ENTRIES = 64
COPY_SIZE = 1024
COPY_LANES = 0  # u32: lanes whose copy is still to come
COPY_BYTES = 4  # u32; 0: arrive at the mbarrier objects instead
COPY_NUMBERS = 64  # 32 u32: the group that each lane's copy belongs to
COPY_HOSTS = 192  # 32 u64: where to write
COPY_DATA = 448  # 2 columns of 32 u64
WARP_STRIDE = WARP_HEADER + COPY_ENTRIES * COPY_SIZE
WARPS = 32

SIZE = WARP + WARPS * WARP_STRIDE
