"""A chip without a card, to plan work for (`null:<chip>`)."""

from __future__ import annotations

import importlib

from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.null.chip import PlannedChip, ReadKernel
from ugpu.nv import chips
from ugpu.nv.chips.facts import ChipFacts
from ugpu.nv.code.source import read_source
from ugpu.nv.packets.families import FAMILIES, Family
from ugpu.nv.packets.launch import shared_size
from ugpu.nv.work.target import target_of

INSTRUCTION = 16  # bytes, from Volta on: CUDA Binary Utilities, "Instruction Set Reference"


def planned(name: str) -> PlannedChip:
    """Return a chip by its name, as on its usual board; DeviceNotFound."""
    if name not in chips.names():
        raise DeviceNotFound(f"expected a chip ({', '.join(chips.names())}), got {name!r}")
    facts: ChipFacts = importlib.import_module(f"{chips.__name__}.{name}.facts").FACTS
    family = next(each for each in FAMILIES if each.name == facts.family)
    return PlannedChip(
        name,
        name.upper(),
        target_of(facts.compute_capability, facts.sm_count),
        facts.memory_size,
        lambda image: _read(image, facts, family),
        INSTRUCTION,
    )


def _read(image: bytes, facts: ChipFacts, family: Family) -> list[ReadKernel]:
    source = read_source(image, facts.compute_capability)
    reserved = source.cubin.counts_reserved
    return [
        ReadKernel(
            name,
            code.parameters_size,
            source.arguments(name),
            shared_size(code, family, counts_reserved=reserved) - family.reserved_shared,
            code.stack_size,
            code.code_size,
        )
        for name, code in source.cubin.kernels.items()
    ]
