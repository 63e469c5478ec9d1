"""The kernels of the driver: copy (to, from, bytes) and fill (to, value, bytes), THREADS threads a
group, four bytes a thread. `copy` takes any addresses and sizes.

There is no engine that copies: CP_MEMCPY moves whole words one at a time, and the 2D engine writes
through the colour cache, whose set-up depends on the chip's on-chip memory.
"""

from __future__ import annotations

import base64
from pathlib import Path

THREADS = 128
SPAN = 4 * THREADS  # bytes of a group


def objects(generation: int) -> dict[str, bytes]:
    """The objects (hcq.ir3object) for a generation, by name."""
    text = (Path(__file__).parent / f"gen{generation}.txt").read_text(encoding="ascii")
    made = {}
    for block in text.split("\n", 1)[1].split("\n\n"):
        name, *lines = block.split()
        made[name] = base64.b64decode("".join(lines))
    return made
