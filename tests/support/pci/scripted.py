"""A device whose hardware does exactly what a test says: for what all devices share."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.device import Device
from ugpu.hcq.device.driver import Driver
from ugpu.hcq.errors import NotSupported, UgpuError
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind, Resident
from ugpu.hcq.work.timeline import SIZE, Timeline


class ScriptedQueue(HardwareQueue):
    """Takes submissions and finishes none by itself."""

    def __init__(self, driver: ScriptedDriver, kind: QueueKind) -> None:
        self.core = driver.core
        self.kind = kind
        self.name = f"scripted {kind.value}"
        memory = Buffer(
            driver.core, VirtAddr(0), SIZE, Placement.HOST, memoryview(bytearray(SIZE)), "timeline"
        )
        self.timeline = Timeline(driver.core, memory, self.name)
        self.submitted: list[Sequence[Command]] = []
        self.encoded: Sequence[Command] = ()

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        self.encoded = commands
        return CommandBuffer(np.zeros(1, np.uint32), 1, [])

    def submit(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        self.submitted.append(self.encoded)

    def overwrite(self) -> None:
        self.forget()

    def place(self, buffer: CommandBuffer) -> Resident:
        raise NotSupported("a scripted device replays nothing")

    def submit_resident(self, resident: Resident, command_words: int, value: int) -> None:
        raise NotSupported("a scripted device replays nothing")

    def forget(self) -> None:
        """Refer to no commands any more; they go on."""
        self.submitted.clear()
        self.encoded = ()

    def finish(self, value: int | None = None) -> None:
        """The hardware reaches `value` (default: all submitted)."""
        assert self.timeline.memory.view is not None
        reached = self.timeline.last if value is None else value
        struct.pack_into("<Q", self.timeline.memory.view, 0, reached)


class ScriptedDriver(Driver):
    """on_pause is called whenever somebody waits; problem is what the hardware reports next."""

    target = TargetSpec("scripted", "none", "", "")
    clock_hertz = 1.0

    def __init__(self) -> None:
        super().__init__("scripted")
        self.problem: UgpuError | None = None
        self.on_pause: Callable[[], None] = lambda: None
        self.pauses = 0
        self.freed: list[Buffer] = []
        self.calls: list[str] = []
        self._queues = {kind: ScriptedQueue(self, kind) for kind in QueueKind}

    def scripted(self, kind: QueueKind = QueueKind.COMPUTE) -> ScriptedQueue:
        return self._queues[kind]

    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        return Buffer(self.core, VirtAddr(4096), size, placement)

    def free_memory(self, buffer: Buffer) -> None:
        self.freed.append(buffer)

    def load_program(self, image: bytes) -> Program:
        raise NotSupported("a scripted device runs nothing")

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return (self._queues[kind],)

    def poll(self) -> UgpuError | None:
        return self.problem

    def pause(self, limit_s: float) -> None:
        self.pauses += 1
        self.on_pause()

    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        return {"mood": "scripted"}

    def recover(self) -> None:
        self.problem = None
        self.calls.append("recover")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def info(self) -> dict[str, object]:
        return {}


class ScriptedDevice(Device):
    """What a user holds of it."""

    def __init__(self) -> None:
        super().__init__(ScriptedDriver())

    @property
    def driver(self) -> ScriptedDriver:
        driver = super().driver
        assert isinstance(driver, ScriptedDriver)
        return driver
