"""One virtual machine with an Adreno GPU and the kernel driver's state on it."""

from __future__ import annotations

from ugpu.qcom.chips.facts import ChipFacts
from ugpu.virtual.adreno.engine import Engine
from ugpu.virtual.adreno.kgsl.counters import Counters
from ugpu.virtual.adreno.memory.objects import MemoryObject
from ugpu.virtual.adreno.options import MachineOptions
from ugpu.virtual.adreno.planted import Planted
from ugpu.virtual.adreno.state import MachineState


class VirtualMachine(MachineState):
    """A machine that outlives its nodes; `close` switches it off. Its attributes are described in
    MachineState."""

    def __init__(self, facts: ChipFacts, options: MachineOptions | None = None) -> None:
        super().__init__(facts, options)
        self.nodes: list[object] = []
        self._graveyard: list[MemoryObject] = []
        self._closed = False
        self.counters = Counters(self)
        self.engine = Engine(self)
        self.clock.track(self.engine)

    def inject(self, fault: Planted | str, count: int = 1) -> None:
        """Plant a fault that takes effect `count` times."""
        with self.lock:
            self.plan.plant_named(fault, count)

    def refuse(self, call: str, code: int, count: int = 1) -> None:
        """Make the next `count` calls fail with an errno. call: the name of an ioctl or of a
        property, as in msm_kgsl.h ("GPU_COMMAND", "KGSL_PROP_DEVICE_INFO"), "open", "mmap", or "any
        ioctl"."""
        with self.lock:
            self.plan.refuse(call, code, count)

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
