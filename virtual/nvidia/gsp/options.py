"""Options of a register-level NVIDIA card."""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.nvidia.options import MachineOptions

FIRMWARES = ("570.144", "535.113.01")
DEFAULT_FIRMWARE = FIRMWARES[0]


@dataclass(frozen=True)
class CardOptions(MachineOptions):
    """Configuration of a card. Sizes are bytes. For the GPU behind see MachineOptions; driver: the
    version of the firmware's tables, until firmware runs.

    bar1: what BAR1 shows of the memory. platform: whether the platform has assigned the BARs; else
    the bus model does. function_reset: whether the card offers FLR. cut_in_d3: the platform takes
    the card's power away while it is in D3 (D3cold), so that nothing is kept. seed: of the bus
    addresses that the IOMMU deals.

    How slow and talkative the card is, as boards are. power_on_reads: reads of the progress
    register before power-on has finished. scrub_reads: reads of a falcon's state before its memory
    is clean after a reset. dma_reads: reads of its DMA command before a block has arrived.
    lockdown_reads: reads of the GSP's registers before each of its locks is released. notices:
    lockdown notices, in pairs, and LIBOS_PRINT events, before INIT_DONE. flood: LIBOS_PRINT events
    before each reply after it. fuse: fuse versions burnt, of every program. display: whether there
    is a display engine. context, access_maps: bytes of a graphics context's own buffer, and of the
    maps of registers that it may access.
    """

    driver: str = DEFAULT_FIRMWARE
    memory: int | None = 4 << 30
    channels: int = 2048
    bar1: int = 256 << 20
    platform: bool = True
    function_reset: bool = True
    cut_in_d3: bool = False
    seed: int = 0
    power_on_reads: int = 2
    scrub_reads: int = 1
    dma_reads: int = 0
    notices: int = 2
    lockdown_reads: int = 2
    flood: int = 0
    fuse: int = 1
    display: bool = False
    context: int = 2 << 20
    access_maps: int = 512 << 10
