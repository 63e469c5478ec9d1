"""What a device's sensors read, once."""

from __future__ import annotations

from dataclasses import dataclass

from hcq.device import Device

from .console import human_size


@dataclass(frozen=True)
class Reading:
    """A sensor's value at one moment."""

    name: str
    label: str
    unit: str
    value: float

    @property
    def title(self) -> str:
        return f"{self.name} {self.label}" if self.label else self.name

    def __str__(self) -> str:
        if self.unit == "B":
            return human_size(self.value)
        if self.unit == "Hz":
            return f"{self.value / 1e6:.6g} MHz"
        return f"{self.value:.6g} {self.unit}"


def read_sensors(device: Device) -> list[Reading]:
    """Ask every sensor of the device."""
    return [Reading(s.name, s.label, s.unit, s.read()) for s in device.sensors()]
