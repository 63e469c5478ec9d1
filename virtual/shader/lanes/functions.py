"""All functions of lane memory, as parts of a library."""

from __future__ import annotations

from ugpu.virtual.shader.lanes import every, local, near, pairs, runs
from ugpu.virtual.shader.library import Part

LANE_MEMORY: tuple[Part, ...] = (
    (every.every_ir, every.names()),
    (runs.runs_ir, ()),
    (near.near_ir, near.names()),
    (local.local_ir, local.names()),
    (pairs.pairs_ir, pairs.names()),
)
