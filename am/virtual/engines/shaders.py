"""The shader array: runs the launches of all compute queues, without the chip's lock."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING

from am.virtual.shader import Dispatch, Ending, Outcome, RunningWave, ShaderCore
from hcq import debugging
from hcq.config import config
from hcq.emu.memory import Abort

if TYPE_CHECKING:
    from am.virtual.board import Board, CutMemory

FRESH_S = 0.05  # for so long registers show what one look at the waves has found
LOOK_LIMIT_S = 0.02  # of one look: the chip's lock is held meanwhile
LOOK_S = 0.01  # how often a launch that waits for the array looks whether it was aborted


def default_core() -> ShaderCore:
    """Make the core that executes gfx11 machine code. Imported late: it loads LLVM."""
    module = importlib.import_module("am.virtual.isa.core")
    core: ShaderCore = module.GfxCore(
        cache=config().cache_folder / "gfx1100", debugger=debugging.attached()
    )
    return core


class ShaderArray:
    """Owns the shader core, made when the first wave is launched."""

    def __init__(self, chip: Board) -> None:
        self._chip = chip
        self._core: ShaderCore | None = None
        self._lock = threading.Lock()
        self._memories: dict[int, CutMemory] = {}
        self._current: tuple[Abort, CutMemory] | None = None
        self._waves: list[RunningWave] = []
        self._looked_at = float("-inf")
        self.running = 0  # launches inside or waiting
        self.launches = 0

    def run(self, dispatch: Dispatch, vmid: int, abort: Abort) -> Outcome:
        """Run one launch to its end, on the calling engine's thread, without `chip.lock`."""
        self.running += 1
        try:
            while not self._lock.acquire(timeout=LOOK_S):
                if abort.flag[0]:
                    return Outcome(Ending.ABORTED)
            try:
                return self._locked(dispatch, vmid, abort)
            finally:
                self._lock.release()
        finally:
            self.running -= 1

    def _locked(self, dispatch: Dispatch, vmid: int, abort: Abort) -> Outcome:
        if self._core is None:
            factory = self._chip.options.shader_core or default_core
            with abort.translation():  # of what all programs share
                self._core = factory()
        memory = self._memories.get(vmid)
        if memory is None:
            memory = self._memories[vmid] = self._chip.gc.shader_memory(vmid)
        with self._chip.lock:
            if abort.flag[0]:
                return Outcome(Ending.ABORTED)
            memory.cut = False
            self._current = abort, memory
        self.launches += 1
        try:
            with self._chip.smu.metrics.load.working():
                return self._core.run(dispatch, memory, abort)
        finally:
            self._current = None

    def waves(self) -> list[RunningWave]:
        """The waves that run now, as a look at them a moment ago found them. Lock held."""
        now = self._chip.scheduler.now()
        current, core = self._current, self._core
        if current is None or core is None:
            return []
        if now - self._looked_at > FRESH_S:
            self._waves = core.look(current[0], LOOK_LIMIT_S)
            self._looked_at = self._chip.scheduler.now()
        return self._waves

    def cut(self, abort: Abort) -> None:
        """Part the waves of an aborted launch from memory until they have noticed. Lock held."""
        if self._current is not None and self._current[0] is abort:
            self._current[1].cut = True

    def close(self) -> None:
        """Free the core. The queues must have been stopped and their launches aborted."""
        with self._lock:
            core, self._core = self._core, None
            self._memories.clear()
        if core is not None:
            core.close()
