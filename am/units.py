"""All units of one chip, made in the order in which they become reachable."""

from __future__ import annotations

from dataclasses import dataclass

from am.chip import Chip
from am.clocks import Clocks
from am.gfx import Gfx
from am.gmc import Gmc, framebuffer_location
from am.ih import MEMORY_SIZE, Ih
from am.memory import AddressSpace, Carveout, PageTableFormat
from am.nbio import Nbio
from am.psp import Psp
from am.sdma import Engine
from am.smu import Smu
from am.thermal import Thermal
from hcq.errors import DiscoveryError
from hcq.memory import Placement
from hcq.transport.base import DmaMemory


@dataclass(frozen=True)
class UnitClasses:
    """What drives each block of a generation, and the form of its page tables."""

    page_format: type[PageTableFormat]
    nbio: type[Nbio]
    gmc: type[Gmc]
    psp: type[Psp]
    smu: type[Smu]
    ih: type[Ih]
    gfx: type[Gfx]
    clocks: type[Clocks]
    copy_engine: type[Engine]


@dataclass
class Units:
    """The chip's blocks, its memory, and host memory the chip points to.

    dummy: a host page that faulting accesses and the IH's dummy reads go to.
    """

    chip: Chip
    carveout: Carveout
    memory: AddressSpace
    dummy: DmaMemory
    nbio: Nbio
    gmc: Gmc
    psp: Psp
    smu: Smu
    thermal: Thermal
    ih: Ih
    gfx: Gfx
    clocks: Clocks
    engines: tuple[Engine, ...]

    @property
    def dummy_address(self) -> int:
        return int(self.dummy.segments[0].address)

    def close(self) -> None:
        """Release host memory; the chip must not use it any more."""
        self.ih.close()
        self.memory.release(self.ih.memory)
        self.dummy.close()


def make_units(chip: Chip, classes: UnitClasses) -> Units:
    """Make the units of a described chip; changes nothing on it: see `AddressSpace.own`."""
    base, offset = framebuffer_location(chip)
    carveout = Carveout(chip.vram.size, chip.generation.reserved_vram, base, offset)
    memory = AddressSpace(chip, carveout, classes.page_format())
    nbio = classes.nbio(chip)
    gfx = classes.gfx(chip, nbio)
    engines = tuple(classes.copy_engine(chip, found.instance) for found in chip.copy_engines())
    if not engines:
        raise DiscoveryError("expected a copy engine (SDMA) in the discovery table, found none")
    smu = classes.smu(chip, nbio, carveout)
    return Units(
        chip=chip,
        carveout=carveout,
        memory=memory,
        dummy=chip.transport.allocate_dma(4096, contiguous=True),
        nbio=nbio,
        gmc=classes.gmc(chip, nbio),
        psp=classes.psp(chip, nbio, carveout),
        smu=smu,
        thermal=Thermal(chip, smu),
        ih=classes.ih(chip, nbio, memory.allocate(MEMORY_SIZE, Placement.HOST)),
        gfx=gfx,
        clocks=classes.clocks(chip, gfx, engines),
        engines=engines,
    )
