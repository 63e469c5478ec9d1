"""Start of the graphics core's engines, from loaded firmware to waiting for queues."""

from __future__ import annotations

from functools import partial

from ugpu.am.boot.units import Units
from ugpu.am.packets.sdma import RingMemory
from ugpu.am.units.gfx import LIST_PIPE
from ugpu.am.units.gmc import VMIDS
from ugpu.hcq.bare.vram import PAGE
from ugpu.hcq.errors import FirmwareSilent

_NO_MEMORY = RingMemory(
    ring=0, ring_size=PAGE, read_pointer=0, write_pointer=0, doorbell=0, vmid=0
)  # reads the same registers as any


def reset_engines(units: Units) -> None:
    """Reset the compute engine and copy engines that a process left behind to their state after
    power-on: pointers written to a queue that has run do not hold (tinygrad 0.14 resets both when
    it attaches to a running chip, for that reason)."""
    with units.gfx.safe_mode():
        units.gfx.reset_compute()
    for engine in units.engines:
        engine.reset()


def start_engines(units: Units) -> None:
    """Configure the graphics core after its reset, let the compute engine run, and do what was
    left."""
    gfx, programs = units.gfx, units.programs
    programs.leave(gfx.configure)
    gfx.start_pipes()
    programs.attach(partial(gfx.load_queue, LIST_PIPE, 0, fresh=True))
    programs.leave(units.clocks.gate)
    if not gfx.counted:
        programs.leave(gfx.count_units)
    start = (partial(engine.start, _NO_MEMORY) for engine in units.engines)
    try:
        # The queues start next.
        programs.run(foresee=[partial(units.gmc.invalidate, VMIDS), *start])
    except FirmwareSilent:
        units.smu.check_asked()  # a silent SMU explains more
        raise
