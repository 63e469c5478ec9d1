"""A chip without a phone, to plan work for (`null:<chip>`)."""

from __future__ import annotations

from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.null.chip import PlannedChip, ReadKernel
from ugpu.hcq.objects.ir3_object import INSTRUCTION, parse_ir3
from ugpu.qcom import chips
from ugpu.qcom.chips.facts import ChipFacts
from ugpu.qcom.packets import textures
from ugpu.qcom.packets.pm4 import Tables
from ugpu.qcom.work.programs import arguments_of, check

MEMORY = 4 << 30  # bytes: the GPU has none of its own; half of what a small phone has


def planned(name: str) -> PlannedChip:
    """Return a chip by its name; DeviceNotFound."""
    if name not in chips.names():
        raise DeviceNotFound(f"expected a chip ({', '.join(chips.names())}), got {name!r}")
    facts = chips.facts(name)
    return PlannedChip(
        name,
        f"Adreno {name[1:]}",
        facts.target(),
        MEMORY,
        lambda image: _read(image, facts),
        INSTRUCTION,
    )


def _read(image: bytes, facts: ChipFacts) -> list[ReadKernel]:
    tables = Tables.of(facts.generation)
    kernels = parse_ir3(image)
    for kernel in kernels:
        check(kernel, facts)
        textures.check(kernel, tables)
    return [
        ReadKernel(
            kernel.name,
            kernel.kernarg_size,
            arguments_of(kernel),
            kernel.local_size,
            kernel.private_size,
            len(kernel.code),
        )
        for kernel in kernels
    ]
