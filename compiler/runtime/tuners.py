"""Who searches for faster kernels while they are made ready: a search registers itself here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from compiler.expression.computation import Computation
from compiler.runtime.store import Store
from hcq.device import Device


class Tuner(Protocol):
    """Is asked before a kernel is lowered, and stores what it finds."""

    def tune(self, computation: Computation, device: Device, store: Store) -> float | None:
        """Search the best choices for a computation; the seconds of the best, where known. The
        caller does not hold `interning`."""

    def compare(
        self, plain: Computation, forms: Sequence[Computation], device: Device, store: Store
    ) -> None:
        """Search whether a product or what may replace it takes less time in all."""


tuners: list[Tuner] = []  # the innermost last


def active() -> Tuner | None:
    """Who searches now: the innermost."""
    return tuners[-1] if tuners else None
