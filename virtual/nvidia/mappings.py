"""Mappings of the driver's files: memory, and the doorbell page."""

from __future__ import annotations

import struct

from ugpu.hcq.errors import BadArgument
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.memory.physical import Backing
from ugpu.virtual.nvidia.rm.objects import DriverState

_TIME_0, _TIME_1, DOORBELL = 0x80, 0x84, 0x90  # clc361.h and later usermode classes
_WORD = struct.Struct("<I")


def _check(offset: int, size: int, *, closed: bool) -> None:
    if closed:
        raise BadArgument("the mapping is closed")
    if offset % 4 or not 0 <= offset <= size - 4:
        raise BadArgument("a word must be aligned and inside the mapping", offset=offset, size=size)


class MemoryMapping:
    """Video or system memory in this process; implements `hcq.transport.node.NodeMapping`."""

    def __init__(self, machine: DriverState, backing: Backing, offset: int, size: int) -> None:
        assert backing.view is not None
        self.size = size
        self.address = backing.host + offset
        self.view: memoryview | None = backing.view[offset : offset + size]
        self._machine = machine
        self._backing = backing
        self._number = machine.add_mapping(backing, offset, size)
        backing.users += 1  # a mapping keeps its memory alive after the object is freed

    def read32(self, offset: int) -> int:
        """Read a word. For video memory, earlier writes arrive first."""
        _check(offset, self.size, closed=self.view is None)
        assert self.view is not None
        if self._backing.gpu is not None:
            self._machine.gpus[self._backing.gpu].settle()
        return int(_WORD.unpack_from(self.view, offset)[0])

    def write32(self, offset: int, value: int) -> None:
        """Write a word."""
        _check(offset, self.size, closed=self.view is None)
        assert self.view is not None
        _WORD.pack_into(self.view, offset, value)

    @property
    def closed(self) -> bool:
        """Return whether the memory was unmapped."""
        return self.view is None

    def close(self) -> None:
        """Unmap; idempotent."""
        if self.view is None:
            return
        with self._machine.lock:
            self.view = None
            del self._machine.mappings[self._number]
            self._machine.free_backing(self._backing)


class DoorbellMapping:
    """The page of a usermode object: the time, and the doorbell, which takes effect at once.

    In BAR0, a doorbell write can overtake a write to video memory, which goes through BAR1. A page
    in BAR1 can only be written. Source: open-gpu-kernel-modules 580.142 nvidia-push-init.c
    (AllocUserMode).
    """

    address = 0
    view: memoryview | None = None

    def __init__(self, gpu: VirtualGpu, size: int, *, in_bar1: bool) -> None:
        self.size = size
        self._gpu = gpu
        self._in_bar1 = in_bar1
        self.closed = False

    def read32(self, offset: int) -> int:
        """Read a register: the time; others read as zero. A violation in BAR1; UNSURE: which value
        hardware returns there."""
        _check(offset, self.size, closed=self.closed)
        if self._in_bar1:
            self._gpu.violations.append(f"read of {offset:#x} of a usermode page in BAR1")
            return 0
        if self._gpu.lost:
            return 0xFFFF_FFFF
        if offset == _TIME_0:
            return self._gpu.time_ns() & 0xFFFF_FFE0  # its resolution is 32 ns
        if offset == _TIME_1:
            return self._gpu.time_ns() >> 32 & 0x1FFF_FFFF
        return 0

    def write32(self, offset: int, value: int) -> None:
        """Write a register: the doorbell; a write to any other is a violation."""
        _check(offset, self.size, closed=self.closed)
        if offset != DOORBELL:
            self._gpu.violations.append(f"write of {value:#x} to {offset:#x} of the usermode page")
            return
        if self._in_bar1:
            self._gpu.settle()
        self._gpu.ring(value)

    def close(self) -> None:
        """Unmap; idempotent."""
        self.closed = True
