"""Prepared commands that are submitted repeatedly, with two numbers that change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ugpu.hcq.work.command import CommandBuffer

if TYPE_CHECKING:
    from ugpu.hcq.work.queue import HardwareQueue


class Repetition:
    """Result of Core.prepare with its parameters, except those of the slots `firsts` and `seconds`.

    A driver may provide a faster one (HardwareQueue.repetition).
    """

    def __init__(
        self,
        hardware: HardwareQueue,
        prepared: CommandBuffer,
        parameters: Sequence[int],
        firsts: Collection[int],
        seconds: Collection[int],
    ) -> None:
        self.core = hardware.core
        self.hardware = hardware
        self.prepared = prepared
        self.parameters = list(parameters)
        self.firsts = firsts
        self.seconds = seconds

    def submit(self, first: int, second: int) -> int:
        """Run it with these two numbers; otherwise like Core.submit_prepared."""
        given = self.parameters.copy()
        for slot in self.firsts:
            given[slot] = first
        for slot in self.seconds:
            given[slot] = second
        return self.core.submit_prepared(self.hardware, self.prepared, given)
