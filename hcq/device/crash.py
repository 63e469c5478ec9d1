"""Keep the evidence of a device's first failure; evidence of later failures does not replace it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.config import config

if TYPE_CHECKING:
    from ugpu.hcq.disk.bundle import Evidence
    from ugpu.hcq.work.program import Program

log = logging.getLogger(__name__)

_MOST_KERNELS = 4  # whose source goes into a bundle
Gather = Callable[[UgpuError], "Evidence"]


def add_sources(found: Evidence, programs: Iterable[Program], failure: UgpuError) -> Evidence:
    """Add the source of the kernels that a driver's evidence of a failure names; return it."""
    named = found.parts.get("queues.json", b"").decode() + str(failure.facts)
    sources = {
        name: program.source
        for program in programs
        for name in program.kernels
        if program.source is not None and name in named
    }
    for name, source in sorted(sources.items())[:_MOST_KERNELS]:
        place = "".join(letter if letter.isalnum() else "_" for letter in name)[:80]
        found.take(f"kernel-{place}.txt", source)
    return found


class Keeper:
    """Keeps the evidence of one device.

    Attributes:
        folder: where bundles go; None: the settings' (UGPU_CRASHES).
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.device = device
        self.folder = folder if folder is not None else config().crash_folder
        self.kept: Path | None = None  # the bundle of the failure that was not fixed yet

    def keep(self, error: UgpuError, gather: Gather) -> None:
        """Write a bundle and add its path to `error` (fact `bundle`), unless one was written since
        the last `mended`. Never raises, so that the caller can raise `error`."""
        if self.folder is None or self.kept is not None:
            return
        from ugpu.hcq.disk import bundle  # a working device does not need its libraries

        try:
            self.kept = bundle.write(self.folder, self.device, error, gather(error))
        except Exception as problem:
            log.warning("%s: no bundle was written: %s", self.device, problem)
            return
        error.add_facts(bundle=_short(self.kept))
        log.info("%s: evidence of the failure is in %s", self.device, self.kept)

    def mended(self) -> None:
        """Note that the device was reset: the next failure counts as a first one again."""
        self.kept = None


def _short(path: Path) -> str:
    home = os.path.expanduser("~")
    text = str(path)
    return f"~{text[len(home) :]}" if len(home) > 1 and text.startswith(f"{home}/") else text
