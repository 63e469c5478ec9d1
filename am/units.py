"""All units of one chip, made in the order in which they become reachable."""

from __future__ import annotations

from dataclasses import dataclass

from am.chip import Chip
from am.clocks import Clocks
from am.gfx import Gfx
from am.gmc import Gmc, framebuffer_location
from am.ih import MEMORY_SIZE, Ih
from am.memory import AddressSpace, Carveout
from am.nbio import Nbio
from am.psp import Psp
from am.sdma import Engine
from am.smu import Smu
from hcq.errors import DiscoveryError
from hcq.memory import Placement
from hcq.transport.base import DmaMemory


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


def make_units(chip: Chip) -> Units:
    """Make the units of a described chip; changes nothing on it: see `AddressSpace.own`."""
    facts = chip.facts
    base, offset = framebuffer_location(chip)
    carveout = Carveout(chip.vram.size, facts.RESERVED_VRAM, base, offset)
    memory = AddressSpace(chip, carveout)
    nbio = Nbio(chip)
    gfx = Gfx(chip, nbio)
    engines = tuple(Engine(chip, index) for index in copy_engines(chip))
    return Units(
        chip=chip,
        carveout=carveout,
        memory=memory,
        dummy=chip.transport.allocate_dma(4096, contiguous=True),
        nbio=nbio,
        gmc=Gmc(chip, nbio),
        psp=Psp(chip, nbio, carveout),
        smu=Smu(chip, nbio, carveout),
        ih=Ih(chip, nbio, memory.allocate(MEMORY_SIZE, Placement.HOST)),
        gfx=gfx,
        clocks=Clocks(chip, gfx, engines),
        engines=engines,
    )


def copy_engines(chip: Chip) -> list[int]:
    """The copy engines that discovery lists and harvesting left.

    Tables list them as instances of SDMA0 or as blocks of their own (Linux 6.12
    amdgpu_discovery.c counts both).
    """
    ids, find = chip.facts.HARDWARE_IDS, chip.discovery.find
    found = [
        index
        for index in range(chip.facts.SDMA_ENGINES)
        if find(ids["SDMA0"], index) or find(ids[f"SDMA{index}"], 0)
    ]
    if not found:
        raise DiscoveryError("the discovery table has no copy engine")
    return found
