"""Low-power states (ASPM) of the links to a function, through the kernel: both ends at once.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci (link/l0s_aspm, link/l1_aspm, since 5.5) and
drivers/pci/pcie/aspm.c. VFIO blocks a driver's own writes to Link Control, and the upper end of the
link belongs to a bridge, so this is the only way that reaches both ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.path import ports
from ugpu.hcq.transport.system import System

log = logging.getLogger(__name__)

# L1 first: leaving it takes long enough to look like a device that is gone.
_STATES = ("l1_aspm", "l0s_aspm")


def keep_awake(system: System, function: PciFunction) -> Callable[[], None]:
    """Disable the low-power states of every link above the function; return a function that enables
    those again that were enabled.

    A card with its own switch has its slot's link above that. If the kernel has no such files, or
    this user may not write them, a link stays as it is, and the log contains a line.
    """
    changed: list[tuple[PciFunction, str]] = []
    for lower in (function, *ports(function)):
        for name in _STATES:
            if lower.attribute(f"link/{name}") == "1" and _write(system, lower, name, "0"):
                changed.append((lower, name))

    def restore() -> None:
        while changed:
            _write(system, *changed.pop(), "1")

    return restore


def _write(system: System, function: PciFunction, name: str, value: str) -> bool:
    path = function.folder / "link" / name
    try:
        system.write_text(path, value)
    except OSError as error:
        log.info("pci:%s: %s of the link is unchanged: %s", function.address, name, error)
        return False
    return True
