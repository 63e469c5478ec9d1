"""Install a chip's engines: the graphics block with MEC, and the SDMA engines."""

from __future__ import annotations

from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.engines.gfx import Gfx


def install(chip: Chip) -> Gfx:
    """Build and connect the engines of `chip`; call once per chip. The chip closes them."""
    generation = chip.generation
    gfx = generation.blocks.graphics(chip, generation.commands, generation.shader_core)
    engine = generation.blocks.copy_engine
    for instance in range(chip.facts.copy_engines):
        gfx.sdma.append(engine(chip, instance, gfx.memory_written, generation.copy_packets))
    chip.gfx = gfx
    chip.memory_changed = gfx.memory_written.notify
    chip.sdma = list(gfx.sdma)
    chip.autoload_listeners.append(gfx.autoload)
    chip.install(gfx, *gfx.sdma)
    return gfx
