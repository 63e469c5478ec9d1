"""Measurements that the GPU's system processor writes to memory readable by programs.

Source: open-gpu-kernel-modules 580.142 src/nvidia/src/kernel/gpu/gpu_user_shared_data.c (the union
of the requests of all objects), class/cl00de.h (layout, times), nvrm_registry.h
RMRusdPollingInterval. The values are the model's own: they only show whether the GPU is idle or
busy.
"""

from __future__ import annotations

import threading

from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.state.threads import start, was_started
from ugpu.virtual.nvidia.host.runlist import Runlist
from ugpu.virtual.nvidia.memory.formats import SIZE_4K
from ugpu.virtual.nvidia.memory.physical import Backing, SystemPages
from ugpu.virtual.nvidia.state import GpuState

POLLING_INTERVAL_S = 0.1  # of data centre GPUs; 0.5 s of others
_WRITING = (1 << 64) - 1
_IDLE = {"clock": (345, 1593, 765, 345), "power": 70_000, "temperature": 30 << 8}
_BUSY = {"clock": (1980, 2619, 1545, 1980), "power": 480_000, "temperature": 52 << 8}
_LIMIT_MW = 700_000
# In branch 580, sections after this one are at higher offsets in 580.159.04 (observed on an H100)
# than in 580.142. UNSURE: since which release between the two.
_GREW, _GROWN, _GROWN_SINCE, _GROWN_BRANCH = "memRowRemap", 8, (580, 159), 580
_POWER, _CLOCK, _THERMAL, _PERF, _MEMORY = "POWER", "CLOCK", "THERMAL", "PERF", "MEMORY"


class Publisher:
    """Writes a GPU's page while objects poll it. graphics: the runlist that makes it busy."""

    def __init__(self, gpu: GpuState, graphics: Runlist) -> None:
        self.gpu = gpu
        self._graphics = graphics
        abi = gpu.machine.abi
        self.layout = abi.structs.NV00DE_SHARED_DATA
        self.polls = {
            name: abi.constants[f"NV00DE_RUSD_POLL_{name}"]
            for name in (_CLOCK, _PERF, _MEMORY, _POWER, _THERMAL)
            if f"NV00DE_RUSD_POLL_{name}" in abi.constants
        }
        version = tuple(int(part) for part in gpu.machine.options.driver.split("."))
        grown = _GROWN if version[0] == _GROWN_BRANCH and version >= _GROWN_SINCE else 0
        self.pages = SystemPages(self.layout.size + _GROWN)
        pages = self.pages
        self.backing = Backing(
            pages.size, SIZE_4K, pages.address, pages.address, None, pages.view, pages,
            read_only=True,
        )  # fmt: skip
        self.block: Struct = self.layout.view(pages.view[: self.layout.size])
        behind = self.layout.view(pages.view[grown : grown + self.layout.size])
        order = list(self.layout.fields)
        self._behind = dict.fromkeys(order[order.index(_GREW) + 1 :], behind)
        self.masks: dict[object, int] = {}  # requested data by object
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None  # the latest one
        self._polling = False
        self._closed = False

    def ask(self, who: object, mask: int) -> None:
        """Set the data that one object requests; 0 withdraws the request."""
        with self._wake:
            self.masks.pop(who, None)
            if mask:
                self.masks[who] = mask
            polling = self._polling and was_started(self._thread)
            if mask and not polling and not self._closed:
                self._thread = threading.Thread(
                    target=self._poll, name=f"virtual-gpu{self.gpu.index}-polls", daemon=True
                )
                self._polling = True
                start(self._thread)
            self._wake.notify_all()

    def _poll(self) -> None:
        with self._wake:
            if self._thread is not threading.current_thread():
                return  # see hcq.state.threads
            while not self._closed and self.masks:
                mask = 0
                for wanted in self.masks.values():
                    mask |= wanted
                self._publish(mask)
                self._wake.wait(POLLING_INTERVAL_S)
            self._polling = False

    def _publish(self, mask: int) -> None:
        busy = self._graphics.running
        now = _BUSY if busy else _IDLE
        clocks, power, heat = now["clock"], now["power"], now["temperature"]
        assert isinstance(clocks, tuple)
        wanted = {name for name, bit in self.polls.items() if mask & bit}
        if _CLOCK in wanted:
            self._write(
                "clkPublicDomainInfos",
                {f"info[{at}].targetClkMHz": clock for at, clock in enumerate(clocks)},
            )
        if _POWER in wanted:
            self._write("instPowerUsage", {"info.instGpuPower": power})
            self._write("avgPowerUsage", {"info.averageGpuPower": power})
            self._write(
                "powerLimitGpu",
                {"info.requestedmW": _LIMIT_MW, "info.enforcedmW": _LIMIT_MW},
            )
        if _THERMAL in wanted:
            self._write("temperatures[0]", {"temperature": heat})
            self._write("temperature", {"info.gpuTemperature": heat})
        if _PERF in wanted:
            self._write("perfDevUtil", {"info.gpuPercentBusy": 100 if busy else 0})
            self._write("clkThrottleInfo", {"reasonMask": 0 if busy else 1})  # idle
            self._write("clkThrottleReason", {"reasonMask": 0 if busy else 1})
        if _MEMORY in wanted:
            self._write("memRowRemap", {"info.isPending": self.gpu.remap_pending})

    def _write(self, section: str, values: dict[str, object]) -> None:
        """Write one section, between two writes of its time; skip it if the branch lacks it."""
        name, _, rest = section.partition("[")
        if name not in self.layout.fields:
            return
        part = self._behind.get(name, self.block)[name]
        if rest:
            part = part[int(rest[:-1])]
        part["lastModifiedTimestamp"] = _WRITING
        for path, value in values.items():
            *steps, last = path.split(".")
            place = part
            for step in steps:
                place = _step(place, step)
            place[last] = value
        part["lastModifiedTimestamp"] = self.gpu.time_ns()

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
            thread = self._thread
        if was_started(thread):
            thread.join(5)


def _step(place: Struct, step: str) -> Struct:
    name, _, number = step.partition("[")
    found = place[name]
    inner: Struct = found[int(number[:-1])] if number else found
    return inner
