"""The machine, as seen by its engine, command processor and counters.

`machine.VirtualMachine` is the machine itself.
"""

from __future__ import annotations

import importlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections import Counter

import numpy as np

from ugpu.hcq.device import debugging
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.clock import ModelClock
from ugpu.hcq.state.config import config
from ugpu.qcom.chips.facts import ChipFacts
from ugpu.virtual.adreno.faults import Report
from ugpu.virtual.adreno.kgsl.context import Context
from ugpu.virtual.adreno.memory.objects import MemoryFile
from ugpu.virtual.adreno.options import MachineOptions
from ugpu.virtual.adreno.planted import FaultPlan, Planted
from ugpu.virtual.adreno.shader import MOST_CONSTANTS, ShaderProcessors

ALWAYS_ON_HZ = 19_200_000  # CP_ALWAYS_ON_COUNTER, Linux 6.12 a6xx_gpu.c


class MachineState(ABC):
    """State of the GPU and of the kernel driver.

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
        self.log: list[Report] = []
        self.violations: list[str] = []
        self.gaps: list[NotSupported] = []
        self.asked: Counter[str] = Counter()
        self.refused: list[str] = []
        self.culprits: list[tuple[int, object]] = []
        self.plan = FaultPlan()
        self.constants = np.zeros(MOST_CONSTANTS, np.uint32)  # the engine's
        self._context_ids = itertools.count(1)
        self._processors: ShaderProcessors | None = None

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

    @abstractmethod
    def bury(self) -> None:
        """Free memory that no submission can reach any more; the lock is held."""


def _ir3_processors(facts: ChipFacts) -> ShaderProcessors:
    """Return the shader processors that execute ir3. They are large; most tests need none."""
    module = importlib.import_module("ugpu.virtual.adreno.sp.processors")
    made: ShaderProcessors = module.Processors(
        cache=config().cache_folder / "ir3", private_slots=facts.shader_processors,
        debugger=debugging.attached(),
    )  # fmt: skip
    return made
