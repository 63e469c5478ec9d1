"""Facts per NVIDIA chip, one folder each."""

from __future__ import annotations

from hcq.registry import PciDriver

MODELLED = ("tu102", "ga102", "ad102", "gh100", "gb202")


def virtual_names() -> tuple[str, ...]:
    """Return the chips with a model."""
    return MODELLED


def pci_drivers() -> dict[tuple[int, int], PciDriver]:
    """Return how to drive each PCI id: none, as these go through the stock kernel driver's node."""
    return {}
