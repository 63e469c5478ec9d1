"""Sensors and facts of a GPU, from controls of its subdevice and from the driver's shared data.

Sources: open-gpu-kernel-modules 580.142 ctrl2080fb.h, ctrl2080bus.h, ctrl2080perf.h, ctrl2080ecc.h,
ctrl2080thermal.h, ctrl2080gpu.h, ctrl2080nvlink.h, class/cl00de.h. Values that the driver does not
report for a GPU are omitted. Clocks and power have no control; the driver publishes them in memory:
see nv.rm.shared_data.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ugpu.hcq.errors import NotSupported, UgpuError
from ugpu.hcq.state.telemetry import Sensor
from ugpu.nv.rm.gpu import Gpu
from ugpu.nv.rm.shared_data import SharedData

log = logging.getLogger(__name__)

_KIB = 1024
_THERMAL_VERSION, _THERMAL_REVISION = 1, 0  # THERMAL_SYSTEM_API_VER, THERMAL_SYSTEM_API_REV
_WHOLE = 10_000  # util of a sample is in hundredths of a percent
_SAMPLE_TYPE = 2  # NV2080_CTRL_GPUMON_SAMPLE_TYPE_PERFMON_UTIL, ctrl2080gpumon.h

# Values that nv.rm.shared_data may have: name, unit, label, places in the order of trial, each with
# the size of its unit. Throttle reasons are the bits of cl00de.h RUSD_CLK_THROTTLE_REASON_*.
_Published = tuple[str, str, str, tuple[tuple[str, float], ...]]
_CLOCK = "clkPublicDomainInfos.info"
_CELSIUS = 1 / 256
_PUBLISHED: tuple[_Published, ...] = (
    *(
        ("clock_hertz", "Hz", label,
         ((f"{_CLOCK}[{at}].actualClkKHz", 1e3), (f"{_CLOCK}[{at}].targetClkMHz", 1e6)))
        for at, label in enumerate(("gfx", "memory", "video", "sm"))
    ),
    ("power_watts", "W", "gpu", (("instPowerUsage.info.instGpuPower", 1e-3),)),
    ("power_watts", "W", "module", (("instPowerUsage.info.instModulePower", 1e-3),)),
    ("power_watts", "W", "average", (("avgPowerUsage.info.averageGpuPower", 1e-3),)),
    ("power_watts", "W", "memory average", (("avgPowerUsage.info.averageMemoryPower", 1e-3),)),
    ("power_limit_watts", "W", "enforced", (("powerLimitGpu.info.enforcedmW", 1e-3),)),
    ("power_limit_watts", "W", "requested", (("powerLimitGpu.info.requestedmW", 1e-3),)),
    ("temperature_celsius", "°C", "gpu",
     (("temperatures[0].temperature", _CELSIUS), ("temperature.info.gpuTemperature", _CELSIUS))),
    ("temperature_celsius", "°C", "memory",
     (("temperatures[4].temperature", _CELSIUS), ("temperatures[1].temperature", _CELSIUS),
      ("temperature.info.hbmTemperature", _CELSIUS))),
    ("usage_ratio", "ratio", "gfx", (("perfDevUtil.info.gpuPercentBusy", 0.01),)),
    ("usage_ratio", "ratio", "memory", (("perfDevUtil.info.memoryPercentBusy", 0.01),)),
    ("fan_rpm", "rpm", "", (("fanCoolerStatus.info.rpmCurr[0]", 1.0),)),
    ("memory_rows_remapped", "rows", "corrected", (("memRowRemap.info.correctableRows", 1.0),)),
    ("memory_rows_remapped", "rows", "lost", (("memRowRemap.info.uncorrectableRows", 1.0),)),
    ("memory_rows_remapped", "rows", "pending", (("memRowRemap.info.isPending", 1.0),)),
    *(
        ("link_errors", "errors", f"pcie {label}", ((f"pciBusData.info.data[{at}]", 1.0),))
        for at, label in (
            (2, "crc"), (3, "naks"), (5, "correctable"), (6, "nonfatal"), (7, "fatal")
        )
    ),
)  # fmt: skip
_THROTTLES = {2: "power cap", 3: "slowdown", 5: "heat", 6: "heat, hardware", 7: "power brake"}
_NEVER_ZERO = ("Hz", "W", "°C")  # a zero means that nothing is measured there
_REASONS = ("clkThrottleInfo.reasonMask", "clkThrottleReason.reasonMask")


class Meter:
    """Reads one GPU's controls. Values are fresh at each call."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def _block(self, name: str, **values: Any) -> Any:  # Any: the tables define the members
        """A block of this name; NotSupported if the driver's branch has none."""
        structs = self.gpu.client.structs
        if name not in structs:
            raise NotSupported(f"driver branch {self.gpu.client.abi.branch} has no {name}")
        return structs[name].new(**values)

    def _list(self, command: str, block: str, entries: str, prefix: str, name: str) -> int:
        client = self.gpu.client
        made = self._block(block)
        made[f"{entries}Size"] = 1
        made[entries][0].index = client.constants[f"{prefix}{name}"]
        client.control(self.gpu.subdevice, command, made)
        return int(made[entries][0].data)

    def memory(self, name: str) -> float:
        """NV2080_CTRL_FB_INFO_INDEX_<name>, which counts KiB, in bytes."""
        return _KIB * float(
            self._list(
                "NV2080_CTRL_CMD_FB_GET_INFO_V2", "NV2080_CTRL_FB_GET_INFO_V2_PARAMS",
                "fbInfoList", "NV2080_CTRL_FB_INFO_INDEX_", name,
            )
        )  # fmt: skip

    def memory_total(self) -> float:
        """Bytes of video memory."""
        use = self.gpu.memory_use()
        return self.memory("HEAP_SIZE") if use is None else float(use[1])

    def memory_used(self) -> float:
        """Bytes of it that are in use."""
        use = self.gpu.memory_use()
        if use is not None:
            return float(use[0])
        return self.memory("HEAP_SIZE") - self.memory("HEAP_FREE")

    def link(self, field: str) -> float:
        """A field of the PCIe link's status: LINK_SPEED (generation) or LINK_WIDTH (lanes)."""
        word = self._list(
            "NV2080_CTRL_CMD_BUS_GET_INFO_V2", "NV2080_CTRL_BUS_GET_INFO_V2_PARAMS",
            "busInfoList", "NV2080_CTRL_BUS_INFO_INDEX_", "PCIE_GPU_LINK_CTRL_STATUS",
        )  # fmt: skip
        name = f"NV2080_CTRL_BUS_INFO_PCIE_LINK_CTRL_STATUS_{field}"
        return float(self.gpu.client.constants.field(name).extract(word))

    def temperature(self) -> float:
        """Degrees Celsius of the first thermal sensor."""
        client = self.gpu.client
        number = client.constants
        block = self._block(
            "NV2080_CTRL_THERMAL_SYSTEM_EXECUTE_V2_PARAMS",
            clientAPIVersion=_THERMAL_VERSION,
            clientAPIRevision=_THERMAL_REVISION,
            instructionListSize=1,
        )
        instruction = block.instructionList[0]
        block.clientInstructionSizeOf = len(instruction)
        instruction.opcode = number.NV2080_CTRL_THERMAL_SYSTEM_GET_STATUS_SENSOR_READING_OPCODE
        client.control(self.gpu.subdevice, "NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2", block)
        return float(instruction.operands.getStatusSensorReading.value)

    def busy(self, engine: str) -> float:
        """The recent share of time that "gr" (the multiprocessors) or "fb" (memory) was busy."""
        client = self.gpu.client
        block = self._block(
            "NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS", type=_SAMPLE_TYPE
        )
        block.bufSize = len(block.samples.raw)
        client.control(
            self.gpu.subdevice, "NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2", block
        )
        if not block.count:
            return 0.0
        # The samples are a ring; the newest one is before `tracker`.
        newest = block.samples[(int(block.tracker) - 1) % len(block.samples)]
        return float(newest[engine].util) / _WHOLE

    def performance_state(self) -> float:
        """The number n of the state Pn, 0 the fastest; the driver reports one bit per state."""
        found = self.gpu.client.ask(self.gpu.subdevice, "NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE")
        return float(int(found.currPstate).bit_length() - 1)

    def ecc(self, name: str) -> float:
        """A counter of memory errors since the driver was loaded."""
        found = self.gpu.client.ask(
            self.gpu.subdevice, "NV2080_CTRL_CMD_ECC_GET_CLIENT_EXPOSED_COUNTERS"
        )
        return float(found[name])

    def nvlinks(self) -> float:
        """Return the number of active NVLinks."""
        found = self.gpu.client.ask(self.gpu.subdevice, "NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS")
        return float(int(found.enabledLinkMask).bit_count())


def published(data: SharedData) -> list[Sensor]:
    """Sensors for the values that the driver currently publishes for this GPU."""

    def read(places: tuple[tuple[str, float], ...], least: int = 0) -> float:
        for place, unit in places:
            value = data.value(place)
            if value is not None and value >= least:
                return value * unit
        raise NotSupported(f"the driver does not publish {places[0][0]}")

    def throttled(bit: int) -> float:
        return float(int(read(tuple((place, 1.0) for place in _REASONS))) >> bit & 1)

    found = [
        Sensor(name, unit, functools.partial(read, places, _NEVER_ZERO.count(unit)), label)
        for name, unit, label, places in _PUBLISHED
    ]
    found += [
        Sensor("clock_throttled", "flag", functools.partial(throttled, bit), label)
        for bit, label in _THROTTLES.items()
    ]
    return [sensor for sensor in found if _answers(sensor)]


def make_sensors(gpu: Gpu, data: SharedData | None) -> Sequence[Sensor]:
    """Return the sensors that work on this GPU; each is read once to find out.

    data: None if the driver publishes nothing.
    """
    meter = Meter(gpu)
    first = published(data) if data is not None else []
    known = {(sensor.name, sensor.label) for sensor in first}

    def lane(name: str) -> Callable[[], float]:
        return lambda: meter.link(name)

    wanted = (
        Sensor("memory_used_bytes", "B", meter.memory_used),
        Sensor("memory_total_bytes", "B", meter.memory_total),
        Sensor("temperature_celsius", "°C", meter.temperature, "gpu"),
        Sensor("usage_ratio", "ratio", lambda: meter.busy("gr"), "gfx"),
        Sensor("usage_ratio", "ratio", lambda: meter.busy("fb"), "memory"),
        Sensor("performance_state", "state", meter.performance_state),
        Sensor("link_generation", "generation", lane("LINK_SPEED"), "pcie"),
        Sensor("link_lanes", "lanes", lane("LINK_WIDTH"), "pcie"),
        Sensor("links_up", "links", meter.nvlinks, "nvlink"),
        Sensor("ecc_errors", "errors", lambda: meter.ecc("dramCorrectedTotal"), "dram corrected"),
        Sensor("ecc_errors", "errors", lambda: meter.ecc("dramUncorrectedTotal"), "dram lost"),
        Sensor("ecc_errors", "errors", lambda: meter.ecc("sramCorrectedUnique"), "sram corrected"),
    )
    asked = [s for s in wanted if (s.name, s.label) not in known and _answers(s)]
    return (*asked, *first)


def _answers(sensor: Sensor) -> bool:
    try:
        sensor.read()
    except UgpuError as error:
        log.debug("no sensor %s %s: %s", sensor.name, sensor.label, error)
        return False
    return True


def describe(gpu: Gpu) -> dict[str, Any]:
    """Facts to show: name, address on the bus, driver, instance."""
    facts: dict[str, Any] = {
        "chip": _name(gpu),
        **gpu.describe(),
        "compute_capability": "{}.{}".format(*gpu.capability),
        "uuid": _uuid_text(gpu.uuid),
    }
    try:
        facts["vram_bytes"] = int(Meter(gpu).memory_total())
    except UgpuError as error:
        log.debug("the size of memory: %s", error)
    return facts


def _name(gpu: Gpu) -> str:
    try:
        found = gpu.client.ask(gpu.subdevice, "NV2080_CTRL_CMD_GPU_GET_NAME_STRING")
    except UgpuError as error:
        log.debug("the GPU's name: %s", error)
        return gpu.path
    return bytes(found.gpuNameString["ascii"]).split(b"\0")[0].decode("ascii", "replace")


def _uuid_text(raw: bytes) -> str:
    """Format a UUID as NVIDIA's tools do."""
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
