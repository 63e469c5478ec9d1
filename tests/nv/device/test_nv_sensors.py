"""What an NVIDIA GPU's driver publishes: clocks, power, temperatures, and how it is read."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.nvidia.nv_machine import left_behind, opened, powered, work
from tests.support.nvidia.rm_program import RmProgram, StatusError
from ugpu import hcq
from ugpu.hcq.errors import ChipError, DriverRefused, NotSupported
from ugpu.hcq.registers.layout import Layout, Struct
from ugpu.hcq.state.telemetry import Sensor
from ugpu.nv import abi
from ugpu.nv.device.device import NvDevice
from ugpu.nv.rm.shared_data import SharedData
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.options import DRIVERS, MachineOptions

WRITING = (1 << 64) - 1  # RUSD_TIMESTAMP_WRITE_IN_PROGRESS
PUBLISHING = tuple(version for version in DRIVERS if not version.startswith("535"))


@contextmanager
def on_driver(version: str, **options: Any) -> Iterator[NvDevice]:
    made = MachineOptions(driver=version, **options)
    with powered("gh100", made) as machine, opened(machine, driver=version) as device:
        yield device


def named(device: NvDevice) -> dict[tuple[str, str], Sensor]:
    return {(sensor.name, sensor.label): sensor for sensor in device.sensors()}


@pytest.mark.parametrize("version", [*PUBLISHING, "580.159.04"])
def test_clocks_power_and_temperature_are_read_on_every_branch(version: str) -> None:
    with on_driver(version) as device:
        found = named(device)
        assert found["clock_hertz", "gfx"].read() == 345e6
        assert found["clock_hertz", "memory"].read() == 1593e6
        assert found["power_watts", "gpu"].read() == 70.0
        assert found["power_watts", "average"].read() == 70.0
        assert found["power_limit_watts", "enforced"].read() == 700.0
        assert found["temperature_celsius", "gpu"].read() == 30.0
        assert found["usage_ratio", "gfx"].read() == 0.0
        assert found["clock_throttled", "heat"].read() == 0.0
        assert len(found) == len(device.sensors())  # no two of one name
        assert ("power_watts", "module") not in found  # zero: nothing is measured there
        assert "no_clocks_and_power" not in device.info()


@pytest.mark.parametrize("version", DRIVERS)
def test_memory_errors_are_counted_where_the_board_finds_them(version: str) -> None:
    options = MachineOptions(driver=version)
    with powered("gh100", options) as machine, opened(machine, driver=version) as device:
        assert named(device)["ecc_errors", "dram lost"].read() == 0
        machine.inject(Fault.ECC_CONTAINED)
        with pytest.raises(ChipError):
            work(device)
        device.reset()
        assert named(device)["ecc_errors", "dram lost"].read() == 1
        assert named(device)["ecc_errors", "dram corrected"].read() == 0
        assert named(device)["link_lanes", "pcie"].read() == 16
    with powered("ad102") as machine, opened(machine) as device:
        assert not [sensor for sensor in device.sensors() if sensor.name == "ecc_errors"]


def test_what_a_driver_does_not_publish_is_absent_with_its_reason() -> None:
    with on_driver("535.183.01") as device:
        assert ("clock_hertz", "gfx") not in named(device)
        assert "branch 535" in str(device.info()["no_clocks_and_power"])
    with on_driver("580.142", open_module=False) as device:
        assert ("clock_hertz", "gfx") not in named(device)
        assert "NV_ERR_NOT_SUPPORTED" in str(device.info()["no_clocks_and_power"])
        assert ("memory_total_bytes", "") in named(device)  # controls are asked all the same


def test_nothing_is_left_behind() -> None:
    with powered() as machine:
        clean = left_behind(machine)
        for _ in range(3):
            with opened(machine) as device:
                device.sensors()
        assert left_behind(machine) == clean
        assert machine.gpu.publisher.masks == {}


@pytest.fixture
def shared() -> Iterator[SharedData]:
    """A page that nobody writes but the test."""
    with on_driver("580.142") as device:
        device.sensors()
        data = device.driver.shared_data
        assert data is not None
        device.driver.gpu.client.control(
            data.handle,
            "NV00DE_CTRL_CMD_REQUEST_DATA_POLL",
            device.driver.gpu.client.structs.NV00DE_CTRL_REQUEST_DATA_POLL_PARAMS.new(
                polledDataMask=0
            ),
        )
        yield data


PLACE = "instPowerUsage.info.instGpuPower"


def _write(data: SharedData, stamp: int, value: int) -> None:
    view = data.mapping.view
    assert view is not None
    section = abi.select("580.142").structs.NV00DE_SHARED_DATA.offset_of("instPowerUsage")
    struct.pack_into("<QI", view, section, stamp, value)


@pytest.mark.parametrize(
    ("stamp", "found"),
    [
        (1, 5),
        (0, None),  # never written
        ((1 << 64) - 1, None),  # being written
        (0xFF << 56 | 6, 5),  # counted, not timed: even is valid
        (0xFF << 56 | 7, None),
    ],
)
def test_a_section_counts_only_while_its_time_says_so(
    shared: SharedData, stamp: int, found: int | None
) -> None:
    _write(shared, stamp, 5)
    assert shared.value(PLACE) == found


def test_a_sample_that_changes_while_it_is_read_is_read_again(
    shared: SharedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(shared, 1, 5)
    view, looks = shared.layout.view, []

    def late(raw: bytes) -> Struct:
        looks.append(raw)
        if len(looks) == 1:
            _write(shared, 2, 7)
        found: Struct = view(raw)
        return found

    monkeypatch.setattr(shared, "layout", Late(shared.layout, late))
    assert shared.value(PLACE) == 7
    assert len(looks) == 2


class Late:
    """A layout whose views are made by `view`."""

    def __init__(self, layout: Layout[Struct], view: Callable[[bytes], Struct]) -> None:
        self.size, self.offset_of = layout.size, layout.offset_of
        self.view = view


def test_what_a_branch_has_not_is_none(shared: SharedData) -> None:
    assert shared.value("clkPublicDomainInfos.info[0].nothing") is None
    assert shared.value("clkPublicDomainInfos.info[9].targetClkMHz") is None
    assert shared.value("nothing.at.all") is None
    assert shared.value("temperature.info.gpuTemperature") is None
    shared.close()
    shared.close()
    assert shared.value(PLACE) is None


def test_a_sample_that_goes_away_is_an_error_of_its_sensor() -> None:
    with on_driver("580.142") as device:
        power = named(device)["power_watts", "gpu"]
        assert device.driver.shared_data is not None
        device.driver.shared_data.close()
        with pytest.raises(NotSupported, match="instGpuPower"):
            power.read()


def test_the_model_refuses_what_the_driver_refuses() -> None:
    with RmProgram(open_module=False) as program:
        program.open_client()
        program.open_device()
        with pytest.raises(StatusError, match="NOT_SUPPORTED"):
            program.alloc(program.subdevice, 0xDE, "NV00DE_ALLOC_PARAMETERS", polledDataMask=1)
        program.alloc(program.subdevice, 0xDE, "NV00DE_ALLOC_PARAMETERS", polledDataMask=0)
        with pytest.raises(StatusError):  # its parent is the subdevice
            program.alloc(program.device, 0xDE, "NV00DE_ALLOC_PARAMETERS", polledDataMask=0)


def test_sensors_of_a_device_that_is_gone() -> None:
    with powered() as machine:
        device = hcq.open("virtual:gh100", chip=machine)
        machine.inject("FELL_OFF")
        with pytest.raises((hcq.errors.DeviceLost, DriverRefused)):
            device.sensors()
        device.close()


def test_a_section_is_read_once_its_writer_has_ended(
    shared: SharedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is stopped in the middle is let on: the value is there, only later."""
    _write(shared, WRITING, 5)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 30:
            _write(shared, 3, 9)

    monkeypatch.setattr(shared.gpu.client.node.clock, "sleep", sleep)
    assert shared.value(PLACE) == 9 and len(pauses) == 30


def test_two_threads_ask_for_the_sensors_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SharedData] = []
    with powered("gh100") as machine, opened(machine) as device:
        make = SharedData.__init__

        def counted(data: SharedData, gpu: Any) -> None:
            made.append(data)
            make(data, gpu)

        monkeypatch.setattr(SharedData, "__init__", counted)
        threads = [threading.Thread(target=device.sensors) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 1
