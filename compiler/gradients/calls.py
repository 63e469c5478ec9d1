"""Rules of functions of the program: custom gradients, and recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ugpu.compiler.gradients.table import rule
from ugpu.compiler.gradients.values import Values

Given = Sequence[Values]
Results = Sequence[Values | None]


@rule("custom")
def _custom(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """arg: the program's function of the gradient, checked by compiler.gradients.functional."""
    results: Results = arg(g)
    return results
