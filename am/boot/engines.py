"""Start of the graphics core's engines, from loaded firmware to waiting for queues."""

from __future__ import annotations

from functools import partial

from ugpu.am.boot.units import Units
from ugpu.am.packets.sdma import RingMemory
from ugpu.am.units.gfx import LIST_PIPE
from ugpu.am.units.gmc import VMIDS
from ugpu.am.units.lists import ListQueue
from ugpu.hcq.bare.vram import PAGE
from ugpu.hcq.errors import FirmwareSilent

_NO_MEMORY = RingMemory(
    ring=0, ring_size=PAGE, read_pointer=0, write_pointer=0, doorbell=0, vmid=0
)  # reads the same registers as any


def start_engines_by_list(units: Units, lists: ListQueue) -> None:
    """Do `start_engines`, mostly by a list of registers. The list also sets the interrupts up and
    requests from the SMU what its features do not need: versions, the board's temperatures."""
    gfx, ih, smu, thermal = units.gfx, units.ih, units.smu, units.thermal
    gfx.configure_for_lists()
    lists.describe(partial(gfx.load_queue, LIST_PIPE, 0, fresh=True))
    unread = [place for _, place in units.psp.unread]
    try:
        words = lists.execute(
            lambda: lists.zero(ih.memory.address, ih.memory.size),
            *(partial(lists.zero, *place) for place in units.signals),
            *(hub.finish for hub in units.gmc),
            lambda: ih.start_by_list(units.dummy_address),
            gfx.configure_by_list,
            units.clocks.gate,
            gfx.count_units,
            smu.ask_rest,
            thermal.ask,
            read=[*unread, *thermal.places()],
            # The queues start next, by a list too.
            foresee=[
                partial(units.gmc.invalidate, VMIDS),
                *(partial(engine.start, _NO_MEMORY) for engine in units.engines),
            ],
        )
    except FirmwareSilent:
        smu.check_asked()  # a silent SMU explains more
        raise
    units.signals.clear()  # after a later reset they contain values
    units.psp.check_unread(words[: len(unread)])
    smu.take_rest()
    thermal.take(words[len(unread) :])
    units.later = [thermal.switch_on]


def reset_engines(units: Units) -> None:
    """Reset the compute engine and copy engines that a process left behind to their state after
    power-on: pointers written to a queue that has run do not hold (tinygrad 0.14 resets both when
    it attaches to a running chip, for that reason)."""
    with units.gfx.safe_mode():
        units.gfx.reset_compute()
    for engine in units.engines:
        engine.reset()


def start_engines(units: Units) -> None:
    """Configure the graphics core after its reset and let the compute engine run."""
    units.gfx.configure()
    units.gfx.enable_mec()
    units.clocks.gate()
