"""Readings of a device's sensors."""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.hcq.device.device import Device
from ugpu.tools.base.console import human_size

#: suffixes of sensor names that state the unit
UNITS = (
    "amperes", "bytes", "celsius", "errors", "hertz", "lanes", "ratio", "threads", "volts", "watts"
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """A sensor's value at one moment."""

    name: str
    label: str
    unit: str
    value: float

    @property
    def words(self) -> str:
        """The name without its unit, and the label: "temperature edge"."""
        stem, _, unit = self.name.rpartition("_")
        name = stem if unit in UNITS else self.name
        return f"{name} {self.label}".strip().replace("_", " ")

    def __str__(self) -> str:
        match self.unit:
            case "B":
                return human_size(self.value)
            case "Hz":
                return f"{self.value / 1e6:.6g} MHz"
            case "ratio":
                return f"{100 * self.value:.3g} %"
            case "flag":
                return "yes" if self.value else "no"
            case "generation" | "state":  # the name implies it
                return f"{self.value:.4g}"
        return f"{self.value:.4g} {self.unit}"


def read_sensors(device: Device) -> list[Reading]:
    """Read every sensor of the device."""
    return [Reading(s.name, s.label, s.unit, s.read()) for s in device.sensors()]
