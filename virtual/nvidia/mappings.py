"""Mappings of the driver's files: memory, and the doorbell page."""

from __future__ import annotations

from ugpu.virtual.node.mapping import Mapping
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.memory.physical import Backing
from ugpu.virtual.nvidia.rm.objects import DriverState

_TIME_0, _TIME_1, DOORBELL = 0x80, 0x84, 0x90  # clc361.h and later usermode classes


class MemoryMapping(Mapping):
    """Video or system memory in this process."""

    def __init__(self, machine: DriverState, backing: Backing, offset: int, size: int) -> None:
        assert backing.view is not None
        super().__init__(size, backing.host + offset, backing.view[offset : offset + size])
        self._machine = machine
        self._backing = backing
        self._number = machine.add_mapping(backing, offset, size)
        backing.users += 1  # a mapping keeps its memory alive after the object is freed

    def read32(self, offset: int) -> int:
        """Read a word. For video memory, earlier writes arrive first."""
        if self._backing.gpu is not None and not self.closed:
            self._machine.gpus[self._backing.gpu].settle()
        return super().read32(offset)

    def _unmapped(self) -> None:
        with self._machine.lock:
            del self._machine.mappings[self._number]
            self._machine.free_backing(self._backing)


class DoorbellMapping(Mapping):
    """The page of a usermode object: the time, and the doorbell, which takes effect at once.

    In BAR0, a doorbell write can overtake a write to video memory, which goes through BAR1. A page
    in BAR1 can only be written. Source: open-gpu-kernel-modules 580.142 nvidia-push-init.c
    (AllocUserMode).
    """

    def __init__(self, gpu: VirtualGpu, size: int, *, in_bar1: bool) -> None:
        super().__init__(size)
        self._gpu = gpu
        self._in_bar1 = in_bar1

    def read32(self, offset: int) -> int:
        """Read a register: the time; others read as zero. A violation in BAR1; UNSURE: which value
        hardware returns there."""
        self._check(offset)
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
        self._check(offset)
        if offset != DOORBELL:
            self._gpu.violations.append(f"write of {value:#x} to {offset:#x} of the usermode page")
            return
        if self._in_bar1:
            self._gpu.settle()
        self._gpu.ring(value)

    def _unmapped(self) -> None:
        """No-op: the page holds nothing."""
