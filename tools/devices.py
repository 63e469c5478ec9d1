"""`ugpu ls` and `ugpu info`: which devices there are, and what one of them is."""

from __future__ import annotations

from dataclasses import asdict

import hcq
from tools.console import Output
from tools.readings import read_sensors


def run_ls(out: Output) -> int:
    """List every device name that hcq.open takes on this machine."""
    listed = hcq.list_devices()
    out.table(
        ("device", "what it is", "facts"),
        ((entry.name, entry.description, _facts(entry.facts)) for entry in listed),
    )
    out.result([asdict(entry) for entry in listed])
    return 0


def _facts(facts: dict[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts.items() if value is not None)


def run_info(name: str, out: Output) -> int:
    """Open a device and show what it says of itself and what its sensors read."""
    with hcq.open(name) as device:
        facts: dict[str, object] = {"name": device.name, "target": device.target.name}
        facts |= device.info()
        readings = read_sensors(device)
    rows = list(_flat(facts))
    rows += [(f"sensor {reading.title}", reading) for reading in readings]
    out.table(("fact", "value"), rows)
    out.result({**facts, "sensors": [asdict(reading) for reading in readings]})
    return 0


def _flat(facts: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in facts.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, value))
    return rows
