"""Frames of GFX 12's scheduler, by hand: where their fields are, and what both pipes map."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ugpu.am.chips import facts_of
from ugpu.virtual.amd.chip import FRAME_BUFFER_BASE, Chip
from ugpu.virtual.amd.engines.cp import mes_frames
from ugpu.virtual.amd.engines.cp.mes_frames import LAYOUT_11, LAYOUT_12, FrameExecutor, OwnResources
from ugpu.virtual.amd.engines.cp.pm4.packets import BadPacket
from ugpu.virtual.amd.engines.gfx import Gfx
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions

VRAM = 256 << 20
MQD, RING, EOP, WPTR, FENCE = (FRAME_BUFFER_BASE + at for at in (1 << 20, 2 << 20, 3 << 20, 4 << 20,
                                                                 5 << 20))  # fmt: skip
DOORBELL, COMPUTE, SCHEDULER_RING = 6, 1, 3


@pytest.fixture
def chip() -> Iterator[Chip]:
    chip = build_chip(facts_of("navi48"), ChipOptions(vram=VRAM, noise=0, manual_time=True))
    chip.scheduler.advance(1.0)
    with chip.lock:
        chip.autoload()
    chip.scheduler.advance(1.0)
    for name, value in (
        ("GCMC_VM_MX_L1_TLB_CNTL", 0x1859),
        ("GCMC_VM_SYSTEM_APERTURE_LOW_ADDR", FRAME_BUFFER_BASE >> 18),
        ("GCMC_VM_SYSTEM_APERTURE_HIGH_ADDR", FRAME_BUFFER_BASE + VRAM - 1 >> 18),
        ("GCVM_CONTEXT0_CNTL", 1),
    ):
        with chip.lock:
            chip.space.write(chip.space.index("gc", name), value)
    yield chip
    chip.close()


class Queue:
    """The queue whose ring the frames are in."""

    def __init__(self, chip: Chip) -> None:
        assert isinstance(chip.gfx, Gfx)
        self.mec = chip.gfx.mec
        self.worker = SimpleNamespace(check=lambda: None)
        self.stored: list[tuple[int, int]] = []

    def store(self, vmid: int, address: int, data: bytes) -> None:
        self.stored.append((address, int.from_bytes(data, "little")))


def frame(opcode: int, fence: int, fields: dict[int, int]) -> list[int]:
    """A frame with 64-bit values at even dwords if they are large. fence: dword of its address."""
    words = [1 | opcode << 4 | 64 << 12] + [0] * 63
    for at, value in {**fields, fence: FENCE, fence + 2: 7}.items():
        words[at] = value & 0xFFFF_FFFF
        if value >> 32:
            words[at + 1] = value >> 32
    return words


RESOURCES = frame(0, 50, {2: 0xFF00, 5: 0xE, 22: MQD, 24: MQD})


def described(chip: Chip) -> None:
    """Write the descriptor of a compute queue."""
    words = [0] * 512
    words[0] = 0xC0310800
    first = chip.space.index("gc", "CP_MQD_BASE_ADDR")
    for name, value in (
        ("CP_MQD_BASE_ADDR", MQD & 0xFFFF_FFFF),
        ("CP_MQD_BASE_ADDR_HI", MQD >> 32),
        ("CP_HQD_PQ_BASE", RING >> 8 & 0xFFFF_FFFF),
        ("CP_HQD_PQ_BASE_HI", RING >> 40),
        ("CP_HQD_PQ_DOORBELL_CONTROL", 1 << 30 | DOORBELL << 2),
        ("CP_HQD_PQ_CONTROL", 0x00308509),
        ("CP_HQD_EOP_BASE_ADDR", EOP >> 8 & 0xFFFF_FFFF),
        ("CP_HQD_EOP_BASE_ADDR_HI", EOP >> 40),
    ):
        words[128 + chip.space.index("gc", name) - first] = value
    chip.vram.write(MQD - FRAME_BUFFER_BASE, struct.pack("<512I", *words))


def added(pipe: int, queue: int, kind: int = COMPUTE) -> list[int]:
    return frame(
        2, 38, {18: DOORBELL, 20: MQD, 22: WPTR, 28: kind, 37: 1 << 13, 50: pipe, 51: queue}
    )


def run(chip: Chip, *frames: list[int], layout: Any = LAYOUT_12) -> tuple[Queue, FrameExecutor]:
    queue: Any = Queue(chip)
    executor = FrameExecutor(queue, OwnResources(), layout)
    for words in frames:
        assert executor.run(words) == 64
    return queue, executor


def test_a_queue_is_mapped_and_removed(chip: Chip) -> None:
    described(chip)
    queue, executor = run(chip, RESOURCES, frame(19, 2, {13: 100}), added(1, 2))
    slot = queue.mec.slots[1][2]
    assert slot.active is not None and slot.doorbell_dword() == DOORBELL
    assert queue.stored == [(FENCE, 7)] * 3
    with chip.lock:
        slot.reset()  # nothing runs here that would drain it
    executor.run(frame(11, 2, {}))  # QUERY_SCHEDULER_STATUS
    assert len(queue.stored) == 4 and chip.violations == []


@pytest.mark.parametrize("after_reset", [False, True])
def test_a_queue_that_was_reset_is_dropped_without_unmapping(
    chip: Chip, after_reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux 7.3 mes_v12_0.c, RESET_QUEUES: the kernel has reset the queue's slot itself."""
    unmapped: list[Any] = []
    monkeypatch.setattr(mes_frames, "unmapped", lambda *around, **how: unmapped.append(how))
    described(chip)
    queue, executor = run(chip, RESOURCES, added(1, 2))
    executor.run(frame(3, 6, {1: DOORBELL, 4: 1 << 3 | after_reset << 4}))
    assert unmapped == ([] if after_reset else [{"reset": False}])
    assert queue.stored == [(FENCE, 7)] * 3
    executor.run(frame(14, 2, {1: 9}))  # CHANGE_CONFIG: processes side by side
    assert len(queue.stored) == 4
    with pytest.raises(BadPacket, match="flags 0x20"):
        executor.run(frame(3, 6, {1: DOORBELL, 4: 1 << 5}))
    with chip.lock:
        queue.mec.slots[1][2].reset()


def test_a_bad_frame_hangs_the_scheduler_without_an_interrupt(chip: Chip) -> None:
    """gc_12_0_0_offset.h has CP_ME1_PIPEn_INT_CNTL alone."""
    assert isinstance(chip.gfx, Gfx)
    mec = chip.gfx.mec
    assert mec.scheduler.interrupt_control(0) == ""
    slot: Any = SimpleNamespace(unit=mec.scheduler, pipe=0, ring_id=0)
    queue: Any = SimpleNamespace(slot=slot, vmid=0)
    with chip.lock:
        mec.interrupt(queue, 183, "OPCODE_ERROR_INT", 0)


def test_pipe_1_maps_the_ring_of_the_scheduler(chip: Chip) -> None:
    described(chip)
    queue, _ = run(chip, RESOURCES, added(0, 0, SCHEDULER_RING))
    assert queue.mec.scheduler.slots[0].active is not None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (added(2, 0), "does not exist"),  # a third pipe
        (added(0, 4), "does not exist"),
        (frame(20, 2, {}), "unknown opcode 20"),
        (frame(8, 28, {1: 4}), "RESET with flags 0x4 is not modelled"),
        (frame(6, 8, {2: MQD}), "no queue is of the gang"),
    ],
)
def test_a_frame_that_cannot_be_served_stops_the_ring(
    chip: Chip, words: list[int], reason: str
) -> None:
    described(chip)
    with pytest.raises(BadPacket, match=reason):
        run(chip, RESOURCES, words)


def test_the_layout_of_gfx11_is_another(chip: Chip) -> None:
    described(chip)
    with pytest.raises(BadPacket):
        run(chip, RESOURCES, added(1, 2), layout=LAYOUT_11)


def test_both_pipes_have_one_image(chip: Chip) -> None:
    commands = chip.generation.commands
    assert commands.scheduler_firmware == ("MES", "MES")
    types = chip.generation.firmware.types
    assert (types[33], types[81], types[34], types[82]) == ("MES", "MES", "MES_STACK", "MES_STACK")
