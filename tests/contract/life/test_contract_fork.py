"""A forked child that uses its parent's device: Closed at once, and the parent does not notice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support.forked import in_child
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import QueueKind


@pytest.fixture
def opener(request: pytest.FixtureRequest) -> Iterator[Callable[[], Device]]:
    opened: list[Device] = []

    def open_one() -> Device:
        opened.append(hcq.open(request.param))
        return opened[-1]

    yield open_one
    for device in opened:
        device.close()


def test_every_use_in_a_child_is_refused(opener: Callable[[], Device]) -> None:
    """Also while threads of the parent hold the locks of the device, a transfer and a replay."""
    device = opener()
    image = contract_object(device.target)
    program = device.load(image)
    buffer, host = device.alloc(64), device.alloc(64, placement=Placement.HOST)
    buffer.fill(7)
    graph = device.capture()
    with graph, device.queue(QueueKind.COPY) as queue:
        queue.fill(buffer, 9)
    recorded = device.queue().fill(buffer, 1)
    sensors = device.sensors()
    array = np.zeros(64, np.uint8)
    uses: dict[str, Callable[[], object]] = {
        "alloc": lambda: device.alloc(4),
        "load": lambda: device.load(image),
        "queue": lambda: device.queue(),
        "capture": lambda: device.capture(),
        "submit": lambda: recorded.submit(),
        "wait": lambda: device.queue().timeline.wait(),
        "wait in vain": lambda: recorded.timeline.wait(1 << 40),
        "synchronize": lambda: device.synchronize(),
        "reset": lambda: device.reset(),
        "replay": lambda: graph.replay(),
        "copy_from": lambda: buffer.copy_from(array),
        "copy_to": lambda: buffer.copy_to(array),
        "host copy_from": lambda: host.copy_from(array),
        "host copy_to": lambda: host.copy_to(array),
        "fill": lambda: buffer.fill(1),
    }
    harmless: dict[str, Callable[[], object]] = {
        "prefetch_wake": device.driver.prefetch_wake,
        "graph.close": graph.close,
        "program.close": program.close,
        "buffer.close": buffer.close,
        "device.close": device.close,
        "repr": lambda: repr(device),
    }
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with device.driver.core.lock, device.driver.core.copies._lock, graph._lock:
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    try:
        found = in_child({**uses, **harmless})
    finally:
        done.set()
        holder.join()
    assert found == {**dict.fromkeys(uses, "Closed"), **dict.fromkeys(harmless, "accepted")}
    assert sensors and buffer.numpy(np.uint32)[0] == 7
    graph.replay()
    graph.wait()
    assert buffer.numpy(np.uint32)[0] == 9


def test_a_child_in_flight_and_its_own_device(opener: Callable[[], Device]) -> None:
    """Forked while the parent captures, and while a kernel runs: neither is disturbed. The child
    opens a device of its own."""
    device = opener()
    name = device.name
    program = device.load(contract_object(device.target))
    flag = device.alloc(64, placement=Placement.HOST)
    assert flag.access is not None
    flag.access[:] = bytes(64)
    out = device.alloc(64)
    with device.queue() as queue:
        queue.launch(program["spin"], grid=(1,), block=(1,), args=(flag,))
        queue.barrier().fill(out, 5)

    def own() -> None:
        with hcq.open(name) as fresh, fresh.alloc(64) as mine:
            mine.fill(3)
            assert mine.numpy(np.uint32)[0] == 3

    graph = device.capture()
    with graph:
        device.queue().fill(out, 6).submit()
        found = in_child({"own": own, "leave": lambda: graph.__exit__(None)})
        assert found == {"own": "accepted", "leave": "Closed"}
    flag.access[:] = b"\1" * 64
    device.synchronize()
    assert out.numpy(np.uint32)[0] == 5
    graph.replay()
    assert out.numpy(np.uint32)[0] == 6
    graph.close()
