"""All units of one chip, made in the order in which they become reachable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ugpu.am.chip.chip import Chip
from ugpu.am.packets.sdma import Engine
from ugpu.am.units.clocks import Clocks
from ugpu.am.units.gfx import Gfx
from ugpu.am.units.gmc import Gmc, framebuffer_location
from ugpu.am.units.ih import MEMORY_SIZE, Ih
from ugpu.am.units.lists import RESULTS_SIZE, Describe, ListQueue, PageResults
from ugpu.am.units.memory import Carveout
from ugpu.am.units.nbio import Nbio
from ugpu.am.units.psp.commands import PRIVATE_SIZE
from ugpu.am.units.psp.psp import Psp
from ugpu.am.units.psp.stage import OutsideStage, Shelf
from ugpu.am.units.smu.smu import Smu
from ugpu.am.units.smu.thermal import Thermal
from ugpu.hcq.bare.space import AddressSpace
from ugpu.hcq.bare.tables import TableFormat
from ugpu.hcq.bare.vram import PAGE
from ugpu.hcq.errors import DiscoveryError
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.base import DmaMemory


@dataclass(frozen=True)
class UnitClasses:
    """The classes for the blocks of a generation, and its page-table format."""

    page_format: type[TableFormat]
    nbio: type[Nbio]
    gmc: type[Gmc]
    psp: type[Psp]
    smu: type[Smu]
    ih: type[Ih]
    gfx: type[Gfx]
    clocks: type[Clocks]
    copy_engine: type[Engine]
    describe_queue: Describe


@dataclass
class Units:
    """The chip's blocks, its memory, and host memory that the chip points to.

    dummy_address: of a page outside the chip that faulting accesses and the IH's dummy reads go to.
    dummy: its memory, None if that is part of other memory of the transport. lists: stores the
    values it reads in that page, as long as nothing else runs. later: writes for the next list of
    registers, or for `catch_up`.
    """

    chip: Chip
    carveout: Carveout
    memory: AddressSpace
    dummy: DmaMemory | None
    dummy_address: int
    nbio: Nbio
    gmc: Gmc
    psp: Psp
    smu: Smu
    thermal: Thermal
    ih: Ih
    gfx: Gfx
    clocks: Clocks
    engines: tuple[Engine, ...]
    lists: ListQueue | None  # where accesses to registers are messages
    signals: list[tuple[VirtAddr, int]]  # the transport's memory for timelines, until it is zero
    later: list[Callable[[], object]] = field(default_factory=list)

    def catch_up(self) -> None:
        """Do the writes of `later` by the host's own accesses."""
        steps, self.later = self.later, []
        for step in steps:
            step()

    def close(self) -> None:
        """Release host memory; the chip must not use it any more."""
        self.ih.close()
        self.memory.release(self.ih.memory)
        if self.dummy is not None:
            self.dummy.close()


def make_units(chip: Chip, classes: UnitClasses) -> Units:
    """Make the units of a described chip; changes nothing on it: see `AddressSpace.own`."""
    base, offset = framebuffer_location(chip)
    carveout = Carveout(chip.vram.size, chip.generation.reserved_vram, base, offset)
    places = carveout.map(chip.generation.physical_bits)
    memory = AddressSpace(chip, places, classes.page_format())
    nbio = classes.nbio(chip)
    gfx = classes.gfx(chip, nbio)
    engines = tuple(classes.copy_engine(chip, found.instance) for found in chip.copy_engines())
    if not engines:
        raise DiscoveryError("expected a copy engine (SDMA) in the discovery table, found none")
    smu = classes.smu(chip, nbio, carveout)
    bulk, staged = chip.transport.traits.bulk, chip.transport.traits.staged
    beside = bulk or staged
    dummy = None if beside else chip.transport.allocate_dma(PAGE, contiguous=True)
    spare = beside.spare if beside else dummy.segments[0].address if dummy else 0
    psp = classes.psp(chip, nbio, carveout)
    if staged is not None:
        place = int(staged.address)
        shared = memory.allocate(staged.size, Placement.HOST, bus=place, align=PRIVATE_SIZE)
        psp.outside = OutsideStage(staged, shared)
    elif chip.bus.messages:
        psp.shelf = Shelf(memory, carveout.psp_private, len(chip.generation.boot_components))
    lists, signals = None, []
    if chip.bus.messages and bulk is not None:
        assert bulk.results_size >= RESULTS_SIZE
        seen = _mapped(memory, bulk.results, bulk.results_size)
        lists = ListQueue(chip, nbio, carveout, classes.describe_queue, bulk, seen)
        signals.append((_mapped(memory, bulk.signals, bulk.signals_size), bulk.signals_size))
    elif chip.bus.messages and dummy is not None:
        seen = _mapped(memory, spare, PAGE)
        lists = ListQueue(chip, nbio, carveout, classes.describe_queue, PageResults(dummy), seen)
    return Units(
        chip=chip,
        carveout=carveout,
        memory=memory,
        dummy=dummy,
        dummy_address=int(spare),
        nbio=nbio,
        gmc=classes.gmc(chip, nbio),
        psp=psp,
        smu=smu,
        thermal=Thermal(chip, smu),
        ih=classes.ih(chip, nbio, memory.allocate(MEMORY_SIZE, Placement.HOST)),
        gfx=gfx,
        clocks=classes.clocks(chip, gfx, engines),
        engines=engines,
        lists=lists,
        signals=signals,
    )


def _mapped(memory: AddressSpace, bus: int, size: int) -> VirtAddr:
    """Map memory of the transport at a bus address; return its address."""
    start = int(bus) % PAGE
    mapping = memory.allocate(start + size, Placement.HOST, bus=int(bus) - start)
    return VirtAddr(mapping.address + start)
