"""Sensors of an Adreno GPU: what the kernel driver shows in sysfs.

Source: kgsl_pwrctrl.c of Qualcomm's KGSL (attributes of /sys/class/kgsl/kgsl-3d0). What a kernel
does not show is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hcq.errors import HostError
from hcq.telemetry import Sensor
from hcq.transport.node import Node


@dataclass(frozen=True)
class _Kind:
    name: str
    unit: str
    file: str
    factor: float = 1.0
    label: str = ""


_KGSL = (
    _Kind("clock_hertz", "Hz", "gpuclk"),
    _Kind("clock_limit_hertz", "Hz", "max_gpuclk"),
    _Kind("usage_ratio", "ratio", "gpu_busy_percentage", 0.01),
    _Kind("temperature_celsius", "°C", "temp", 1e-3),
    _Kind("throttle_level", "level", "thermal_pwrlevel"),
)


def kgsl_sensors(node: Node, index: int) -> list[Sensor]:
    """The sensors that this kernel has."""
    folder = f"/sys/class/kgsl/kgsl-3d{index}"
    return [
        Sensor(kind.name, kind.unit, _reader(node, f"{folder}/{kind.file}", kind.factor))
        for kind in _KGSL
        if _there(node, f"{folder}/{kind.file}")
    ]


def _there(node: Node, path: str) -> bool:
    try:
        number(node.read_text(path))
    except (OSError, ValueError):
        return False
    return True


def number(text: str) -> float:
    """The number that a file begins with, as in "42 %". ValueError where there is none."""
    words = text.split()
    if not words:
        raise ValueError("expected a number, got an empty file")
    return float(words[0])


def _reader(node: Node, path: str, factor: float) -> Callable[[], float]:
    def read() -> float:
        try:
            return number(node.read_text(path)) * factor
        except (OSError, ValueError) as error:
            raise HostError(f"{path} cannot be read", reason=str(error)) from error

    return read
