"""Text of a device's data, for `ugpu top --once` and for the screen."""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.hcq.state.telemetry import Sample, Telemetry
from ugpu.tools.base.console import Output, human_size
from ugpu.tools.base.readings import Reading
from ugpu.tools.service.top.fleet import Card

COLUMNS = (
    "device", "state", "busy", "power", "temp", "errors", "memory", "queue", "owner", "kernels/s",
    "clock", "resets",
)  # fmt: skip
_HOTTEST = "temperature_celsius"


def shown(sample: Sample) -> Reading:
    """Return a sample's value as text for people."""
    return Reading(sample.name, sample.label, sample.unit, sample.value)


def _text(last: Telemetry, name: str, label: str | None = None) -> str:
    for sample in last.samples:
        if sample.name == name and label in (None, sample.label):
            return str(shown(sample))
    return ""


def _memory(last: Telemetry) -> str:
    used, total = last.value("memory_used_bytes"), last.value("memory_total_bytes")
    if used is None:
        return ""
    return human_size(used) if total is None else f"{human_size(used)} / {human_size(total)}"


def _temperature(last: Telemetry) -> str:
    """Return the hottest sensor."""
    values = [sample.value for sample in last.samples if sample.name == _HOTTEST]
    return f"{max(values):.4g} °C" if values else ""


def cells(card: Card) -> tuple[str, ...]:
    """Return a row of COLUMNS."""
    last = card.last
    if last is None:
        return (card.label, card.state, *[""] * (len(COLUMNS) - 2))
    rate = card.kernels_per_s
    return (
        card.label, card.state, _text(last, "usage_ratio", "gfx"), _text(last, "power_watts"),
        _temperature(last), str(sum(last.errors.values())), _memory(last), str(last.queue_depth),
        f"{last.command} ({last.pid})", "" if rate is None else f"{rate:.4g}",
        _text(last, "clock_hertz", "gfx"), str(last.resets),
    )  # fmt: skip


def throttles(last: Telemetry) -> list[str]:
    """Return the reasons why clocks are lowered now."""
    return [s.label for s in last.samples if s.name == "clock_throttled" and s.value]


def remarks(card: Card) -> list[str]:
    """Return lines about conditions that need attention."""
    lines = []
    if card.problem:
        lines.append(f"no answer: {card.problem}")
    last = card.last
    if last is None:
        return lines
    if last.failure:
        lines.append(f"failed: {last.failure}")
    if last.trouble:
        age = "" if last.samples_age_s is None else f"; values are {last.samples_age_s:.1f} s old"
        lines.append(f"sensors: {last.trouble}{age}")
    if throttles(last):
        lines.append(f"throttled: {', '.join(throttles(last))}")
    if last.errors:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(last.errors.items()))
        lines.append(f"errors: {counts}")
    return lines


def print_once(cards: Sequence[Card], out: Output) -> int:
    """Print all devices once; return 1 if one has failed or does not answer."""
    out.table(COLUMNS, [cells(card) for card in cards])
    for card in cards:
        for line in remarks(card):
            out.say(f"{card.label}: {line}")
    if not cards:
        out.say("no process of this user has a device open, and this machine has no GPU to open")
    out.result([card.as_json() for card in cards])
    return int(any(card.state in ("failed", "no answer") for card in cards))
