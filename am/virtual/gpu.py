"""The door to the virtual AMD cards: what `hcq.open("virtual:<chip>")` finds."""

from __future__ import annotations

from dataclasses import replace

from am.chips import facts_of
from am.chips.facts import ChipFacts
from am.virtual.bus.pci import VirtualTransport
from am.virtual.chip import Chip
from am.virtual.engines import install as engines
from am.virtual.firmware.images import synthetic_set
from am.virtual.options import ChipOptions, FaultPlan
from hcq.errors import BadArgument
from hcq.registry import Attachment


def build_chip(facts: ChipFacts, options: ChipOptions | None = None) -> Chip:
    """Build a whole card and switch it on. The caller closes it."""
    chip = Chip(facts, options)
    engines.install(chip)
    return chip


def attach(
    name: str,
    chip: Chip | None = None,
    *,
    options: ChipOptions | None = None,
    vram: int | None = None,
    seed: int | None = None,
    faults: FaultPlan | None = None,
) -> Attachment:
    """Plug a transport into `chip`, which stays the caller's, or into a new card with chip `name`.

    vram (bytes), seed and faults change single fields of `options`.
    """
    if chip is not None:
        if options is not None or vram is not None or seed is not None or faults is not None:
            raise BadArgument(
                "options cannot be combined with chip=: the given chip already has its options"
            )
        if chip.facts.name != name:
            raise BadArgument(f"expected a virtual {name}, got a virtual {chip.facts.name}")
        return Attachment(VirtualTransport(chip), synthetic_set(chip.facts), chip)
    facts = facts_of(name)
    built = options or ChipOptions()
    if vram is not None:
        if vram < 1:
            raise BadArgument(
                f"vram must be a multiple of 1 MiB and at least 16 MiB, got {vram} bytes"
            )
        built = replace(built, vram=vram)
    if seed is not None:
        built = replace(built, seed=seed)
    if faults is not None:
        built = replace(built, faults=faults)
    own = build_chip(facts, built)
    return Attachment(VirtualTransport(own, owns_chip=True), synthetic_set(facts), own)
