"""Exceptions at every line of cleaning an NVIDIA GPU: what the next lease finds, and what is left
behind."""

from __future__ import annotations

from tests.support.interrupts import interrupted
from tests.support.nvidia.nv_machine import opened, work
from tests.support.nvidia.ptx_leaks import clean, run, small_machine
from ugpu.nv.work.cleaner import Cleaner

EVERY = 24  # so many lines apart, what a lease left is looked for


def test_cleaning_that_is_cut_off() -> None:
    """At the first use, which loads the code."""
    machine = small_machine("tu102")
    with opened(machine) as device:
        run(device, "plant")
        clean(device)
        driver = device.driver
        used, lines = len(driver.gpu.memories), 0

        def prepare() -> None:
            """Lose code and counts, as if the device had just been opened."""
            device.synchronize()
            old, driver.cleaner = driver.cleaner, Cleaner(driver)
            if old._program is not None:
                old._program.close()
            if old._counts is not None:
                old._counts.close()
            if lines % EVERY == 0:
                run(device, "plant")

        for line in interrupted(lambda: clean(device), prepare=prepare):
            if lines % EVERY == 0:
                assert clean(device) == "", line
                assert not run(device, "find").any(), line
                work(device)
            lines += 1
        assert lines > 100
        device.synchronize()
        assert len(driver.gpu.memories) == used
    machine.close()
