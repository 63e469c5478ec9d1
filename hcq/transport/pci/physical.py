"""DMA memory at physical addresses, for a function that no IOMMU translates for.

Addresses come from /proc/self/pagemap (Linux Documentation/admin-guide/mm/pagemap.rst), which shows
them to CAP_SYS_ADMIN only. The kernel chooses where memory lies. Memory that the device cannot
reach is not returned, since the device would drop the upper bits and access other memory. Addresses
are valid as long as the kernel does not move the pages: reserved huge pages stay; others stay if
they are locked and compaction leaves locked pages alone (vm.compact_unevictable_allowed = 0). All
of this is checked before memory is returned.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence

from ugpu.hcq.errors import AccessDenied, HostError, OutOfMemory
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import DmaSegment
from ugpu.hcq.transport.dma import HUGE_PAGE, PAGE, HostMemory
from ugpu.hcq.transport.system import MEMLOCK_REMEDY, System

PAGEMAP = "proc/self/pagemap"
COMPACTION = "proc/sys/vm/compact_unevictable_allowed"
_PRESENT = 1 << 63
_FRAME = (1 << 55) - 1


def check_permitted(system: System) -> None:
    """Raise AccessDenied or HostError, with the remedy, unless addresses can be read."""
    if not system.privileged:
        raise AccessDenied(
            "only root can read physical addresses",
            remedy="run as root, or use VFIO, which does not need root: ugpu doctor",
        )
    if system.read_text(COMPACTION) != "0":
        raise HostError(
            "the kernel may migrate locked memory while the device uses it",
            remedy=f"echo 0 | sudo tee /{COMPACTION}",
        )


class PhysicalMemory:
    """Locked memory with its physical addresses; one segment for each contiguous run."""

    def __init__(
        self,
        system: System,
        size: int,
        *,
        contiguous: bool,
        reach_bits: int,
        release: Callable[[PhysicalMemory], None],
    ) -> None:
        check_permitted(system)
        self.size = size
        self._release = release
        self._host = HostMemory(system, size)
        self.view: memoryview = self._host.view
        self._closed = False
        try:
            for offset in range(0, size, PAGE):
                self.view[offset] = 0  # an untouched page has no address
            _lock(system, self._host.address, size)
            self.segments: Sequence[DmaSegment] = _segments(system, self._host.address, size)
            last = max(segment.address + segment.size for segment in self.segments) - 1
            if last >> reach_bits:
                raise OutOfMemory(
                    f"the memory is at {last:#x}, which the device cannot address "
                    f"({reach_bits} address bits)",
                    remedy="use VFIO, whose IOMMU maps memory to addresses that the device can use",
                )
            if contiguous and len(self.segments) > 1:
                raise OutOfMemory(
                    "no physically contiguous memory of that size is available",
                    size=size,
                    remedy=f"echo {-(-size // HUGE_PAGE) + 8} | sudo tee /proc/sys/vm/nr_hugepages"
                    if size >= HUGE_PAGE
                    else "ask for 4096 bytes, or for at least 2 MiB with reserved huge pages",
                )
        except BaseException:
            self._host.close()
            raise

    def close(self) -> None:
        """Free the memory; idempotent. The device must have stopped using it: nothing prevents its
        access."""
        if not self._closed:
            self._closed = True
            self._release(self)
            self._host.close()


def _lock(system: System, address: int, size: int) -> None:
    try:
        system.lock_memory(address, size)
    except OSError as error:
        raise OutOfMemory("memory could not be locked", size=size, remedy=MEMLOCK_REMEDY) from error


def _segments(system: System, address: int, size: int) -> tuple[DmaSegment, ...]:
    count = size // PAGE
    try:
        descriptor = system.open(system.path(PAGEMAP), os.O_RDONLY)
        try:
            data = system.pread(descriptor, 8 * count, address // PAGE * 8)
        finally:
            system.close(descriptor)
    except OSError as error:
        raise HostError(
            f"/{PAGEMAP} cannot be read: {error.strerror or error.errno}",
            remedy="run as root with CAP_SYS_ADMIN, or use VFIO",
        ) from error
    if len(data) != 8 * count:
        raise HostError(
            "pagemap returned fewer bytes than requested", got=len(data), expected=8 * count
        )
    runs: list[tuple[int, int]] = []
    for (entry,) in struct.iter_unpack("<Q", data):
        frame = entry & _FRAME
        if not entry & _PRESENT or not frame:
            raise AccessDenied(
                "the kernel hides physical addresses",
                remedy="run as root with CAP_SYS_ADMIN, or use VFIO",
            )
        if runs and runs[-1][0] + runs[-1][1] == frame * PAGE:
            runs[-1] = (runs[-1][0], runs[-1][1] + PAGE)
        else:
            runs.append((frame * PAGE, PAGE))
    return tuple(DmaSegment(BusAddr(start), length) for start, length in runs)
