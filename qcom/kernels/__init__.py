"""The kernels of the driver: copy (to, from, bytes) and fill (to, value, bytes), THREADS threads a
group, four bytes a thread. `copy` accepts any addresses and sizes.

There is no copy engine: CP_MEMCPY moves whole words one at a time, and the 2D engine writes through
the colour cache, whose set-up depends on the chip's on-chip memory.
"""

from __future__ import annotations

import base64
from pathlib import Path

from ugpu.qcom.chips.facts import ChipFacts

THREADS = 128
SPAN = 4 * THREADS  # bytes of a group


def file_of(facts: ChipFacts) -> str:
    """Return the file with a chip's objects, by its generation and whether its code needs nops
    after predicated parts. All of generation 7 needs them."""
    nops = "_nops" if facts.predication_nops and facts.generation == 6 else ""
    return f"gen{facts.generation}{nops}.txt"


def objects(facts: ChipFacts) -> dict[str, bytes]:
    """Return the objects (hcq.objects.ir3_object) for a chip, by name."""
    text = (Path(__file__).parent / file_of(facts)).read_text(encoding="ascii")
    objects = {}
    for block in text.split("\n", 1)[1].split("\n\n"):
        name, *lines = block.split()
        objects[name] = base64.b64decode("".join(lines))
    return objects
