"""All rules: importing this module fills the table."""

from __future__ import annotations

from ugpu.compiler.gradients import (
    attention,
    calls,
    elementwise,
    indexing,
    movement,
    reductions,
    windows,
)
from ugpu.compiler.gradients.table import RULES as RULES

FAMILIES = (attention, calls, elementwise, indexing, movement, reductions, windows)
