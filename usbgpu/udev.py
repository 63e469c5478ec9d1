"""Who may open a bridge: the rule for udev, and the power management of its port."""

from __future__ import annotations

import logging
from pathlib import Path

from hcq.errors import AccessDenied
from usbgpu import asm24

log = logging.getLogger(__name__)

RULES = Path("/etc/udev/rules.d/70-ugpu-usb.rules")
REMEDY = "sudo ugpu doctor --write-udev, then plug the enclosure in again"


def rules() -> str:
    """The file's text: seated users may open bridges, and their ports are not suspended. A link
    that was suspended comes back degraded."""
    lines = ["# USB bridges with a GPU behind them (ugpu)."]
    for vendor, product in asm24.IDS:
        lines.append(
            f'SUBSYSTEM=="usb", ATTR{{idVendor}}=="{vendor:04x}", '
            f'ATTR{{idProduct}}=="{product:04x}", MODE="0660", TAG+="uaccess", '
            'ATTR{power/control}="on"'
        )
    return "\n".join(lines) + "\n"


def write_rules(path: Path = RULES) -> None:
    """Write the rule. AccessDenied without the right to."""
    try:
        path.write_text(rules())
    except OSError as error:
        raise AccessDenied(
            f"cannot write {path}: {error.strerror}", remedy="sudo ugpu doctor --write-udev"
        ) from error


class KeptAwake:
    """No suspend of a port, from now until `restore`."""

    def __init__(self, folder: Path) -> None:
        self._control = folder / "power" / "control"
        self._found = ""
        try:
            found = self._control.read_text().strip()
            if found != "on":
                self._control.write_text("on")
                self._found = found
        except OSError as error:
            log.warning(
                "%s may be suspended, after which transfers fail: %s; %s",
                folder.name, error.strerror, REMEDY,
            )  # fmt: skip

    def restore(self) -> None:
        """Put the setting back as it was found; idempotent."""
        found, self._found = self._found, ""
        if not found:
            return
        try:
            self._control.write_text(found)
        except OSError as error:
            log.debug("%s is not restored: %s", self._control, error.strerror)
