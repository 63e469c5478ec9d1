"""What this process holds: descriptors, mappings, threads, Python objects and memory of a device.

Two counts tell what an operation left behind, once what ends by itself has ended: threads and
garbage of what came before go in their own time, so `settled` counts until nothing changes.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import until
from ugpu.am.device.device import AmDevice
from ugpu.hcq.device.device import Device
from ugpu.nv.device.device import NvDevice
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.node import VirtualNode
from ugpu.virtual.nvidia.uvm.ioctls import UvmFile


@dataclass(frozen=True)
class Holdings:
    """One count. mappings: entries of /proc/self/maps but anonymous ones, which the allocator of
    the C library splits and merges as it likes; kinds: Python objects by type; kernel: what the
    kernel driver or IOMMU behind a virtual device holds for this process, by name."""

    descriptors: int
    mappings: int
    threads: int
    device_bytes: int
    kinds: Counter[str]
    kernel: Counter[str]

    def beyond(self, before: Holdings) -> dict[str, int]:
        """What there is more of than before; Python objects by type."""
        names = ("descriptors", "mappings", "threads", "device_bytes")
        more = {name: getattr(self, name) - getattr(before, name) for name in names}
        found = {name: count for name, count in more.items() if count > 0}
        return found | dict(self.kinds - before.kinds) | dict(self.kernel - before.kernel)


def count(device: Device | None = None) -> Holdings:
    """Count now. device: whose memory is counted too."""
    gc.collect()
    used = 0
    if device is not None:
        used = sum(
            int(sensor.read()) for sensor in device.sensors() if sensor.name == "memory_used_bytes"
        )
    kinds = Counter(type(each).__qualname__ for each in gc.get_objects())
    kernel = _kernel(device)
    return Holdings(_descriptors(), _mappings(), threading.active_count(), used, kinds, kernel)


def settled(device: Device | None = None) -> Holdings:
    """Count once nothing changes any more."""
    seen = [count(device)]

    def calm() -> bool:
        seen.append(count(device))
        last, now = seen[-2:]
        return (now.descriptors, now.threads) == (last.descriptors, last.threads)

    until(calm, "descriptors and threads to stay the same")
    return seen[-1]


def resident() -> int:
    """Bytes of memory that the process has in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _kernel(device: Device | None) -> Counter[str]:
    """Open files, mappings, ranges and the resource manager's objects of a virtual node; pages that
    a virtual card may reach. Nothing for other devices."""
    if isinstance(device, NvDevice) and isinstance(device.driver.session.source, VirtualNode):
        node = device.driver.session.source
        assert isinstance(node, VirtualNode)
        machine = node.machine
        found = Counter(f"kernel: {type(each).__name__}" for each in machine.live_objects())
        for file in node.files.values():
            found[f"kernel: open {file.path}"] += 1
            if isinstance(file.calls, UvmFile):
                found["kernel: UVM ranges"] += len(file.calls.ranges)
        found["kernel: mappings"] = len(machine.mappings)
        found["kernel: clients"] = len(machine.clients)
        found["kernel: system memory"] = machine.system_used
        return found
    if isinstance(device, AmDevice) and isinstance(device.chip.transport, VirtualTransport):
        lent = device.chip.transport._memory
        size = sum(memory.size for memory in lent)
        return Counter({"kernel: memory for DMA": len(lent), "kernel: bytes for DMA": size})
    return Counter()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _mappings() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(len(line.split(None, 5)) == 6 for line in lines)
