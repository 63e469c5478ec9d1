"""Which register of BAR0 belongs to which unit of a card.

Sources: see gsp.facts; open-gpu-kernel-modules 570.144 src/common/inc/swref/published/{turing,
ampere,ada,hopper,blackwell}: dev_boot.h, dev_bus.h, dev_fb.h, dev_fuse.h, dev_gc6_island.h,
dev_gsp.h, dev_timer.h, dev_vm.h.
"""

from __future__ import annotations

import struct
from functools import partial

from ugpu.virtual.nvidia.gsp import channel_ram
from ugpu.virtual.nvidia.gsp.apertures import Aperture
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.falcon import fsp, fwsec
from ugpu.virtual.nvidia.gsp.falcon.core import SIZE_OF_BLOCK
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.interrupts import LEAF, TRIGGER
from ugpu.virtual.nvidia.gsp.rpc import sequencer
from ugpu.virtual.nvidia.memory.fault_buffers import BUFFER_SIZE, BUFFERS

GSP_BASE, SEC2_BASE = 0x110000, 0x840000
PROM, PROM_SIZE, PRAMIN, PRAMIN_SIZE = 0x300000, 1 << 20, 0x700000, 1 << 20
USERMODE, USERMODE_SIZE = 0xBB0000, 0x10000
_TIME_LOW, _TIME_HIGH, _DOORBELL = 0x80, 0x84, 0x90
_PMC_INTR, _OLDER = 0x100, (0, 0x40, 0x60, 0x80)  # pending, enabled, set, clear; two words each
_QUEUE_HEADS = 0xC00  # of the GSP, 8 of them
_INVALIDATE_DIRECTORY, _INVALIDATE_HIGH, _INVALIDATE = 0xB830A0, 0xB830A4, 0xB830B0
_ALL_DIRECTORIES, _TRIGGERED = 1 << 1, 1 << 31
_SCRATCH = range(0x1400, 0x1480, 4)
_COUNTERS, _COUNTER_ENTRIES = 0xB83100, 8192  # UNSURE: how many entries a board's buffer has
_FUSES = (0x824100, 0x824140, 0x8241C0)
# Straps; no VGA workspace; no bind is pending, no error of the bus; level 0 may set the time; of
# access counters, all entries were pushed, none was lost.
_CONSTANT = {
    0x4: 0, 0x101000: 0, 0x625F04: 0, 0xB80F50: 0, 0x1100: 0, 0x9430: 0x10,
    _COUNTERS + 0x10: _COUNTER_ENTRIES, _COUNTERS + 0x18: 0, _COUNTERS + 0x1C: 1 << 1,
}  # fmt: skip
_BEFORE_DISPLAY = 0x4B8  # NV_FUSE_OPT_SECURE_GSP_DEBUG_DIS, before the fuse of the display
_REARM = 0x704  # in the mirror of configuration space
_LOW_TIME, _HIGH_TIME = 0xFFFF_FFE0, 0x1FFF_FFFF


def wire(card: Card) -> None:
    """Give a card its registers."""
    _identity(card)
    _memory(card)
    _time(card)
    _falcons(card)
    _mirror(card)
    space, tree = card.registers, card.interrupts
    for offset, value in _CONSTANT.items():
        space.word(offset, value)
    space.range(
        LEAF, TRIGGER + 4 - LEAF,
        lambda at: tree.read(LEAF + at), lambda at, value: tree.write(LEAF + at, value),
    )  # fmt: skip
    table = card.config.messages
    if table is not None:
        facts, size = table.facts, 16 * table.facts.vectors
        space.range(facts.table, size, table.read_table, table.write_table)
        space.range(facts.pending, 8, table.read_pending, lambda at, value: None)
    if card.facts.family == "turing":
        _older_interrupts(card)
    else:
        channel_ram.wire(card)
    space.range(PROM, PROM_SIZE, lambda at: _rom(card, at), lambda at, value: None)
    _window(card)


def _older_interrupts(card: Card) -> None:
    """Define Turing's PMC_INTR, where no unit of the model interrupts, and its enables."""
    plain = card.plain

    def read(at: int) -> int | None:
        return plain.get(_PMC_INTR + at, 0) if at & ~4 in _OLDER else None

    def write(at: int, value: int) -> bool:
        enabled = _PMC_INTR + _OLDER[1] + (at & 4)
        if at & ~4 == _OLDER[2]:
            plain[enabled] = plain.get(enabled, 0) | value
        elif at & ~4 == _OLDER[3]:
            plain[enabled] = plain.get(enabled, 0) & ~value
        return at & ~4 in _OLDER

    card.registers.range(_PMC_INTR, 0x88, read, write)


def _identity(card: Card) -> None:
    space, boot = card.registers, card.boot
    space.word(0x0, boot.boot0)
    space.word(0xA00, boot.boot42)
    space.word(boot.display_fuse, 0 if card.options.display else 1)
    space.word(boot.display_fuse - _BEFORE_DISPLAY, 1)  # debugging of the GSP is disabled
    if boot.boot_done:
        space.word(boot.boot_done, lambda: _progress(card))
    else:
        space.word(0x118128, 1)
        space.word(0x118234, lambda: _progress(card))
    for bank in _FUSES:
        for index in range(16):
            space.word(bank + 4 * index, lambda: (1 << card.burnt) - 1)  # a bit a version
    space.word(0x1180F8, lambda: card.handoff << 26)
    space.word(0x1180FC, lambda: card.scrub_stage << 29)
    for offset in _SCRATCH:
        _scratch(card, offset)


def _scratch(card: Card, offset: int) -> None:
    if offset in (fwsec.FRTS_STATUS, fwsec.SB_STATUS):
        card.registers.word(offset, lambda: card.status.get(offset, 0))
        return

    def write(value: int) -> None:
        card.plain[offset] = value
        if offset == sequencer.DONE and card.server is not None:
            card.server.sequenced(card.plain.get(sequencer.SCRATCH, 0), value)

    card.registers.word(offset, lambda: card.plain.get(offset, 0), write)


def _progress(card: Card) -> int:
    if card.faults.holds(CardFault.POWER_ON_NEVER):
        return 0
    if card.progress_reads:
        card.progress_reads -= 1
        return 0
    return 0xFF


def _memory(card: Card) -> None:
    space, boot = card.registers, card.boot
    if boot.fb_size_by_scale:
        space.word(0x100CE0, lambda: _scaled_size(card))
    else:
        space.word(0x1183A4, lambda: card.shown_memory >> 20)
    space.plain(card.plain, *boot.flush, boot.window)
    space.word(0x1FA824, lambda: card.wpr.low)
    space.word(0x1FA828, lambda: card.wpr.high)
    if boot.way == "booter":  # MMU_LOCK: readable, and no range is locked
        space.word(0x1FA7C8, 1)
        space.word(0x1FA82C, 0xFFFF_FFF0)
        space.word(0x1FA830, 0)
    space.word(0x70000, 0, lambda value: card.gpu.settle())
    space.plain(card.plain, _INVALIDATE_DIRECTORY, _INVALIDATE_HIGH)
    space.word(_INVALIDATE, 0, lambda value: _invalidate(card, value))
    for aperture, offsets, low in (
        (card.bar1, (0x1704, 0xB80F40), 0xB80F60), (card.bar2, (0x1714, 0xB80F48), 0xB80F70)
    ):  # fmt: skip
        for offset in offsets:
            space.word(offset, partial(getattr, aperture, "block"), aperture.set_block)
        if card.fsp is not None:
            _wide_block(card, aperture, low)
    unit = card.mmu_faults
    space.range(BUFFERS, BUFFER_SIZE, unit.read, unit.write)
    space.plain(card.plain, *range(0xB83080, 0xB83098, 4), 0xB83070)
    # Access counters count nothing: no notification ever comes.
    space.plain(card.plain, *(_COUNTERS + at for at in (8, 0xC, 0x14)))
    space.plain(card.plain, _COUNTERS, start=0x80)


def _scaled_size(card: Card) -> int:
    """Return the size of memory as MiB: scale in 3:0, magnitude in 9:4."""
    mib = card.shown_memory >> 20
    scale = min(15, max(0, (mib & -mib).bit_length() - 1))
    return scale | mib >> scale << 4


def _wide_block(card: Card, aperture: Aperture, low: int) -> None:
    """Define a block's pair of registers: mode in bit 9, target 11:10, address from bit 12 on."""
    space = card.registers
    space.plain(card.plain, low + 4)

    def write(value: int) -> None:
        address = card.plain.get(low + 4, 0) << 32 | value & ~0xFFF
        aperture.set_block((value >> 9 & 1) << 31 | address >> 12)

    space.word(low, lambda: (aperture.block & 0x0FFF_FFFF) << 12 | aperture.block >> 31 << 9, write)


def _invalidate(card: Card, value: int) -> None:
    if not value & _TRIGGERED:
        return
    card.gpu.settle()
    low, high = card.plain.get(_INVALIDATE_DIRECTORY, 0), card.plain.get(_INVALIDATE_HIGH, 0)
    directory = (low & ~0xF | high << 32) << 8
    card.gpu.invalidate(None if value & _ALL_DIRECTORIES else directory)
    card.mmu_faults.replay(value >> 3 & 7)


def _time(card: Card) -> None:
    space, gpu = card.registers, card.gpu

    def now() -> int:
        return gpu.time_ns() + card.time_offset

    def set_time(value: int) -> None:
        wanted = card.plain.get(0x9410, 0) << 32 | value
        card.time_offset = wanted - gpu.time_ns()

    space.word(0x9400, lambda: now() & _LOW_TIME, set_time)
    keep = partial(card.plain.__setitem__, 0x9410)
    space.word(0x9410, lambda: now() >> 32 & _HIGH_TIME, keep)
    space.plain(card.plain, 0x9140)

    def read(at: int) -> int | None:
        if at == _TIME_LOW:
            return now() & _LOW_TIME
        return now() >> 32 & _HIGH_TIME if at == _TIME_HIGH else 0

    def write(at: int, value: int) -> None:
        if at != _DOORBELL:
            card.violation(f"write of {value:#x} to {at:#x} of the usermode page")
            return
        gpu.ring(value)

    space.range(USERMODE, USERMODE_SIZE, read, write)


def _falcons(card: Card) -> None:
    space = card.registers
    space.range(GSP_BASE, SIZE_OF_BLOCK, card.gsp_read, card.gsp_write)
    if card.fsp is not None:
        space.range(fsp.BASE, fsp.SIZE, card.fsp.read, card.fsp.write)
    else:
        space.range(SEC2_BASE, SIZE_OF_BLOCK, card.sec2.read, card.sec2.write)
    for queue in range(8):
        space.word(GSP_BASE + _QUEUE_HEADS + 8 * queue, 0, lambda value: _doorbell(card))
    space.plain(card.plain, *range(GSP_BASE + 0x804, GSP_BASE + 0x824, 4))


def _doorbell(card: Card) -> None:
    if card.server is not None:
        card.server.doorbell()


def _mirror(card: Card) -> None:
    own: dict[int, int] = {}

    def read(at: int) -> int:
        return own.get(at, card.config.read(at, 4))

    def write(at: int, value: int) -> None:
        if at == _REARM:
            card.interrupts.rearm()
        elif at == 0x50:  # whether the PROM window shows the ROM or its shadow
            own[at] = value
        else:
            card.config.write(at, value, 4)

    card.registers.range(card.boot.mirror, 0x1000, read, write)


def _rom(card: Card, at: int) -> int:
    return int(struct.unpack_from("<I", card.rom, at)[0])


def _window(card: Card) -> None:
    """Define the window of 1 MiB that a register aims at video memory."""
    shown = card.pramin

    def place(at: int) -> int:
        return ((card.plain.get(card.boot.window, 0) & 0xFF_FFFF) << 16) + at

    def read(at: int) -> int:
        return int.from_bytes(shown.read(place(at), 4), "little")

    def write(at: int, value: int) -> None:
        shown.write(place(at), value.to_bytes(4, "little"))

    card.registers.range(PRAMIN, PRAMIN_SIZE, read, write)
