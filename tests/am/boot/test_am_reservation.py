"""VRAM that the firmware keeps for itself: asked for, kept off, remembered, and guarded by the
card's model. Numbers of commands and versions: Linux 6.18 amdgpu_psp.c and psp_gfx_if.h."""

from __future__ import annotations

import logging
import struct
from dataclasses import replace
from typing import Any

import pytest

from tests.am.chips.test_am_chips import check_works
from tests.support.amd.am_navi31 import build_chip
from ugpu.am.chips import facts_of
from ugpu.am.device.device import AmDevice, open_device
from ugpu.hcq.errors import FirmwareRejected, OutOfMemory
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.gpu import attach
from ugpu.virtual.amd.options import ChipOptions

NAVI48, NAVI44 = facts_of("navi48"), facts_of("navi44")
VRAM = 1 << 30
BELOW, EXTENT = 400 << 20, 8 << 20  # of the extended reservation, in the middle of the heap
EXTENDED = (VRAM - BELOW, VRAM - BELOW + EXTENT)
OLD = 0x3A0E13


def card(**options: Any) -> Chip:
    chosen: dict[str, Any] = {"vram": VRAM, "firmware_vram_extended": (BELOW, EXTENT)} | options
    return build_chip(ChipOptions(**chosen), NAVI48)


def plug_in(chip: Chip, *, messages: bool = False, version: int | None = None) -> AmDevice:
    """Open a card. messages: its registers are behind a link. version: of the secure OS, in the
    file's table."""
    attachment = attach("navi48", chip)
    transport = attachment.transport
    transport.traits = replace(transport.traits, register_messages=messages)
    if version is not None:
        assert attachment.firmware is not None
        images = dict(attachment.firmware)
        content = bytearray(images["psp_14_0_3_sos.bin"])
        (count,) = struct.unpack_from("<I", content, 32)
        for place in range(36, 36 + 16 * count, 16):
            if struct.unpack_from("<I", content, place) == (1,):
                struct.pack_into("<I", content, place + 4, version)
        images["psp_14_0_3_sos.bin"] = bytes(content)
        attachment = replace(attachment, firmware=images)
    device = open_device("card", attachment)
    assert isinstance(device, AmDevice)
    return device


def fill_heap(device: AmDevice) -> list[tuple[int, int]]:
    """Allocate all that the heap has, and return the ranges, offsets in VRAM."""
    heap, ranges = device.driver.units.memory.heap, []
    while heap.largest:
        size = heap.largest
        start = heap.allocate(size)
        ranges.append((start, start + size))
    return ranges


def touches(ranges: list[tuple[int, int]], place: tuple[int, int]) -> bool:
    return any(start < place[1] and place[0] < end for start, end in ranges)


@pytest.mark.parametrize("messages", [False, True])
def test_the_heap_keeps_off_what_the_firmware_reports(messages: bool) -> None:
    chip = card()
    with plug_in(chip, messages=messages) as device:
        check_works(device)
        assert not device.warm and device.driver.units.reserved == {EXTENDED}
        if not messages:
            device.reset("mode1")  # boots again, with the heap of before
            check_works(device)
        assert not touches(fill_heap(device), EXTENDED)
    with plug_in(chip, messages=messages) as device:
        assert device.warm and device.driver.units.reserved == {EXTENDED}
        assert not touches(fill_heap(device), EXTENDED)
    chip.close()
    assert not [text for text in chip.violations if "reservation" in text]


def test_a_large_reservation_at_the_end_shortens_the_heap() -> None:
    chip = card(firmware_vram=200 << 20, firmware_vram_extended=(0, 0))
    with plug_in(chip) as device:
        ranges = fill_heap(device)
        assert max(end for _, end in ranges) == VRAM - (200 << 20)
    chip.close()
    assert chip.violations == []


@pytest.mark.parametrize("version", [OLD, None])
def test_older_firmware_is_not_asked_or_refuses(version: int | None) -> None:
    """By its file, or by the answer of what runs (PSP_ERR_UNKNOWN_COMMAND)."""
    chip = card(secure_os_version=OLD)
    with plug_in(chip, version=version) as device:
        assert device.driver.units.reserved == set()
        asked = 0 if version else 2
        images = len(NAVI48.generation.ip_firmware)
        assert device.driver.units.psp.fence_value == images + 3 + asked  # TOC, SMU, autoload
    with plug_in(chip, version=version) as device:
        assert device.warm and device.driver.units.reserved == set()
    chip.close()
    assert chip.violations == []


def test_other_refusals_of_the_query_are_errors() -> None:
    chip = card()
    chip.faults.psp_commands[0x51] = 0x15
    with pytest.raises(FirmwareRejected, match="extended reservation") as caught:
        plug_in(chip)
    assert caught.value.facts["status"] == 0x15
    chip.close()


@pytest.mark.parametrize(
    "parts",
    [
        ((VRAM - (64 << 20), 32 << 20), (0, 0)),  # does not end where VRAM does
        ((VRAM - (64 << 20), 64 << 20), (VRAM - (1 << 20), 2 << 20)),  # leaves VRAM
        ((0, 0), (VRAM - BELOW, EXTENT)),
    ],
)
def test_a_reservation_that_cannot_be_is_ignored_with_a_warning(
    parts: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chip = card()
    reservation = chip.psp.commands.reservation
    monkeypatch.setattr(reservation, "parts", lambda: parts)
    monkeypatch.setattr(reservation, "mark", lambda: None)
    with caplog.at_level(logging.WARNING), plug_in(chip) as device:
        assert device.driver.units.reserved == set()
    assert "expected it at the end of VRAM" in caplog.text
    chip.close()


@pytest.mark.parametrize("start", [1 << 20, 4 << 20])
def test_a_reservation_of_memory_in_use_stops_the_boot(start: int) -> None:
    """At the driver's fixed places, and at its page tables."""
    chip = card(firmware_vram_extended=(VRAM - start, 1 << 20))
    with pytest.raises(OutOfMemory, match="the firmware reserves VRAM"):
        plug_in(chip)
    chip.close()


@pytest.mark.parametrize("place", [EXTENDED[0], VRAM - (16 << 20)])
def test_the_model_reports_a_driver_that_writes_there(place: int) -> None:
    chip = card()
    with plug_in(chip), chip.lock:
        chip.vram.write(place + 256, b"not the firmware")
    chip.close()
    assert [text for text in chip.violations if f"overwritten at {place:#x}, 1 marked" in text]


@pytest.mark.parametrize(("facts", "first"), [(NAVI48, 0x3A0E14), (NAVI44, 0x3B0E0D)])
def test_the_first_versions_of_the_secure_os(facts: Any, first: int) -> None:
    for version in (first - 1, first):
        chip = build_chip(ChipOptions(vram=VRAM, secure_os_version=version), facts)
        assert chip.psp.commands.reports_reservation == (version == first)
        chip.close()
