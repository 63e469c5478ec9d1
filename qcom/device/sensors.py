"""Sensors of an Adreno GPU, as the kernel driver shows them in sysfs.

Sources: kgsl_pwrctrl.c of Qualcomm's KGSL (attributes of /sys/class/kgsl/kgsl-3d0); for msm Linux
drivers/devfreq/devfreq.c (attributes of /sys/class/devfreq/<address>.gpu), and thermal zones whose
type begins with "gpu" (device trees in arch/arm64/boot/dts/qcom). Sensors that a kernel does not
show are omitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ugpu.hcq.errors import HostError
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.transport.node import Node


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
_DEVFREQ = (
    _Kind("clock_hertz", "Hz", "cur_freq"),
    _Kind("clock_limit_hertz", "Hz", "max_freq"),
)
_MOST_ZONES = 256


def kgsl_sensors(node: Node, index: int) -> list[Sensor]:
    """Return the sensors that this kernel has."""
    folder = f"/sys/class/kgsl/kgsl-3d{index}"
    return [
        Sensor(kind.name, kind.unit, _reader(node, f"{folder}/{kind.file}", kind.factor))
        for kind in _KGSL
        if _there(node, f"{folder}/{kind.file}")
    ]


def msm_sensors(node: Node, address: int) -> list[Sensor]:
    """Return the sensors that this kernel has. address: of the GPU's registers in the device
    tree."""
    folder = f"/sys/class/devfreq/{address:x}.gpu"
    sensors = [
        Sensor(kind.name, kind.unit, _reader(node, f"{folder}/{kind.file}", kind.factor))
        for kind in _DEVFREQ
        if _there(node, f"{folder}/{kind.file}")
    ]
    zones = _zones(node)
    if zones:
        readers = [_reader(node, zone, 1e-3) for zone in zones]
        hottest = Sensor("temperature_celsius", "°C", lambda: max(read() for read in readers))
        sensors.append(hottest)
    return sensors


def _zones(node: Node) -> list[str]:
    """Return paths of the temperatures of the GPU's thermal zones."""
    paths = []
    for number_of in range(_MOST_ZONES):
        zone = f"/sys/class/thermal/thermal_zone{number_of}"
        try:
            kind = node.read_text(f"{zone}/type")
        except OSError:
            break
        if kind.startswith("gpu") and _there(node, f"{zone}/temp"):
            paths.append(f"{zone}/temp")
    return paths


def _there(node: Node, path: str) -> bool:
    try:
        number(node.read_text(path))
    except (OSError, ValueError):
        return False
    return True


def number(text: str) -> float:
    """Return the number at the start of a file, as in "42 %". ValueError where there is none."""
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
