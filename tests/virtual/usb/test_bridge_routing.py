"""Requests behind the bridge: bus numbers, windows, enables, BARs, and what is not supported."""

from __future__ import annotations

import pytest

from tests.support.usb.usb_box import MEMORY_BASE, PREFETCHABLE_BASE, Box, box
from ugpu.usbgpu.link.usb import Speed
from ugpu.virtual.usb.hardware import HardwareOptions

NAVI31, AUDIO = 0x744C1002, 0xAB301002
MEMSIZE = 0x378C  # byte offset of RCC_CONFIG_MEMSIZE (nbio_4_3_0_offset.h)


def test_the_card_is_found_behind_four_bridges() -> None:
    with box() as rig:
        bars = rig.up()
        assert [rig.request.config(bus, 0x0C) for bus in range(4)] == [0x00010000] * 4
        assert rig.request.config(4, 0) == NAVI31
        assert rig.request.config(4, 0, function=1) == AUDIO
        assert bars[0] == (PREFETCHABLE_BASE, 256 << 20)
        assert bars[5][0] >= MEMORY_BASE


def test_buses_that_nobody_numbered_are_not_supported() -> None:
    with box() as rig:
        rig.request.power(True)
        assert rig.request.config(0, 0) == 0x24631B21
        assert rig.request.config(1, 0) is None
        rig.request.set_config(0, 0x18, 1 << 8 | 4 << 16)
        assert rig.request.config(1, 0) == 0x24631B21
        assert rig.request.config(2, 0) is None


def test_absent_devices_and_functions_are_not_supported() -> None:
    with box() as rig:
        rig.up()
        assert rig.request.config(0, 0, device=1) is None
        assert rig.request.config(4, 0, device=1) is None
        assert rig.request.config(4, 0, function=2) is None
        assert rig.request.config(3, 0, function=1) is None
        assert rig.request.config(5, 0) is None


def test_configuration_of_the_wrong_type_is_objected_to() -> None:
    with box(flawless=False) as rig:
        rig.request.power(True)
        rig.request.send(0x05, 0)  # type 1 to bus 0
        _, status, code = rig.request.answer()
        assert (status, code) == (1, 0)
        assert any("type 1 to bus 0" in text for text in rig.enclosure.objections)


def test_an_empty_slot() -> None:
    from tests.support.usb.usb_box import LTSSM, Request
    from ugpu.virtual.usb.enclosure import Enclosure

    enclosure = Enclosure(None)
    with enclosure.open() as usb:
        request = Request(usb)
        request.power(True)
        assert enclosure.clock.now() >= 2  # twenty looks 100 ms apart
        assert request.xdata(LTSSM) != b"\x78"
        request.set_config(0, 0x18, 1 << 8 | 4 << 16)
        request.set_config(1, 0x18, 2 << 8 | 4 << 16)
        assert request.config(2, 0) is None
    enclosure.close()


def test_a_card_that_is_not_ready_asks_for_a_retry() -> None:
    with box(hardware=HardwareOptions(retries=2)) as rig:
        rig.request.power(True)
        for bus in range(4):
            rig.request.set_config(bus, 0x18, (bus + 1) << 8 | 4 << 16)
        statuses = []
        for _ in range(3):
            rig.request.send(0x05, 4 << 24)
            statuses.append(rig.request.answer()[1])
        assert statuses == [2, 2, 0]


def test_registers_and_memory_answer() -> None:
    with box() as rig:
        bars = rig.up()
        assert rig.request.read32(bars[5][0] + MEMSIZE) == 256
        vram = bars[0][0]
        rig.request.write32(vram + 0x2000, 0)
        for at, byte in enumerate((0x10, 0x21, 0x32, 0x43)):
            rig.request.write32(vram + 0x2000, byte << 8 * at, 1 << at)
        assert rig.request.read32(vram + 0x2000) == 0x43322110
        rig.request.write32(vram + 0x2000, 0xBEEF0000, 0b1100)
        assert rig.request.read32(vram + 0x2000) == 0xBEEF2110


@pytest.mark.parametrize("bus", range(4))
def test_a_closed_window_or_disabled_memory_ends_the_way(bus: int) -> None:
    with box() as rig:
        bars = rig.up()
        place = bars[5][0] + MEMSIZE
        assert rig.request.read32(place) is not None
        rig.request.set_config(bus, 0x04, 5, 1)  # memory off
        assert rig.request.read32(place) is None
        rig.request.set_config(bus, 0x04, 7, 1)
        rig.request.set_config(bus, 0x20, 0x1000 << 16 | 0x2000)  # limit below base
        assert rig.request.read32(place) is None
        assert rig.request.read32(bars[0][0]) is not None  # the other window is open


def test_writes_that_nothing_takes_vanish_and_are_objected_to() -> None:
    with box(flawless=False) as rig:
        rig.up()
        rig.request.write32(0x4000_0000_0000, 1)
        assert any("nothing decodes" in text for text in rig.enclosure.objections)


def test_malformed_requests_fail() -> None:
    with box(flawless=False) as rig:
        bars = rig.up()
        rig.request.send(0x20, bars[0][0] + 2)  # unaligned
        assert rig.request.answer()[2] == 1
        rig.request.send(0x33, bars[0][0])
        assert rig.request.answer()[2] == 1


def test_a_posted_write_has_no_completion() -> None:
    with box() as rig:
        bars = rig.up()
        rig.request.write32(bars[0][0], 1)
        assert rig.request.answer()[2] == 0xFF


def test_a_lost_completion_is_a_timeout_and_hangs_a_stream() -> None:
    from ugpu.hcq.errors import TransferTimeout

    with box() as rig:
        bars = rig.up()
        rig.enclosure.hardware.requests.lost_completions = 1
        rig.request.send(0x20, bars[0][0])
        assert rig.request.answer()[2] == 0xFF
        assert rig.request.read32(bars[0][0]) is not None
        rig.enclosure.hardware.requests.lost_completions = 1
        with pytest.raises(TransferTimeout):
            rig.request.stream_read(bars[0][0], 64)
        with pytest.raises(TransferTimeout):
            rig.request.xdata(0)  # the 8051 polls for good
        rig.enclosure.unplug()
        rig.reopen()
        assert len(rig.request.xdata(0)) == 1


@pytest.mark.parametrize("speed", [Speed.SUPER_PLUS, Speed.HIGH])
@pytest.mark.parametrize("dwords", [1, 127, 128, 129, 255, 256, 257, 4096])
def test_streams_carry_any_number_of_dwords(speed: Speed, dwords: int) -> None:
    with box(speed=speed) as rig:
        bars = rig.up()
        data = bytes(at * 7 & 0xFF for at in range(4 * dwords))
        rig.request.stream_write(bars[0][0] + 0xFFF0, data)
        assert rig.request.stream_read(bars[0][0] + 0xFFF0, len(data)) == data


def refused_stream(rig: Box) -> bytes:
    bars = rig.up()
    rig.request.write32(bars[0][0], 0x11223344)
    assert rig.request.read32(bars[0][0]) == 0x11223344
    return rig.request.stream_read(0x4000_0000_0000, 8)


def test_a_refused_stream_repeats_the_data_register() -> None:
    """Nothing looks at the status of streamed reads (pcie_pio.h polls two bits and goes on)."""
    with box(flawless=False) as rig:
        assert refused_stream(rig) == bytes.fromhex("44332211") * 2
        assert len(rig.enclosure.objections) == 1


def test_a_secondary_bus_reset_forgets_the_card_s_bars() -> None:
    with box() as rig:
        rig.up()
        assert rig.request.config(4, 0x24) != 0
        rig.request.set_config(3, 0x3E, 1 << 6, 2)
        assert rig.request.config(4, 0) is None  # held in reset
        rig.request.set_config(3, 0x3E, 0, 2)
        assert rig.request.config(4, 0) == NAVI31
        assert rig.request.config(4, 0x24) == 0
        assert rig.request.config(4, 4) is not None


def test_a_card_that_fell_off_is_not_supported() -> None:
    with box(flawless=False) as rig:
        bars = rig.up()
        rig.chip.unplug()
        assert rig.request.xdata(0xB450) != b"\x78"
        assert rig.request.config(4, 0) is None
        assert rig.request.config(1, 0) is not None
        assert rig.request.read32(bars[5][0] + MEMSIZE) is None


def test_a_doorbell_finds_what_was_written_before_it_without_a_flush() -> None:
    """tinygrad rings so behind the bridge, and boards take it: a note."""
    with box(flawless=False) as rig:
        bars = rig.up()
        rig.request.stream_write(bars[0][0], b"\x5a" * 64)
        assert rig.chip.vram.read(0, 64) != b"\x5a" * 64
        rig.request.write32(bars[2][0], 1)
        assert rig.chip.vram.read(0, 64) == b"\x5a" * 64
        assert any("wait in the HDP" in text for text in rig.chip.notes)
