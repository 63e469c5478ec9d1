"""Between holders: overwrites what kernels left in registers, local memory and scratch."""

from __future__ import annotations

import logging

from hcq.core import core_of
from hcq.device import Device

from .events import NOT_CLEANED, tell

log = logging.getLogger(__name__)

# TIMEOUT: of kernels that take microseconds; they wait for units that other holders occupy
CLEAN_LIMIT_S = 20.0


def clean(device: Device) -> None:
    """Have the device overwrite it, and wait for the end; nothing where the driver has no means
    (`Driver.clean`). An event says what it could not overwrite. UgpuError where the device has
    failed, or does not come to an end."""
    core = core_of(device)
    with core.lock:
        core.check_usable()
        ended = core.driver.clean()
    if ended is not None:
        timeline, value = ended
        timeline.wait(value, limit_s=CLEAN_LIMIT_S)
        gap = core.driver.clean_gap
        if gap:
            tell(log, NOT_CLEANED, f"{device.name}: {gap}", device=device.name, reason=gap)
