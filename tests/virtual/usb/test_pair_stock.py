"""The driver on a virtual card behind a bridge with the vendor's firmware: boot, copies, pulls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.kernels import contract_object
from tests.virtual.usb.pulls import check, drawn, enclosed, opened, work
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import (
    BadArgument,
    DeviceLost,
    EndpointStalled,
    LinkDown,
    NotSupported,
    OutOfMemory,
    PageFault,
    TransferTimeout,
)
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.work.buffer import Buffer
from ugpu.usbgpu.bridge.firmwares import open_bridge
from ugpu.usbgpu.bridge.transport import UsbTransport
from ugpu.usbgpu.link.usb import Speed
from ugpu.virtual.usb.attach import plug_in
from ugpu.virtual.usb.enclosure import Enclosure

BOOT = 29_880  # transfers of a cold boot
POLLS = 9_000  # that a host adds which is ten times slower: a poll is tens of transfers
PULLS = 12  # tests.virtual.usb.pulls makes more


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Enclosure, Device]]:
    with enclosed(firmware="uas") as box, opened(box) as device:
        yield box, device


def test_transfers_of_a_cold_boot() -> None:
    with enclosed(firmware="uas") as box, opened(box):
        assert BOOT - 1500 <= box.meter.transfers <= BOOT + POLLS


def test_it_computes(pair: tuple[Enclosure, Device]) -> None:
    box, device = pair
    facts = device.info()
    assert facts["bridge_firmware"] == "USB 3.2 PCIe TinyEnclosure (0100)"
    work(device)
    assert box.objections == []


@pytest.mark.parametrize("beyond", [-(1 << 24), 1 << 16])
def test_an_address_that_nothing_maps_faults(pair: tuple[Enclosure, Device], beyond: int) -> None:
    """Below the end of what the hubs translate, between small pages and large ones, and above,
    where tables are not written."""
    box, device = pair
    core, end = device.driver.core, device.driver.memory.end
    with device.load(contract_object(device.target)) as program, device.alloc(4096) as buffer:
        wild = Buffer(core, VirtAddr(end + beyond), 4096, Placement.DEVICE)
        device.queue().launch(
            program["add"], grid=(1,), block=(64,), args=(wild, buffer, buffer, np.uint32(64))
        ).submit()
        with pytest.raises(PageFault) as caught:
            device.synchronize()
    assert caught.value.facts["address"] == end + beyond
    device.reset()
    work(device)
    assert box.objections == []


def test_copies_of_every_size(pair: tuple[Enclosure, Device]) -> None:
    """Less than a slot, a write, what is staged at once, and more."""
    _, device = pair
    for size in (4, 4096, 16_384, 20_000, 65_536, 70_000, 460_000):
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        with device.alloc(size) as buffer:
            buffer.copy_from(data)
            assert np.array_equal(buffer.numpy(np.uint8), data)


def test_what_the_firmware_cannot_do_is_in_the_traits(pair: tuple[Enclosure, Device]) -> None:
    _, device = pair
    transport = device.transport
    traits = transport.traits
    assert traits.bulk is None and traits.staged is not None and traits.dma_bytes == 0
    assert traits.resets == {ResetKind.BUS}
    with pytest.raises(OutOfMemory):
        transport.allocate_dma(4096)
    with pytest.raises(NotSupported):
        transport.reset(ResetKind.POWER)
    with pytest.raises(BadArgument):
        traits.staged.fill(bytes(traits.staged.size + 1))
    with pytest.raises(BadArgument):
        traits.staged.read(traits.staged.readable + 1)


def test_the_driver_goes_on_after_a_pipe_halted(pair: tuple[Enclosure, Device]) -> None:
    box, device = pair
    bridge = device.transport.bridge
    for endpoint in (0x04, 0x83, 0x81):
        bridge.usb.halt(endpoint)
        with pytest.raises(EndpointStalled):
            bridge.read_xdata(0x4000, 1)
        work(device)
    bridge.usb.halt(0x02)
    with pytest.raises(EndpointStalled):
        bridge.fill_sram(bytes(512))
    work(device)
    assert box.objections == []


def test_a_card_without_a_link() -> None:
    """The firmware switches no supply: the cable is what there is to try."""
    with enclosed(firmware="uas", powered=False) as box:
        usb, clock = plug_in(None, box, "uas")
        with pytest.raises(LinkDown) as caught:
            UsbTransport(open_bridge(usb, sleep=clock.sleep), "usb:0", clock=clock)
        assert "plug the enclosure in again" in str(caught.value.facts["remedy"])


def test_a_write_that_is_cut_off_leaves_the_next_whole() -> None:
    with enclosed(firmware="uas") as box:
        usb, clock = plug_in(None, box, "uas")
        bridge = open_bridge(usb, sleep=clock.sleep)
        submit = usb.submit_out
        left = 40

        def cut(endpoint: int, data: bytes, stream: int = 0) -> object:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt
            return submit(endpoint, data, stream)

        usb.submit_out = cut
        with pytest.raises(KeyboardInterrupt):
            bridge.fill_sram(bytes(448 << 10))
        usb.submit_out = submit
        bridge.fill_sram(b"\x5a" * 4096)
        assert bridge.read_xdata(0xF000, 4096) == b"\x5a" * 4096
        usb.close()


def test_a_completion_that_never_comes() -> None:
    with enclosed(firmware="uas") as box:
        usb, clock = plug_in(None, box, "uas")
        with UsbTransport(open_bridge(usb, sleep=clock.sleep), "usb:0", clock=clock) as card:
            card.config_write(4, card.config_read(4, 2) | 6, 2)
            window = card.window(0)
            window.write32(0x100, 7)
            box.hardware.requests.lost_completions = 1
            assert window.read32(0x100) == 0xFFFF_FFFF
            assert window.read32(0x100) == 7


def test_a_usb_2_cable_is_named() -> None:
    with enclosed(firmware="uas") as box:
        box.unplug()
        box.plug(Speed.HIGH)
        usb, _ = plug_in(None, box, "uas")
        with usb, pytest.raises(Exception, match="USB 2 link"):
            open_bridge(usb)


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in range(1, PULLS))]
)
def test_a_pull_is_named_and_the_next_plug_works(number: int) -> None:
    check(drawn(7, number, "uas"), "uas")


def test_a_pull_in_each_phase_of_a_command() -> None:
    """Of the setup's commands: before the status, before the command, in between."""
    for transfer in range(8):
        with enclosed(firmware="uas") as box:
            usb, clock = plug_in(None, box, "uas")
            bridge = open_bridge(usb, sleep=clock.sleep)
            box.pull_at(transfer, transfer % 2)
            with pytest.raises(DeviceLost):
                for _ in range(3):
                    bridge.read_xdata(0x4000, 64)
            bridge.close()


def test_silence_is_a_timeout_and_the_next_command_works() -> None:
    with enclosed(firmware="uas") as box:
        usb, clock = plug_in(None, box, "uas")
        bridge = open_bridge(usb, sleep=clock.sleep)
        take = box.firmware.take
        box.firmware.take = lambda endpoint, stream, room: b""
        with pytest.raises(TransferTimeout):
            bridge.read_xdata(0x4000, 1)
        box.firmware.take = take
        assert len(bridge.read_xdata(0x4000, 1)) == 1
        bridge.close()
