"""Telemetry as Prometheus' metric families: names from docs/telemetry.md, units in the name.

The label `device` identifies a series. A name that is open several times (a virtual device) is
followed by a number, which the next process with the device takes over: a pid in a label would
start new series each time. `compat` adds the names of NVIDIA's dcgm-exporter, for
existing dashboards, in that exporter's units (MHz, MiB, percent).

Source: Prometheus, "Metric and label naming"; dcgm-exporter, etc/default-counters.csv.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from ugpu.hcq.state.telemetry import Telemetry
from ugpu.tools.service.top.fleet import Card

# Sensors that are counters: a counter's name ends with _total.
COUNTERS = ("ecc_errors", "link_errors", "throttle_events")
HELP = {
    "usage_ratio": "Share of the time in which the unit was busy.",
    "memory_used_bytes": "Device memory in use.",
    "memory_total_bytes": "Device memory.",
    "clock_hertz": "Clock rate.",
    "clock_throttled": "1 while the clock is lowered for this reason.",
    "power_watts": "Power draw.",
    "power_limit_watts": "Power limit.",
    "enclosure_power_watts": "Power that the enclosure's supply delivers.",
    "enclosure_supply_volts": "Voltage of the enclosure's supply.",
    "enclosure_supply_amperes": "Current from the enclosure's supply.",
    "temperature_celsius": "Temperature.",
    "throttle_events": "Times that the firmware has lowered a clock.",
    "resting": "1 while parts of the device may have no power until they are needed.",
    "fan_abnormal": "1 while the firmware reports a fan that does not turn as it should.",
    "fan_rpm": "Fan speed.",
    "link_generation": "PCIe generation of the link.",
    "link_lanes": "Lanes of the link.",
    "link_errors": "Errors of the link.",
    "ecc_errors": "Memory errors found by ECC.",
    "memory_rows_remapped": "Rows of memory that were replaced.",
}
STATES = ("ok", "failed", "closing", "no answer", "not open")


@dataclass
class Families:
    """Families under construction by name, in the order of their first sample."""

    by_name: dict[str, Metric] = field(default_factory=dict)

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        if name not in self.by_name:
            self.by_name[name] = GaugeMetricFamily(name, text, labels=[*labels])
        self.by_name[name].add_metric([*labels.values()], value)  # type: ignore[attr-defined]

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        if name not in self.by_name:
            self.by_name[name] = CounterMetricFamily(name, text, labels=[*labels])
        self.by_name[name].add_metric([*labels.values()], value)  # type: ignore[attr-defined]

    def info(self, name: str, text: str, values: dict[str, str], **labels: str) -> None:
        if name not in self.by_name:
            self.by_name[name] = InfoMetricFamily(name, text, labels=[*labels])
        self.by_name[name].add_metric([*labels.values()], values)  # type: ignore[attr-defined]


def families(
    cards: Sequence[Card], expected: Iterable[str] = (), *, dcgm: bool = False
) -> Iterator[Metric]:
    """Yield the metrics of all cards. expected: names of devices that must exist."""
    metrics = Families()
    for card in cards:
        _card(metrics, card, card.label)
        if dcgm and card.last is not None:
            _dcgm(metrics, card.last, card.label)
    names = sorted(set(expected))
    there = {card.device for card in cards if card.path is not None}
    for name in names:
        text = "1 for an expected device that a process has open."
        metrics.gauge("ugpu_device_present", text, float(name in there), device=name)
    text = "Devices that processes have open."
    metrics.gauge("ugpu_devices_open", text, sum(card.path is not None for card in cards))
    metrics.gauge("ugpu_devices_expected", "Devices that must be open.", len(names))
    yield from metrics.by_name.values()


def _card(metrics: Families, card: Card, device: str) -> None:
    for state in STATES:
        words = {"device": device, "state": state}
        metrics.gauge(
            "ugpu_state", "1 for the device's state.", float(card.state == state), **words
        )
    telemetry = card.last
    if telemetry is None:
        return
    text = "Target and owner of the device."
    facts = {"target": telemetry.target, "command": telemetry.command}
    metrics.info("ugpu_device", text, facts, device=device)
    metrics.gauge("ugpu_owner_pid", "Process that owns the device.", telemetry.pid, device=device)
    for sample in telemetry.samples:
        name, text = f"ugpu_{sample.name}", HELP.get(sample.name, f"In {sample.unit}.")
        put = metrics.counter if sample.name in COUNTERS else metrics.gauge
        put(name, text, sample.value, device=device, sensor=sample.label)
    age = telemetry.samples_age_s
    if age is not None:
        metrics.gauge("ugpu_samples_age_seconds", "Age of the sensors' values.", age, device=device)
    metrics.gauge("ugpu_open_seconds", "Time since the device was opened.", telemetry.open_s,
               device=device)  # fmt: skip
    metrics.gauge("ugpu_queue_depth", "Submissions that have not ended.", telemetry.queue_depth,
               device=device)  # fmt: skip
    metrics.counter("ugpu_kernels", "Kernels submitted.", telemetry.launches, device=device)
    metrics.counter("ugpu_submissions", "Command buffers submitted.", telemetry.submissions,
                 device=device)  # fmt: skip
    metrics.counter("ugpu_resets", "Resets attempted.", telemetry.resets, device=device)
    for kind, count in sorted(telemetry.errors.items()):
        metrics.counter("ugpu_errors", "Failures by class.", count, device=device, kind=kind)


def _scaled(name: str, label: str | None, factor: float) -> Callable[[Telemetry], float | None]:
    def value(telemetry: Telemetry) -> float | None:
        got = telemetry.value(name, label)
        return None if got is None else got * factor

    return value


def _free(telemetry: Telemetry) -> float | None:
    used, total = telemetry.value("memory_used_bytes"), telemetry.value("memory_total_bytes")
    return None if used is None or total is None else (total - used) / 2**20


_DCGM: dict[str, tuple[str, Callable[[Telemetry], float | None]]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("SM clock (MHz).", _scaled("clock_hertz", "gfx", 1e-6)),
    "DCGM_FI_DEV_MEM_CLOCK": ("Memory clock (MHz).", _scaled("clock_hertz", "memory", 1e-6)),
    "DCGM_FI_DEV_GPU_TEMP": ("Temperature (C).", _scaled("temperature_celsius", None, 1)),
    "DCGM_FI_DEV_MEMORY_TEMP": ("Memory temperature (C).",
                                _scaled("temperature_celsius", "memory", 1)),
    "DCGM_FI_DEV_POWER_USAGE": ("Power draw (W).", _scaled("power_watts", None, 1)),
    "DCGM_FI_DEV_GPU_UTIL": ("Utilisation (%).", _scaled("usage_ratio", "gfx", 100)),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("Memory utilisation (%).", _scaled("usage_ratio", "memory", 100)),
    "DCGM_FI_DEV_FB_FREE": ("Framebuffer memory free (MiB).", _free),
    "DCGM_FI_DEV_FB_USED": ("Framebuffer memory used (MiB).",
                            _scaled("memory_used_bytes", None, 2**-20)),
}  # fmt: skip


def _dcgm(metrics: Families, telemetry: Telemetry, device: str) -> None:
    labels = {
        "gpu": device, "UUID": device, "device": device, "modelName": telemetry.target,
        "Hostname": platform.node(), "hostname": platform.node(),  # its name since release 4.9
    }  # fmt: skip
    for name, (text, value) in _DCGM.items():
        got = value(telemetry)
        if got is not None:
            metrics.gauge(name, text, got, **labels)
