"""The kernel driver's state on one virtual machine: GPUs, clients, files, planted faults."""

from __future__ import annotations

import itertools
import threading
from collections import Counter

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.clock import ModelClock
from ugpu.nv import abi
from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.engines.coherence import Coherence
from ugpu.virtual.nvidia.faults import AT_ONCE, Fault, FaultPlan, Xid, XidReport
from ugpu.virtual.nvidia.memory.physical import PAGE, Backing
from ugpu.virtual.nvidia.options import MachineOptions
from ugpu.virtual.nvidia.rm.objects import Client, RmObject

_LEAST_MEMORY = 32 << 20
_FIRST_CLIENT = 0xC1D0_0001  # RS_CLIENT_HANDLE_BASE, open-gpu-kernel-modules 580.142 rs_server.h


class VirtualMachine:
    """A machine with the stock driver loaded. It outlives its nodes; `close` switches it off.

    `lock` is the resource manager's: one call at a time. `log` is the kernel log with its Xids.
    """

    def __init__(self, facts: ChipFacts, options: MachineOptions | None = None) -> None:
        self.facts = facts
        self.options = options or MachineOptions()
        if not 1 <= self.options.gpus <= 8:
            raise BadArgument("gpus must be 1 to 8", gpus=self.options.gpus)
        if self.options.memory is not None and self.options.memory < _LEAST_MEMORY:
            raise BadArgument("memory must be at least 32 MiB", memory=self.options.memory)
        self.abi = abi.select(self.options.driver)
        if facts.gpfifo_class not in self.abi.classes:
            raise BadArgument(
                f"driver branch {self.abi.branch} does not support {facts.name}",
                driver=self.options.driver,
            )
        self.lock = threading.RLock()
        self.faults = FaultPlan()
        self.log: list[XidReport] = []
        self.system_used = 0
        self.clients: dict[int, Client] = {}
        self.asked: Counter[str] = Counter()  # requested controls and ioctls that are not modelled
        self.refused: list[str] = []  # calls that RM and UVM refused, and why
        self.nodes: list[object] = []
        self.mappings: dict[int, tuple[Backing, int, int]] = {}  # CPU mappings: offset, size
        self.memblock_size = 0
        self.coherence = Coherence(self._is_system) if self.options.coherence else None
        self._client_handles = itertools.count(_FIRST_CLIENT)
        self._mapping_numbers = itertools.count(1)
        self.gpus = [VirtualGpu(self, i, facts, self.options) for i in range(self.options.gpus)]
        self.clock = ModelClock()  # the clock for waiting drivers
        for gpu in self.gpus:
            for runlist in gpu.runlists:
                self.clock.track(runlist)
        self._closed = False

    @property
    def gpu(self) -> VirtualGpu:
        """The first GPU."""
        return self.gpus[0]

    def new_client_handle(self) -> int:
        """Return an unused root handle."""
        return next(h for h in self._client_handles if h not in self.clients)

    def inject(self, kind: Fault | str, *, gpu: int | None = None, count: int = 1) -> None:
        """Plant a fault, given as a `Fault`, its name or its title; see virtual.nvidia.faults."""
        fault = _fault(kind)
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

    def live_objects(self) -> list[RmObject]:
        """Return every allocated object, of all clients."""
        with self.lock:
            return [found for client in self.clients.values() for found in client.objects.values()]

    def live_bytes(self) -> int:
        """Return the bytes of memory held by clients and page tables."""
        video = sum(gpu.memory.usable - gpu.memory.free_size for gpu in self.gpus)
        tables = sum(gpu.memory.table_bytes for gpu in self.gpus)
        return video + tables + self.system_used

    def add_mapping(self, backing: Backing, offset: int, size: int) -> int:
        """Record a CPU mapping; return the number for removing it."""
        number = next(self._mapping_numbers)
        self.mappings[number] = (backing, offset, size)
        return number

    def mapped_video_memory(self, gpu: VirtualGpu) -> list[tuple[int, int]]:
        """Return the CPU's mappings of a GPU's memory: (address, size)."""
        return [
            (backing.physical + offset, size)
            for backing, offset, size in self.mappings.values()
            if backing.gpu == gpu.index
        ]

    def _is_system(self, page: int) -> bool:
        """Return whether a page of this process does not belong to a GPU's memory."""
        return all(not 0 <= page * PAGE - gpu.memory.base < gpu.memory.size for gpu in self.gpus)

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


def _fault(kind: Fault | str) -> Fault:
    if isinstance(kind, Fault):
        return kind
    for fault in Fault:
        if kind in (fault.name, fault.name.lower(), fault.title):
            return fault
    raise BadArgument(f"fault must be one of {', '.join(f.name for f in Fault)}, got {kind!r}")
