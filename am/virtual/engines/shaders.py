"""The shader array: runs the launches of all compute queues, without the chip's lock."""

from __future__ import annotations

import importlib
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from am.virtual.shader import Dispatch, Ending, Outcome, ShaderCore, ShaderWave
from hcq import debugging
from hcq.config import config
from hcq.emu.memory import Abort

if TYPE_CHECKING:
    from am.virtual.board import Board, CutMemory

VMIDS = 16
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


class _Part:
    """A shader core, and what runs on it: launches of different VMIDs share the compute units, and
    none waits for another to end."""

    def __init__(self, core: ShaderCore) -> None:
        self.core = core
        self.current: tuple[int, Abort, CutMemory] | None = None  # with the VMID
        self.waves: list[ShaderWave] = []
        self.looked_at = float("-inf")


class ShaderArray:
    """Owns the shader cores: one, and more where launches of several VMIDs meet. Those of one VMID
    run one after the other."""

    def __init__(self, chip: Board) -> None:
        self._chip = chip
        self._parts: list[_Part] = []
        self._free: list[_Part] = []
        self._guard = threading.Lock()  # of the counts and lists
        self._locks = [threading.Lock() for _ in range(VMIDS)]
        self._alone = threading.Lock()  # of all launches, where a debugger halts the waves
        self._memories: dict[int, CutMemory] = {}
        self.running = 0  # launches inside or waiting
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
                factory = self._chip.options.shader_core or default_core
                with abort.translation():  # of what all programs share
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
                if abort.flag[0]:  # since then: `cut` has not seen this launch
                    return Outcome(Ending.ABORTED)
                part.current = vmid, abort, memory
            with self._chip.smu.metrics.load.working():
                return part.core.run(dispatch, memory, abort)
        finally:
            part.current = None
            with self._guard:
                self._free.append(part)

    def waves(self) -> list[tuple[int, ShaderWave]]:
        """The waves that run now, each with its VMID, as a look at them a moment ago found them.
        Lock held."""
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
        """Part the waves of an aborted launch from memory until they have noticed. Lock held."""
        for part in list(self._parts):
            current = part.current
            if current is not None and current[1] is abort:
                current[2].cut = True

    def close(self) -> None:
        """Free the cores. The queues must have been stopped and their launches aborted."""
        with ExitStack() as stack:
            for lock in (*self._locks, self._alone):
                stack.enter_context(lock)
            parts, self._parts, self._free = self._parts, [], []
            self._memories.clear()
        for part in parts:
            part.core.close()
