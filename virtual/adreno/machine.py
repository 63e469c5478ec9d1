"""One virtual machine with an Adreno GPU and the kernel driver's state on it."""

from __future__ import annotations

import importlib
import itertools
import threading
from collections import Counter

import numpy as np

from ugpu.hcq.device import debugging
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.clock import ModelClock
from ugpu.hcq.state.config import config
from ugpu.qcom.chips.facts import ChipFacts
from ugpu.virtual.adreno.engine import Engine
from ugpu.virtual.adreno.faults import Report
from ugpu.virtual.adreno.kgsl.context import Context
from ugpu.virtual.adreno.kgsl.counters import Counters
from ugpu.virtual.adreno.memory.objects import MemoryFile, MemoryObject
from ugpu.virtual.adreno.options import MachineOptions
from ugpu.virtual.adreno.planted import Plan, Planted
from ugpu.virtual.adreno.shader import MOST_CONSTANTS, ShaderProcessors

ALWAYS_ON_HZ = 19_200_000  # CP_ALWAYS_ON_COUNTER, Linux 6.12 a6xx_gpu.c


class VirtualMachine:
    """A machine that outlives its nodes; `close` switches it off.

    `lock` is the kernel driver's. log: resets and page faults, as in the kernel log. violations:
    driver errors that hardware tolerates, or that fail on it silently, each once. gaps: features
    that the model lacks. asked: calls that are not modelled. refused: calls that were refused, and
    why.
    """

    def __init__(self, facts: ChipFacts, options: MachineOptions | None = None) -> None:
        self.facts = facts
        self.options = options or MachineOptions()
        self.lock = threading.RLock()
        self.clock = ModelClock()
        self.memory = MemoryFile()
        self.contexts: dict[int, Context] = {}
        self.nodes: list[object] = []
        self.log: list[Report] = []
        self.violations: list[str] = []
        self.gaps: list[NotSupported] = []
        self.asked: Counter[str] = Counter()
        self.refused: list[str] = []
        self.culprits: list[tuple[int, object]] = []
        self._context_ids = itertools.count(1)
        self.plan = Plan()
        self.constants = np.zeros(MOST_CONSTANTS, np.uint32)  # the engine's
        self._graveyard: list[MemoryObject] = []
        self._processors: ShaderProcessors | None = None
        self._closed = False
        self.counters = Counters(self)
        self.engine = Engine(self)
        self.clock.plays(self.engine)

    @property
    def processors(self) -> ShaderProcessors:
        """Return the shader processors, which are created at the first dispatch."""
        if self._processors is None:
            make = self.options.processors or _ir3_processors
            self._processors = make(self.facts)
        return self._processors

    def new_context_id(self) -> int:
        """Return an id that no context has."""
        return next(number for number in self._context_ids if number not in self.contexts)

    def inject(self, fault: Planted | str, count: int = 1) -> None:
        """Plant a fault that takes effect `count` times."""
        with self.lock:
            self.plan.plant(fault, count)

    def refuse(self, call: str, code: int, count: int = 1) -> None:
        """Make the next `count` calls fail with an errno. call: the name of an ioctl or of a
        property, as in msm_kgsl.h ("GPU_COMMAND", "KGSL_PROP_DEVICE_INFO"), "open", "mmap", or "any
        ioctl"."""
        with self.lock:
            self.plan.refuse(call, code, count)

    def take(self, fault: Planted) -> bool:
        """Return whether a planted fault occurs now."""
        with self.lock:
            return self.plan.take(fault)

    def violate(self, text: str) -> None:
        """Record a violation, once."""
        if text not in self.violations:
            self.violations.append(text)

    def ticks(self) -> int:
        """Return CP_ALWAYS_ON_COUNTER."""
        return int(self.clock.now() * ALWAYS_ON_HZ)

    def release(self, found: MemoryObject) -> None:
        """Drop one reference to an object; its memory is freed once the GPU is idle."""
        found.holds -= 1
        if not found.holds:
            self._graveyard.append(found)
            self.bury()

    def bury(self) -> None:
        """Free memory that no submission can reach any more; the lock is held."""
        if self.engine.running is None:
            for found in self._graveyard:
                if found.offset >= 0:
                    self.memory.free(found.offset)
            self._graveyard = []

    def wait_idle(self, limit_s: float = 60.0) -> bool:
        """Wait until no submission runs or can run; return whether the machine became idle."""
        end = self.clock.now() + limit_s
        with self.engine.changed:
            while self.engine.error is None and (self.engine.running or self.engine.work):
                if self.clock.now() > end:
                    return False
                self.engine.changed.wait(0.05)
        return True

    def close(self) -> None:
        """Switch off; idempotent. Raises errors of the model itself, if there were any."""
        if self._closed:
            return
        self._closed = True
        self.engine.close()
        if self._processors is not None:
            self._processors.close()
        self.memory.close()
        if self.engine.error is not None:
            raise self.engine.error

    def __repr__(self) -> str:
        return f"<VirtualMachine {self.facts.name}, {len(self.contexts)} contexts>"


def _ir3_processors(facts: ChipFacts) -> ShaderProcessors:
    """Return the shader processors that execute ir3. They are large; most tests need none."""
    module = importlib.import_module("ugpu.virtual.adreno.sp.processors")
    made: ShaderProcessors = module.Processors(
        cache=config().cache_folder / "ir3", private_slots=facts.shader_processors,
        debugger=debugging.attached(),
    )  # fmt: skip
    return made
