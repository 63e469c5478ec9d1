"""The shader array: runs the launches of all compute queues, without the chip's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from ugpu.hcq.device import debugging
from ugpu.virtual.amd.shader import Dispatch, Ending, Outcome, ShaderCore, ShaderWave
from ugpu.virtual.shader.memory import Abort

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board, CutMemory

VMIDS = 16
FRESH_S = 0.05  # how long registers show the same snapshot of the waves
LOOK_LIMIT_S = 0.02  # limit for taking a snapshot, which happens under the chip's lock
LOOK_S = 0.01  # interval at which a launch that waits for the array checks for an abort


class _Part:
    """A shader core and its current launch.

    Launches of different VMIDs share the compute units and do not wait for each other.
    """

    def __init__(self, core: ShaderCore) -> None:
        self.core = core
        self.current: tuple[int, Abort, CutMemory] | None = None  # VMID first
        self.waves: list[ShaderWave] = []
        self.looked_at = float("-inf")


class ShaderArray:
    """Own the shader cores: one, and more while launches of several VMIDs run concurrently.

    Launches of one VMID run one after the other. core: makes a core; True: one
    that checks waits.
    """

    def __init__(self, chip: Board, core: Callable[[bool], ShaderCore]) -> None:
        self._chip = chip
        self._core = core
        self._parts: list[_Part] = []
        self._free: list[_Part] = []
        self._guard = threading.Lock()  # guards the counts and lists
        self._locks = [threading.Lock() for _ in range(VMIDS)]
        self._alone = threading.Lock()  # serialises all launches while a debugger is attached
        self._memories: dict[int, CutMemory] = {}
        self.running = 0  # launches that run or wait
        self.launches = 0

    def run(self, dispatch: Dispatch, vmid: int, abort: Abort) -> Outcome:
        """Run one launch to its end, on the calling engine's thread, without `chip.lock`."""
        lock = self._alone if debugging.attached() else self._locks[vmid]
        with self._guard:
            self.running += 1
        try:
            while not lock.acquire(timeout=LOOK_S):
                if abort.flag[0]:
                    return Outcome(Ending.ABORTED)
            try:
                return self._locked(dispatch, vmid, abort)
            finally:
                lock.release()
        finally:
            with self._guard:
                self.running -= 1

    def _part(self, abort: Abort) -> _Part:
        with self._guard:
            if not self._free:
                options = self._chip.options
                factory = options.shader_core or partial(self._core, options.check_waits)
                with abort.translation():  # translates the code that all programs share
                    self._free.append(_Part(factory()))
                self._parts.append(self._free[-1])
            self.launches += 1
            return self._free.pop()

    def _locked(self, dispatch: Dispatch, vmid: int, abort: Abort) -> Outcome:
        memory = self._memories.get(vmid)
        if memory is None:
            memory = self._memories[vmid] = self._chip.gc.shader_memory(vmid)
        with self._chip.lock:
            if abort.flag[0]:
                return Outcome(Ending.ABORTED)
            memory.cut = False
        part = self._part(abort)
        try:
            with self._chip.lock:
                if abort.flag[0]:  # aborted since the first check; `cut` did not see this launch
                    return Outcome(Ending.ABORTED)
                part.current = vmid, abort, memory
            return part.core.run(dispatch, memory, abort)
        finally:
            part.current = None
            with self._guard:
                self._free.append(part)

    def waves(self) -> list[tuple[int, ShaderWave]]:
        """Return the running waves from a recent snapshot, each with its VMID. The lock is held."""
        found: list[tuple[int, ShaderWave]] = []
        for part in list(self._parts):
            current, now = part.current, self._chip.scheduler.now()
            if current is None:
                continue
            if now - part.looked_at > FRESH_S:
                part.waves = part.core.look(current[1], LOOK_LIMIT_S)
                part.looked_at = self._chip.scheduler.now()
            found += [(current[0], wave) for wave in part.waves]
        return found

    def cut(self, abort: Abort) -> None:
        """Block memory accesses by the waves of an aborted launch until they stop. Lock held."""
        for part in list(self._parts):
            current = part.current
            if current is not None and current[1] is abort:
                current[2].cut = True

    def close(self) -> None:
        """Free the cores. Before, the queues must be stopped and their launches aborted."""
        with ExitStack() as stack:
            for lock in (*self._locks, self._alone):
                stack.enter_context(lock)
            parts, self._parts, self._free = self._parts, [], []
            self._memories.clear()
        for part in parts:
            part.core.close()
