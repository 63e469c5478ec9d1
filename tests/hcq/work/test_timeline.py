"""A timeline's values rise, whoever raises it."""

from __future__ import annotations

import pytest

from ugpu import hcq
from ugpu.hcq.cpu.device import CpuDevice
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.view import RemoteView
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.timeline import Timeline


def test_the_host_never_takes_a_timeline_back() -> None:
    with hcq.open("cpu", threads=1) as device:
        assert isinstance(device, CpuDevice)
        timeline = Timeline(device.driver.core, device.driver.timeline_memory(), "test")
        assert (timeline.value, timeline.last) == (0, 0)
        timeline.reach(5)
        assert (timeline.value, timeline.last) == (5, 5)
        timeline.reach(3)  # told late: another thread has told of 5
        assert (timeline.value, timeline.last) == (5, 5)
        assert timeline.advance() == 6
        assert (timeline.value, timeline.last) == (5, 6)
        timeline.restart()
        assert timeline.value == 6


@pytest.mark.parametrize("last", [0, 5, (1 << 32) - 1, 1 << 32, (7 << 32) + 3])
@pytest.mark.parametrize("ahead", [-(1 << 31), -3, 0, 1, (1 << 31) - 1])
def test_a_dword_tells_of_values_around_the_last_one(last: int, ahead: int) -> None:
    """Memory behind a bridge is read a dword at a time; a relay's values may be ahead of `last`."""
    value = last + ahead
    if value < 0:
        return
    memory = bytearray(16)

    def read(at: int, size: int) -> bytes:
        return bytes(memory[at : at + size])

    def write(at: int, data: bytes | bytearray | memoryview) -> None:
        memory[at : at + len(data)] = data

    with hcq.open("cpu", threads=1) as device:
        view = RemoteView(read, write, 16)
        buffer = Buffer(device, VirtAddr(0x1000), 16, Placement.HOST, view=view)
        timeline = Timeline(device, buffer, "test")
        timeline.last = last
        memory[:8] = value.to_bytes(8, "little")
        assert timeline.value == value


def test_what_lies_behind_a_bridge_is_read_by_dwords_and_not_again() -> None:
    reads: list[tuple[int, int]] = []
    memory = bytearray(16)

    def read(offset: int, size: int) -> bytes:
        reads.append((offset, size))
        return bytes(memory[offset : offset + size])

    def write(offset: int, data: bytes | bytearray | memoryview) -> None:
        memory[offset : offset + len(data)] = data

    with hcq.open("cpu") as device:
        view = RemoteView(read, write, 16)
        buffer = Buffer(device.driver.core, VirtAddr(64), 16, Placement.HOST, view)
        timeline = Timeline(device.driver.core, buffer, "far")
        assert not timeline.reached(1) and reads == [(0, 4)]
        timeline.last = (1 << 32) + 5
        memory[:4] = (3).to_bytes(4, "little")
        assert timeline.value == (1 << 32) + 3
        memory[:4] = (0xFFFF_FFFF).to_bytes(4, "little")
        assert timeline.value == (1 << 32) - 1, "further back than what was seen, as after a loss"
        reads.clear()
        assert timeline.reached((1 << 32) + 3) and reads == []
        assert not timeline.reached((1 << 32) + 4) and reads == [(0, 4)]
