"""The kernel driver's state on one virtual machine: GPUs, clients, files, planted faults."""

from __future__ import annotations

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.clock import ModelClock
from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.faults import named
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.faults import AT_ONCE, Fault, Xid
from ugpu.virtual.nvidia.options import MachineOptions
from ugpu.virtual.nvidia.rm.objects import DriverState

_LEAST_MEMORY = 32 << 20


class VirtualMachine(DriverState):
    """A machine with the stock driver loaded. It outlives its nodes; `close` switches it off."""

    def __init__(self, facts: ChipFacts, options: MachineOptions | None = None) -> None:
        super().__init__(options or MachineOptions())
        self.facts = facts
        if not 1 <= self.options.gpus <= 8:
            raise BadArgument("gpus must be 1 to 8", gpus=self.options.gpus)
        if self.options.memory is not None and self.options.memory < _LEAST_MEMORY:
            raise BadArgument("memory must be at least 32 MiB", memory=self.options.memory)
        if facts.gpfifo_class not in self.abi.classes:
            raise BadArgument(
                f"driver branch {self.abi.branch} does not support {facts.name}",
                driver=self.options.driver,
            )
        self.nodes: list[object] = []
        self.gpus = [VirtualGpu(self, i, facts, self.options) for i in range(self.options.gpus)]
        self.clock = ModelClock()  # the clock for waiting drivers
        for gpu in self.gpus:
            for runlist in gpu.runlists:
                self.clock.track(runlist)
        self._closed = False

    def inject(self, kind: Fault | str, *, gpu: int | None = None, count: int = 1) -> None:
        """Plant a fault, given as a `Fault`, its name or its title; see virtual.nvidia.faults."""
        fault = named(Fault, kind)
        if fault in AT_ONCE:
            for index in range(len(self.gpus)) if gpu is None else (gpu,):
                self._strike(fault, self.gpus[index])
            return
        self.faults.plant(fault, gpu=gpu, count=count)

    def _strike(self, fault: Fault, gpu: VirtualGpu) -> None:
        self.faults.struck.append(fault)
        if fault is Fault.FELL_OFF:
            gpu.lose()
        elif fault is Fault.RESET_REQUIRED:
            gpu.reset_required = True
        else:
            gpu.remap_pending = True
            gpu.report(Xid.ROW_REMAP, "Row Remapper: New row marked for remapping")

    def live_bytes(self) -> int:
        """Return the bytes of memory held by clients and page tables."""
        video = sum(gpu.memory.usable - gpu.memory.free_size for gpu in self.gpus)
        tables = sum(gpu.memory.table_bytes for gpu in self.gpus)
        return video + tables + self.system_used

    @property
    def violations(self) -> list[str]:
        """Return invalid uses that hardware ignores silently, of all GPUs."""
        return [text for gpu in self.gpus for text in gpu.violations]

    def close(self) -> None:
        """Switch off. Idempotent. Raises an error that occurred in the model itself, if any."""
        if self._closed:
            return
        self._closed = True
        for gpu in self.gpus:
            gpu.close()
        for gpu in self.gpus:
            for runlist in gpu.runlists:
                if runlist.error is not None:
                    raise runlist.error

    def __repr__(self) -> str:
        return (
            f"<VirtualMachine {len(self.gpus)} x {self.facts.name}, driver {self.options.driver},"
            f" {len(self.clients)} clients>"
        )
