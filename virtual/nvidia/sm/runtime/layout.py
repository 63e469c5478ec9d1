"""Byte layouts shared by Python and the native code: worker context and warp state.

They do not come from the chip. They are the interface between launcher, runtime and kernels.
"""

from __future__ import annotations

from ugpu.virtual.shader import context

LANES = 32

# Worker context: one a worker thread; its beginning is `virtual.shader.context`.
TLB, REFILL, STOP = context.TLB, context.REFILL, context.STOP
ABORT = context.ABORT  # the flag: ABORT_END, or anything else to yield
SHARED, SHARED_SIZE = context.SHARED, context.SHARED_SIZE
COUNTER, TOTAL = context.COUNTER, context.TOTAL
LOCAL_SIZE = context.END  # u64 bytes of a thread's local memory
SHARED_WINDOW = 72  # u64 generic address of shared memory
LOCAL_WINDOW = 80  # u64 generic address of local memory
GRID_X = 88  # u32 and so on: y 92, z 96
GRID_Y = 92
GRID_Z = 96
BLOCK_X = 100
BLOCK_Y = 104
BLOCK_Z = 108
WARPS = 112  # u32 warps of a group
THREADS = 116  # u32 threads of a group
GROUP_X = 120  # u32 of the running group
GROUP_Y = 124
GROUP_Z = 128
DYNAMIC_SIZE = 132  # u32 bytes of dynamic shared memory
GROUP = 136  # u64 linear number of the running group
PARAMETERS = 144  # address of the parameters
STATES = 152  # address of the first warp state
STATE_STRIDE = 160  # u64
LOCALS = 168  # address of local memory: [warp][lane][local size]
IDS = 176  # address of [warp][3][32] u32: tid
MASKS = 184  # address of [warp] u32: lanes that exist
FAULT_CODE = 192  # u32 set by functions that found a fault
FAULT_LANES = 196  # u32
FAULT_INDEX = 200  # u32 index of the instruction
FAULT_WARP = 204  # u32
SM = 208  # u32 number of the multiprocessor: the worker
SM_COUNT = 212  # u32
SHARED_TOTAL = 216  # u32 bytes of shared memory, static and dynamic
WARP = 220  # u32 running warp
FAULT_ADDRESS = 224  # u64
TIMER = 232  # address of the callback that returns the time: u64 (u32), after one of TIMER_*
FLIGHT = 240  # address of the area of `async_layout`; 0 if the kernel does not use it
VARIABLES = 248  # address of [variable] u64: addresses of variables of .global and .const
HOOKS = 256  # addresses of functions that the launcher calls for kernels with an area in FLIGHT
HOOKED = ("flights_begin", "flights_end", "products_missing", "products_run")
# Each group of a cluster has a context. They are consecutive, that of rank 0 first.
CLUSTER_X = 288  # u32 groups of a cluster, and so on: y 292, z 296
CLUSTER_Y = 292
CLUSTER_Z = 296
RANK_X = 300  # u32 the group's place in its cluster: y 304, z 308
RANK_Y = 304
RANK_Z = 308
CLUSTER_ID_X = 312  # u32 the cluster's place in the grid: y 316, z 320
CLUSTER_ID_Y = 316
CLUSTER_ID_Z = 320
CLUSTERS_X = 324  # u32 clusters of the grid: y 328, z 332
CLUSTERS_Y = 328
CLUSTERS_Z = 332
RANK = 336  # u32
CLUSTER_SIZE = 340  # u32 groups of a cluster
EXPLICIT = 344  # u32: whether the launch states the size of clusters
BUDGET = 348  # u32 turns of waiting loops after which a warp lets others run
FIRST = 352  # address of the context of rank 0
CLUSTER_SHARED = 360  # address of the shared memory of rank 0
CLUSTER_STRIDE = 368  # u64 from one group's shared memory to the next
GROUPS_ENDED = 376  # u32 groups that have ended, by rank; of the context of rank 0
GROUPS_BEGUN = 380  # u32 groups that have begun, by rank; of the context of rank 0
# A worker has slots for clusters that run side by side, see `residents`.
BUSY = 384  # u32: a cluster has begun here and not ended; of the context of rank 0
MOVED = 388  # u32: in its last turn a warp ended or reached a barrier; of the context of rank 0
NEXT_SLOT = 392  # address of the next slot's context of rank 0; 0: none yet
RESIDENT = 400  # address of the number of clusters that run at the same time, of all workers (u64)
MOST_RESIDENT = 408  # u64 the most of them that the chip holds
RUNNING = 416  # address of the running group's context; of the worker's first context
WORKER = 424  # address of the worker's first context
ENVIRONMENT = 432  # address of %envreg0 to 31: u32 each
SPARE = 448  # 64 bytes that disabled lanes may read and write
IO = 512  # 32 columns of 32 u64 by which data passes to and from functions
IO_COLUMN = 256
ROWS = IO + 32 * IO_COLUMN  # 32 rows of 32 bytes: one access of each lane
BARRIERS = ROWS + 1024  # of a group: u32 arrived threads, u32 result of a reduction, each
NAMED = 16  # barriers that programs can name; after them one for each warp group
BARRIER_COUNT = 24
OF_CLUSTER = 24  # the number of the cluster's barrier, which is not the group's
CLUSTER_ARRIVALS = BARRIERS + 8 * BARRIER_COUNT  # u32: whether threads have arrived; of rank 0
VIOLATION_CODE = CLUSTER_ARRIVALS + 4  # u32: tolerated by boards; set before TIMER_VIOLATION
VIOLATION_ADDRESS = CLUSTER_ARRIVALS + 8  # u64
STEPS = CLUSTER_ARRIVALS + 16  # address of one byte for each instruction: whether to halt there
STEP = STEPS + 8  # address of the function to call then, see virtual.shader.stepping
CONTEXT_SIZE = CLUSTER_ARRIVALS + 64

ABORT_END = 0xFF  # bits of the abort flag that end the grid
TIMER_PAUSE = 1  # sleep a little
TIMER_ASIDE = 2  # wait while the grid must yield
TIMER_SLOT = 3  # create a slot, return the address of its first context; 0: no memory
TIMER_REST = 4  # let other threads run
TIMER_VIOLATION = 5  # count the violation in the running context, at instruction FAULT_INDEX
BUDGET_WHOLE, BUDGET_LEAST = 2048, 64

# Warp state.
STATE_RESUME = 0  # u32 block at which to resume, 0 at the beginning
STATE_DONE = 4  # u32
STATE_BARRIER = 8  # u32 barrier waited for
STATE_EXPECTED = 12  # u32 threads that the barrier waits for; 0: all
STATE_WAITING = 16  # u32: waits at a barrier
STATE_ACTIVE = 20  # u32 lanes that continue
STATE_NEXT = 24  # u32 lowest block where others wait
STATE_NUMBER = 28  # u32 number of the warp
STATE_PRODUCTS = 32  # u64: number of the last wgmma.mma_async that the warp has waited for
STATE_CLUSTER_ARRIVED = 40  # u32 lanes that have arrived in this phase of the cluster's barrier
STATE_CLUSTER_PASS = 44  # u32 lanes whose phase is over but that have not waited for it yet
STATE_CLUSTER_WAITS = 48  # u32 lanes that wait for this phase
STATE_REDUCED = 52  # u32: the result of bar.red
STATE_PLACES = 64  # 32 u32: where each lane is
STATE_SLOTS = 192  # saved registers

# Places of lanes: a block, or one of these values plus a block.
AT_GATHER = 0x2000_0000  # waits for the lanes of its mask
AT_BARRIER_PLACE = 0x4000_0000
ENDED = 0x7FFF_FFFF

# What a kernel returns.
FINISHED = 0
AT_BARRIER = 1
YIELDED = 2
ABORTED = 3
FAULTED = 4
WAITING = 5  # of the launcher: all warps of the group wait in loops

# FAULT_CODE, or VIOLATION_CODE.
NO_FAULT = 0
BAD_ADDRESS = 1
MISALIGNED = 2
TRAPPED = 3
MMU = 4
BREAKPOINT = 5
NOT_TOGETHER = 6  # lanes of a mask can never execute an instruction together
FAILED = 7  # our own code raised an exception
NO_PROXY_FENCE = 8  # the asynchronous proxy accesses data that the generic proxy wrote
NO_MBARRIER = 9  # there is no mbarrier object
BAD_COUNT = 10  # of threads or bytes; FAULT_ADDRESS holds the count
NO_REGISTER_FENCE = 11  # of a wgmma; FAULT_ADDRESS holds how the registers were accessed
IN_FLIGHT = 12  # registers of a wgmma accessed before it was waited for
WARP_GROUP = 13  # the four warps of a warp group do not execute the same
BAD_DESCRIPTOR = 14  # FAULT_ADDRESS holds it
BAD_RANK = 15  # shared memory of a rank that the cluster does not have
GROUP_ENDED = 16  # shared memory of a group that has ended
GROUP_NOT_BEGUN = 17  # shared memory of a group that has not begun
ARRIVED_TWICE = 18  # at the cluster's barrier, without waiting in between
NOT_ARRIVED = 19  # waits at the cluster's barrier without having arrived
STACK_FULL = 21  # of a thread
NOT_ONE_GROUP = 20  # data and mbarrier object are not where they must be

# Addresses of the shared memory of a cluster: below this the group's own, then that of each rank.
# Generic addresses have the same layout from the shared window on.
CLUSTER_SHIFT = 24
GENERIC_WINDOW_SIZE = 1 << CLUSTER_SHIFT
# Addresses outside of all page tables, where the model places a module's own variables.
MODULE_WINDOW = 1 << 62
