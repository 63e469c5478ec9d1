"""One worker thread's native state: its context, TLBs, shared and local memory, warp states."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hcq.emu.memory import (
    DELTA,
    INVALID_TAG,
    PAGE_SHIFT,
    READ_TAG,
    WRITE_TAG,
    Abort,
    Access,
    LaneMemory,
    tlb_set,
)
from nv.virtual.sm.runtime import async_layout, layout
from nv.virtual.sm.runtime.grid import Grid
from nv.virtual.sm_contract import Attention

_REFILL = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
_TIMER = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32)
_PAGE = 1 << PAGE_SHIFT
_WINDOW_PAGE = layout.MODULE_WINDOW >> PAGE_SHIFT
_KEPT_SPACES = 16  # address spaces whose TLB a worker keeps
_PAUSE_S = 0.001  # between looks at the abort flag when all warps wait for ever
_GUARD = 64  # bytes behind shared and local memory that vector accesses may touch
_NOWHERE = (0,) * 6  # a group's place in its cluster, its cluster's in the grid
_FLIGHT = -(-async_layout.SIZE // 64) * 64  # of a group


def aligned(size: int, at: int = 64) -> NDArray[np.uint8]:
    """Allocate zeroed bytes at a multiple of `at`."""
    raw = np.zeros(size + at, np.uint8)
    start = -raw.ctypes.data % at
    return raw[start : start + size]


class _Room:
    """Zeroed bytes that grow, at a multiple of 64, and their address."""

    def __init__(self) -> None:
        self.content = aligned(0)
        self.address = 0

    def need(self, size: int) -> bool:
        """Have at least so many bytes; return whether that took new ones."""
        if len(self.content) >= size:
            return False
        self.content = aligned(size)
        self.address = int(self.content.ctypes.data)
        return True


class Run:
    """What all workers of one grid share.

    counter: the next group to begin. stop: set when a warp has failed, so that the others end.
    image: the module window's bytes. parameters: the entry's. hooks: of asynchronous kernels, see
    `library`. variables: their addresses, as numbered.
    """

    def __init__(
        self, grid: Grid, memory: LaneMemory, abort: Abort, image: NDArray[np.uint8],
        parameters: NDArray[np.uint8], state_size: int, hooks: Sequence[int] = (),
        variables: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.grid = grid
        self.memory = memory
        self.abort = abort
        self.image = image
        self.parameters = parameters
        self.state_size = state_size
        self.hooks = hooks
        self.variables = np.array([*variables, 0], np.uint64)
        self.counter = np.zeros(1, np.uint64)
        self.stop = np.zeros(1, np.uint32)


class Worker:
    """What the native code of one thread works on. Used by one thread at a time."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._contexts = _Room()
        self._shared = _Room()
        self._locals = _Room()
        self._states = _Room()
        self._flight = _Room()
        self._sink = aligned(2 * _PAGE, _PAGE)
        self._tlbs: list[tuple[LaneMemory, NDArray[np.uint64]]] = []
        self._window: NDArray[np.uint8] | None = None  # whose pages the TLBs may hold
        self._run: Run | None = None  # also keeps alive what the context points to
        self._tlb: NDArray[np.uint64] | None = None
        self._refill = _REFILL(self._on_miss)
        self._timer = _TIMER(self._on_time)
        self._grow_contexts(1)
        self.error: BaseException | None = None
        self.access = Access.READ  # of the last MMU fault

    @property
    def context(self) -> int:
        """The address of the first context."""
        return self._contexts.address

    def _put(self, form: str, offset: int, *values: int) -> None:
        struct.pack_into(f"<{len(values)}{form}", self._content, offset, *values)

    @property
    def _current(self) -> int:
        """Where the running group's context begins."""
        (rank,) = struct.unpack_from("<I", self._content, layout.CURRENT)
        return int(rank) * layout.CONTEXT_SIZE

    def word(self, offset: int) -> int:
        """Read a 32-bit field of the running group's context."""
        return int(struct.unpack_from("<I", self._content, self._current + offset)[0])

    def quad(self, offset: int) -> int:
        """Read a 64-bit field of the running group's context."""
        return int(struct.unpack_from("<Q", self._content, self._current + offset)[0])

    # -- called from native code; an exception must not pass through it --------------------------

    def _on_miss(self, address: int, access: int) -> int:
        try:
            return self._translate(address, Access(access))
        except Exception as error:  # raised again by the thread that started the grid
            self.error = error
            self._fault(layout.FAILED, address)
            return int(self._sink.ctypes.data) + address % _PAGE

    def _translate(self, address: int, access: Access) -> int:
        assert self._run is not None and self._tlb is not None
        row = self._tlb[tlb_set(address >> PAGE_SHIFT)]
        offset = address - layout.MODULE_WINDOW
        image = self._run.image
        if 0 <= offset < len(image):
            page = address >> PAGE_SHIFT
            host = int(image.ctypes.data) + offset
            row[READ_TAG] = row[WRITE_TAG] = INVALID_TAG
            row[DELTA] = (host - address) % 2**64
            row[READ_TAG] = row[WRITE_TAG] = page
            return host
        host = self._run.memory.refill(self._tlb, address, access)
        # After a fault nothing is cached, and the answer is a place that no row points to.
        if int(row[DELTA]) != (host - address) % 2**64:
            self.access = access
            self._fault(layout.MMU, address)
        return host

    def _fault(self, code: int, address: int) -> None:
        if not self.word(layout.FAULT_CODE):
            at = self._current
            self._put("I", at + layout.FAULT_CODE, code)
            self._put("I", at + layout.FAULT_LANES, 0)
            self._put("Q", at + layout.FAULT_ADDRESS, address)

    def _on_time(self, what: int) -> int:
        if what == layout.TIMER_PAUSE:
            time.sleep(_PAUSE_S)
        elif what == layout.TIMER_ASIDE:
            assert self._run is not None
            abort = self._run.abort
            if isinstance(abort, Attention):
                abort.wait_aside()
        return time.monotonic_ns()

    # -- launching -------------------------------------------------------------------------------

    def _tlb_for(self, run: Run) -> NDArray[np.uint64]:
        if self._window is not run.image:
            for _, tlb in self._tlbs:
                old = (tlb[:, READ_TAG] >= _WINDOW_PAGE) & (tlb[:, READ_TAG] != INVALID_TAG)
                tlb[old, READ_TAG] = INVALID_TAG
                tlb[old, WRITE_TAG] = INVALID_TAG
            self._window = run.image
        for known, tlb in self._tlbs:
            if known is run.memory:
                return tlb
        tlb = run.memory.new_tlb()
        self._tlbs = [*self._tlbs[1 - _KEPT_SPACES :], (run.memory, tlb)]
        return tlb

    def prepare(self, run: Run) -> None:
        """Fill the context for a grid."""
        grid = run.grid
        self.error = None
        self._run = run
        self._tlb = tlb = self._tlb_for(run)
        x, y, z = grid.cluster
        groups = x * y * z
        self._grow(groups, grid, run)
        put = self._put
        put("Q", layout.TLB, tlb.ctypes.data)
        put("Q", layout.ABORT, run.abort.flag.ctypes.data)
        put("Q", layout.STOP, run.stop.ctypes.data)
        put("Q", layout.SHARED_SIZE, grid.shared_size)
        put("Q", layout.LOCAL_SIZE, grid.local_size)
        put("Q", layout.SHARED_WINDOW, grid.launch.shared_window)
        put("Q", layout.LOCAL_WINDOW, grid.launch.local_window)
        put("Q", layout.COUNTER, run.counter.ctypes.data)
        put("Q", layout.TOTAL, grid.groups)
        put("I", layout.GRID_X, *grid.launch.grid)
        put("I", layout.BLOCK_X, *grid.launch.block)
        put("I", layout.WARPS, grid.warps)
        put("I", layout.THREADS, grid.threads)
        put("I", layout.DYNAMIC_SIZE, grid.dynamic_size)
        put("I", layout.SHARED_TOTAL, grid.shared_size)
        put("Q", layout.PARAMETERS, run.parameters.ctypes.data)
        put("Q", layout.STATE_STRIDE, run.state_size)
        put("Q", layout.IDS, grid.ids.ctypes.data)
        put("Q", layout.MASKS, grid.masks.ctypes.data)
        put("Q", layout.HOOKS, *run.hooks)
        put("Q", layout.VARIABLES, run.variables.ctypes.data)
        put("I", layout.FAULT_CODE, layout.NO_FAULT)
        put("I", layout.SM_COUNT, grid.launch.sm_count)
        # The sizes and places of CLUSTER_X and behind, those of the group and its cluster not yet.
        put("I", layout.CLUSTER_X, x, y, z, *_NOWHERE, *grid.clusters, 0, groups,
            grid.launch.cluster is not None, 0)  # fmt: skip
        put("Q", layout.FIRST, self.context, self._shared.address, _stride(grid.shared_size))
        put("I", layout.GROUPS_ENDED, 0, 1)
        for rank in range(groups):
            self._place(rank, groups, run)

    def _grow_contexts(self, groups: int) -> None:
        if self._contexts.need(groups * layout.CONTEXT_SIZE):
            self._content = self._contexts.content.data
            for offset, function in ((layout.REFILL, self._refill), (layout.TIMER, self._timer)):
                self._put("Q", offset, ctypes.cast(function, ctypes.c_void_p).value or 0)

    def _grow(self, groups: int, grid: Grid, run: Run) -> None:
        """Have memory for so many groups at a time."""
        self._grow_contexts(groups)
        self._shared.need(groups * _stride(grid.shared_size))
        self._locals.need(groups * grid.local_size * layout.LANES * grid.warps + _GUARD)
        self._states.need(groups * run.state_size * grid.warps)
        if run.hooks:
            self._flight.need(groups * _FLIGHT)

    def _place(self, rank: int, groups: int, run: Run) -> None:
        """Give the group of a rank its own memory, in a context that is like the first."""
        grid, at, put = run.grid, rank * layout.CONTEXT_SIZE, self._put
        if rank:
            self._content[at : at + layout.SPARE] = self._content[: layout.SPARE]
            put("I", at + layout.RANK, rank)
        local = grid.local_size * layout.LANES * grid.warps
        put("Q", at + layout.SHARED, self._shared.address + rank * _stride(grid.shared_size))
        put("Q", at + layout.LOCALS, self._locals.address + rank * local)
        put("Q", at + layout.STATES, self._states.address + rank * run.state_size * grid.warps)
        put("Q", at + layout.FLIGHT, self._flight.address + rank * _FLIGHT if run.hooks else 0)
        put("I", at + layout.SM, (self._number * groups + rank) % max(grid.launch.sm_count, 1))


def _stride(shared_size: int) -> int:
    """Return the bytes from one group's shared memory to the next."""
    return -(-(shared_size + _GUARD) // _GUARD) * _GUARD
