"""Streamed reads by the custom firmware: of what kind they are, and what of them stays to be seen.

Source: asm2464pd-firmware handmade/src/pcie_pio.h (pcie_read_chunk sends what FMT_TYPE says, and
leaves the last completion in the registers), main.c (request F0 to the host reads those).
"""

from __future__ import annotations

import pytest

from tests.support.usb.usb_box import CARD_BUS, Box, box
from ugpu.usbgpu.bridge.asm24 import CustomBridge
from ugpu.usbgpu.bridge.transport import UsbTransport
from ugpu.virtual.usb.hardware import HardwareOptions


def stream(rig: Box, kind: int, address: int, size: int) -> bytes:
    rig.request.send(kind, address, size // 4, mode=2)
    return rig.usb.submit_in(0x81, 1024).wait(1.0)


@pytest.mark.parametrize("bus", [0, CARD_BUS])
def test_configuration_space_as_a_stream_is_what_single_reads_give(bus: int) -> None:
    with box() as rig:
        rig.up()
        kind = 0x04 | (bus > 0)
        found = stream(rig, kind, bus << 24, 64)
        single = [rig.request.config(bus, offset) for offset in range(0, 64, 4)]
        assert found == b"".join((one or 0).to_bytes(4, "little") for one in single)


def test_the_answer_after_a_stream_is_that_of_its_last_request() -> None:
    with box() as rig:
        rig.up()
        found = stream(rig, 0x05, CARD_BUS << 24, 16)
        assert rig.request.answer() == (int.from_bytes(found[-4:], "little"), 0, 0)
        stream(rig, 0x05, (CARD_BUS + 1) << 24, 16)
        assert rig.request.answer()[1:] == (1, 0)  # Unsupported Request
        assert rig.enclosure.objections == []


def test_a_stream_of_memory_that_nothing_decodes_ends_as_unsupported() -> None:
    with box(flawless=False) as rig:
        rig.up()
        stream(rig, 0x20, 1 << 45, 16)
        assert rig.request.answer()[1:] == (1, 0)
        assert rig.enclosure.objections != []


def test_a_function_that_is_not_ready_shows_in_the_last_answer_alone() -> None:
    with box(hardware=HardwareOptions(retries=3)) as rig:
        rig.request.power(True)
        for bus in range(CARD_BUS):
            rig.request.set_config(bus, 0x18, (bus + 1) << 8 | CARD_BUS << 16)
        stale = stream(rig, 0x05, CARD_BUS << 24, 16)
        assert rig.request.answer()[1:] == (0, 0)
        assert stale[12:] == stream(rig, 0x05, CARD_BUS << 24, 16)[12:]
        assert len({stale[at : at + 4] for at in (0, 4, 8)}) == 1  # the register as it stood


def test_a_card_is_found_and_given_its_addresses_in_few_transfers() -> None:
    with box() as rig:
        before = rig.enclosure.meter.transfers
        with UsbTransport(CustomBridge(rig.usb), "usb:0") as transport:
            assert rig.enclosure.meter.transfers - before <= 85
            assert transport.window(5).size == 1 << 20
