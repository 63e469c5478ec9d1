"""Registry of active tuners: compiler.search.tune registers itself, the runtime calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.runtime.kernels.store import Store
from ugpu.hcq.device.device import Device


class Tuner(Protocol):
    """Searches for faster kernels. The runtime calls it before it lowers a kernel."""

    def tune(self, computation: Computation, device: Device, store: Store) -> float | None:
        """Search the best choices for a computation and store them in `store`. Return the time
        of the best in seconds, or None. The caller must not hold `interning`."""

    def compare(
        self, plain: Computation, forms: Sequence[Computation], device: Device, store: Store
    ) -> None:
        """Measure a product and its replacement, and store which one is faster."""


tuners: list[Tuner] = []  # innermost last


def active() -> Tuner | None:
    """Return the innermost tuner, or None."""
    return tuners[-1] if tuners else None
