"""The devices the contract suite runs on: every one must behave the same."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.devices import DEVICES, PART, REMOTE, SLOW_DEVICES, SLOW_REMOTE
from tests.support.kernels import contract_object
from tests.support.service.daemon import DaemonProcess
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.config import config
from ugpu.hcq.work.program import Program
from ugpu.nv.device.device import NvDevice
from ugpu.qcom.device.device import AdrenoDevice
from ugpu.virtual.adreno.node import VirtualNode as AdrenoNode
from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport as CardTransport
from ugpu.virtual.nvidia.node import VirtualNode

#: bytes that a kernel driver of a real GPU may keep of what a test needed, as page tables; it
#: counts the memory of all programs
DRIVERS_OWN = 32 << 20
#: parts of the suite that the fast one runs over a daemon too; `make test-slow` runs all
REMOTE_MODULES = ("driver", "graph", "life", "queues", "recovery")
#: the same of `PART`
PART_MODULES = ("driver", "graph", "life", "memory", "recovery")
#: what `PART` never runs: there a fill is a kernel, and hundreds of thousands take too long
PART_WITHOUT = ("interrupts", "soak")
#: devices of one name that tests have open at a time, that of the module included
OPEN_AT_ONCE = 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every device, or on those that --device names. Tests of the driver's own
    code, marked `each_driver`, are not run on more chips of the same driver."""
    each = metafunc.definition.get_closest_marker("each_driver") is not None
    more = () if each else SLOW_DEVICES
    module = metafunc.module.__name__.rpartition("test_contract_")[2]
    some = REMOTE if module in REMOTE_MODULES else ()
    some = (*some, *(PART if module in PART_MODULES else ()))
    part = () if module in PART_WITHOUT else PART
    more = (*more, *(name for name in (*REMOTE, *SLOW_REMOTE, *part) if name not in some))
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in more]
    names = metafunc.config.getoption("--device") or [*DEVICES, *some, *slow]
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", names, indirect=True, scope="module")
    if "opener" in metafunc.fixturenames:
        metafunc.parametrize("opener", names, indirect=True)


@pytest.fixture(scope="session", autouse=True)
def daemon(request: pytest.FixtureRequest) -> Iterator[None]:
    """A ugpud for devices with names such as ugpud:cpu, where one is tested and none was named."""
    names = [name for item in request.session.items for name in _remote_devices(item)]
    if not names or os.environ.get("UGPU_DAEMON"):
        yield
        return
    local = dict.fromkeys(name.removeprefix("ugpud:") for name in names)
    with (
        DaemonProcess(list(local), count=OPEN_AT_ONCE) as process,
        pytest.MonkeyPatch.context() as m,
    ):
        m.setenv("UGPU_DAEMON", process.socket)
        config.cache_clear()
        yield
    config.cache_clear()


def _remote_devices(item: pytest.Item) -> list[str]:
    given = getattr(item, "callspec", None)
    values = [] if given is None else [given.params.get(key) for key in ("device", "opener")]
    return [value for value in values if isinstance(value, str) and value.startswith("ugpud:")]


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """One open device per module; tests leave it as they found it."""
    with hcq.open(request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def program(device: Device) -> Iterator[Program]:
    with device.load(contract_object(device.target)) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Memory in use after a test is what it was before."""
    if "device" not in request.fixturenames:
        yield
        return
    opened = request.getfixturevalue("device")
    request.getfixturevalue("program")  # loaded before we count
    opened.driver.core.copies.close()
    before = memory_used(opened)
    yield
    opened.driver.core.copies.close()
    grown = memory_used(opened) - before
    if opened.name.startswith("nvrm:"):
        assert grown <= DRIVERS_OWN, "the test leaks device memory"
    else:
        assert grown == 0, "the test leaks device memory"


@pytest.fixture(autouse=True)
def nothing_is_refused(request: pytest.FixtureRequest) -> Iterator[None]:
    """What our driver asks of a kernel driver is granted. A call that was cut off is made again and
    may be refused then."""
    cut_off = request.node.get_closest_marker("cut_off") is not None
    if "device" not in request.fixturenames or cut_off:
        yield
        return
    refused = refusals(request.getfixturevalue("device"))
    before = len(refused)
    yield
    # Optional sensors are asked for: some the board lacks, some are not modelled.
    # A test asks for more memory than there is, or submits work behind a fault.
    optional = (
        *("is not modelled", "NOT_SUPPORTED: the board has no", "Cannot allocate memory"),
        "was ended by a fault",
    )
    grave = [text for text in refused[before:] if not any(part in text for part in optional)]
    assert grave == []


def refusals(opened: Device) -> list[str]:
    """What a modelled kernel driver has refused: the resource manager and UVM, or KGSL."""
    if isinstance(opened, AdrenoDevice):
        below = opened.driver.interface.node
        return below.machine.refused if isinstance(below, AdrenoNode) else []
    node = opened.driver.session.source if isinstance(opened, NvDevice) else None
    if isinstance(node, CardTransport):
        return node.chip.machine.refused
    return node.machine.refused if isinstance(node, VirtualNode) else []


def memory_used(opened: Device) -> float:
    (sensor,) = [sensor for sensor in opened.sensors() if sensor.name == "memory_used_bytes"]
    return sensor.read()
