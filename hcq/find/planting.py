"""Faults planted by the name of a virtual device: `virtual:<chip>?smu_silent&smu_busy=3`.

A query after the name lists faults of the model, each with a value where it takes one. They are
planted once the model has its power and before the driver starts; `plant` plants them in an open
device. `plant(chip, fault, value)` in the vendor's `ugpu.virtual.<vendor>.gpu` plants one, and
`faults()` there returns their names with descriptions.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.find.catalogue import MODELS, load, vendor_of, virtual_chips
from ugpu.hcq.near import meant

if TYPE_CHECKING:
    from ugpu.hcq.device.device import Device

MARK = "?"
_SEPARATOR = "&"
_MOST_FAULTS = 32
# The package and the model of each open virtual device, which its transport keeps: a model may hold
# its device.
_models: weakref.WeakKeyDictionary[Device, tuple[str, weakref.ref[object]]] = (
    weakref.WeakKeyDictionary()
)


def split(name: str) -> tuple[str, str]:
    """Return a device's name without its query, and the query. Only names of virtual devices have
    one."""
    if not name.startswith("virtual:"):
        return name, ""
    bare, _, query = name.partition(MARK)
    return bare, query


def add(name: str, query: str) -> str:
    """Return a device's name with further faults."""
    if not query:
        return name
    return f"{name}{_SEPARATOR if MARK in name else MARK}{query}"


def check(name: str, query: str) -> None:
    """Raise BadArgument for a fault that the model of a device lacks."""
    bare, _ = split(name)
    if not bare.startswith("virtual:"):
        raise BadArgument(f"faults are planted in virtual devices, got {name!r}")
    vendor = vendor_of(bare.removeprefix("virtual:").partition("+")[0])
    if vendor is None:
        have = [f"virtual:{chip}" for chip in sorted(virtual_chips())]
        raise BadArgument(
            f"no virtual device {bare!r}; {meant(bare, have)}there are: {', '.join(have)}"
        )
    faults = faults_of(vendor)
    for fault, _ in _parts(query):
        if fault.lower() not in faults:
            raise unknown("fault", fault.lower(), faults)


def faults_of(vendor: str) -> Mapping[str, str]:
    """Return the faults that the models of a package support, with descriptions."""
    faults: Mapping[str, str] = load(f"{MODELS[vendor]}.gpu:faults")()
    return faults


def plant_in(vendor: str, chip: object, query: str) -> None:
    """Plant the faults of a query in a model; BadArgument for an unknown fault or a wrong value."""
    faults = faults_of(vendor)
    for fault, value in _parts(query):
        if fault.lower() not in faults:
            raise unknown("fault", fault.lower(), faults)
        load(f"{MODELS[vendor]}.gpu:plant")(chip, fault.lower(), value)


def opened(device: Device, vendor: str, chip: object) -> None:
    """Keep the model of a virtual device for `plant`."""
    _models[device] = vendor, weakref.ref(chip)


def plant(device: Device, query: str) -> None:
    """Plant the faults of a query in an open virtual device. NotSupported for another device."""
    vendor, model = _models.get(device, ("", lambda: None))
    chip = model()
    if chip is None:
        raise NotSupported(f"{device.name} has no model in this process that can plant faults")
    plant_in(vendor, chip, query)


def number(fault: str, value: str, least: int = 0) -> int:
    """Return the number that a fault's value is; BadArgument for anything else."""
    try:
        parsed = int(value, 0)
    except ValueError:
        parsed = least - 1
    if parsed < least:
        raise BadArgument(f"{fault} must be a number from {least}, got {value!r}")
    return parsed


def unknown(what: str, name: str, choices: Iterable[str]) -> BadArgument:
    """Return the error for an unknown name, with the names that are near."""
    names = sorted(choices)
    return BadArgument(f"unknown {what} {name!r}; {meant(name, names)}known: {', '.join(names)}")


def _parts(query: str) -> list[tuple[str, str]]:
    """Return faults with values, "" without one."""
    parts = [part.partition("=") for part in query.split(_SEPARATOR)]
    if len(parts) > _MOST_FAULTS:
        raise BadArgument(f"a device can have {_MOST_FAULTS} planted faults, got {len(parts)}")
    if not all(name for name, _, _ in parts):
        raise BadArgument(f"expected faults such as smu_silent&smu_busy=3, got {query!r}")
    return [(name, value) for name, _, value in parts]
