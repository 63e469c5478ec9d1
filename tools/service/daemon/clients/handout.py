"""A chip that is handed out as a vfio-user socket, for a driver that the holder provides."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from ugpu.am import chips
from ugpu.hcq.errors import HostError
from ugpu.hcq.state import threads
from ugpu.tools.control.serve import write_firmware
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.serve.server import Server

log = logging.getLogger(__name__)


def chip_of(name: str, options: dict[str, object]) -> Chip | None:
    """Build the chip of a virtual AMD device, which stays powered when drivers change. Return None
    for any other device, and if `options` has more than the size of its memory."""
    known = {f"virtual:{each}": each for each in chips.virtual_names()}
    vram = options.get("vram", 0)
    if name not in known or set(options) - {"vram"} or not isinstance(vram, int):
        return None
    return build_chip(chips.facts_of(known[name]), ChipOptions(vram=vram))


@dataclass(frozen=True)
class Place:
    """Where a chip that is handed out is found: a vfio-user socket, a folder of images."""

    socket: Path
    firmware: Path


class Handout:
    """A chip at a socket. `close` takes it back, and the driver at the other end loses it."""

    def __init__(self, chip: Chip, parent: Path, name: str, user: int) -> None:
        """parent: the folder of a new folder for the socket and the firmware images, whose name
        begins with `name`; HostError if that is not possible. user: the only one who may
        connect."""
        try:
            # A new folder: one that another user made first, or a link, is never used.
            self._folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
        except OSError as error:
            raise HostError(f"cannot create a folder in {parent}: {error.strerror}") from None
        try:
            self._open(chip, user)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _open(self, chip: Chip, user: int) -> None:
        self.socket = self._folder / "gpu.sock"
        self.firmware = self._folder / "firmware"
        write_firmware(chip.facts, self.firmware)
        self._server = Server(self.socket, ServedChip(chip), user=user)
        try:
            if user != os.geteuid():
                self._let_in(user)
            self._thread = threading.Thread(target=self._server.run, name="vfio-user", daemon=True)
            threads.start(self._thread)
        except BaseException:
            self._server.stop()
            raise

    def _let_in(self, user: int) -> None:
        """Let the holder reach socket and images. The server compares the user of a connection, so
        that permissions for others are harmless where ugpud cannot give the socket away."""
        self._folder.chmod(0o711)
        self.firmware.chmod(0o755)
        for image in self.firmware.iterdir():
            image.chmod(0o644)
        self.socket.chmod(0o666)
        if os.geteuid() == 0:
            os.chown(self.socket, user, -1, follow_symlinks=False)
            self.socket.chmod(0o600)

    def close(self) -> None:
        """End the service and its client's connection."""
        self._server.stop()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)
