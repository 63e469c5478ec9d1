"""Faults that strike while a test has a device: `gpu_faults` of pytest, `[[fault]]` of a suite.

A device whose name plants a fault (hcq.find.planting) has it from the start, so its self-test finds
it and no test gets the device. These faults are planted after the self-test, for one test or for
all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find import planting
from ugpu.hcq.near import meant
from ugpu.tools.ci.pool import Loan


@dataclass(frozen=True)
class Plant:
    """A fault of a device. device: its name in the pool. fault: as after "?" in a device's name.
    test: pattern of the names of tests."""

    device: str
    fault: str
    test: str = "*"

    def check(self, devices: Collection[str]) -> None:
        """Raise BadArgument unless the device is in the pool and its model supports the fault."""
        if self.device not in devices:
            hint, have = meant(self.device, devices), ", ".join(devices) or "none"
            raise BadArgument(
                f"fault {self.fault}: no device {self.device!r}; {hint}there are: {have}"
            )
        planting.check(self.device, self.fault)


def read(text: str) -> Plant:
    """Read "virtual:<chip>?mec_crashed", or the same with a pattern of tests after it."""
    words = text.split()
    device, fault = planting.split(words[0]) if words else ("", "")
    if not fault or len(words) > 2:
        raise BadArgument(
            f"expected 'virtual:CHIP?FAULT' or 'virtual:CHIP?FAULT TEST', got {text!r}"
        )
    return Plant(device, fault, *words[1:])


def prepare(loan: Loan, plants: Iterable[Plant], test: str) -> None:
    """Note in a loan the faults that its devices have during a test."""
    for plant in plants:
        if plant.device in loan.lent and fnmatchcase(test, plant.test):
            name = planting.add(loan.opened_as(plant.device), plant.fault)
            loan.planted[plant.device] = name


def strike(loan: Loan) -> None:
    """Plant a loan's faults in its open devices. NotSupported for a device without a model."""
    for name, device in loan.lent.items():
        _, query = planting.split(loan.planted.get(name, ""))
        if query:
            _, own = planting.split(name)
            planting.plant(device, query.removeprefix(f"{own}&") if own else query)
