"""Facts per NVIDIA chip, one folder each."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from ugpu.hcq.find.catalogue import ChipSummary, PciDriver
from ugpu.nv.chips.boot import BootFacts
from ugpu.nv.chips.facts import ChipFacts

_VENDOR = 0x10DE
# BAR 0 has 16 MiB on every chip; BAR 1 must show page tables and USERD, below this part of VRAM.
_LEAST_BARS = ((0, 16 << 20), (1, 64 << 20))
# Registers that the driver also accesses while it waits, as (BAR, offset): BOOT_0 and BOOT_42 (is
# the chip present), the GSP's WAYFINDER (has its firmware crashed), and the leaves of the interrupt
# tree, the GSP's interrupt flag and re-arming (work has ended).
_LEAVES = tuple((0, 0xB8_1000 + 4 * leaf) for leaf in range(8))
_BY_CLOCK = ((0, 0x0), (0, 0xA00), (0, 0x11_0094), (0, 0x11_0004), (0, 0x8_8704), *_LEAVES)
MODELLED = ("tu102", "tu116", "ga100", "ga102", "ad102", "gh100", "gb202")


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


def names() -> list[str]:
    """Return the names of all chips."""
    return sorted(entry.name for entry in pkgutil.iter_modules(__path__) if entry.ispkg)


def find(vendor: int, device: int) -> ChipFacts | None:
    """Return the facts of the chip with this PCI id, if ugpu boots it; None for any other id."""
    for name in names():
        boot = boot_facts(name)
        if vendor == _VENDOR and boot is not None and device in boot.pci_ids:
            facts: ChipFacts = importlib.import_module(f"{__name__}.{name}.facts").FACTS
            return facts
    return None


def pci_drivers() -> dict[tuple[int, int], PciDriver]:
    """Return how to drive each PCI id without the stock kernel driver."""
    found = {}
    for name in names():
        boot = boot_facts(name)
        for device in boot.pci_ids if boot is not None else ():
            found[_VENDOR, device] = PciDriver(
                f"NVIDIA {name.upper()}",
                "ugpu.nv.device.bare:open_device",
                boot.bus_bits if boot is not None else 0,
                _LEAST_BARS,
                _BY_CLOCK,
                "ugpu.nv.offline.register_names:register_names",
                summary(name),
                "ugpu.nv.offline.chip",
            )
    return found
