"""The interrupt ring: byte pointers, entries, write-back, overflow, and when the MSI comes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support.amd.navi31_bench import FRAME_BUFFER, Bench, bench

IH = 0x10A0
CNTL, BASE, BASE_HI, RPTR, WPTR, SHADOW_HI, SHADOW_LO = (IH + 0x80 + n for n in range(7))
RING, SHADOW = 0x68_0000, 0x69_0000
ENABLE, INTR, OVERFLOW, OVERFLOW_CLEAR, WRITEBACK = 1, 1 << 17, 1 << 16, 1 << 31, 1 << 8
MC, BUS = 4 << 28, 2 << 28
SIZE = 256  # bytes: eight entries


def on(card: Bench, control: int) -> None:
    """Ring of 64 dwords in VRAM; what hardware needs, in the kernel's order."""
    ring, shadow = FRAME_BUFFER + RING, FRAME_BUFFER + SHADOW
    card.write(CNTL, 0)
    card.write(BASE, ring >> 8 & 0xFFFFFFFF)
    card.write(BASE_HI, ring >> 40)
    card.write(SHADOW_LO, shadow & 0xFFFFFFFF)
    card.write(SHADOW_HI, shadow >> 32)
    card.write(WPTR, 0)
    card.write(RPTR, 0)
    card.write(CNTL, control | 6 << 1 | ENABLE)


@pytest.fixture
def card() -> Iterator[Bench]:
    with bench() as made:
        made.enable()
        made.open_hub("mmhub")
        yield made


def test_an_entry_then_the_pointer_then_the_interrupt(card: Bench) -> None:
    on(card, INTR | WRITEBACK | MC)
    card.chip.ih.raise_interrupt(0x0A, 181, ring_id=0x24, vmid=7, data=(1, 2, 3, 4))
    words = struct.unpack("<8I", card.vram.read(RING, 32))
    assert words[0] == 0x0A | 181 << 8 | 0x24 << 16 | 7 << 24
    assert words[2] >> 16 == 0
    assert words[4:] == (1, 2, 3, 4)
    assert card.read(WPTR) == 32  # bytes
    assert card.vram.read32(SHADOW) == 32
    assert card.transport.interrupts.wait(0)
    card.write(RPTR, 32)
    assert not card.transport.interrupts.wait(0)
    assert card.chip.violations == []


def test_the_ring_wraps_and_overflows(card: Bench) -> None:
    on(card, INTR | MC | OVERFLOW)
    for number in range(7):
        card.chip.ih.raise_interrupt(0x0A, number)
    assert card.read(WPTR) == 7 * 32
    card.write(RPTR, 7 * 32)
    card.chip.ih.raise_interrupt(0x0A, 50)
    assert card.read(WPTR) == 0
    for number in range(8):
        card.chip.ih.raise_interrupt(0x0A, 100 + number)
    assert card.read(WPTR) & 1  # RB_OVERFLOW
    # The driver takes up behind the write pointer and toggles the clear bit.
    card.write(RPTR, ((card.read(WPTR) & ~3) + 32) % SIZE)
    control = card.read(CNTL)
    card.write(CNTL, control | OVERFLOW_CLEAR)
    card.write(CNTL, control)
    assert card.read(WPTR) & 1 == 0


def test_without_overflow_entries_are_dropped(card: Bench) -> None:
    on(card, MC)
    for number in range(20):
        card.chip.ih.raise_interrupt(0x0A, number)
    assert card.read(WPTR) == 7 * 32
    assert card.chip.ih.lost == 13
    assert not card.transport.interrupts.wait(0)  # ENABLE_INTR is off


def test_holding_the_clear_bit_hides_overflows(card: Bench) -> None:
    on(card, MC | OVERFLOW | OVERFLOW_CLEAR)
    for number in range(20):
        card.chip.ih.raise_interrupt(0x0A, number)
    assert card.read(WPTR) & 1 == 0


@pytest.mark.parametrize("pointer", [8, 33, 0x100])
def test_read_pointers_are_bytes(card: Bench, pointer: int) -> None:
    on(card, MC)
    card.write(RPTR, pointer)
    assert "IH_RB_RPTR" in card.chip.violations[-1]


def test_a_rearmed_ring_that_is_not_empty_interrupts_again(card: Bench) -> None:
    on(card, MC | INTR | 1 << 21)
    card.chip.ih.raise_interrupt(0x0A, 1)
    card.chip.ih.raise_interrupt(0x0A, 2)
    assert card.transport.interrupts.wait(0)
    card.write(RPTR, 32)
    assert card.transport.interrupts.wait(0)
    card.write(RPTR, 64)
    assert not card.transport.interrupts.wait(0)


def test_a_ring_in_host_memory(card: Bench) -> None:
    memory = card.transport.allocate_dma(4096)
    on(card, 0)
    card.write(CNTL, 0)
    card.write(BASE, memory.segments[0].address >> 8 & 0xFFFFFFFF)
    card.write(BASE_HI, memory.segments[0].address >> 40)
    card.write(CNTL, BUS | ENABLE | 6 << 1 | INTR)
    card.chip.ih.raise_interrupt(0x12, 0, vmid=2, data=(0xABC,))
    assert struct.unpack_from("<I4xI4xI", memory.view, 0)[0] == 0x12 | 2 << 24
    assert struct.unpack_from("<I", memory.view, 16)[0] == 0xABC


def test_a_ring_that_is_off_loses_everything(card: Bench) -> None:
    card.chip.ih.raise_interrupt(0x12, 0)
    assert card.chip.ih.lost == 1
    card.chip.faults.interrupts_lost = True
    on(card, MC | INTR)
    card.chip.ih.raise_interrupt(0x12, 0)
    assert card.read(WPTR) == 32
    assert not card.transport.interrupts.wait(0)
