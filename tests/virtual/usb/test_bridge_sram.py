"""SRAM: its transfers, its windows in XDATA, and what the card reaches by DMA."""

from __future__ import annotations

import pytest

from tests.support.usb.usb_box import Box, box
from ugpu.hcq.errors import TransferTimeout
from ugpu.usbgpu.link.usb import Speed
from ugpu.virtual.usb.hardware import HardwareOptions

SLOT = 16 << 10
SRAM, QUEUE, COMPLETION = 0x20_0000, 0x82_0000, 0x82_2000


def pattern(size: int, seed: int = 0) -> bytes:
    return bytes((seed * 37 + at * 7 + (at >> 8) + 0x42) & 0xFF for at in range(size))


def complete(rig: Box, at: int = 12, value: bytes = bytes(4)) -> None:
    """Let the card write into the completion queue."""
    with rig.chip.lock:
        rig.chip.dma_write(COMPLETION + at, value)


@pytest.mark.parametrize("speed", [Speed.SUPER_PLUS, Speed.HIGH])
@pytest.mark.parametrize(("size", "slot"), [(512, 0), (SLOT, 3), (SLOT + 512, 30), (512 << 10, 0)])
def test_what_the_host_writes_the_card_reads(speed: Speed, size: int, slot: int) -> None:
    with box(speed=speed) as rig:
        rig.up()
        data = pattern(size, slot)
        rig.request.sram_write(data, slot)
        with rig.chip.lock:
            assert rig.chip.dma_read(SRAM + slot * SLOT, size) == data
        assert rig.request.xdata(0xF000, 64) == bytes(64), "RAM of the bridge's own"
        rig.request.poke(0xF000, 1, 2, 3)
        assert rig.request.xdata(0xF000, 3) == b"\1\2\3"
        with rig.chip.lock:
            assert rig.chip.dma_read(SRAM + slot * SLOT, 3) == data[:3]


def test_what_the_card_writes_the_host_reads_once_the_card_says_so() -> None:
    with box() as rig:
        rig.up()
        data = pattern(3 * SLOT)
        rig.request.arm(len(data), inward=True)
        with rig.chip.lock:
            rig.chip.dma_write(SRAM, data)
        transfer = rig.usb.submit_in(0x81, len(data))
        assert not transfer.done
        complete(rig, at=0)  # not the entry's last dword
        with pytest.raises(TransferTimeout):
            transfer.wait(0.001)
        transfer = rig.usb.submit_in(0x81, len(data))
        complete(rig)
        assert transfer.wait(1) == data


@pytest.mark.parametrize("before", [b"\x00\x00\x00\x00", b"\x01\x02\x03\x04"])
def test_a_completion_counts_whatever_it_writes(before: bytes) -> None:
    with box() as rig:
        rig.up()
        complete(rig, value=before)
        rig.request.arm(512, inward=True)
        assert rig.request.xdata(0xB800 + 12, 4) == before  # the watch does not show
        transfer = rig.usb.submit_in(0x81, 1024)
        assert not transfer.done
        complete(rig, value=before)
        assert len(transfer.wait(1)) == 512
        assert rig.request.xdata(0xB800 + 12, 4) == before


def test_a_completion_before_the_arming_does_not_count() -> None:
    with box() as rig:
        rig.up()
        complete(rig)
        rig.request.arm(512, inward=True)
        with pytest.raises(TransferTimeout):
            rig.usb.submit_in(0x81, 1024).wait(0.001)


def test_a_completion_written_by_the_host_does_not_count() -> None:
    with box() as rig:
        rig.up()
        rig.request.arm(512, inward=True)
        rig.request.poke(0xB80C, 1, 2, 3, 4)
        assert rig.request.xdata(0xB80C, 4) == b"\x01\x02\x03\x04"
        with pytest.raises(TransferTimeout):
            rig.usb.submit_in(0x81, 1024).wait(0.001)


def test_bulk_without_arming_is_never_taken() -> None:
    with box() as rig:
        rig.up()
        with pytest.raises(TransferTimeout):
            rig.usb.submit_out(0x02, bytes(512)).wait(10)
        with pytest.raises(TransferTimeout):
            rig.usb.submit_in(0x81, 1024).wait(10)
        assert rig.enclosure.clock.now() >= 20  # virtual seconds: nobody slept


def test_transfers_that_do_not_match_their_arming() -> None:
    with box() as rig:
        rig.up()
        rig.request.arm(1024)
        longer = rig.usb.submit_out(0x02, bytes(1536))
        with pytest.raises(TransferTimeout) as caught:
            longer.wait(1)
        assert caught.value.facts["sent"] == 1024
        rig.request.arm(1024)
        rig.usb.submit_out(0x02, b"\x01" * 512).wait(1)  # shorter: the engine waits for more
        rig.usb.submit_out(0x02, b"\x02" * 512).wait(1)
        with rig.chip.lock:
            assert rig.chip.dma_read(SRAM, 1024) == b"\x01" * 512 + b"\x02" * 512


def test_arming_again_and_wrapping_around_are_objected_to() -> None:
    with box(flawless=False) as rig:
        rig.up()
        rig.request.arm(1024)
        rig.request.arm(512)
        rig.usb.control_out(0xF2, 64, 31 | 2 << 8)  # two slots from the last one on
        rig.usb.submit_out(0x02, pattern(2 * SLOT)).wait(1)
        with rig.chip.lock:
            assert rig.chip.dma_read(SRAM, SLOT) == pattern(2 * SLOT)[SLOT:]
        assert len(rig.enclosure.objections) == 3


def test_the_queue_page_is_shared_and_the_engine_writes_into_it() -> None:
    with box() as rig:
        rig.up()
        with rig.chip.lock:
            rig.chip.dma_write(QUEUE, b"\x55" * 64)
            rig.chip.dma_write(QUEUE + 0x800, b"\x66" * 8)
        assert rig.request.xdata(0xA000, 64) == b"\x55" * 64
        rig.request.poke(0xA808, 0x77)
        rig.request.sram_write(bytes(512))
        assert rig.request.xdata(0xA000, 64) != b"\x55" * 64
        assert rig.request.xdata(0xA800, 9) == b"\x66" * 8 + b"\x77"
        with rig.chip.lock:
            assert rig.chip.dma_read(QUEUE + 0x808, 1) == b"\x77"


@pytest.mark.parametrize("address", [0, 0x1F_F000, 0x28_0000, 0x82_1000, 0x82_3000, 1 << 40])
def test_the_card_reaches_nothing_else(address: int) -> None:
    with box(flawless=False) as rig:
        rig.up()
        with rig.chip.lock:
            assert rig.chip.dma_read(address, 4) == b"\xff" * 4
        assert rig.chip.violations


@pytest.mark.parametrize("bus", range(4))
def test_the_card_reaches_nothing_through_a_bridge_that_is_no_master(bus: int) -> None:
    with box(flawless=False) as rig:
        rig.up()
        rig.request.set_config(bus, 0x04, 3, 1)
        with rig.chip.lock:
            assert rig.chip.dma_read(SRAM, 4) == b"\xff" * 4
        rig.request.set_config(bus, 0x04, 7, 1)
        rig.request.sram_write(b"\x31" * 512)
        with rig.chip.lock:
            assert rig.chip.dma_read(SRAM, 4) == b"1111"


def test_sectors_in_random_order_can_show_the_last_before_the_first() -> None:
    seen: list[tuple[bytes, bytes]] = []
    rigs: list[Box] = []

    def between() -> None:
        chip = rigs[0].chip
        seen.append((chip.dma_read(SRAM, 1), chip.dma_read(SRAM + 8 * 512 - 1, 1)))

    with box(hardware=HardwareOptions(shuffled=True, between=between)) as rig:
        rigs.append(rig)
        rig.up()
        for _ in range(8):
            rig.request.sram_write(b"\x11" * 4096)
            seen.append((b"", b""))
            rig.request.sram_write(b"\x22" * 4096)
        assert (b"\x11", b"\x22") in seen  # a sentinel at the end says nothing of the rest
        with rig.chip.lock:
            assert rig.chip.dma_read(SRAM, 4096) == b"\x22" * 4096


def test_streams_have_the_endpoint_before_the_engine() -> None:
    """A stream that was given up leaves its endpoint armed: the next packet goes to it, and is
    dropped (main.c arms OUT and checks what is left only when a packet came)."""
    with box(flawless=False) as rig:
        bars = rig.up()
        rig.request.send(0x60, bars[0][0], 100, mode=1)
        rig.request.read32(bars[0][0])  # another F0 ends the stream, not the endpoint's arming
        rig.request.arm(2048)
        transfer = rig.usb.submit_out(0x02, b"\x44" * 2048)
        transfer.wait(1)
        assert rig.enclosure.hardware.sram.remaining == 1024  # the engine waits for the rest
        assert any("dropped" in text for text in rig.enclosure.objections)


def test_a_stream_that_is_given_up_leaves_data_until_the_halt_is_cleared() -> None:
    with box() as rig:
        bars = rig.up()
        rig.request.stream_write(bars[0][0], pattern(4096))
        rig.request.send(0x20, bars[0][0], 256, mode=2)
        rig.usb.clear_halt(0x81)
        assert rig.request.stream_read(bars[0][0] + 1024, 1024) == pattern(4096)[1024:2048]
        rig.request.send(0x20, bars[0][0], 256, mode=2)
        assert rig.request.stream_read(bars[0][0] + 1024, 512) == pattern(4096)[:1024]


def test_a_stream_takes_no_more_than_was_announced() -> None:
    with box(flawless=False) as rig:
        bars = rig.up()
        rig.request.stream_write(bars[0][0], bytes(1024))
        rig.request.send(0x60, bars[0][0], 8, mode=1)
        rig.usb.submit_out(0x02, b"\x99" * 64).wait(1)
        assert rig.request.stream_read(bars[0][0], 64) == bytes(64)
        assert any("dropped" in text for text in rig.enclosure.objections)


def test_after_a_reset_of_the_port_a_sleeping_link_moves_no_data() -> None:
    for autosuspend in (False, True):
        with box(autosuspend=autosuspend) as rig:
            rig.up()
            rig.request.sram_write(bytes(512))
            rig.usb.reset()
            rig.request.arm(512)
            transfer = rig.usb.submit_out(0x02, bytes(512))
            if autosuspend:
                with pytest.raises(TransferTimeout):
                    transfer.wait(1)
            else:
                transfer.wait(1)
