"""All units of one chip, made in the order in which they become reachable."""

from __future__ import annotations

from dataclasses import dataclass, field

from ugpu.am.boot.reach import choose
from ugpu.am.chip.chip import Chip
from ugpu.am.packets.sdma import Engine
from ugpu.am.units.clocks import Clocks
from ugpu.am.units.gfx import Gfx
from ugpu.am.units.gmc import Gmc, framebuffer_location
from ugpu.am.units.ih import MEMORY_SIZE, Ih
from ugpu.am.units.lists import Describe
from ugpu.am.units.memory import Carveout
from ugpu.am.units.nbio import Nbio
from ugpu.am.units.psp.psp import Psp
from ugpu.am.units.smu.smu import Smu
from ugpu.am.units.smu.thermal import Thermal
from ugpu.hcq.bare.program import HostPrograms
from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.bare.tables import TableFormat
from ugpu.hcq.errors import DiscoveryError
from ugpu.hcq.state.memory import Placement
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
    dummy: its memory, None if that is part of other memory of the transport. programs: does steps
    that set units up (am.boot.reach). unclean: the transport's memory for timelines, until it is
    zero. reserved: VRAM that the firmware keeps for itself, see am.boot.reservation.
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
    programs: HostPrograms
    unclean: list[Mapping]
    reserved: set[tuple[int, int]] = field(default_factory=set)

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
    psp = classes.psp(chip, nbio, carveout)
    reach = choose(chip, nbio, carveout, memory, classes.describe_queue)
    psp.stage = reach.stage
    return Units(
        chip=chip,
        carveout=carveout,
        memory=memory,
        dummy=reach.dummy,
        dummy_address=reach.dummy_address,
        nbio=nbio,
        gmc=classes.gmc(chip, nbio),
        psp=psp,
        smu=smu,
        thermal=Thermal(chip, smu),
        ih=classes.ih(chip, nbio, memory.allocate(MEMORY_SIZE, Placement.HOST)),
        gfx=gfx,
        clocks=classes.clocks(chip, gfx, engines),
        engines=engines,
        programs=reach.programs,
        unclean=reach.unclean,
    )
