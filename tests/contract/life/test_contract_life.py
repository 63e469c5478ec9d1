"""A device's life: opening, closing, two at once, hanging and coming back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import (
    BadArgument,
    BadCodeObject,
    Closed,
    DeviceHang,
    DeviceNotFound,
    NotSupported,
)
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.program import Parameter
from ugpu.hcq.work.queue import QueueKind


@pytest.fixture
def opener(request: pytest.FixtureRequest) -> Iterator[Callable[[], Device]]:
    """Opens devices of one kind; closes those a test left open."""
    opened: list[Device] = []

    def open_one() -> Device:
        opened.append(hcq.open(request.param))
        return opened[-1]

    yield open_one
    for device in opened:
        device.close()


def test_use_after_close(opener: Callable[[], Device]) -> None:
    device = opener()
    buffer, host = device.alloc(64), device.alloc(64, placement=Placement.HOST)
    program = device.load(contract_object(device.target))
    graph = device.capture()
    with graph, device.queue() as queue:
        queue.fill(buffer, 1)
    recorded = device.queue().fill(buffer, 2)
    timeline = recorded.timeline
    device.close()
    device.close()
    assert "closed" in repr(device)
    for use in (
        lambda: device.alloc(64),
        lambda: device.queue(),
        lambda: device.load(b""),
        lambda: device.capture(),
        lambda: device.reset(),
        lambda: device.synchronize(),
        lambda: buffer.copy_from(b"1"),
        lambda: host.fill(0),
        lambda: recorded.submit(),
        lambda: timeline.wait(1 << 40),
        lambda: graph.replay(),
    ):
        with pytest.raises(Closed):
            use()
    graph.close()
    program.close()
    buffer.close()


def test_closing_waits_for_work(opener: Callable[[], Device]) -> None:
    with opener() as device:
        result = device.alloc(1 << 20, placement=Placement.HOST)
        view = result.access
        for number in range(10):
            device.queue(QueueKind.COPY).fill(result, number).submit()
    assert view is not None


def test_two_devices_do_not_mix(opener: Callable[[], Device]) -> None:
    one, two = opener(), opener()
    program = one.load(contract_object(one.target))
    mine, theirs = one.alloc(64), two.alloc(64)
    mine.fill(1)
    theirs.fill(2)
    assert mine.numpy()[0] == 1 and theirs.numpy()[0] == 2
    with pytest.raises(BadArgument, match="another device"):
        one.queue().copy(mine, theirs)
    with pytest.raises(BadArgument, match="another device"):
        two.queue().launch(program["spin"], grid=(1,), block=(1,), args=(theirs,))
    with pytest.raises(BadArgument, match="another device"):
        one.queue().launch(program["spin"], grid=(1,), block=(1,), args=(theirs,))
    with one.capture() as graph, one.queue() as queue:
        queue.fill(mine, 3)
    with pytest.raises(BadArgument, match="another device"):
        graph.replay(inputs={mine: theirs})
    one.close()
    assert theirs.numpy()[0] == 2


def test_a_hang_is_reported_and_survived(opener: Callable[[], Device]) -> None:
    """A kernel that never ends: DeviceHang with facts, then Closed doors, then reset and go on."""
    device = opener()
    program = device.load(contract_object(device.target))
    flag = device.alloc(64, placement=Placement.HOST)
    out = device.alloc(64)
    flag.fill(0)
    with device.queue() as queue:
        queue.launch(program["spin"], grid=(1,), block=(1,), args=(flag,))
    queue = device.queue().fill(out, 1)
    value = queue.submit()
    with pytest.raises(DeviceHang) as caught:
        queue.timeline.wait(value, limit_s=0.2)
    assert caught.value.facts["limit_s"] == 0.2
    assert len(caught.value.facts) > 3, "the device's own diagnosis"
    with pytest.raises(DeviceHang):
        device.queue().fill(out, 1).submit()
    device.reset()
    with device.queue() as queue:
        args = (out, np.uint64(40), np.uint8(2))
        queue.launch(program["wide"], grid=(1,), block=(1,), args=args)
    assert out.numpy(np.uint64)[0] == 42
    assert flag.access is not None
    flag.access[:] = bytes([1] * 64)  # lets a kernel that could not be killed end by itself


def test_graphs_outlive_a_reset(opener: Callable[[], Device]) -> None:
    """Replaying after a reset works as before it, also when the reset met a replay half way."""
    device = opener()
    program = device.load(contract_object(device.target))
    flag = device.alloc(64, placement=Placement.HOST)
    out = device.alloc(64)
    assert flag.access is not None
    flag.access[:] = bytes([1] * 64)
    with device.capture() as graph, device.queue() as queue:
        queue.launch(program["spin"], grid=(1,), block=(1,), args=(flag,)).barrier()
        args = (out, Parameter(0, 8), np.uint8(1))
        queue.launch(program["wide"], grid=(1,), block=(1,), args=args)
    graph.replay(parameters=[1])
    assert out.numpy(np.uint64)[0] == 2
    flag.access[:] = bytes(64)
    graph.replay(parameters=[10])
    with pytest.raises(DeviceHang):
        graph.wait(limit_s=0.1)
    with pytest.raises(DeviceHang):
        graph.replay(parameters=[20])
    flag.access[:] = bytes([1] * 64)
    device.reset()
    graph.replay(parameters=[30])
    assert out.numpy(np.uint64)[0] == 31
    graph.close()


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"no code object at all" * 20])
def test_bad_code_objects(opener: Callable[[], Device], image: bytes) -> None:
    device = opener()
    with pytest.raises(BadCodeObject):
        device.load(image)
    good = contract_object(device.target)
    for cut in (64, len(good) // 2, len(good) - 1):
        with pytest.raises(BadCodeObject):
            device.load(good[:cut])
    with device.load(good) as program:
        assert "scale" in program


def test_foreign_code_objects(opener: Callable[[], Device]) -> None:
    device = opener()
    other = "gfx942" if device.target.abi == "amdhsa" else "gfx1100"
    foreign = contract_object(
        hcq.TargetSpec(name=other, abi="amdhsa", triple="amdgcn-amd-amdhsa", cpu=other)
    )
    with pytest.raises(BadCodeObject):
        device.load(foreign)


def test_facts_and_sensors(opener: Callable[[], Device]) -> None:
    device = opener()
    assert device.info() and device.target.name
    for sensor in device.sensors():
        assert sensor.read() == pytest.approx(sensor.read(), rel=1, abs=1e12)
        assert sensor.name == sensor.name.lower() and sensor.unit


@pytest.mark.parametrize(
    "name", ["", "gpu", "virtual:", "virtual:nothing", "pci:ffff:ff:1f.7", "CPU"]
)
def test_unknown_names(name: str) -> None:
    with pytest.raises(DeviceNotFound):
        hcq.open(name)


@pytest.mark.parametrize("name", ["kfd:0", "tcp://host:1/cpu"])
def test_planned_names_are_honest_gaps(name: str) -> None:
    with pytest.raises(NotSupported):
        hcq.open(name)


def test_unknown_options() -> None:
    with pytest.raises(BadArgument, match="no option speed"):
        hcq.open("cpu", speed=9)
    with pytest.raises(BadArgument):
        hcq.open("cpu", threads=0)
