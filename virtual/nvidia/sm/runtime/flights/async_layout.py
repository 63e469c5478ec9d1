"""Byte layout of a group's operations in flight: asynchronous copies and products.

There is one area a worker; the layout is the model's own, not the chip's. Queues are rings. If one
is full, its oldest entry is carried out early, which is always valid for asynchronous operations.
"""

from __future__ import annotations

# One byte for each 16 bytes of shared memory: 0, or, if the generic proxy wrote them without a
# proxy fence, the number of the writing warp + 1, or PUBLISHED once that warp has synchronised.
MARKS = 0
MARK_SHIFT = 4
MARKS_SIZE = 1 << 14
PUBLISHED = 0xFF

# Bulk copies of the group, in order of issue.
BULK_HEAD = MARKS + MARKS_SIZE  # u64: number of the oldest entry
BULK_TAIL = BULK_HEAD + 8  # u64: number of the next entry
BULK = BULK_HEAD + 64
BULK_ENTRIES = 512
BULK_SIZE = 64
BULK_KIND = 0  # u64, see below
BULK_GLOBAL = 8  # u64 address; source host address of a MOVE; the first 8 bytes of WORDS
BULK_SHARED = 16  # u64 host address
BULK_BYTES = 24  # u64
BULK_BARRIER = 32  # u64 host address of its mbarrier object, whose group has the entry; 0: none
BULK_OWNER = 40  # u64: 32 * warp + lane that issued it
BULK_GROUP = 48  # u64: number of its bulk group
BULK_EXTRA = 56  # u64: how to combine, see `combined`, or 0; the other 8 bytes of WORDS
# MOVE: from shared memory to shared memory; WORDS: from registers; WORD: the same, combined.
DONE, LOAD, STORE, MOVE, WORDS, WORD = range(6)


def combined(operation: int, size: int) -> int:
    """Return how to combine elements of `size` bytes with those in memory, as a number among the
    operations of `atomics`."""
    return (size << 8) | operation


# Of each warp: copies of lanes, and their counters.
WARP = BULK + BULK_ENTRIES * BULK_SIZE
COPY_GROUP = 0  # 32 u32: groups of cp.async that each lane has committed
BULK_COMMITTED = 128  # 32 u32: bulk groups that each lane has committed
COPY_HEAD = 256  # u64
COPY_TAIL = 264  # u64
PRODUCTS_ISSUED = 272  # u64: wgmma.mma_async that the warp has executed
PRODUCTS_WANTED = 280  # u64: number of the last one that its wait_group waits for
PRODUCT_GROUPS = 288  # u64: wgmma groups that it has committed
GROUP_ENDS = 320  # 64 u64: products issued at each of the newest commits
GROUP_ENTRIES = 64
WARP_HEADER = 832
COPIES = WARP_HEADER
COPY_ENTRIES = 64
COPY_SIZE = 1024
COPY_LANES = 0  # u32: lanes whose copy has not arrived yet
COPY_BYTES = 4  # u32; 0: arrive at the mbarrier objects instead
COPY_NUMBERS = 64  # 32 u32: the group that each lane's copy belongs to
COPY_HOSTS = 192  # 32 u64: where to write
COPY_DATA = 448  # 2 columns of 32 u64
WARP_STRIDE = WARP_HEADER + COPY_ENTRIES * COPY_SIZE
WARPS = 32

# Of each warp group: its products, in a ring by their number, from 1.
GROUPS = WARP + WARPS * WARP_STRIDE
NEWEST = 0  # u64
FINISHED = 8  # u64
GROUP_HEADER = 64
PRODUCTS = GROUP_HEADER
PRODUCT_ENTRIES = 256
PRODUCT_SIZE = 32  # u64 each: its description, descriptors of A and B, whether it is added to D
GROUP_STRIDE = GROUP_HEADER + PRODUCT_ENTRIES * PRODUCT_SIZE
WARP_GROUPS = 8

# Factors and sums of a product during its computation, numbers of 4 bytes.
ROW = 272  # numbers from one row of B and C to the next
FACTOR_A = GROUPS + WARP_GROUPS * GROUP_STRIDE
FACTOR_B = FACTOR_A + 64 * 32 * 4
TURNED = FACTOR_B + 32 * ROW * 4
SUMS = TURNED + 256 * 32 * 4
SIZE = SUMS + 64 * ROW * 4

# The description of a wgmma instruction, u64 each, a constant of its kernel.
(KIND_A, KIND_B, COLUMNS, A_HELD, TURN_A, TURN_B, NEGATED, RESULT, D_PLACES, A_PLACES, D_TABLE,
 A_TABLE, INDEX) = range(0, 104, 8)  # fmt: skip
KINDS = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8")
RESULTS = ("f32", "f16", "s32")
NO_TABLE = (1 << 64) - 1
# Tables of held registers in a warp's state: the last product that uses the table, and how the
# program has accessed it since the last wgmma.fence: 0 not at all, 1 there was no fence, 2 + index
# of the instruction.
TABLE_SIZE = 16
