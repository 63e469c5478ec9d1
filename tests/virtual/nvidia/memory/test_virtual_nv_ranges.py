"""Ranges of virtual memory (NV01_MEMORY_VIRTUAL), and channels of older classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.nvidia.rm_program import RmProgram, StatusError
from ugpu.virtual.nvidia.gpu import facts_of
from ugpu.virtual.nvidia.rm.classes import channels_of
from ugpu.virtual.nvidia.status import Status

FIXED = 1 << 15  # NVOS46_FLAGS_DMA_OFFSET_FIXED_TRUE
LIMIT = 0x1FFFF_FFFF_FFFF
AT = 0x7_0000_0000


@pytest.fixture
def opened() -> Iterator[RmProgram]:
    with RmProgram() as made:
        made.bring_up()
        yield made


def new_range(program: RmProgram, space: int = 0) -> int:
    handle, _ = program.alloc(
        program.device, 0x70, "NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS", limit=LIMIT, hVASpace=space
    )
    return handle


def map_dma(program: RmProgram, dma: int, memory: int, size: int, at: int = AT) -> None:
    block = program.call(
        program.ctl, "NV_ESC_RM_MAP_MEMORY_DMA", hClient=program.client, hDevice=program.device,
        hDma=dma, hMemory=memory, length=size, flags=FIXED, dmaOffset=at,
    )  # fmt: skip
    if block.status:
        raise StatusError(block.status)
    assert block.dmaOffset == at


def unmap_dma(program: RmProgram, dma: int, memory: int, at: int = AT) -> None:
    block = program.call(
        program.ctl, "NV_ESC_RM_UNMAP_MEMORY_DMA", hClient=program.client, hDevice=program.device,
        hDma=dma, hMemory=memory, dmaOffset=at,
    )  # fmt: skip
    if block.status:
        raise StatusError(block.status)


def test_memory_is_mapped_into_the_devices_own_space(opened: RmProgram) -> None:
    dma = new_range(opened)
    used = opened.machine.system_used
    memory = opened.system_memory(1 << 20)
    map_dma(opened, dma, memory, 1 << 20)
    with pytest.raises(StatusError) as refused:
        map_dma(opened, dma, memory, 4096, AT + 4096)
    assert refused.value.status == Status.STATE_IN_USE
    opened.free(memory)  # the mapping holds it
    assert opened.machine.system_used > used
    unmap_dma(opened, dma, memory)
    assert opened.machine.system_used == used
    with pytest.raises(StatusError) as refused:
        unmap_dma(opened, dma, memory)
    assert refused.value.status == Status.INVALID_ADDRESS
    opened.free(dma)


def test_a_range_takes_its_mappings_along(opened: RmProgram) -> None:
    used = opened.machine.system_used
    dma, memory = new_range(opened), opened.system_memory(1 << 20)
    map_dma(opened, dma, memory, 1 << 20)
    opened.free(memory)
    opened.free(dma)
    assert opened.machine.system_used == used


def test_ranges_of_one_device_share_its_space_and_named_ones_do_not(opened: RmProgram) -> None:
    first, second = new_range(opened), new_range(opened)
    objects = opened.machine.clients[opened.client].objects
    assert objects[first].space is objects[second].space
    space, _ = opened.alloc(opened.device, 0x90F1, "NV_VASPACE_ALLOCATION_PARAMETERS")
    named = new_range(opened, space)
    assert objects[named].space is objects[space].space is not objects[first].space
    opened.free(space)  # the range holds it
    memory = opened.system_memory(4096)
    map_dma(opened, named, memory, 4096)
    unmap_dma(opened, named, memory)


def test_a_space_that_uvm_owns_is_not_mapped_by_rm(opened: RmProgram) -> None:
    with pytest.raises(StatusError) as refused:
        new_range(opened, opened.space)
    assert refused.value.status == Status.NOT_SUPPORTED
    with pytest.raises(StatusError) as refused:
        new_range(opened, 0xDEAD)
    assert refused.value.status == Status.INVALID_OBJECT_HANDLE


CHANNELS = {
    "tu102": (0xC36F, 0xC46F), "ga102": (0xC36F, 0xC46F, 0xC56F), "ad102": (0xC36F, 0xC46F, 0xC56F),
    "gh100": (0xC36F, 0xC46F, 0xC56F, 0xC86F),
    "gb202": (0xC36F, 0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F),
}  # fmt: skip


@pytest.mark.parametrize("chip", sorted(CHANNELS))
def test_channels_of_every_class_that_a_chip_offers_work(chip: str) -> None:
    """open-gpu-kernel-modules 580.142 g_gpu_class_list.c, gpuGetClassDescriptorList_*."""
    facts = facts_of(chip)
    assert channels_of(facts) == set(CHANNELS[chip])
    for class_id in CHANNELS[chip]:
        with RmProgram(chip) as program:
            program.facts = replace(facts, gpfifo_class=class_id)
            program.bring_up()
            listed = program.control(program.device, "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2")
            assert class_id in list(listed.classList[: listed.numClasses])
            program.release(program.work_address + 0x4000, 41)
            program.submit()
            program.wait(0x4000, 41)
            assert program.machine.violations == []


def test_a_newer_chips_channels_are_refused() -> None:
    with RmProgram("ga102") as program:
        program.facts = replace(program.facts, gpfifo_class=0xC86F)
        with pytest.raises(StatusError) as refused:
            program.bring_up()
        assert refused.value.status == Status.INVALID_CLASS
