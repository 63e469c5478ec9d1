"""Tier "navi31": the virtual Navi31 as a PCI card of the guest, under the unmodified driver.

The model runs in this process behind a vfio-user server; QEMU is its client, and the guest sees a
card behind a root port. What the guest's tests need done to the card from outside are handlers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.kernel.lab import CACHE, Lab, Run, guest_tests, socket_path
from lab.kernel.served import judged, serving, slot
from tests.support.amd.am_navi31 import build_chip
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.firmware.images import synthetic_set
from ugpu.virtual.amd.options import ChipOptions

VRAM = 1 << 30
SMALL_BAR = 256 << 20  # what a board shows without Resizable BAR
# What a client may do to the card that a board would punish silently; each is a failure here.
# A killed driver leaves engines running whose memory is gone; the IOMMU refusing them is right.
ALLOWED = ("the IOMMU refuses", "bus mastering off")


@contextmanager
def served(socket: Path, window: int, vram: int = VRAM) -> Iterator[Chip]:
    """A chip behind a server; clients map its VRAM, as a guest needs to reach it fast."""
    chip = build_chip(ChipOptions(vram=vram, visible_vram=window, shared_vram=True))
    try:
        with serving(socket, ServedChip(chip, map_vram=True)):
            yield chip
    finally:
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
    handlers = {
        "unplug_card": chip.unplug,
        "card": lambda: {"violations": list(chip.violations), "lost": chip.lost},
    }
    done = lab.boot(
        name,
        tests=guest_tests(*tests),
        devices=slot(socket, sibling=sibling),
        handlers=handlers,
        limit_s=240,
    )
    return judged(done, chip.violations, ALLOWED)
