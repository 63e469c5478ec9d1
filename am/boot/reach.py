"""What a card has where the host does not reach it through mapped memory: decided here, once.

No other module of the units, the boot, failures and work asks this question (tools.house.layers):
they use what is chosen here, and the bus (hcq.bare.bus).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ugpu.am.chip.chip import Chip
from ugpu.am.units.lists import RESULTS_SIZE, Describe, ListQueue, PageResults, Results
from ugpu.am.units.memory import Carveout
from ugpu.am.units.nbio import Nbio
from ugpu.am.units.psp.commands import PRIVATE_SIZE
from ugpu.am.units.psp.stage import OutsideStage, PrivateBuffer, Shelf
from ugpu.hcq.bare.program import HostPrograms
from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.bare.vram import PAGE
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.base import DmaMemory


@dataclass
class Reach:
    """What was chosen.

    dummy_address: of a page outside the chip that faulting accesses and the IH's dummy reads go to.
    dummy: its memory, None if that is part of other memory of the transport. stage: where the PSP
    finds images. programs: does steps that set units up; where the card does them, it stores the
    values it reads in that page, as long as nothing else runs. unclean: the transport's memory for
    timelines, until it is zero.
    """

    dummy: DmaMemory | None
    dummy_address: int
    stage: PrivateBuffer
    programs: HostPrograms
    unclean: list[Mapping] = field(default_factory=list)


def choose(
    chip: Chip, nbio: Nbio, carveout: Carveout, memory: AddressSpace, describe: Describe
) -> Reach:
    """Choose by the transport's traits: DMA memory and single accesses where BARs are mapped;
    behind a bridge, the bridge's memory, and as few messages as its kind allows."""
    traits = chip.transport.traits
    bulk, staged = traits.bulk, traits.staged
    beside = bulk or staged
    dummy = None if beside else chip.transport.allocate_dma(PAGE, contiguous=True)
    spare = int(beside.spare if beside else dummy.segments[0].address if dummy else 0)
    if staged is not None:
        place = int(staged.address)
        shared = memory.allocate(staged.size, Placement.HOST, bus=place, align=PRIVATE_SIZE)
        stage = OutsideStage(chip, nbio, carveout, staged, shared)
        return Reach(dummy, spare, stage, HostPrograms(chip, nbio.post_hdp))
    if not traits.register_messages:
        buffer = PrivateBuffer(chip, nbio, carveout)
        return Reach(dummy, spare, buffer, HostPrograms(chip, nbio.post_hdp))
    shelf = Shelf(chip, nbio, carveout, memory, len(chip.generation.boot_components))
    results: Results
    unclean: list[Mapping] = []
    if bulk is not None:
        assert bulk.results_size >= RESULTS_SIZE
        results, seen = bulk, _mapped(memory, bulk.results, bulk.results_size)
        unclean.append(_mapped(memory, bulk.signals, bulk.signals_size))
    else:
        assert dummy is not None
        results, seen = PageResults(dummy), _mapped(memory, spare, PAGE)
    programs = ListQueue(chip, nbio, carveout, describe, results, int(seen.address))
    return Reach(dummy, spare, shelf, programs, unclean)


def _mapped(memory: AddressSpace, bus: int, size: int) -> Mapping:
    """Map memory of the transport at a bus address."""
    start = int(bus) % PAGE
    return memory.allocate(start + size, Placement.HOST, bus=int(bus) - start).part(start, size)
