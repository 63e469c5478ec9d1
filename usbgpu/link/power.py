"""Power management of a bridge's port: a link that was suspended comes back degraded."""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger(__name__)

REMEDY = "sudo ugpu doctor --write-udev, then plug the enclosure in again"


class KeptAwake:
    """Prevents suspend of a port until `restore`."""

    def __init__(self, folder: Path) -> None:
        self._control = folder / "power" / "control"
        self._found = ""
        try:
            setting = self._control.read_text().strip()
            if setting != "on":
                self._control.write_text("on")
                self._found = setting
        except OSError as error:
            log.warning(
                "%s may be suspended, after which transfers fail: %s; %s",
                folder.name, error.strerror, REMEDY,
            )  # fmt: skip

    def restore(self) -> None:
        """Restore the original setting; idempotent."""
        setting, self._found = self._found, ""
        if not setting:
            return
        try:
            self._control.write_text(setting)
        except OSError as error:
            log.debug("%s could not be restored: %s", self._control, error.strerror)
