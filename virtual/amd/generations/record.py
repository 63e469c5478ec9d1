"""Record of a generation: the classes and formats of its model, found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.am.chips.generations import GenerationFacts
from ugpu.virtual.amd.bus.ih import InterruptHandler
from ugpu.virtual.amd.bus.nbio import Nbio
from ugpu.virtual.amd.engines.cp.commands import CommandSet
from ugpu.virtual.amd.engines.gfx import Gfx
from ugpu.virtual.amd.engines.sdma.engine import Sdma
from ugpu.virtual.amd.engines.sdma.packets import CopyPackets
from ugpu.virtual.amd.firmware.discovery import Ip
from ugpu.virtual.amd.firmware.interface import FirmwareInterface
from ugpu.virtual.amd.firmware.psp import Psp
from ugpu.virtual.amd.firmware.smu import Smu
from ugpu.virtual.amd.firmware.thermal import Thermal
from ugpu.virtual.amd.firmware.vbios import Rom
from ugpu.virtual.amd.memory.entries import EntryFormat
from ugpu.virtual.amd.memory.gmc import Hub
from ugpu.virtual.amd.memory.hdp import Hdp
from ugpu.virtual.amd.shader import ShaderCore


@dataclass(frozen=True)
class BlockClasses:
    """The class that models each block."""

    nbio: type[Nbio]
    hdp: type[Hdp]
    hub: type[Hub]
    interrupt_handler: type[InterruptHandler]
    psp: type[Psp]
    smu: type[Smu]
    thermal: type[Thermal]
    rom: type[Rom]
    graphics: type[Gfx]
    copy_engine: type[Sdma]


@dataclass(frozen=True)
class Generation:
    """The model's part of a generation; its facts are in am/chips.

    page_tables: entries as the hubs walk them. commands: of the command processor's queues.
    copy_packets: of the copy engines' queues. shader_core: makes the core that executes machine
    code; True: it checks waits. firmware: of the security processor. neighbours: blocks in the
    discovery table that a driver for compute skips; the last one has an unassigned id.
    register_bytes: size of BAR5. audio_device: PCI id of the board's function for audio.
    """

    blocks: BlockClasses
    page_tables: EntryFormat
    commands: CommandSet
    copy_packets: CopyPackets
    shader_core: Callable[[bool], ShaderCore]
    firmware: FirmwareInterface
    neighbours: tuple[Ip, ...]
    register_bytes: int
    audio_device: int


def generation_of(facts: GenerationFacts) -> Generation:
    """Return the record of a generation, from its folder in virtual/amd/generations."""
    module = importlib.import_module(f"ugpu.virtual.amd.generations.{facts.name}.model")
    generation: Generation = module.GENERATION
    return generation
