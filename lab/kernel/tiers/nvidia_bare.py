"""Tier "nvidia_bare": the virtual AD102 as a PCI card of the guest, under the unmodified driver.

The model is in this process behind a vfio-user server; QEMU is its client. The guest's kernel has
the card in VFIO's hands, so that its IOMMU, its interrupts and its resets are between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lab.kernel.lab import CACHE, Lab, Run, guest_tests, socket_path
from lab.kernel.served import judged, serving, slot, write_files
from ugpu.virtual.nvidia.gsp.bus.served import ServedCard
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.firmware.images import whole_set
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions

CHIP = "ad102"
MEMORY = 1 << 30
# What a client may do to the card that a board would punish silently; each is a failure here.
# A killed driver leaves engines running whose memory is gone; the IOMMU refusing them is right.
ALLOWED = ("the IOMMU refuses", "bus mastering off")


@contextmanager
def served(socket: Path) -> Iterator[Card]:
    """A card behind a server; clients map its memory, as a guest needs to reach it fast."""
    options = CardOptions(memory=MEMORY, bar1=MEMORY, platform=False, shared_memory=True)
    card = build_card(CHIP, options)
    try:
        with serving(socket, ServedCard(card, map_vram=True)):
            yield card
    finally:
        card.close()


def run(lab: Lab) -> list[Run]:
    """One boot with the card alone in its slot, where the kernel resets it at every opening and
    closing."""
    write_files(CACHE / "nvidia-bare/firmware", whole_set(CHIP))

    def plug(card: Card) -> None:
        """Let the card's configuration space answer again."""
        with card.lock:
            card.lost = False

    with socket_path("nvidia-bare") as socket, served(socket) as card:
        done = lab.boot(
            "nvidia-bare",
            tests=guest_tests("nvidia_bare"),
            devices=slot(socket),
            handlers={"unplug_card": card.unplug, "plug_card": partial(plug, card)},
            limit_s=180,
        )
        return [judged(done, card.violations, ALLOWED)]
