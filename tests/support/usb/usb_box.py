"""Drives a virtual enclosure by vendor requests typed from the documents, not by a driver.

Sources: requests of asm2464pd-firmware handmade/src/main.c; order of enumeration and addresses as
tinygrad's runtime/support/system.py uses them (buses 0 to 4, windows at 0x10000000 and 32 GiB).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.amd.navi31_bench import options
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.usbgpu.link.usb import UsbDevice
from ugpu.virtual.amd.bus.endpoint import ChipEndpoint
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions
from ugpu.virtual.usb.hardware import HardwareOptions

CARD_BUS = 4
MEMORY_BASE, PREFETCHABLE_BASE = 0x1000_0000, 32 << 30
LTSSM, L0 = 0xB450, 0x78


class Request:
    """The vendor requests, as a host sends them."""

    def __init__(self, usb: UsbDevice) -> None:
        self.usb = usb

    def xdata(self, address: int, size: int = 1) -> bytes:
        return self.usb.control_in(0xE4, address, 0, size)

    def poke(self, address: int, *values: int) -> None:
        for at, value in enumerate(values):
            self.usb.control_out(0xE5, address + at, value)

    def power(self, on: bool) -> None:
        self.usb.control_out(0xF3, int(on), 0, limit_s=10)

    def send(
        self, kind: int, address: int, value: int = 0, enables: int = 0xF, mode: int = 0
    ) -> None:
        data = struct.pack("<QI", address, value)
        self.usb.control_out(0xF0, kind | enables << 8, mode, data, limit_s=5)

    def answer(self) -> tuple[int, int, int]:
        """Data, completion status, return code."""
        found = self.usb.control_in(0xF0, 0, 0, 8, limit_s=5)
        assert len(found) == 8
        return int.from_bytes(found[:4], "little"), found[4] >> 5, found[7]

    # ---- configuration ------------------------------------------------------------------------

    def config(self, bus: int, offset: int, function: int = 0, device: int = 0) -> int | None:
        """Read a dword; None where the request is not supported."""
        self.send(0x04 | (bus > 0), bus << 24 | device << 19 | function << 16 | offset)
        data, status, code = self.answer()
        assert code == 0
        return data if status == 0 else None

    def set_config(
        self, bus: int, offset: int, value: int, size: int = 4, function: int = 0
    ) -> int:
        shift = offset & 3
        enables = ((1 << size) - 1) << shift
        address = bus << 24 | function << 16 | offset & ~3
        self.send(0x44 | (bus > 0), address, value << 8 * shift, enables)
        _, status, code = self.answer()
        assert code == 0
        return status

    def enumerate(self, *, card_bus: int = CARD_BUS) -> dict[int, tuple[int, int]]:
        """Number the buses, open the windows, enlarge BAR0, place the BARs: (address, size)."""
        for bus in range(card_bus):
            self.set_config(bus, 0x18, (bus + 1) << 8 | card_bus << 16)
            self.set_config(bus, 0x20, 0xFFF0 << 16 | MEMORY_BASE >> 16)
            self.set_config(bus, 0x24, 0xFFF0 << 16 | (PREFETCHABLE_BASE >> 16 & 0xFFF0))
            self.set_config(bus, 0x28, PREFETCHABLE_BASE >> 32)
            self.set_config(bus, 0x2C, 0xFFFF_FFFF)
            self.set_config(bus, 0x04, 7, 1)
        found = {}
        at = {False: MEMORY_BASE, True: PREFETCHABLE_BASE}
        slot = 0
        while slot < 6:
            place = 0x10 + 4 * slot
            low = self.config(card_bus, place)
            assert low is not None
            wide, prefetchable = bool(low & 4), bool(low & 8)
            if not low & 1:
                size = self._size(card_bus, place, wide)
                address = at[prefetchable]
                self.set_config(card_bus, place, address & 0xFFFF_FFFF)
                if wide:
                    self.set_config(card_bus, place + 4, address >> 32)
                found[slot] = (address, size)
                at[prefetchable] += -(-size // (2 << 20)) * (2 << 20) if size else 0
            slot += 2 if wide else 1
        self.set_config(card_bus, 0x04, 6, 1)
        return {slot: bar for slot, bar in found.items() if bar[1]}

    def _size(self, bus: int, place: int, wide: bool) -> int:
        self.set_config(bus, place, 0xFFFF_FFFF)
        mask = (self.config(bus, place) or 0) & ~0xF
        full = 0xFFFF_FFFF
        if wide:
            self.set_config(bus, place + 4, 0xFFFF_FFFF)
            mask |= (self.config(bus, place + 4) or 0) << 32
            full |= full << 32
        return (~mask & full) + 1 if mask else 0

    # ---- memory -------------------------------------------------------------------------------

    def read32(self, address: int) -> int | None:
        self.send(0x20, address)
        data, status, code = self.answer()
        assert code == 0
        return data if status == 0 else None

    def write32(self, address: int, value: int, enables: int = 0xF) -> None:
        self.send(0x60, address, value, enables)

    def stream_write(self, address: int, data: bytes) -> None:
        self.send(0x60, address, len(data) // 4, mode=1)
        self.usb.submit_out(0x02, data).wait(1)

    def stream_read(self, address: int, size: int) -> bytes:
        self.send(0x20, address, size // 4, mode=2)
        packet = self.usb.packet_size(0x81)
        return self.usb.submit_in(0x81, -(-size // packet) * packet).wait(1)

    def arm(self, size: int, *, inward: bool = False, slot: int = 0) -> None:
        sectors = -(-size // 512)
        slots = -(-size // 16384)
        self.usb.control_out(0xF2, sectors | inward << 15, slot | slots << 8)

    def sram_write(self, data: bytes, slot: int = 0) -> None:
        self.arm(len(data), slot=slot)
        self.usb.submit_out(0x02, data).wait(1)


class Box:
    """An enclosure with a virtual Navi31 in it, opened."""

    def __init__(self, chip: Chip, endpoint: ChipEndpoint, enclosure: Enclosure) -> None:
        self.chip = chip
        self.endpoint = endpoint
        self.enclosure = enclosure
        self.usb = enclosure.open()
        self.request = Request(self.usb)

    def up(self) -> dict[int, tuple[int, int]]:
        """Power the slot, wait for the link, enumerate, and let the card's firmware finish."""
        self.request.power(True)
        assert self.request.xdata(LTSSM) == bytes([L0])
        bars = self.request.enumerate()
        self.chip.scheduler.advance(1)
        return bars

    def reopen(self) -> None:
        """Plug the cable in again."""
        self.enclosure.plug()
        self.usb = self.enclosure.open()
        self.request = Request(self.usb)


@contextmanager
def box(
    *,
    hardware: HardwareOptions | None = None,
    chip_options: dict[str, Any] | None = None,  # fields of ChipOptions
    flawless: bool = True,
    **fields: Any,  # of EnclosureOptions
) -> Iterator[Box]:
    """Make an enclosure and a card; at the end nothing may have been objected to."""
    made = EnclosureOptions(hardware=hardware or HardwareOptions(), **fields)
    chip = build_chip(NAVI31, options(**({"platform": False} | (chip_options or {}))))
    endpoint = ChipEndpoint(chip)
    try:
        enclosure = Enclosure(endpoint, made)
        found = Box(chip, endpoint, enclosure)
        try:
            yield found
        finally:
            found.usb.close()
            enclosure.close()
        if flawless:
            assert enclosure.objections == []
            assert chip.violations == []
    finally:
        endpoint.close()
        chip.close()
