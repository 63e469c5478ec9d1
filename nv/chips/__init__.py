"""Facts per NVIDIA chip, one folder each."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from ugpu.hcq.find.catalogue import ChipSummary, PciDriver
from ugpu.nv.chips.boot import BootFacts

MODELLED = ("tu102", "ga102", "ad102", "gh100", "gb202")


def virtual_names() -> tuple[str, ...]:
    """Return the chips with a model."""
    return MODELLED


def summary(name: str) -> ChipSummary:
    """Return the summary of a chip, for lists of devices."""
    facts = importlib.import_module(f"{__name__}.{name}.facts").FACTS
    return ChipSummary(name.upper(), facts.products, facts.target, facts.proven)


def boot_facts(name: str) -> BootFacts | None:
    """Return how a chip is booted without the kernel driver; None where that is not implemented."""
    if not Path(__file__).with_name(name).joinpath("boot.py").is_file():
        return None
    found: BootFacts = importlib.import_module(f"{__name__}.{name}.boot").BOOT
    return found


def proven() -> list[str]:
    """Return the boards that have run the driver, with their reports."""
    found = (summary(entry.name).proven for entry in pkgutil.iter_modules(__path__) if entry.ispkg)
    return [board for board in found if board]


def pci_drivers() -> dict[tuple[int, int], PciDriver]:
    """Return the driver of each PCI id: none, as these use the stock kernel driver's node."""
    return {}
