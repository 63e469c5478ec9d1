"""Record of a generation: the classes and functions that drive it, found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.am.boot.units import UnitClasses, Units
from ugpu.am.chips.generations import GenerationFacts
from ugpu.am.packets.mqd import QueueMemory
from ugpu.am.units.psp.images import FirmwareSet
from ugpu.am.work.kernels import CleanerKernel, ProofKernel
from ugpu.am.work.queue import ComputeQueue, CopyQueue
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.registers.fields import RegisterMap
from ugpu.hcq.registers.layout import Struct


@dataclass(frozen=True)
class Generation:
    """The driver's part of a generation; its facts are in am/generations/<name>/facts.py.

    units: the class that drives each block, and the page-table format. compute_queue, copy_queue:
    rings and the packets in them. describe_queue: makes the descriptor of a compute queue from the
    addresses of its memory and the graphics core's registers. cold_boot, warm_attach: the stages of
    starting. proof: runs after a reset. cleaner: makes the kernel that overwrites what others left
    in compute units, from the number of their vector registers (BoardFacts).
    """

    units: UnitClasses
    compute_queue: type[ComputeQueue]
    copy_queue: type[CopyQueue]
    describe_queue: Callable[[QueueMemory, RegisterMap], Struct]
    cold_boot: Callable[[Units, FirmwareSet, Stages], None]
    warm_attach: Callable[[Units, Stages], None]
    proof: ProofKernel
    cleaner: Callable[[int], CleanerKernel]


def generation_of(facts: GenerationFacts) -> Generation:
    """Return the record of a generation, from its folder in am/generations."""
    module = importlib.import_module(f"ugpu.am.generations.{facts.name}.driver")
    found: Generation = module.GENERATION
    return found
