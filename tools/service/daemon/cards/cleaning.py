"""Cleaning between holders: overwrite data that kernels left in registers, local memory and
scratch, and the commands in memory that the driver keeps."""

from __future__ import annotations

import logging

from ugpu.hcq.device.device import Device, core_of
from ugpu.tools.base.events import NOT_CLEANED, tell

log = logging.getLogger(__name__)

# TIMEOUT: of kernels that take microseconds but wait for units that other holders occupy
CLEAN_LIMIT_S = 20.0


def clean(device: Device) -> None:
    """Overwrite the leftover data and wait for the end. Do nothing if the driver has no means to
    (`Driver.clean`). An event names what could not be overwritten. UgpuError if the device has
    failed or does not finish."""
    core = core_of(device)
    with core.lock:
        core.check_usable()
        ended = device.driver.clean()
    if ended is not None:
        timeline, value = ended
        timeline.wait(value, limit_s=CLEAN_LIMIT_S)
        gap = device.driver.clean_gap
        if gap:
            tell(log, NOT_CLEANED, f"{device.name}: {gap}", device=device.name, reason=gap)


def overwrite_commands(device: Device) -> None:
    """Overwrite arguments, constants and data of ended work in rings, images and staging memory
    (`Driver.overwrite_commands`). UgpuError if the device has failed."""
    core = core_of(device)
    with core.lock:
        core.check_usable()
        core.complete()
        device.driver.overwrite_commands()
