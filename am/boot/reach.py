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
from ugpu.hcq.bare.space import AddressSpace
from ugpu.hcq.bare.vram import PAGE
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.base import DmaMemory


@dataclass
class Reach:
    """What was chosen.

    dummy_address: of a page outside the chip that faulting accesses and the IH's dummy reads go to.
    dummy: its memory, None if that is part of other memory of the transport. stage: where the PSP
    finds images. lists: stores the values it reads in that page, as long as nothing else runs.
    signals: the transport's memory for timelines, until it is zero.
    """

    dummy: DmaMemory | None
    dummy_address: int
    stage: PrivateBuffer
    lists: ListQueue | None = None
    signals: list[tuple[VirtAddr, int]] = field(default_factory=list)


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
        return Reach(dummy, spare, OutsideStage(chip, nbio, carveout, staged, shared))
    if not traits.register_messages:
        return Reach(dummy, spare, PrivateBuffer(chip, nbio, carveout))
    images = len(chip.generation.boot_components)
    reach = Reach(dummy, spare, Shelf(chip, nbio, carveout, memory, images))
    results: Results
    if bulk is not None:
        assert bulk.results_size >= RESULTS_SIZE
        results, seen = bulk, _mapped(memory, bulk.results, bulk.results_size)
        reach.signals.append((_mapped(memory, bulk.signals, bulk.signals_size), bulk.signals_size))
    else:
        assert dummy is not None
        results, seen = PageResults(dummy), _mapped(memory, spare, PAGE)
    reach.lists = ListQueue(chip, nbio, carveout, describe, results, seen)
    return reach


def _mapped(memory: AddressSpace, bus: int, size: int) -> VirtAddr:
    """Map memory of the transport at a bus address; return its address."""
    start = int(bus) % PAGE
    mapping = memory.allocate(start + size, Placement.HOST, bus=int(bus) - start)
    return VirtAddr(mapping.address + start)
