"""A chip that is handed out as a vfio-user socket, for a driver that the holder provides."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from am import chips
from am.virtual.bus.served import ServedChip
from am.virtual.chip import Chip
from am.virtual.gpu import build_chip
from am.virtual.options import ChipOptions
from hcq import threads
from hcq.errors import HostError
from hcq.transport.vfio_user.server import Server

from ..serve import write_firmware

log = logging.getLogger(__name__)


def chip_of(name: str, options: dict[str, object]) -> Chip | None:
    """Build the chip of a virtual AMD device, which stays powered when drivers change. Return None
    for any other device, and if `options` has more than the size of its memory."""
    known = {f"virtual:{each}": each for each in chips.virtual_names()}
    vram = options.get("vram", 0)
    if name not in known or set(options) - {"vram"} or not isinstance(vram, int):
        return None
    return build_chip(chips.facts_of(known[name]), ChipOptions(vram=vram))


class Handout:
    """A chip at a socket. `close` takes it back, and the driver at the other end loses it."""

    def __init__(self, chip: Chip, folder: Path, mode: int) -> None:
        """folder: receives the socket and the firmware images; HostError if that is not
        possible."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HostError(f"cannot create {folder}: {error.strerror}") from None
        self.socket = folder / "gpu.sock"
        self.firmware = folder / "firmware"
        write_firmware(chip.facts, self.firmware)
        self._server = Server(self.socket, ServedChip(chip))
        try:
            self.socket.chmod(mode)
            self._thread = threading.Thread(target=self._server.run, name="vfio-user", daemon=True)
            threads.start(self._thread)
        except BaseException:
            self._server.stop()
            raise

    def close(self) -> None:
        """End the service and its client's connection."""
        self._server.stop()
        self._thread.join()
        self.socket.unlink(missing_ok=True)
