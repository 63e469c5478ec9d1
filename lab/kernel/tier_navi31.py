"""Tier "navi31": the virtual Navi31 as a PCI card of the guest, under the unmodified driver.

The model runs in this process behind a vfio-user server; QEMU is its client, and the guest sees a
card behind a root port. What the guest's tests need done to the card from outside are handlers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lab.kernel.lab import CACHE, Case, Lab, Run, socket_path
from tests.support.am_navi31 import build_chip
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.firmware.images import synthetic_set
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.serve.server import Server

GUEST = "lab/kernel/guest"
VRAM = 1 << 30
SMALL_BAR = 256 << 20  # what a board shows without Resizable BAR
END_LIMIT_S = 10
# What a client may do to the card that a board would punish silently; each is a failure here.
# A killed driver leaves engines running whose memory is gone; the IOMMU refusing them is right.
ALLOWED = ("the IOMMU refuses", "bus mastering off")


@contextmanager
def served(socket: Path, window: int, vram: int = VRAM) -> Iterator[Chip]:
    """A chip behind a server; clients map its VRAM, as a guest needs to reach it fast."""
    chip = build_chip(ChipOptions(vram=vram, visible_vram=window, shared_vram=True))
    server = Server(socket, ServedChip(chip, map_vram=True))
    thread = threading.Thread(target=server.run, name="server", daemon=True)
    thread.start()
    try:
        yield chip
    finally:
        server.stop()
        thread.join(END_LIMIT_S)
        chip.close()


def write_firmware(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in synthetic_set(NAVI31).items():
        (folder / name).write_bytes(image)


def run(lab: Lab) -> list[Run]:
    """One boot with the card alone in its slot, where the kernel resets it at every opening and
    closing; and one with a second function beside it, as boards have their audio, which keeps the
    kernel from resetting the slot: there the card stays up from process to process."""
    write_firmware(CACHE / "firmware")  # where the guest's tests look for it
    alone = ["navi31_bars", "navi31_work", "navi31_killed", "navi31_unplug"]
    return [
        boot(lab, "navi31", alone, sibling=False),
        boot(lab, "navi31-kept", ["navi31_kept", "navi31_lost"], sibling=True, window=SMALL_BAR),
    ]


def boot(lab: Lab, name: str, tests: list[str], *, sibling: bool, window: int = VRAM) -> Run:
    """window: bytes of VRAM that its BAR shows."""
    with socket_path(name) as socket, served(socket, window) as chip:
        return boot_behind(socket, chip, lab, name, tests, sibling=sibling)


def boot_behind(
    socket: Path, chip: Chip, lab: Lab, name: str, tests: list[str], *, sibling: bool
) -> Run:
    card = {
        "driver": "vfio-user-pci", "id": "gpu0", "bus": "port0", "addr": "0.0", "rombar": 0,
        "multifunction": sibling, "socket": {"type": "unix", "path": str(socket)},
    }  # fmt: skip
    devices = [
        # At 16 GT/s QEMU's port never reports its link as up again after a reset of its bus.
        *("-device", "pcie-root-port,id=port0,chassis=1,slot=1,x-speed=5"),
        *("-device", json.dumps(card)),
    ]
    if sibling:
        devices += ["-device", "pci-testdev,bus=port0,addr=0.1"]
    handlers = {
        "unplug_card": chip.unplug,
        "card": lambda: {"violations": list(chip.violations), "lost": chip.lost},
    }
    done = lab.boot(
        name,
        tests=[f"{GUEST}/{test}.py" for test in tests],
        devices=devices,
        handlers=handlers,
        limit_s=240,
    )
    violations = [
        text for text in chip.violations if not any(allowed in text for allowed in ALLOWED)
    ]
    if done.lack:
        return done
    verdict = "failed" if violations else "passed"
    case = Case("card.nothing_a_board_would_punish", verdict, 0.0, "\n".join(violations))
    return replace(done, cases=[*done.cases, case])
