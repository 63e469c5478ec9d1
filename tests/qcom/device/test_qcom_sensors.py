"""Sensors and size of memory, as the files of the kernel have them."""

from __future__ import annotations

import pytest

from tests.qcom.device.kgsl_double import Double
from ugpu.hcq.errors import HostError
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.qcom import chips
from ugpu.qcom.device.device import open_device
from ugpu.qcom.device.sensors import msm_sensors


def test_sensors_are_those_that_sysfs_has() -> None:
    double = Double(0x06030001, 6)
    double.files["/sys/class/kgsl/kgsl-3d0/gpuclk"] = "710000000\n"
    double.files["/sys/class/kgsl/kgsl-3d0/gpu_busy_percentage"] = "42 %\n"
    with open_device("kgsl:0", NodeAttachment(double, "kgsl", 0)) as device:
        found = {sensor.name: sensor.read() for sensor in device.sensors()}
        before = found.pop("memory_used_bytes")
        with device.alloc(5000):
            assert next(iter(device.sensors())).read() == before + 8192
    assert found == {"clock_hertz": 710e6, "usage_ratio": pytest.approx(0.42)}


@pytest.mark.parametrize(("text", "size"), [
    ("MemTotal:        7654320 kB\nMemFree:  100 kB\n", 7654320 << 10), ("", None),
    ("MemFree: 1 kB\n", None), ("MemTotal: many kB\n", None), ("MemTotal: 5\n", None),
    (None, None),
])  # fmt: skip
def test_memory_is_that_of_the_machine(text: str | None, size: int | None) -> None:
    double = Double(0x06030001, 6)
    if text is not None:
        double.files["/proc/meminfo"] = text
    with open_device("kgsl:0", NodeAttachment(double, "kgsl", 0)) as device:
        sensors = {sensor.name: sensor for sensor in device.sensors()}
        assert device.info().get("memory_bytes") == size
        found = sensors.get("memory_total_bytes")
        assert (found is None) if size is None else (found and found.read() == size)


def test_sensors_of_msm_are_devfreqs_and_the_hottest_zones() -> None:
    files = {
        "/sys/class/devfreq/5000000.gpu/cur_freq": "257000000\n",
        "/sys/class/thermal/thermal_zone0/type": "cpu0-thermal\n",
        "/sys/class/thermal/thermal_zone0/temp": "91000\n",
        "/sys/class/thermal/thermal_zone1/type": "gpu-top-thermal\n",
        "/sys/class/thermal/thermal_zone1/temp": "45100\n",
        "/sys/class/thermal/thermal_zone2/type": "gpu-bottom-thermal\n",
        "/sys/class/thermal/thermal_zone2/temp": "47300\n",
    }
    double = Double(0x06030001, 6)
    double.files.update(files)
    found = msm_sensors(double, chips.facts("a630").register_base)
    assert {one.name: one.read() for one in found} == {
        "clock_hertz": 257e6, "temperature_celsius": pytest.approx(47.3),
    }  # fmt: skip
    del double.files["/sys/class/thermal/thermal_zone1/temp"]
    with pytest.raises(HostError, match="thermal_zone1"):
        found[1].read()
    assert not msm_sensors(Double(0x06030001, 6), 0x1234)
