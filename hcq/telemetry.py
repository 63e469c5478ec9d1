"""Sensors of a device, under names and units shared by all vendors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Sensor:
    """One measured quantity.

    `name` is lower snake case with its base unit as suffix, e.g. "temperature_celsius",
    "power_watts", "clock_hertz", "memory_used_bytes"; `label` tells two of a kind apart ("edge",
    "gfx"). `read` asks the device now and returns a float in `unit`.
    """

    name: str
    unit: str
    read: Callable[[], float]
    label: str = ""

    def __repr__(self) -> str:
        label = f"[{self.label}]" if self.label else ""
        return f"<Sensor {self.name}{label} in {self.unit}>"
