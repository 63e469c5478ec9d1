"""The requirements of a test: an architecture, a bus, a number of devices, memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def size_of(text: str | int) -> int:
    """Return the bytes of "8G", "512 MiB" or a number; BadArgument for anything else."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise BadArgument(f"memory must be a size such as '8G', got {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


@dataclass(frozen=True)
class Facts:
    """A device's facts for matching. bus: the start of its name. memory: bytes; 0 if the device
    does not report it."""

    name: str
    arch: str
    memory: int

    @property
    def bus(self) -> str:
        return self.name.partition(":")[0]

    @classmethod
    def of(cls, device: Device) -> Facts:
        sensors = {sensor.name: sensor for sensor in device.sensors()}
        total = sensors.get("memory_total_bytes")
        return cls(device.name, device.target.cpu, int(total.read()) if total else 0)


@dataclass(frozen=True)
class Demand:
    """arch, bus: glob patterns. count: number of simultaneous devices. memory: bytes of each.
    reset: whether to reset the device before the test."""

    arch: str = "*"
    bus: str = "*"
    count: int = 1
    memory: int = 0
    reset: bool = False

    @classmethod
    def from_words(cls, **words: object) -> Demand:
        """Build a demand from a marker's keywords; BadArgument names the invalid one."""
        unknown = sorted(set(words) - set(cls.__dataclass_fields__))
        if unknown:
            keywords = ", ".join(cls.__dataclass_fields__)
            raise BadArgument(f"gpu() has no keyword {unknown[0]!r}; it takes {keywords}")
        for name, kind in (("arch", str), ("bus", str), ("count", int), ("reset", bool)):
            if name in words and (
                not isinstance(words[name], kind) or (kind is int and words[name] is True)
            ):
                raise BadArgument(f"gpu({name}=) must be {kind.__name__}, got {words[name]!r}")
        if "memory" in words:
            words["memory"] = size_of(words["memory"])  # type: ignore[arg-type]
        demand = cls(**words)  # type: ignore[arg-type]
        if demand.count < 1:
            raise BadArgument(f"gpu(count=) must be at least 1, got {demand.count}")
        return demand

    def fits(self, facts: Facts) -> bool:
        return (
            fnmatchcase(facts.arch, self.arch)
            and fnmatchcase(facts.bus, self.bus)
            and facts.memory >= self.memory
        )

    def __str__(self) -> str:
        parts = [f"arch={self.arch}", f"bus={self.bus}"]
        if self.memory:
            parts.append(f"memory={self.memory >> 20} MiB")
        return f"{self.count} device{'s' if self.count > 1 else ''} with {', '.join(parts)}"
