"""`null:<chip>` as users open it."""

from __future__ import annotations

import time
from collections.abc import Callable

from ugpu.hcq.device.device import Device
from ugpu.hcq.null.chip import Counts, PlannedChip
from ugpu.hcq.null.driver import NullDriver
from ugpu.hcq.state.checks import whole

MOST_MEMORY = 1 << 43  # bytes; addresses of more would not fit


def open_device(
    name: str,
    chip: PlannedChip,
    *,
    memory_bytes: int | None = None,
    on_stage: Callable[[str, float], None] | None = None,
) -> NullDevice:
    """Open a null device. memory_bytes: beyond which allocations raise OutOfMemory; default: that
    of the usual board. on_stage: called with the one step of bring-up and the seconds it took."""
    size = chip.memory_bytes
    if memory_bytes is not None:
        size = whole("memory_bytes", memory_bytes, 1, MOST_MEMORY)
    start = time.monotonic()
    device = NullDevice(NullDriver(name, chip, size))
    if on_stage is not None:
        on_stage("plan", time.monotonic() - start)
    return device


class NullDevice(Device):
    """A chip without hardware: programs are compiled and read as by its driver, memory is planned,
    work is counted. Nothing runs, and reading elements raises NotSupported."""

    def __init__(self, driver: NullDriver) -> None:
        super().__init__(driver)
        self._driver = driver

    @property
    def driver(self) -> NullDriver:
        """See Device."""
        return self._driver

    def counts(self, restart: bool = False) -> Counts:
        """Return what the device was asked to do since it was opened, or the last restart. restart:
        begin again, except what is loaded. The memory of tensors: `memory_peak`."""
        return self._driver.snapshot(restart)
