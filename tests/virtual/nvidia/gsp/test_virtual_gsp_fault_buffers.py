"""The MMU's fault buffers of a register-level card. The test plays NVIDIA's UVM: it reads entries
by the layout of clc369.h, maps or cancels, and replays. Channels and tables are our driver's."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.gsp.gsp_faults import (
    STRAY,
    channels,
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
from ugpu.virtual.nvidia.memory.fault_buffers import Replay
from ugpu.virtual.nvidia.rm.channels import ChannelObject

FINAL, REPLAYABLE = 0xB83000, 0xB83020
LOW, HIGH, GET, PUT, SIZE = range(0, 20, 4)
OVERFLOW, ENABLE, DEFAULT = 1 << 31, 1 << 31, 1 << 30
INVALIDATE, LEAF = 0xB830B0, 0xB81000
BUFFER = 700 << 20  # in video memory that the test does not allocate

STORE = """
.visible .entry store(.param .u64 place, .param .u64 from)
{
  .reg .b64 %place, %from;
  .reg .b32 %value;
  ld.param.u64 %place, [place];
  ld.param.u64 %from, [from];
  ld.global.u32 %value, [%from];
  st.global.u32 [%place], %value;
  ret;
}
"""


@pytest.fixture(params=["ad102", "tu102", "gh100"])
def card(request: pytest.FixtureRequest) -> Iterator[Card]:
    made = build_card(request.param, CardOptions(memory=1 << 30))
    yield made
    made.close()


class Uvm:
    """What services the faults. The buffer's entries lie in video memory, through BAR2."""

    def __init__(self, card: Card, device: NvDevice, buffer: int = REPLAYABLE, size: int = 8):
        self.card, self.device, self.buffer, self.size = card, device, buffer, size
        self.get = 0
        for block in (0x1714, 0xB80F70):
            card.write32(block, 0)  # BAR2 is physical
        card.write32(buffer + HIGH, BUFFER >> 32)
        card.write32(buffer + LOW, BUFFER & 0xFFFF_FFFF)
        card.write32(buffer + SIZE, ENABLE | size)
        self.program = device.load(ptx_kernels.text(STORE, device.target.cpu))

    def close(self) -> None:
        self.program.close()

    @property
    def put(self) -> int:
        return self.card.read32(self.buffer + PUT)

    def launch(self, place: int, source: int) -> None:
        with self.device.queue() as queue:
            arguments = (np.uint64(place), np.uint64(source))
            queue.launch(self.program["store"], grid=(1,), block=(1,), args=arguments)

    def entry(self) -> dict[str, int]:
        """The next entry, by the fields of NVC369_BUF_ENTRY; marks it as read and moves GET."""
        until(lambda: self.put & 0xFFFFF != self.get, "an entry")
        view, at = self.card.gpu.memory.view, BUFFER + 32 * self.get
        words = struct.unpack_from("<8I", view, at)
        assert words[7] >> 31, "VALID"
        view[at + 31] = 0
        self.get = (self.get + 1) % self.size
        self.card.write32(self.buffer + GET, self.get)
        return {
            "instance": words[1] << 32 | words[0] & ~0xFFF, "aperture": words[0] >> 8 & 3,
            "address": words[3] << 32 | words[2], "engine": words[6] & 0x1FF,
            "type": words[7] & 0x1F, "replayable": words[7] >> 7 & 1,
            "client": words[7] >> 8 & 0x7F, "access": words[7] >> 16 & 0xF,
            "hub": words[7] >> 20 & 1, "may_replay": words[7] >> 30 & 1,
        }  # fmt: skip

    def replay(self, how: int = Replay.START) -> None:
        self.card.write32(INVALIDATE, 1 << 31 | 2 | how << 3)

    def memory_operation(self, how: int, directory: int, address: int, access: int) -> None:
        """MEM_OP of a privileged channel, as uvm_volta_host.c composes it."""
        channel = next(iter(self.channels(0)))
        channel.channel.privileged = True
        words = [
            address & 0xFFFF_F000, address >> 32,
            directory & 0xFFFF_F000 | access << 7 | how << 2, 10 << 27 | directory >> 32,
        ]  # fmt: skip
        host = channel.channel._host
        for number, word in enumerate(words):
            assert host.method(0x28 + 4 * number, word) is None

    def channels(self, runlist: int) -> list[ChannelObject]:
        return [each for each in channels(self.card) if each.runlist.number == runlist]


def table(card: Card) -> Any:
    name = {"turing": "tu102", "ada": "ga100", "hopper": "gh100"}[card.facts.family]
    return abi.fault_codes(name)


def test_an_access_waits_until_its_page_is_mapped_and_replayed(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        opened(card, monkeypatch) as device,
        device.alloc(4096) as source,
        device.alloc(4096) as target,
    ):
        uvm = Uvm(card, device)
        source.fill(0xAB)
        target.fill(0)
        device.synchronize()
        address = int(target.address)
        unmap(device, address)
        uvm.launch(address, int(source.address))
        entry, codes = uvm.entry(), table(card)
        assert entry["address"] == address and entry["access"] == 1, entry
        assert codes.field("FAULT_TYPE").name_of(entry["type"]) in ("PTE", "PDE")
        assert (entry["replayable"], entry["may_replay"], entry["hub"]) == (1, 1, 0)
        assert entry["client"] == codes.field("CLIENT").values["GPC_T1_0"]
        graphics = 384 if card.facts.family == "hopper" else 64
        assert 0 <= entry["engine"] - graphics < 64, "GRAPHICS and the subcontext"
        assert entry["instance"] in {each.channel.instance for each in uvm.channels(0)}
        assert entry["aperture"] == 0, "video memory"
        assert card.read32(LEAF + 8) & 1, "its vector is pending"
        uvm.replay()  # before it is mapped: the fault is reported again
        assert uvm.entry()["address"] == address
        map_again(device, address)
        uvm.replay(Replay.START_ACK_ALL)
        device.synchronize()
        assert target.numpy(np.uint32)[0] == 0xAB
        assert uvm.put & 0xFFFFF == uvm.get and card.violations == []
        uvm.close()


@pytest.mark.parametrize("how", ["register", "VA", "another VA first"])
def test_a_cancelled_access_ends_its_channel(
    card: Card, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with opened(card, monkeypatch) as device, device.alloc(4096) as source:
        uvm = Uvm(card, device)
        uvm.launch(STRAY, int(source.address))
        assert uvm.entry()["address"] == STRAY
        if how == "register":
            uvm.replay(Replay.CANCEL_GLOBAL)
        else:
            root = space_of(device).root_entry & ~0xFFF
            if how == "another VA first":
                for place, access in ((STRAY + 4096, 7), (STRAY, 0)):  # not this page; reads
                    uvm.memory_operation(Replay.CANCEL_VA_GLOBAL, root, place, access)
                uvm.memory_operation(Replay.START, 0, 0, 1)  # replayed, so it still waited
                assert uvm.entry()["address"] == STRAY
            uvm.memory_operation(Replay.CANCEL_VA_GLOBAL, root, STRAY, 7)
        with pytest.raises(PageFault) as caught:
            device.synchronize()
        assert caught.value.facts["address"] == STRAY and caught.value.facts["access"] == "write"
        device.reset()
        uvm.close()


def test_a_full_buffer_drops_faults_until_its_overflow_is_cleared(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was dropped is reported after a replay. GET moves before OVERFLOW is cleared."""
    with opened(card, monkeypatch) as device, device.alloc(8192) as both:
        uvm = Uvm(card, device, size=2)
        first = int(both.address)
        both.fill(0x5A)
        device.synchronize()
        unmap(device, first + 4096)
        uvm.launch(first, first + 4096)
        until(lambda: uvm.put & 0xFFFFF == 1, "the entry")
        assert uvm.put == 1
        uvm.replay()  # not mapped, and GET was not moved: the only place is taken
        until(lambda: uvm.put & OVERFLOW, "the overflow")
        assert uvm.entry()["address"] == first + 4096
        uvm.replay()
        assert uvm.put == OVERFLOW | 1, "nothing is written until it is cleared"
        card.write32(uvm.buffer + GET, uvm.get | OVERFLOW)
        assert uvm.put == 1 and card.read32(uvm.buffer + GET) == 1
        uvm.replay()
        assert uvm.entry()["address"] == first + 4096
        map_again(device, first)
        uvm.replay()
        device.synchronize()
        uvm.close()


@pytest.mark.parametrize("why", ["no page faults", "buffer off", "another buffer"])
def test_other_faults_end_their_channel_at_once(
    card: Card, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    flags = 0 if why == "no page faults" else 1 << 6
    with opened(card, monkeypatch, flags) as device, device.alloc(4096) as source:
        uvm = Uvm(card, device, FINAL if why == "another buffer" else REPLAYABLE)
        if why == "buffer off":
            card.write32(uvm.buffer + SIZE, 0)
        uvm.launch(STRAY, int(source.address))
        with pytest.raises(PageFault):
            device.synchronize()
        if why == "another buffer":
            entry = uvm.entry()
            assert (entry["address"], entry["replayable"]) == (STRAY, 0)
            assert card.read32(LEAF + 4 * 4) & 1 << 3, "the vector of final faults"
        else:
            assert uvm.put == 0
        device.reset()
        uvm.close()


def test_the_entry_of_a_copy_engine(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy engines are clients of the hub, and their faults are never replayable here."""
    with opened(card, monkeypatch) as device, device.alloc(4096) as target:
        uvm = Uvm(card, device, FINAL)
        copy_from_nowhere(device, target)
        with pytest.raises(PageFault):
            device.synchronize()
        entry = uvm.entry()
        assert (entry["address"], entry["access"], entry["hub"]) == (STRAY, 0, 1)
        assert entry["client"] == table(card).field("CLIENT").values["HUB_CE0"]
        copies = 43 if card.facts.family == "hopper" else 15
        assert entry["engine"] - copies in range(10)
        device.reset()
        uvm.close()


def test_a_reset_ends_what_waits(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(card, monkeypatch) as device, device.alloc(4096) as source:
        uvm = Uvm(card, device)
        uvm.launch(STRAY, int(source.address))
        uvm.entry()
        card.mmu_faults.reset()
        with pytest.raises(PageFault):
            device.synchronize()
        device.reset()
        uvm.close()


def test_a_stalled_grid_ends_with_its_channel(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(card, monkeypatch) as device, device.alloc(4096) as source:
        uvm = Uvm(card, device)
        uvm.launch(STRAY, int(source.address))
        uvm.entry()
        device.reset()
        uvm.close()


def test_the_gsp_places_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's module gives pages on the bus; the GSP enables the buffer, and UVM moves GET."""
    card = build_card("ad102", CardOptions(memory=1 << 30))
    with opened(card, monkeypatch) as device, device.alloc(4096) as source:
        uvm = Uvm(card, device)
        card.write32(uvm.buffer + SIZE, 0)
        pages = [device.alloc(4096, placement=Placement.HOST) for _ in range(64)]
        gpu = device.driver.gpu
        assert isinstance(gpu, GspGpu)
        name = "NV2080_CTRL_INTERNAL_GMMU_REGISTER_FAULT_BUFFER_PARAMS"
        block = abi.select("570.144").structs[name].new(faultBufferSize=8192 * 32)
        for at in range(64):
            dma = space_of(device).mappings[pages[at].address].dma
            assert dma is not None
            block.faultBufferPteArray[at] = int(dma.segments[0].address)
        number = 0x20800A9B
        assert gpu.client._control(gpu.subdevice, number, block, "register") == 0
        assert card.read32(uvm.buffer + SIZE) == ENABLE | 8192
        uvm.launch(STRAY, int(source.address))
        until(lambda: uvm.put == 1, "an entry")
        assert pages[0].view is not None
        words = np.frombuffer(pages[0].view, np.uint32)[:8]
        assert words[2] == STRAY & 0xFFFF_FFFF and words[3] == STRAY >> 32 and words[7] >> 31
        assert gpu.client._control(gpu.subdevice, 0x20800A9C, None, "unregister") == 0
        with pytest.raises(PageFault):
            device.synchronize()
        device.reset()
        uvm.close()
    card.close()


def test_registers(card: Card) -> None:
    card.config.write(4, 6, 2)
    card.write32(REPLAYABLE + SIZE, DEFAULT)
    assert card.read32(REPLAYABLE + SIZE) == 8192, "as nouveau asks for the number of entries"
    card.write32(REPLAYABLE + PUT, 3)
    assert card.read32(REPLAYABLE + PUT) == 0 and "register 0xc" in card.violations[-1]
    card.write32(REPLAYABLE + SIZE, ENABLE | 16)
    card.write32(REPLAYABLE + GET, 16)
    assert card.read32(REPLAYABLE + GET) == 1 << 30 | 16, "GETPTR_CORRUPTED"
    card.write32(REPLAYABLE + GET, 1 << 30)
    assert card.read32(REPLAYABLE + GET) == 0
