"""The `cpu` device as users open it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ugpu.hcq.cpu.driver import CpuDriver
from ugpu.hcq.cpu.processor import native
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.checks import whole

MOST_THREADS = 1024  # each has a stack; more threads than the host has processors gain nothing


def open_device(
    name: str = "cpu",
    *,
    threads: int | None = None,
    on_stage: Callable[[str, float], None] | None = None,
) -> CpuDevice:
    """Open the host. threads: number that run kernels; default: the processors this process may
    use.

    on_stage: called with each step of bring-up and the seconds it took.
    """
    count = len(os.sched_getaffinity(0))
    if threads is not None:
        count = whole("threads", threads, 1, MOST_THREADS + 1)
    start = time.monotonic()
    native()
    compiled = time.monotonic()
    device = CpuDevice(CpuDriver(name, count))
    if on_stage is not None:
        on_stage("command processor", compiled - start)
        on_stage("queues and threads", time.monotonic() - compiled)
    return device


class CpuDevice(Device):
    """The host's threads and memory as a device. One compute queue, whose launches use all threads,
    and one copy queue."""

    def __init__(self, driver: CpuDriver) -> None:
        super().__init__(driver)
        self._driver = driver

    @property
    def driver(self) -> CpuDriver:
        """See Device."""
        return self._driver

    @property
    def threads(self) -> int:
        """Return the number of threads that run kernels."""
        return self._driver.threads
