"""One worker thread's native state: its context, TLBs, shared and local memory, warp states."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.launch.grid import Grid
from ugpu.virtual.nvidia.sm.runtime.launch.slots import Slot
from ugpu.virtual.nvidia.sm_contract import Attention, GridSpace
from ugpu.virtual.shader.memory import (
    DELTA,
    INVALID_TAG,
    PAGE_SHIFT,
    READ_TAG,
    WRITE_TAG,
    Abort,
    Access,
    place_of,
    tlb_set,
)
from ugpu.virtual.shader.threads import worker as threads

_TIMER = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32)
_WINDOW_PAGE = layout.MODULE_WINDOW >> PAGE_SHIFT
_REST_S = 50e-6  # sleep if all groups wait in loops for groups of other workers or for the clock
_PAUSE_S = 0.001  # between polls of the abort flag if all warps wait forever
_NOWHERE = (0,) * 6  # a group's place in its cluster, its cluster's in the grid
_NO_ENVIRONMENT = np.zeros(32, np.uint32)
_KEPT_BYTES = 64 << 20  # of slots other than the first, kept from one launch to the next


class Run(threads.Run[GridSpace]):
    """State shared by all workers of one grid.

    counters: the second is the number of clusters that are running. image: the module window's
    bytes. parameters: the entry's. hooks: of asynchronous kernels, see `library`. variables: their
    addresses, as numbered.
    violations: by code and instruction: how often each occurred, and the address of the first.
    """

    def __init__(
        self, grid: Grid, memory: GridSpace, abort: Abort, image: NDArray[np.uint8],
        parameters: NDArray[np.uint8], state_size: int, hooks: Sequence[int] = (),
        variables: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(memory, abort)
        self.grid = grid
        self.image = image
        self.parameters = parameters
        self.state_size = state_size
        self.hooks = hooks
        self.variables = np.array([*variables, 0], np.uint64)
        self.environment = _NO_ENVIRONMENT
        if grid.launch.environment:
            self.environment = np.array(grid.launch.environment, np.uint32)
        self.violations: dict[tuple[int, int], list[int]] = {}
        self.lock = threading.Lock()
        self.steps = 0, 0  # under a debugger: its table and its function


class Worker(threads.NativeWorker):
    """State of the native code of one thread. Used by one thread at a time."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._slots = [Slot()]
        self._used = 0  # slots used in this launch
        self._workers = 1
        self._window: NDArray[np.uint8] | None = None  # module window that the TLBs may hold
        self._run: Run | None = None  # also keeps memory alive to which the context points
        self._tlb: NDArray[np.uint64] | None = None
        self._timer = _TIMER(self._on_time)
        self._grow_contexts(1)
        self.access = Access.READ  # of the last MMU fault

    @property
    def context(self) -> int:
        """Address of the first context."""
        return self._slots[0].context

    def _put(self, form: str, offset: int, *values: int) -> None:
        self._slots[0].put(form, offset, *values)

    @property
    def _running(self) -> int:
        """Address of the running group's context."""
        (address,) = struct.unpack_from("<Q", self._slots[0].content, layout.RUNNING)
        return int(address)

    def word(self, offset: int) -> int:
        """Read a 32-bit field of the running group's context."""
        return ctypes.c_uint32.from_address(self._running + offset).value

    def quad(self, offset: int) -> int:
        """Read a 64-bit field of the running group's context."""
        return ctypes.c_uint64.from_address(self._running + offset).value

    # -- called from native code; an exception must not pass through it --------------------------

    def failed(self, address: int) -> None:
        """End the grid; `error` contains the reason."""
        self._fault(layout.FAILED, address)

    def translate(self, address: int, access: Access) -> int:
        """Return the host address of an address that is not in the TLB."""
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
        # After a fault nothing is cached, and the returned address is not in the TLB row.
        if int(row[DELTA]) != (host - address) % 2**64:
            self.access = access
            self._fault(layout.MMU, address)
        return host

    def _fault(self, code: int, address: int) -> None:
        if not self.word(layout.FAULT_CODE):
            at = self._running
            ctypes.c_uint32.from_address(at + layout.FAULT_CODE).value = code
            ctypes.c_uint32.from_address(at + layout.FAULT_LANES).value = 0
            ctypes.c_uint64.from_address(at + layout.FAULT_ADDRESS).value = address

    def _on_time(self, what: int) -> int:
        if what == layout.TIMER_SLOT:
            return self._another()
        if what == layout.TIMER_VIOLATION:
            self._on_violation()
        elif what == layout.TIMER_REST:
            time.sleep(_REST_S)
        elif what == layout.TIMER_PAUSE:
            time.sleep(_PAUSE_S)
        elif what == layout.TIMER_ASIDE:
            assert self._run is not None
            abort = self._run.abort
            if isinstance(abort, Attention):
                abort.wait_aside()
        return time.monotonic_ns()

    def _on_violation(self) -> None:
        assert self._run is not None
        mark = self.word(layout.VIOLATION_CODE), self.word(layout.FAULT_INDEX)
        with self._run.lock:
            seen = self._run.violations.setdefault(mark, [0, self.quad(layout.VIOLATION_ADDRESS)])
            seen[0] += 1

    # -- launching -------------------------------------------------------------------------------

    def _tlb_of(self, run: Run) -> NDArray[np.uint64]:
        if self._window is not run.image:
            for _, tlb in self.tlbs:
                old = (tlb[:, READ_TAG] >= _WINDOW_PAGE) & (tlb[:, READ_TAG] != INVALID_TAG)
                tlb[old, READ_TAG] = INVALID_TAG
                tlb[old, WRITE_TAG] = INVALID_TAG
            self._window = run.image
        return self.tlb_for(run.memory)

    def prepare(self, run: Run, workers: int) -> None:
        """Fill the context for a grid that `workers` workers run."""
        grid = run.grid
        self.error = None
        self._run = run
        self._tlb = tlb = self._tlb_of(run)
        x, y, z = grid.cluster
        groups = x * y * z
        self._workers = workers
        self._drop_slots()
        self._grow_contexts(groups)
        self._slots[0].grow(groups, grid, run.state_size, bool(run.hooks))
        put = self._slots[0].put
        put("Q", layout.TLB, place_of(tlb))
        launch, counters = grid.launch, place_of(run.counters)
        put("Q", layout.ABORT, place_of(run.abort.flag), place_of(run.stop))
        put("Q", layout.SHARED_SIZE, grid.shared_size, counters, grid.groups)
        put("Q", layout.LOCAL_SIZE, grid.local_size, launch.shared_window, launch.local_window)
        put("I", layout.GRID_X, *launch.grid, *launch.block, grid.warps, grid.threads)
        put("I", layout.DYNAMIC_SIZE, grid.dynamic_size)
        put("I", layout.SHARED_TOTAL, grid.shared_size)
        put("Q", layout.PARAMETERS, place_of(run.parameters))
        put("Q", layout.STATE_STRIDE, run.state_size)
        put("Q", layout.IDS, place_of(grid.ids), place_of(grid.masks))
        if run.hooks:
            put("Q", layout.HOOKS, *run.hooks)
        put("Q", layout.VARIABLES, place_of(run.variables))
        put("I", layout.FAULT_CODE, layout.NO_FAULT)
        put("I", layout.SM_COUNT, launch.sm_count)
        # From CLUSTER_X on: sizes and places. Those of a group and its cluster are not known yet.
        put("I", layout.CLUSTER_X, x, y, z, *_NOWHERE, *grid.clusters, 0, groups,
            launch.cluster is not None)  # fmt: skip
        put("I", layout.GROUPS_ENDED, 0, 1)
        put("Q", layout.RESIDENT, counters + 8, grid.resident, self.context, self.context,
            place_of(run.environment))  # fmt: skip
        if run.steps[0]:  # other code does not read them
            put("Q", layout.STEPS, *run.steps)
        self._used = 0
        self._furnish(self._slots[0])

    def _grow_contexts(self, groups: int) -> None:
        if self._slots[0].grow(groups):
            self._put("Q", layout.REFILL, self.refill)
            self._put("Q", layout.TIMER, ctypes.cast(self._timer, ctypes.c_void_p).value or 0)

    def _drop_slots(self) -> None:
        """Free the memory of a launch with many groups side by side."""
        if len(self._slots) > 1 and sum(slot.size for slot in self._slots[1:]) > _KEPT_BYTES:
            del self._slots[1:]

    def _furnish(self, slot: Slot) -> None:
        """Set a slot up for the running grid."""
        assert self._run is not None
        grid = self._run.grid
        x, y, z = grid.cluster
        number = self._number + self._used * self._workers
        template = self._slots[0].content
        slot.place(grid, template, number * x * y * z, self._run.state_size, bool(self._run.hooks))
        self._used += 1

    def _another(self) -> int:
        """Return the address of a new slot's first context; 0 if out of memory."""
        assert self._run is not None
        run, grid = self._run, self._run.grid
        x, y, z = grid.cluster
        if self._used == len(self._slots):
            self._slots.append(Slot())
        slot = self._slots[self._used]
        try:
            slot.grow(x * y * z, grid, run.state_size, bool(run.hooks))
        except MemoryError:
            return 0
        last = self._slots[self._used - 1]
        self._furnish(slot)
        last.put("Q", layout.NEXT_SLOT, slot.context)
        return slot.context
