"""Facts per Adreno GPU, one folder each."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

from hcq.catalogue import ChipSummary, PciDriver
from qcom.chips.facts import ChipFacts

MODELLED = ("a630", "a660", "a740", "a750")

# Adreno 7xx since the 740 have numbers that begin so (Mesa's freedreno_devices.py); 0x44 are 8xx.
_NEWER_CORE = 0x43


def names() -> tuple[str, ...]:
    """The chips we know, in order."""
    return tuple(sorted(entry.name for entry in pkgutil.iter_modules(__path__) if entry.ispkg))


def facts(name: str) -> ChipFacts:
    """The facts of a chip. KeyError lists those we know."""
    if name not in names():
        raise KeyError(f"expected one of {', '.join(names())}, got {name!r}")
    return _facts(name)


def _facts(name: str) -> ChipFacts:
    found: ChipFacts = importlib.import_module(f"{__name__}.{name}.facts").FACTS
    return found


def virtual_names() -> tuple[str, ...]:
    """Return the chips with a model."""
    return MODELLED


def summary(name: str) -> ChipSummary:
    """Return what a chip is, for lists of devices."""
    chip = facts(name)
    return ChipSummary(f"Adreno {name[1:]}", chip.products, chip.target().name, chip.proven)


def pci_drivers() -> dict[tuple[int, int], PciDriver]:
    """Return how to drive each PCI id: none, as Adreno GPUs are on no PCI bus."""
    return {}


def by_id(chip_id: int) -> ChipFacts | None:
    """The chip that a kernel driver reports so, by its id or by another patch level of it."""
    known = [_facts(name) for name in names()]
    for chip in known:
        if chip_id in chip.chip_ids:
            return chip
    for chip in known:
        if any(chip_id >> 8 == own >> 8 for own in chip.chip_ids):
            return chip
    return None


def generation_of(chip_id: int) -> int:
    """The generation that an id belongs to: 6 or 7; 0 for another."""
    core = chip_id >> 24 & 0xFF
    return 7 if core == _NEWER_CORE else core if core in (6, 7) else 0


def stand_in(chip_id: int) -> ChipFacts | None:
    """Facts to try an unknown GPU of a known generation with: those of the oldest chip, with the
    least of everything. None for another generation."""
    generation = generation_of(chip_id)
    known = [_facts(name) for name in names()]
    same = [chip for chip in known if chip.generation == generation]
    if not same:
        return None
    oldest = min(same, key=lambda chip: (chip.step, chip.shader_processors))
    return replace(oldest, products=())
