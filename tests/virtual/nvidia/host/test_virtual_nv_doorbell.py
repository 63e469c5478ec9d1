"""Doorbells in BAR0 and BAR1: who may read them, and which writes are there when they ring.

Facts: open-gpu-kernel-modules 580.142 usermode_api.c, nvidia-push-init.c, and an H100 with driver
580.159.04.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.support.nvidia.nv_machine import opened, powered, work
from tests.support.nvidia.rm_program import RmProgram, StatusError
from ugpu.hcq.errors import UnitTimeout
from ugpu.hcq.transport.node import NodeMapping
from ugpu.nv.rm.channel import ChannelMemory
from ugpu.virtual.nvidia.options import MachineOptions
from ugpu.virtual.nvidia.status import Status

SEMAPHORE = 0x4000
PARAMETERS = "NV_HOPPER_USERMODE_A_PARAMS"
WITH_BAR1 = ("gh100", "gb202")
PUT, BELL, TIME = 0x8C, 0x90, 0x80


def allocated(program: RmProgram, **values: int) -> int:
    handle, _ = program.alloc(program.subdevice, program.facts.usermode_class, PARAMETERS, **values)
    return handle


def space_of(program: RmProgram, handle: int) -> int:
    found = program.control(
        program.client, "NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE", hObject=handle,
        mapFlags=0x80002,
    )  # fmt: skip
    return int(found.addrSpaceType)


@pytest.mark.parametrize("chip", WITH_BAR1)
def test_a_doorbell_in_bar1_is_rung_and_not_read(chip: str) -> None:
    with RmProgram(chip) as program:
        program.bring_up()
        assert program.doorbell.read32(TIME) > 0
        assert program.machine.violations == []
        program.doorbell = program.cpu_map(allocated(program, bBar1Mapping=1), 64 << 10)
        program.release(program.work_address + SEMAPHORE, 5)
        program.submit()
        program.wait(SEMAPHORE, 5)
        assert program.machine.violations == []
        program.doorbell.read32(TIME)
        assert program.machine.violations == ["read of 0x80 of a usermode page in BAR1"]


@pytest.mark.parametrize("chip", WITH_BAR1)
def test_a_privileged_page_is_in_bar1_and_the_kernels(chip: str) -> None:
    with RmProgram(chip) as program:
        program.open_client()
        program.open_device()
        for values, status in (
            ({"bPriv": 1}, Status.INVALID_PARAMETER),
            ({"bPriv": 1, "bBar1Mapping": 1}, Status.INSUFFICIENT_PERMISSIONS),
        ):
            with pytest.raises(StatusError) as error:
                allocated(program, **values)
            assert error.value.status == status


def test_address_spaces_of_mappings() -> None:
    """Registers, video memory, system memory: as CUDA was told."""
    with RmProgram() as program:
        program.open_client()
        program.open_device()
        assert space_of(program, allocated(program)) == 3
        assert space_of(program, allocated(program, bBar1Mapping=1)) == 2
        plain, _ = program.alloc(program.subdevice, 0xC461)
        assert space_of(program, plain) == 3
        assert space_of(program, program.system_memory(4096)) == 1
        assert space_of(program, program.video_memory(2 << 20)) == 2
        for handle, status in (
            (program.subdevice, Status.INVALID_OBJECT),
            (0x4242, Status.OBJECT_NOT_FOUND),
        ):
            with pytest.raises(StatusError) as error:
                space_of(program, handle)
            assert error.value.status == status


class InVideoMemory(RmProgram):
    """A program whose USERD lies in video memory. reads: it reads there before it rings."""

    userd: NodeMapping
    reads = False

    def channel_values(self) -> dict[str, Any]:
        memory = self.video_memory(2 << 20)
        self.userd = self.cpu_map(memory, 2 << 20)
        return {
            **super().channel_values(), "hUserdMemory": [memory, *[0] * 7],
            "userdOffset": [0] * 8,
        }  # fmt: skip

    def ring(self) -> None:
        assert self.userd.view is not None
        struct.pack_into("<I", self.userd.view, PUT, self.put)
        if self.reads:
            self.userd.read32(0)
        self.doorbell.write32(BELL, self.token)


@pytest.mark.parametrize("chip", ["tu102", "ga102", "gh100"])
def test_a_doorbell_in_bar0_overtakes_a_write_of_video_memory(chip: str) -> None:
    with InVideoMemory(chip, doorbell_overtakes=True) as program:
        program.bring_up()
        program.release(program.work_address + SEMAPHORE, 1)
        program.submit()
        assert program.machine.gpu.wait_idle()
        assert program.word(SEMAPHORE) == 0  # as observed: GP_PUT 1, GP_GET 0
        program.doorbell.write32(BELL, program.token)
        program.wait(SEMAPHORE, 1)
        for number in range(2, 6):  # each doorbell sees what came before the one before
            program.release(program.work_address + SEMAPHORE, number)
            program.submit()
            assert program.machine.gpu.wait_idle()
            assert program.word(SEMAPHORE) == max(number - 1, 1)
        assert program.userd.read32(PUT) == program.put
        program.doorbell.write32(BELL, program.token)
        program.wait(SEMAPHORE, 5)
        assert program.machine.violations == []


def test_a_doorbell_in_bar1_does_not_overtake() -> None:
    with InVideoMemory(doorbell_overtakes=True) as program:
        program.bring_up()
        program.doorbell = program.cpu_map(allocated(program, bBar1Mapping=1), 64 << 10)
        for number in range(1, 5):
            program.release(program.work_address + SEMAPHORE, number)
            program.submit()
            program.wait(SEMAPHORE, number)


def test_a_read_of_video_memory_before_the_doorbell_is_enough() -> None:
    with InVideoMemory(doorbell_overtakes=True) as program:
        program.bring_up()
        program.reads = True
        for number in range(1, 5):
            program.release(program.work_address + SEMAPHORE, number)
            program.submit()
            program.wait(SEMAPHORE, number)


def test_writes_of_system_memory_are_not_overtaken() -> None:
    with RmProgram(doorbell_overtakes=True) as program:
        program.bring_up()
        program.release(program.work_address + SEMAPHORE, 1)
        program.submit()
        program.wait(SEMAPHORE, 1)


@pytest.mark.parametrize("chip", ["tu102", "ga102", "ad102", "gh100", "gb202"])
def test_our_driver_rings_after_its_writes(chip: str) -> None:
    with powered(chip, MachineOptions(doorbell_overtakes=True)) as machine:
        with opened(machine) as device:
            for _ in range(3):
                work(device)
            device.reset()
            work(device)
        assert machine.violations == []


def test_our_driver_without_its_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChannelMemory, "settle", lambda memory: None)
    with (
        powered("ga102", MachineOptions(doorbell_overtakes=True)) as machine,
        pytest.raises(UnitTimeout, match="no end of its first work"),
    ):
        opened(machine)
