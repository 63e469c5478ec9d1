"""The chips that have drivers and models, as listed by the chips' folders.

Drivers are named as "module:function" and imported on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ugpu.hcq.transport.base import PciIdentity

# Packages that drive chips. `<package>.chips` of each provides `pci_drivers()`, a PciDriver for
# each PCI id, `virtual_names()`, the chips with a model, and `summary(chip)`.
# `gpu:attach(chip, ...)` of a package of models attaches to one; its keywords are the model's.
VENDORS = ("am", "nv", "qcom")
# The packages with their models.
MODELS = {"am": "ugpu.virtual.amd", "nv": "ugpu.virtual.nvidia", "qcom": "ugpu.virtual.adreno"}
# PCI vendors whose cards are recognised without their id: what returns a PciDriver for a class
# code, or None.
UNKNOWN = {0x1002: "ugpu.am.chips:unknown_driver"}
# For these, `gpu:endpoint(chip, ...)` of the models returns a card to put behind a virtual bus.
ENDPOINTS = ("am",)
# Virtual bridges that such a card is put behind, and the firmware that runs on them.
BRIDGES = {"usb": "custom", "usb-stock": "uas"}
STEPPED = ("am", "nv", "qcom")  # packages whose models a debugger can halt (hcq.device.debugging)
# Models of the same chips at another level, by what follows the chip's name: the function that
# attaches to one, as "module:function".
VARIANTS = {"nv": {"gsp": "ugpu.virtual.nvidia.gsp.gpu:attach"}}
# Chips without hardware (`null:<chip>`): the function that returns a PlannedChip by a chip's name.
PLANNED = {vendor: f"ugpu.{vendor}.offline.planned:planned" for vendor in VENDORS}
# Packages whose `attach` takes `kernel_driver`: models of several kernel drivers, the usual one
# first.
KERNEL_DRIVERS = {"qcom": ("kgsl", "msm")}


class ChipSummary(NamedTuple):
    """A description of a chip for people.

    Attributes:
        title: its name.
        products: boards that have it.
        isa: the processor's name in LLVM or PTX.
        proven: which board ran ugpu's driver, and in which report; "" if none.
    """

    title: str
    products: tuple[str, ...]
    isa: str
    proven: str = ""

    @property
    def facts(self) -> dict[str, object]:
        """The facts for a DeviceEntry."""
        products = ", ".join(self.products)
        return {"products": products, "isa": self.isa, "proven_on_silicon": self.proven or "no"}


class PciDriver(NamedTuple):
    """A driver for a PCI function. Entry points are texts: "module:function".

    Attributes:
        description: of the device, for people.
        entry: called with name, attachment and the driver's options; returns the device.
        reach_bits: width of the bus addresses that the chip emits.
        least_bars: bytes that each BAR must have for the driver to work, as (BAR, bytes).
        by_clock: (BAR, offset) of registers whose accesses by the driver depend on time
            (hcq.transport.recorded.replay).
        names: called with a recording; returns the names of its registers
            (am.offline.register_names).
        chip: its description.
        window: "module", with the interface of hcq.find.offline; "" if a driver cannot inspect a
            chip without booting it.
        needs_host_memory: see hcq.transport.base.Traits.host_memory.
    """

    description: str
    entry: str
    reach_bits: int = 47
    least_bars: tuple[tuple[int, int], ...] = ()
    by_clock: tuple[tuple[int, int], ...] = ()
    names: str = ""
    chip: ChipSummary | None = None
    window: str = ""
    needs_host_memory: bool = True


def virtual_chips() -> dict[str, str]:
    """Return the chips that have a model, with the package that they belong to, as listed by the
    chips' folders."""
    return {
        chip: vendor for vendor in VENDORS for chip in load(f"ugpu.{vendor}.chips:virtual_names")()
    }


def vendor_of(chip: str) -> str | None:
    """Return the package of a chip that has a model, None for another name. The chips of other
    packages are not imported if a folder in the package has the chip's name."""
    for vendor in VENDORS:
        folders = importlib.import_module(f"ugpu.{vendor}").__path__
        if chip.isidentifier() and any(Path(at, "chips", chip).is_dir() for at in folders):
            return vendor if chip in load(f"ugpu.{vendor}.chips:virtual_names")() else None
    return virtual_chips().get(chip)


def planned_chips() -> dict[str, tuple[str, str]]:
    """Return the names of null devices without `null:`, each with the package and the chip that it
    stands for: chips, and processors as compilers name them ("gfx1100", "sm_90")."""
    planned: dict[str, tuple[str, str]] = {}
    for vendor in VENDORS:
        for chip in load(f"ugpu.{vendor}.chips:names")():
            planned[chip] = vendor, chip
            summary: ChipSummary = load(f"ugpu.{vendor}.chips:summary")(chip)
            if chip not in summary.isa:
                planned.setdefault(summary.isa, (vendor, chip))
    return planned


def pci_drivers() -> dict[tuple[int, int], PciDriver]:
    """Return the driver for each (vendor, device) that has a chip folder."""
    drivers: dict[tuple[int, int], PciDriver] = {}
    for vendor in VENDORS:
        drivers |= load(f"ugpu.{vendor}.chips:pci_drivers")()
    return drivers


def driver_of(identity: PciIdentity) -> PciDriver | None:
    """Return the driver for a function: by its id, otherwise by its vendor and class."""
    driver = pci_drivers().get((identity.vendor, identity.device))
    if driver is None and identity.vendor in UNKNOWN:
        driver = load(UNKNOWN[identity.vendor])(identity.class_code)
    return driver


def over_usb() -> list[str]:
    """Return the chips whose model can be put into a virtual enclosure."""
    return [chip for chip, vendor in sorted(virtual_chips().items()) if vendor in ENDPOINTS]


def load(path: str) -> Callable[..., Any]:  # a driver's entry point; callers check its result
    """Import the function named by "module:function"."""
    module, _, function = path.partition(":")
    member: Any = importlib.import_module(module)
    for part in function.split("."):
        member = getattr(member, part)
    entry: Callable[..., Any] = member
    return entry
