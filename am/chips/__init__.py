"""Chips: one folder each, with a typed record of facts; found here by name or PCI id."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from ugpu.am.chips.facts import ChipFacts
from ugpu.am.chips.generations import Version
from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.find.catalogue import ChipSummary, PciDriver

_REGISTER_NAMES = "ugpu.am.offline.register_names:register_names"
_OPEN = "ugpu.am.device.device:open_device"
_WINDOW = "ugpu.am.offline.chip"
_CLASSES = (0x03, 0x12)
DEFAULT = "navi31"  # used where a chip is needed and none was named
_WITHOUT_MODEL: frozenset[str] = frozenset()


def names() -> list[str]:
    """Return the names of all chips, which are those of the folders; none is imported."""
    return sorted(entry.name for entry in pkgutil.iter_modules(__path__) if entry.ispkg)


def facts_of(name: str) -> ChipFacts:
    """Return the facts of a chip; DeviceNotFound for an unknown name."""
    if name not in names():
        raise DeviceNotFound(f"expected the name of a chip ({', '.join(names())}), got {name!r}")
    return _load(name)


def _load(name: str) -> ChipFacts:
    facts: ChipFacts = importlib.import_module(f"{__name__}.{name}.facts").FACTS
    return facts


def all_facts() -> Iterator[ChipFacts]:
    """Yield the facts of all chips, by name."""
    return map(_load, names())


def virtual_names() -> list[str]:
    """Return the chips with a model, which takes its data from the facts."""
    return [name for name in names() if name not in _WITHOUT_MODEL]


def find(vendor: int, device: int) -> ChipFacts | None:
    """Return the facts of the chip with this PCI id, None for any other id."""
    for facts in all_facts():
        if vendor == facts.generation.vendor and device in facts.pci_ids:
            return facts
    return None


def with_blocks(versions: Mapping[str, Version]) -> ChipFacts | None:
    """Return the facts of the chip whose blocks have these versions, as far as firmware is named
    after them (GenerationFacts.naming_blocks); None if there is none."""
    for facts in all_facts():
        blocks = facts.generation.naming_blocks
        if all(versions.get(block) == facts.versions[block] for block in blocks):
            return facts
    return None


def unknown_driver(class_code: int) -> PciDriver | None:
    """Return how to drive a function of the vendor whose id is in no chip's folder, if it may be a
    GPU by its class: a display controller or a processing accelerator. Its discovery table shows
    which chip it is (am.boot.contact.recognise)."""
    if class_code >> 16 not in _CLASSES:
        return None
    shared = facts_of(DEFAULT).generation
    return PciDriver(
        "AMD GPU of an unknown PCI id",
        _OPEN,
        shared.physical_bits,
        shared.least_bars,
        names=_REGISTER_NAMES,
        window=_WINDOW,
        needs_host_memory=False,
    )


def summary(name: str) -> ChipSummary:
    """Return what a chip is, for lists of devices."""
    facts = facts_of(name)
    return ChipSummary(facts.title, facts.products, facts.isa, facts.proven)


def pci_drivers() -> dict[tuple[int, int], PciDriver]:
    """Return how to drive each PCI id, for the registry."""
    return {
        (facts.generation.vendor, device): PciDriver(
            f"AMD {facts.title}",
            _OPEN,
            facts.generation.physical_bits,
            facts.generation.least_bars,
            facts.generation.by_clock,
            _REGISTER_NAMES,
            summary(facts.name),
            _WINDOW,
            needs_host_memory=False,
        )
        for facts in all_facts()
        for device in facts.pci_ids
    }
