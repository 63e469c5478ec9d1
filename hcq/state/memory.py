"""Typed addresses, and buffers: memory that a device can access."""

from __future__ import annotations

import enum
from typing import NewType

VirtAddr = NewType("VirtAddr", int)  # in the device's virtual address space
BusAddr = NewType("BusAddr", int)  # on the bus, before the IOMMU
PhysAddr = NewType("PhysAddr", int)  # in the device's own memory (offset in VRAM)


class MemoryUse:
    """Bytes of a device's memory that tensors use, and the most that they used at a time. Counted
    by their pool, under its lock."""

    def __init__(self) -> None:
        self.bytes = self.peak = 0

    def add(self, size: int) -> None:
        """Count memory that is taken, or, negative, given back."""
        self.bytes += size
        if self.bytes > self.peak:
            self.peak = self.bytes


class Placement(enum.Enum):
    """Where a buffer lives."""

    DEVICE = "device"  # the device's own memory
    HOST = "host"  # host memory mapped to the device; `Buffer.view` reaches it directly
