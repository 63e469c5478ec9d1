"""One virtual card: its blocks, power and resets, its bus interface and its access to host memory.

A chip keeps its state while its power is on, across several attachments. `lock` guards all register
and engine state; shaders run without holding it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ugpu.am.chips.facts import ChipFacts
from ugpu.virtual.amd.block import Block, Reset
from ugpu.virtual.amd.board import TABLES, Board
from ugpu.virtual.amd.bus.config import ConfigSpace
from ugpu.virtual.amd.bus.ih import InterruptHandler
from ugpu.virtual.amd.firmware.discovery import build_discovery
from ugpu.virtual.amd.firmware.psp import Psp
from ugpu.virtual.amd.firmware.smu import Smu
from ugpu.virtual.amd.generations.record import generation_of
from ugpu.virtual.amd.memory.gmc import Hub
from ugpu.virtual.amd.memory.hdp import Hdp
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.amd.registers import ALL_ONES

log = logging.getLogger(__name__)
# First MC address of VRAM, as programmed by the IFWI of these boards.
FRAME_BUFFER_BASE = 0x80_0000_0000


class Chip(Board):
    """A virtual card. `close` releases it; `unplug` and `power_cycle` model a person's actions.

    objections: the chip's objections, counted by level. violations: texts of faults and violations;
    tests require this list to stay empty. notes: texts of notes. gfx, sdma: set by the engines'
    `install`. culprits: the instructions that caused page faults.
    generation: the classes of its blocks, and their formats. autoload_listeners: called under the
    lock when RLC autoload starts; the engines then set BOOTLOAD_COMPLETE.
    """

    config: ConfigSpace
    mm: Hub
    gc: Hub
    ih: InterruptHandler
    hdp: Hdp
    smu: Smu
    psp: Psp

    def __init__(self, facts: ChipFacts, options: ChipOptions | None = None) -> None:
        super().__init__(facts, options)
        self.accesses = 0
        self.autoload_listeners: list[Callable[[], None]] = []
        self._closed = False
        self._power_ons = 0
        self._engines: list[Block] = []
        self.generation = generation_of(facts.generation)
        registers = self.options.registers or self.generation.register_bytes
        self.options = replace(self.options, registers=registers)
        blocks, entries = self.generation.blocks, self.generation.page_tables
        self.config = ConfigSpace(self)
        self.nbio = blocks.nbio(self)
        self.hdp = blocks.hdp(self)
        self.mm = blocks.hub(self, "mmhub", "MM", entries)
        self.gc = blocks.hub(self, "gc", "GC", entries)
        self.ih = blocks.interrupt_handler(self)
        self.psp = blocks.psp(self, self.generation.firmware)
        self.smu = blocks.smu(self)
        self.thermal = blocks.thermal(self, self.smu.metrics, self.unplug)
        self.announcements = self.smu.announcements
        self.rom = blocks.rom(self)
        self.blocks: list[Block] = [
            self.nbio, self.hdp, self.mm, self.gc, self.ih, self.psp, self.smu, self.thermal,
            self.announcements, self.rom,
        ]  # fmt: skip
        try:
            self.power_cycle()
        except BaseException:  # a Ctrl-C: the firmware's thread may have been started
            self.close()
            raise

    def install(self, *blocks: Block) -> None:
        """Add the engines' blocks, so that the chip resets, stops and closes them too."""
        with self.lock:
            for block in blocks:
                self.blocks.append(block)
                self._engines.append(block)
                block.reset(Reset.POWER)

    # ---- life ---------------------------------------------------------------------------------

    def power_cycle(self) -> None:
        """Switch power off and on: lose all state and start the board firmware.

        An unplugged card is plugged in again.
        """
        with self.lock:
            self.lost = False
            self._reset(Reset.POWER)

    def unplug(self) -> None:
        """Remove the card: reads return all ones, engines stop and DMA no longer reaches memory."""
        with self.lock:
            self.lost = True
            self.scheduler.cancel_all()
            for block in self.blocks:
                block.stop()

    def bus_reset(self) -> None:
        """Perform a function-level reset (FLR) or secondary bus reset."""
        with self.lock:
            if not self.lost:
                self._reset(Reset.BUS)

    def mode2_reset(self) -> None:
        """Reset the graphics core and the copy engines; keep memory and the other blocks."""
        with self.lock:
            if self.lost:
                return
            blocks = (self.gc, *self._engines)
            for block in blocks:
                block.stop()
            self.space.clear("gc")
            self.space.closed = {"gc"}
            for block in blocks:
                block.reset(Reset.MODE2)
            self.psp.forget_graphics()

    def mode1_reset(self) -> None:
        """Reset all but the bus interface: registers stop answering for a while, then IFWI runs."""
        with self.lock:
            if self.lost or self.faults.mode1_ignored:
                return
            self._reset(Reset.MODE1)
            self._blackout = True
            self.scheduler.cancel_all()
            self.scheduler.after(self.options.delays.blackout, self._light)

    def _light(self) -> None:
        self._blackout = False
        self._start_ifwi()

    def _reset(self, scope: Reset) -> None:
        self.scheduler.cancel_all()
        for block in self.blocks:
            block.stop()
        self._blackout = False
        self._power_ons += 1
        self.tmr = None
        options = self.options
        self.vram.scramble(options.seed + self._power_ons, options.noise, options.poison)
        for table, name in TABLES.items():
            if name in self.facts.versions:
                self.space.clear(table)
        self.space.closed = {"gc"}
        if scope is not Reset.MODE1 or self.options.config_lost_on_mode1:
            self.config.reset(keep_bars=scope is Reset.MODE1)
        if scope is Reset.POWER and self.options.platform:
            self.config.assign_bars()
        for block in self.blocks:
            block.reset(scope)
        self._start_ifwi()

    def _start_ifwi(self) -> None:
        if not self.faults.ifwi_never:
            self.scheduler.after(self.options.delays.ifwi, self._ifwi_done)

    def _ifwi_done(self) -> None:
        blob = build_discovery(self.facts, self.options, self.generation.neighbours)
        before_end = self.options.discovery_place or self.facts.generation.discovery_offset
        place = self.vram.size - before_end
        self.vram.write(place, blob)
        self.mm.locate_frame_buffer(FRAME_BUFFER_BASE, self.vram.size)
        self.nbio.ifwi_done(place, len(blob))
        self.psp.ifwi_done()

    def autoload(self) -> None:
        """Start GFX through the RLC: enable writes to its registers and set its VRAM location."""
        self.space.closed.discard("gc")
        self.gc.locate_frame_buffer(FRAME_BUFFER_BASE, self.vram.size)
        for listener in self.autoload_listeners:
            listener()

    def close(self) -> None:
        """Stop all threads and log the number of objections; idempotent.

        Re-raises an exception that ended the chip's firmware thread.
        """
        if not self._closed and (summary := self.objections.summary()):
            log.info("the virtual card recorded %s", summary)
        self._closed = True
        self.unplug()
        self.scheduler.close()
        for block in self.blocks:
            block.close()
        self.vram.close()
        if self.scheduler.error is not None:
            raise self.scheduler.error

    # ---- the bus side: registers --------------------------------------------------------------

    def answers(self) -> bool:
        """Return whether the BARs answer: the card is plugged in and memory decoding is on."""
        return not self.lost and self.config.memory_enabled

    def read_register(self, index: int) -> int:
        """Read one register over the bus. index: in dwords."""
        with self.lock:
            self.accesses += 1
            if self.accesses == self.faults.lost_at_access:
                self.unplug()
            if self._blackout or self.lost or not self.config.memory_enabled:
                return ALL_ONES
            if self.accesses == self.faults.ones_at_access:
                return ALL_ONES
            return self.space.read(index)

    def write_register(self, index: int, value: int) -> None:
        """Write one register over the bus."""
        with self.lock:
            self.accesses += 1
            if self.accesses == self.faults.lost_at_access:
                self.unplug()
            if not (self._blackout or self.lost) and self.config.memory_enabled:
                self.space.write(index, value)

    def revoked(self, host: int, size: int) -> None:
        """Invalidate cached translations because host memory was unmapped from the card."""
        with self.lock:
            self.gc.caches.revoke_native()
            self.mm.caches.revoke_native()
