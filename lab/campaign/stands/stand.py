"""A device under faults: how to switch it on, open it, work on it, and what must be intact."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ugpu.hcq.state.clock import ModelClock

#: the clock of a model's driver runs so much faster than real time: limits of seconds end soon.
#: Limits are suspended while the model is at work, so that none ends too early.
HASTE = 20.0


#: how many lines of the driver a stage runs, about
LINES = {"launch": 300, "copy": 400, "reset": 500, "close": 250, "idle": 400, "wait": 100}
SHORT_S, LONG_S = 4.0, 1200.0  # limits of waits, by a hastened clock


def hasten(clock: ModelClock) -> None:
    """Have the limits of whoever waits by `clock` end HASTE times as fast."""
    start = time.monotonic()
    clock.now = lambda: start + (time.monotonic() - start) * HASTE  # type: ignore[method-assign]


class Stand(ABC):
    """One device of the campaign, switched on from `__init__` to `stop`."""

    variant = 0  # which of the cases of a kind at a stage
    device: Any
    #: stages of `open`, in their order; a fault can be planted at the start of each
    boot_stages: tuple[str, ...] = ("open",)
    #: stages of an open device
    stages: tuple[str, ...] = ("idle", "launch", "copy", "wait", "reset", "close")

    @abstractmethod
    def open(self, stage: str = "", plant: Callable[[], object] | None = None) -> None:
        """Open the device; call `plant` when stage `stage` of the boot begins."""

    @abstractmethod
    def prepare(self) -> None:
        """Make buffers whose content is known, and load programs."""

    @abstractmethod
    def do(self, stage: str, plant: Callable[[], object]) -> None:
        """Do what a stage is, with `plant` called at its start."""

    @abstractmethod
    def limit(self, *, short: bool) -> None:
        """Have waits end soon, where a hang is expected, or late, as a busy host may be slow."""

    @abstractmethod
    def reset(self) -> None:
        """Reset the open device."""

    @abstractmethod
    def work(self) -> None:
        """Copy in, launch, copy out; AssertionError where the result is wrong."""

    @abstractmethod
    def intact(self) -> str:
        """What is wrong with the buffers of `prepare`; empty if nothing is."""

    @abstractmethod
    def close(self) -> None:
        """Close the device; idempotent."""

    @abstractmethod
    def stop(self) -> None:
        """Switch off; idempotent."""

    def memory_used(self) -> int:
        """Bytes that the driver holds for users; what `work` allocates it gives back."""
        return 0

    def left(self) -> str:
        """What a closed device has left behind in the model; empty if nothing."""
        return ""

    def states(self) -> dict[str, str]:
        """The remedy of each unit's state that is not in order, by "unit: name"."""
        return {}

    def objections(self) -> list[str]:
        """What the model objects to."""
        return []

    @property
    def memory_lost(self) -> bool:
        """Whether the driver says that the content of DEVICE memory is lost."""
        return False
