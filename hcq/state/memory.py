"""Typed addresses, and buffers: memory that a device can access."""

from __future__ import annotations

import enum
from typing import NewType

VirtAddr = NewType("VirtAddr", int)  # in the device's virtual address space
BusAddr = NewType("BusAddr", int)  # on the bus, before the IOMMU
PhysAddr = NewType("PhysAddr", int)  # in the device's own memory (offset in VRAM)


class Placement(enum.Enum):
    """Where a buffer lives."""

    DEVICE = "device"  # the device's own memory
    HOST = "host"  # host memory mapped to the device; `Buffer.view` reaches it directly
