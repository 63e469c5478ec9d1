"""Faults of copy engines and of the host unit, which NVIDIA's UVM may serve. The test plays UVM: it
reads the shadow buffer, maps, and clears the channel's faulted bit, or has the GSP end the channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.nvidia.gsp.gsp_faults import (
    STRAY,
    channels,
    copy,
    copy_from_nowhere,
    map_again,
    opened,
    space_of,
    unmap,
)
from tests.support.waiting import until
from ugpu.hcq.errors import PageFault
from ugpu.hcq.state.memory import Placement
from ugpu.nv import abi
from ugpu.nv.device.device import NvDevice
from ugpu.nv.gsp.rm.gpu import GspGpu
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.rm.channels import ChannelObject
from ugpu.virtual.nvidia.status import Status

CHANNEL_RAM, INTERNAL_DOORBELL = 0xD0_0000, 0xC0_0090  # of runlist 0
RESET = {1 << 4: 0x11, 1 << 5: 0x21}  # NV_CHRAM_CHANNEL_UPDATE_RESET_{PBDMA,ENG}_FAULTED
CLEAR_FAULTED = 0x84  # of clc46f.h


@pytest.fixture(params=["ad102", "tu102", "gh100"])
def card(request: pytest.FixtureRequest) -> Iterator[Card]:
    made = build_card(request.param, CardOptions(memory=1 << 30))
    yield made
    made.close()


class Shadow:
    """UVM's buffer of the faults that it may serve, with its queue, as the module registers it."""

    def __init__(self, device: NvDevice, capacity: int = 8192) -> None:
        gpu = device.driver.gpu
        assert isinstance(gpu, GspGpu)
        self.gpu = gpu
        self.queue, *self.pages = [device.alloc(4096, placement=Placement.HOST) for _ in range(65)]
        assert self.queue.view is not None
        self.words = np.frombuffer(self.queue.view, np.uint64)  # type of Queue: queue.h
        self.words[[0, 3, 8, 16]] = capacity, 32, 0, 0
        name = "NV2080_CTRL_INTERNAL_GMMU_REGISTER_CLIENT_SHADOW_FAULT_BUFFER_PARAMS"
        block = abi.select("570.144").structs[name].new(shadowFaultBufferSize=8192 * 32)
        places = [space_of(device).mappings[page.address].dma for page in (self.queue, *self.pages)]
        first, *rest = [int(dma.segments[0].address) for dma in places if dma is not None]
        block.shadowFaultBufferQueuePhysAddr = first
        for at, address in enumerate(rest):
            block.shadowFaultBufferPteArray[at] = address
        assert self.control(0x20800A9D, block) == 0

    def control(self, number: int, block: Any) -> int:
        return int(self.gpu.client._control(self.gpu.subdevice, number, block, "of UVM"))

    def report(self, entry: bytes) -> int:
        name = "NV2080_CTRL_GPU_REPORT_NON_REPLAYABLE_FAULT_PARAMS"
        block = abi.select("570.144").structs[name].new()
        block.faultPacket.raw[:] = entry
        return self.control(0x20800177, block)


def test_uvm_is_asked_about_a_fault_of_a_copy_engine(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its channel rests until UVM has it ended: uvm_gpu_non_replayable_faults.c."""
    with opened(card, monkeypatch) as device, device.alloc(4096) as target:
        shadow = Shadow(device)
        copy_from_nowhere(device, target)
        until(lambda: shadow.words[16] == 1, "the entry")
        assert shadow.pages[0].view is not None
        entry = bytes(shadow.pages[0].view[:32])
        assert int.from_bytes(entry[8:16], "little") == STRAY and entry[31] >> 7
        shadow.words[8] = 1
        assert all(each.mmu_fault is None for each in channels(card)), "nothing has ended"
        assert shadow.report(bytes(32)) == Status.INVALID_CHANNEL
        assert shadow.report(entry) == 0
        with pytest.raises(PageFault) as caught:
            device.synchronize()
        assert caught.value.facts["address"] == STRAY
        assert shadow.report(entry) == Status.INVALID_CHANNEL
        device.reset()
        copy_from_nowhere(device, target)
        until(lambda: shadow.words[16] == 2, "the next entry")
        device.reset()  # while it rests
        entry = bytes(shadow.pages[0].view[32:64])
        assert shadow.report(entry) == 0, "the channel is gone: nothing to end"
        target.fill(1)
        device.synchronize()


def clear_faulted(card: Card, channel: ChannelObject, bit: int) -> None:
    """What UVM does once it has served a fault: uvm_turing_host.c, uvm_ampere_host.c."""
    runlist, number = channel.runlist.number, channel.channel.number
    if card.facts.family == "turing":
        (other, *_) = (each for each in channels(card) if each is not channel)
        token = number | runlist << 16 | (bit == 1 << 5) << 31
        assert other.channel._host.method(CLEAR_FAULTED, token) is None
        return
    register = CHANNEL_RAM + 0x2000 * runlist + 4 * number
    assert card.read32(register) & 0x32 == bit | 1 << 1, "faulted, and enabled"
    card.write32(register, RESET[bit])
    assert card.read32(register) & 0x30 == 0
    card.write32(INTERNAL_DOORBELL + 0x1000 * runlist, number)


@pytest.mark.parametrize("unit", ["engine", "host"])
def test_a_channel_goes_on_once_its_fault_was_served(
    card: Card, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    """A page of managed memory: UVM maps it, and clears the bit of the copy engine or of the host
    unit. The copies before and after the fault are made once each."""
    bit = 1 << 5 if unit == "engine" else 1 << 4
    with (
        opened(card, monkeypatch) as device,
        device.alloc(4096) as source,
        device.alloc(4096) as target,
        device.alloc(4096) as last,
    ):
        shadow = Shadow(device)
        source.fill(1)
        device.synchronize()
        before = {each: each.channel.entries_done for each in channels(card)}
        copy(device, last, source)
        device.synchronize()
        (channel,) = (each for each, done in before.items() if each.channel.entries_done > done)
        place = int(source.address) if unit == "engine" else channel.channel.ring_address
        for number in range(2):
            source.fill(0x5A + number)
            device.synchronize()
            unmap(device, place)
            copy(device, target, source)
            copy(device, last, target)
            until(lambda: shadow.words[16] != shadow.words[8], "the entry")
            assert shadow.words[16] == number + 1
            assert shadow.pages[0].view is not None
            entry = bytes(shadow.pages[0].view[32 * number : 32 * number + 32])
            assert int.from_bytes(entry[8:16], "little") == place & -4096
            shadow.words[8] = number + 1
            map_again(device, place)
            clear_faulted(card, channel, bit)
            device.synchronize()
            for copied in (target, last):
                assert (copied.numpy(np.uint32) == 0x5A + number).all()
        assert shadow.report(entry) == 0, "nothing rests: nothing to end"
        assert card.violations == []


def test_only_a_bit_that_is_set_is_cleared(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(card, monkeypatch) as device, device.alloc(4096) as target:
        shadow = Shadow(device)
        copy_from_nowhere(device, target)
        until(lambda: shadow.words[16] == 1, "the entry")
        (channel,) = (each for each in channels(card) if each.channel.faulted)
        runlist, number = channel.runlist.number, channel.channel.number
        if card.facts.family == "turing":
            for token in (number | runlist << 16, 0x7FF | 1 << 31):
                with pytest.raises(ChannelError, match="bit is not set"):
                    channel.channel._host.method(CLEAR_FAULTED, token)
        else:
            register = CHANNEL_RAM + 0x2000 * runlist + 4 * number
            for place, value in ((register, 0x11), (register, 0x3), (register + 0x1000, 0x21)):
                card.write32(place, value)
            card.write32(INTERNAL_DOORBELL + 0x1000 * runlist, 0x7FF)
            assert len(card.violations) == 4, card.violations
            with pytest.raises(ChannelError, match="not modelled"):
                channel.channel._host.method(CLEAR_FAULTED, number)
        assert channel.channel.faulted
        device.reset()


@pytest.mark.parametrize("why", ["no page faults", "queue", "unregistered"])
def test_uvm_is_not_asked(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    card = build_card("ad102", CardOptions(memory=1 << 30))
    flags = 0 if why == "no page faults" else 1 << 6
    with opened(card, monkeypatch, flags) as device, device.alloc(4096) as target:
        shadow = Shadow(device, capacity=8191 if why == "queue" else 8192)
        if why == "unregistered":
            name = "NV2080_CTRL_INTERNAL_GMMU_UNREGISTER_CLIENT_SHADOW_FAULT_BUFFER_PARAMS"
            assert shadow.control(0x20800A9E, abi.select("570.144").structs[name].new()) == 0
        copy_from_nowhere(device, target)
        with pytest.raises(PageFault):
            device.synchronize()
        assert shadow.words[16] == 0
        assert any("has 8191 of 32 bytes" in text for text in card.violations) == (why == "queue")
        device.reset()
    card.close()
