"""A chip without a card, to plan work for (`null:<chip>`)."""

from __future__ import annotations

from ugpu.am import chips
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.packets.dispatch import check_supported
from ugpu.am.work.target import target_of
from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.null.chip import PlannedChip, ReadKernel
from ugpu.hcq.objects.code_object import parse_amdhsa
from ugpu.hcq.objects.source_types import with_kinds


def planned(name: str) -> PlannedChip:
    """Return a chip by its name, as on its largest board; DeviceNotFound."""
    facts = chips.facts_of(name)
    board = facts.board
    units = 2 * board.shader_engines * board.arrays_per_engine * board.wgps_per_array
    return PlannedChip(
        name,
        facts.title,
        target_of(facts, units),
        board.vram - facts.generation.reserved_vram,
        lambda image: _read(image, facts),
    )


def _read(image: bytes, facts: ChipFacts) -> list[ReadKernel]:
    code = parse_amdhsa(image)
    if code.target != facts.isa:
        raise BadCodeObject(
            "the code object is built for another processor", found=code.target, expected=facts.isa
        )
    for kernel in code.kernels.values():
        check_supported(kernel)
    typed = with_kinds(image, {name: each.arguments for name, each in code.kernels.items()})
    share = code.size // max(1, len(code.kernels))  # kernels of one object share constants
    return [
        ReadKernel(
            name,
            kernel.kernarg_size,
            typed[name],
            kernel.descriptor.local_size,
            kernel.descriptor.private_size,
            share,
        )
        for name, kernel in code.kernels.items()
    ]
