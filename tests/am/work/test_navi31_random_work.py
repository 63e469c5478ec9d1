"""Random work on all queues of the virtual Navi31, ordered by timelines alone, against NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.am_navi31 import build_chip
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.queue import Queue, QueueKind
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.options import ChipOptions

COUNT = 3000
GRID = (-(-COUNT // 64),)
BLOCK = (64,)
OPERATIONS = 250
count = np.uint32(COUNT)


class Work:
    """Buffers on the device and what they must hold; each step waits for all other queues."""

    def __init__(self, device: Device, seed: int) -> None:
        self.random = random.Random(seed)
        self.program = device.load(contract_object(device.target))
        self.queues = [
            device.queue(),
            device.queue(QueueKind.COPY, 0),
            device.queue(QueueKind.COPY, 1),
        ]
        self.buffers = [device.alloc(4 * COUNT) for _ in range(5)]
        values = np.random.default_rng(seed)
        self.expected: list[NDArray[np.uint32]] = []
        for buffer in self.buffers:
            content = values.integers(0, 1 << 32, COUNT, dtype=np.uint32)
            buffer.copy_from(content)
            self.expected.append(content)

    def step(self) -> None:
        """Do one random operation."""
        to, x, y = self.random.sample(range(len(self.buffers)), 3)
        kind = self.random.randrange(4)
        queue = self.queues[0] if kind < 2 else self.random.choice(self.queues)
        for other in self.queues:
            if other is not queue:
                queue.wait(other.timeline)
        getattr(self, ("scale", "add", "copy", "fill")[kind])(queue, to, x, y)
        queue.submit()

    def scale(self, queue: Queue, to: int, x: int, y: int) -> None:
        factor = np.uint32(self.random.randrange(1 << 32))
        arguments = (self.buffers[to], self.buffers[x], count, factor)
        queue.launch(self.program["scale"], grid=GRID, block=BLOCK, args=arguments)
        self.expected[to] = self.expected[x] * factor

    def add(self, queue: Queue, to: int, x: int, y: int) -> None:
        arguments = (self.buffers[to], self.buffers[x], self.buffers[y], count)
        queue.launch(self.program["add"], grid=GRID, block=BLOCK, args=arguments)
        self.expected[to] = self.expected[x] + self.expected[y]

    def copy(self, queue: Queue, to: int, x: int, y: int) -> None:
        queue.copy(self.buffers[to], self.buffers[x])
        self.expected[to] = self.expected[x]

    def fill(self, queue: Queue, to: int, x: int, y: int) -> None:
        value = self.random.randrange(1 << 32)
        queue.fill(self.buffers[to], value)
        self.expected[to] = np.full(COUNT, value, np.uint32)

    def check(self) -> None:
        """Compare all buffers."""
        for buffer, expected in zip(self.buffers, self.expected, strict=True):
            assert (buffer.numpy(np.uint32) == expected).all()


@pytest.mark.parametrize("seed", [1, 2])
def test_random_work(seed: int) -> None:
    chip: Chip = build_chip(ChipOptions(vram=1 << 30, seed=seed))
    try:
        with hcq.open("virtual:navi31", chip=chip) as device:
            work = Work(device, seed)
            for number in range(OPERATIONS):
                work.step()
                if number % 50 == 49:
                    work.check()
        assert chip.violations == []
    finally:
        chip.close()
