"""Prepared work whose image stays in its own memory, for callers that submit it repeatedly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ugpu.hcq.device.core import Core
from ugpu.hcq.work.command import CommandBuffer
from ugpu.hcq.work.queue import HardwareQueue, Resident


class Placed:
    """Result of `Core.prepare`, in its own memory: a submission writes the words that change and
    rings the doorbell. Not thread-safe; owned by the caller."""

    def __init__(self, core: Core, hardware: HardwareQueue, prepared: CommandBuffer) -> None:
        self.core = core
        self.hardware = hardware
        self.prepared = prepared
        self._end = 0  # of its last run
        with core.lock:
            core.check_usable()
            self._resident: Resident | None = hardware.place(prepared)
        positions: list[int] = []
        sources: list[int] = []  # 0: the value that marks the end; 1 and up: the parameters
        fixed = np.zeros(len(prepared.symbols), np.uint64)
        for position, symbol in enumerate(prepared.symbols):
            if symbol.kind == "image":
                fixed[position] = self._resident.address
            elif symbol.buffer is not None:
                fixed[position] = int(symbol.buffer.address)
            elif symbol.kind in ("signal", "parameter"):
                positions.append(position)
                sources.append(0 if symbol.kind == "signal" else 1 + symbol.slot)
        self._part = prepared.part(positions, sources, [0] * len(positions))
        self._resident.fill(prepared, fixed)

    @property
    def ended(self) -> bool:
        """Return whether its last run has ended, so that the image may be written again."""
        return self.hardware.timeline.value >= self._end

    def submit(self, parameters: Sequence[int]) -> int:
        """Run it, with parameters[slot] as each slot's value; otherwise like Core.submit_prepared.
        The last run must have `ended`."""
        assert self._resident is not None
        values = np.array([0, *parameters], np.uint64)
        self._end = self.core.submit_resident(
            self.hardware, self.prepared, self._resident, self._part, values
        )
        return self._end

    def close(self) -> None:
        """Free the image, once work that was submitted earlier has ended; idempotent."""
        resident, self._resident = self._resident, None
        if resident is not None and not self.core.closed:
            self.core.retired.drop(resident.close)
