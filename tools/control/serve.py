"""`ugpu serve`: offer a virtual chip to other processes, on a UNIX socket with vfio-user.

The chip stays powered from client to client. Its firmware images are written into a folder, because
a driver in another process needs them. The folder is printed; the driver gets it with `firmware=`
or UGPU_FIRMWARE. Ctrl-C or SIGTERM ends the server, and its client loses the device.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ugpu.am import chips
from ugpu.am.chips.facts import ChipFacts
from ugpu.hcq import outfile
from ugpu.hcq.errors import DeviceNotFound, UsageError
from ugpu.hcq.near import meant
from ugpu.tools.base.console import Output
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.firmware.images import synthetic_set
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.serve.server import Server

LEAST_GIB, MOST_GIB = 0.25, 1024  # BAR 0 has at least 256 MiB


@dataclass(frozen=True)
class ServeOptions:
    """Options of `ugpu serve`. vram: bytes, 0 for the size on boards with the chip. firmware: a
    folder to write to; None creates one."""

    socket: Path
    device: str = f"virtual:{chips.DEFAULT}"
    vram: int = 0
    firmware: Path | None = None
    map_vram: bool = False


def vram_bytes(gib: float | None) -> int:
    """Bytes of `gib` GiB, 0 for None; UsageError for a size that no supported card has."""
    if gib is None:
        return 0
    if not LEAST_GIB <= gib <= MOST_GIB:
        raise UsageError(f"--vram: expected {LEAST_GIB} to {MOST_GIB} GiB, got {gib}")
    return int(gib * 1024) << 20  # the card reports its size in MiB


def write_firmware(facts: ChipFacts, folder: Path) -> None:
    """Write the images that a driver of the virtual chip needs, named as in linux-firmware.
    UsageError if they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        images = synthetic_set(facts)
        for name, image in images.items():
            outfile.check_content(folder / name, image)
        for name, image in images.items():
            (folder / name).write_bytes(image)
    except OSError as error:
        raise UsageError(f"cannot write firmware to {folder}: {error.strerror}") from None


def run(options: ServeOptions, out: Output) -> int:
    """Serve until stopped; return 0."""
    names = {f"virtual:{name}": name for name in chips.virtual_names()}
    if options.device not in names:
        raise DeviceNotFound(
            f"{options.device} cannot be served; {meant(options.device, names)}"
            f"expected one of {', '.join(names)}"
        )
    facts = chips.facts_of(names[options.device])
    with contextlib.ExitStack() as undo:
        folder = options.firmware
        if folder is None:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="ugpu-firmware-")))
        write_firmware(facts, folder)
        chip = build_chip(facts, ChipOptions(vram=options.vram, shared_vram=options.map_vram))
        undo.callback(chip.close)
        server = Server(options.socket, ServedChip(chip, map_vram=options.map_vram))
        undo.enter_context(_stopped_by_signals(server.stop))
        out.say(f"{options.device} is served at {options.socket}; firmware in {folder}")
        out.say(f"  UGPU_FIRMWARE={folder} ugpu demo --device vfio-user:{options.socket}")
        out.say("Ctrl-C ends it.")
        out.result(
            {
                "device": options.device,
                "socket": str(options.socket),
                "name": f"vfio-user:{options.socket}",
                "firmware": str(folder),
                "vram": chip.options.vram,
            }
        )
        sys.stdout.flush()
        server.run()
        out.say(f"served {server.clients} clients")
    return 0


@contextlib.contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    def on_signal(number: int, frame: FrameType | None) -> None:
        stop()

    former = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
