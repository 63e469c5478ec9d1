"""Telemetry of a device, under names and units shared by all vendors.

A driver provides each `Sensor`; a `Sample` is one sensor's reading; `Telemetry` describes one
device at one moment. `ugpu top` shows it, the owner of a device serves it (hcq.device.observe), and
metrics are made from it. docs/telemetry.md lists the names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from ugpu.hcq.errors import TransportError

FORMAT = "ugpu telemetry 1"


@dataclass(frozen=True)
class Sensor:
    """One measured quantity.

    Attributes:
        name: lower snake case with its base unit as suffix: "temperature_celsius", "power_watts",
            "clock_hertz", "memory_used_bytes".
        unit: of the value.
        read: reads the device and returns a float in `unit`.
        label: distinguishes sensors of the same name ("edge", "gfx").
    """

    name: str
    unit: str
    read: Callable[[], float]
    label: str = ""

    def __repr__(self) -> str:
        label = f"[{self.label}]" if self.label else ""
        return f"<Sensor {self.name}{label} in {self.unit}>"


class PowerLimit(NamedTuple):
    """A device's power limit; None: not known.

    Attributes:
        watts: the limit now.
        least: of the board's range, in watts.
        most: of the board's range, in watts.
        usual: the board's own limit, in watts.
    """

    watts: float
    least: float | None = None
    most: float | None = None
    usual: float | None = None


@dataclass(frozen=True)
class Sample:
    """A reading of a sensor.

    Attributes:
        name: the sensor's.
        unit: of the value.
        value: the reading.
        label: the sensor's.
    """

    name: str
    unit: str
    value: float
    label: str = ""


@dataclass(frozen=True)
class Telemetry:
    """One device at one moment. Counters count since the device was opened.

    Attributes:
        device: its name.
        target: the processor's name.
        state: "ok", "failed" (`failure` has the reason) or "closing".
        pid: the process that owns the device.
        command: of that process.
        time: seconds since the epoch.
        failure: text of the failure; empty without one.
        open_s: seconds since the device was opened.
        samples: readings of the sensors.
        samples_age_s: their age in seconds, None if never read.
        trouble: why they are not newer.
        launches: kernels submitted, including those of replayed graphs.
        submissions: command buffers.
        queue_depth: submissions that have not ended.
        resets: attempts.
        errors: by class (hcq.errors).
    """

    device: str
    target: str
    state: str
    pid: int
    command: str
    time: float
    failure: str = ""
    open_s: float = 0.0
    samples: tuple[Sample, ...] = ()
    samples_age_s: float | None = None
    trouble: str = ""
    launches: int = 0
    submissions: int = 0
    queue_depth: int = 0
    resets: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)

    def value(self, name: str, label: str | None = None) -> float | None:
        """Return the reading of the first sensor with this name (and label); None without one."""
        for sample in self.samples:
            if sample.name == name and label in (None, sample.label):
                return sample.value
        return None

    def as_json(self) -> dict[str, object]:
        """Return a JSON object, which `from_json` reads."""
        values = {member.name: getattr(self, member.name) for member in fields(self)}
        return {"format": FORMAT, **values, "samples": [vars(sample) for sample in self.samples]}


def loads(text: bytes | str) -> Telemetry:
    """Read the text of `as_json`'s object; TransportError for anything else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TransportError(f"malformed telemetry: {error}") from None
    return from_json(content)


def from_json(content: object) -> Telemetry:
    """Read the result of `as_json`. Unknown members are ignored, so that a newer owner can be read.
    TransportError for anything else."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        got = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise TransportError(f"expected format {FORMAT!r}, got {got!r}")
    names = {member.name for member in fields(Telemetry)} & content.keys()
    values = {name: content[name] for name in names}
    try:
        values["samples"] = tuple(
            Sample(
                str(sample["name"]),
                str(sample["unit"]),
                float(sample["value"]),
                str(sample["label"]),
            )
            for sample in values.get("samples", ())
        )
        values["errors"] = {str(k): int(v) for k, v in dict(values.get("errors", {})).items()}
        for name in ("pid", "launches", "submissions", "queue_depth", "resets"):
            values[name] = int(values.get(name, 0))
        for name in ("time", "open_s"):
            values[name] = float(values.get(name, 0.0))
        age = values.get("samples_age_s")
        values["samples_age_s"] = None if age is None else float(age)
        for name in ("device", "target", "state", "command", "failure", "trouble"):
            values[name] = str(values.get(name, ""))
        return Telemetry(**values)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise TransportError(f"malformed telemetry: {type(error).__name__}: {error}") from None
