"""A ugpud's cards in the names of OpenTelemetry's semantic conventions, if a name exists.

Any other name is `ugpu.` and the sensor's name without its unit. A card has `hw.id` (its name in
ugpud) and `hw.type` "gpu"; the label of a sensor is `hw.sensor_location`.

Source: OpenTelemetry semantic conventions 1.30 and later, "Hardware metrics" (common, GPU,
temperature, fan), https://opentelemetry.io/docs/specs/semconv/hardware/; units are those of UCUM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ugpu.tools.service.daemon.clients.leases import State

# By a sensor's name: name, unit, and whether it is a counter.
NAMES = {
    "usage_ratio": ("hw.gpu.utilization", "1", False),
    "memory_used_bytes": ("hw.gpu.memory.usage", "By", False),
    "memory_total_bytes": ("hw.gpu.memory.limit", "By", False),
    "temperature_celsius": ("hw.temperature", "Cel", False),
    "power_watts": ("hw.power", "W", False),
    "energy_joules": ("hw.energy", "J", True),
    "fan_rpm": ("hw.fan.speed", "rpm", False),
    "ecc_errors": ("hw.errors", "{error}", True),
    "link_errors": ("hw.errors", "{error}", True),
}
_UNITS = {"°C": "Cel", "B": "By", "ratio": "1", "flag": "1", "rpm": "rpm", "": "1"}
_SUFFIXES = ("_hertz", "_watts", "_volts", "_amperes", "_celsius", "_bytes", "_joules", "_ratio")
# Values of hw.state, by the card's state in the daemon.
STATUS = {
    State.READY: "ok",
    State.LEASED: "ok",
    State.BOOTING: "degraded",
    State.RECOVERING: "degraded",
    State.QUARANTINED: "failed",
    State.OFF: "failed",
}


@dataclass(frozen=True)
class Point:
    """One value. counts: whether it is a counter, which never decreases while the device is
    open."""

    name: str
    unit: str
    value: float
    attributes: Mapping[str, str]
    counts: bool = False


def points(
    cards: Sequence[Mapping[str, Any]],
    listed: Mapping[str, Any],
    last: Callable[[str], tuple[Mapping[str, Any], float] | None],
) -> Iterator[Point]:
    """Yield the values of a daemon. cards, listed: as clients get them; last: a card's telemetry as
    a JSON map, and its age."""
    for card in cards:
        who = {"hw.id": str(card["name"]), "hw.name": str(card["name"]), "hw.type": "gpu"}
        yield from _card(card, who)
        telemetry = last(str(card["name"]))
        if telemetry is not None:
            yield from _device(telemetry[0], telemetry[1], who)
    held: dict[tuple[str, str], int] = {}
    for lease in listed["leases"]:
        key = lease["device"], lease["kind"]
        held[key] = held.get(key, 0) + 1
    for (device, kind), count in held.items():
        about = {"hw.id": device, "hw.type": "gpu", "ugpu.lease.kind": kind}
        yield Point("ugpu.leases", "{lease}", count, about)
    yield Point("ugpu.waiting", "{request}", len(listed["waiting"]), {})


def _card(card: Mapping[str, Any], who: dict[str, str]) -> Iterator[Point]:
    state = State(card["state"])
    status = STATUS[state]
    if status == "ok" and card.get("troubles"):
        status = "degraded"
    for name in ("ok", "degraded", "failed"):
        yield Point("hw.status", "1", float(name == status), {**who, "hw.state": name})
    yield Point("ugpu.card.state", "1", 1.0, {**who, "ugpu.state": state.value})
    yield Point("ugpu.card.resting", "1", float(card.get("resting", False)), who)
    for kind in card.get("troubles", {}):
        yield Point("ugpu.card.trouble", "1", 1.0, {**who, "ugpu.event": kind})
    past = card["history"]
    yield Point("ugpu.card.leases", "{lease}", past["leases"], who, True)
    yield Point("ugpu.card.failures", "{failure}", past["failures"], who, True)
    for key, name in (("mtbf_s", "ugpu.card.mtbf"), ("mttr_s", "ugpu.card.mttr")):
        if past[key] is not None:
            yield Point(name, "s", past[key], who)


def _device(telemetry: Mapping[str, Any], age_s: float, who: dict[str, str]) -> Iterator[Point]:
    for sample in telemetry["samples"]:
        kind, label = sample["name"], sample["label"]
        about = dict(who)
        if kind in ("ecc_errors", "link_errors"):
            about["error.type"] = f"{kind.removesuffix('_errors')} {label}".strip()
        elif kind == "usage_ratio" and label == "gfx":
            about["hw.gpu.task"] = "general"
        elif label:
            about["hw.sensor_location"] = label
        name, unit, counts = NAMES.get(kind) or _other(kind, sample["unit"])
        yield Point(name, unit, sample["value"], about, counts)
    yield Point("ugpu.samples.age", "s", (telemetry["samples_age_s"] or 0.0) + age_s, who)
    yield Point("ugpu.queue.depth", "{submission}", telemetry["queue_depth"], who)
    yield Point("ugpu.kernels", "{kernel}", telemetry["launches"], who, True)
    yield Point("ugpu.submissions", "{submission}", telemetry["submissions"], who, True)
    yield Point("ugpu.resets", "{reset}", telemetry["resets"], who, True)
    for kind, count in telemetry["errors"].items():
        yield Point("ugpu.errors", "{error}", count, {**who, "error.type": kind}, True)


def _other(kind: str, unit: str) -> tuple[str, str, bool]:
    suffix = next((suffix_of for suffix_of in _SUFFIXES if kind.endswith(suffix_of)), "")
    name = kind.removesuffix(suffix).replace("_", ".")
    return f"ugpu.{name}", _UNITS.get(unit, unit), False
