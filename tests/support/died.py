"""A process that dies with a device open, played in the process of the test."""

from __future__ import annotations

from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.state import life


def died(device: Device) -> None:
    """Let go of a device as a process that is killed: nothing is told to the hardware, neither now
    nor at the end of the test's own process. The transport is the caller's to close."""
    core = core_of(device)
    core.closed = core.ended = True
    life.device_closed(core)
