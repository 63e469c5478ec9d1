"""Facts per Adreno GPU, one folder each."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

from ugpu.hcq.find.catalogue import ChipSummary, PciDriver
from ugpu.qcom.chips.facts import ChipFacts

MODELLED = ("a630", "a660", "a740", "a750")

# First byte of the ids of Adreno 7xx since the 740 (Mesa's freedreno_devices.py); 0x44 are 8xx.
_NEWER_CORE = 0x43


def names() -> tuple[str, ...]:
    """Return the known chips, in order."""
    return tuple(sorted(entry.name for entry in pkgutil.iter_modules(__path__) if entry.ispkg))


def facts(name: str) -> ChipFacts:
    """Return the facts of a chip. KeyError lists the known chips."""
    if name not in names():
        raise KeyError(f"expected one of {', '.join(names())}, got {name!r}")
    return _facts(name)


def _facts(name: str) -> ChipFacts:
    facts: ChipFacts = importlib.import_module(f"{__name__}.{name}.facts").FACTS
    return facts


def virtual_names() -> tuple[str, ...]:
    """Return the chips with a model."""
    return MODELLED


def summary(name: str) -> ChipSummary:
    """Return a chip's summary for lists of devices."""
    chip = facts(name)
    return ChipSummary(f"Adreno {name[1:]}", chip.products, chip.target().name, chip.proven)


def pci_drivers() -> dict[tuple[int, int], PciDriver]:
    """Return the driver for each PCI id: none, as Adreno GPUs are not PCI devices."""
    return {}


def by_id(chip_id: int) -> ChipFacts | None:
    """Return the chip with an id that a kernel driver reported, or one with another patch level of
    it."""
    chips = [_facts(name) for name in names()]
    for chip in chips:
        if chip_id in chip.chip_ids:
            return chip
    for chip in chips:
        if any(chip_id >> 8 == own >> 8 for own in chip.chip_ids):
            return chip
    return None


def generation_of(chip_id: int) -> int:
    """Return the generation of an id: 6 or 7; 0 for any other."""
    core = chip_id >> 24 & 0xFF
    return 7 if core == _NEWER_CORE else core if core in (6, 7) else 0


def stand_in(chip_id: int) -> ChipFacts | None:
    """Return facts to try for an unknown GPU of a known generation: those of the oldest chip, with
    the least of everything. None for another generation."""
    generation = generation_of(chip_id)
    chips = [_facts(name) for name in names()]
    same = [chip for chip in chips if chip.generation == generation]
    if not same:
        return None
    oldest = min(same, key=lambda chip: (chip.step, chip.shader_processors))
    return replace(oldest, products=())
