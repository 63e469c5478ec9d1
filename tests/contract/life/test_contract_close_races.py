"""`Device.close` while other threads use the device: each of them gets Closed, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import Closed
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind

ROUNDS = 3


@pytest.fixture
def opener(request: pytest.FixtureRequest) -> Iterator[Callable[[], Device]]:
    opened: list[Device] = []

    def open_one() -> Device:
        opened.append(hcq.open(request.param))
        return opened[-1]

    yield open_one
    for device in opened:
        device.close()


def users(device: Device) -> dict[str, Callable[[], object]]:
    """What threads do again and again, each with memory of its own."""
    program = device.load(contract_object(device.target))
    image = contract_object(device.target)
    up, down = np.ones(9 << 20, np.uint8), np.empty(9 << 20, np.uint8)
    large, also, host = (
        device.alloc(9 << 20),
        device.alloc(9 << 20),
        device.alloc(64, placement=Placement.HOST),
    )
    out, filled, replayed = device.alloc(64), device.alloc(64), device.alloc(64)
    with device.capture() as graph, device.queue() as queue:
        queue.fill(replayed, 3)

    def launch() -> None:
        with device.queue() as queue:
            args = (out, np.uint64(1), np.uint8(2))
            queue.launch(program["wide"], grid=(1,), block=(1,), args=args)
        queue.timeline.wait()

    def many() -> None:
        for _ in range(20):
            device.queue(QueueKind.COPY).fill(filled, 4).submit()

    def replay() -> None:
        graph.replay()
        graph.wait()

    return {
        "upload": lambda: large.copy_from(up),
        "download": lambda: also.copy_to(down),
        "host": lambda: host.copy_from(up[:64]),
        "alloc": lambda: device.alloc(1 << 16).close(),
        "dropped": lambda: device.alloc(1 << 16) and None,
        "load": lambda: device.load(image).close(),
        "launch": launch,
        "many": many,
        "replay": replay,
        "synchronize": lambda: device.synchronize(),
        "numpy": lambda: filled.numpy(),
    }


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_every_thread_gets_closed(opener: Callable[[], Device], turn: int) -> None:
    device = opener()
    ends: dict[str, BaseException] = {}
    began = []

    def loop(name: str, use: Callable[[], object], ready: threading.Event) -> None:
        try:
            while True:
                use()
                ready.set()
        except BaseException as error:
            ends[name] = error
        finally:
            ready.set()

    threads = []
    for name, use in users(device).items():
        ready = threading.Event()
        began.append(ready)
        threads.append(threading.Thread(target=loop, args=(name, use, ready), daemon=True))
    for thread in threads:
        thread.start()
    for ready in began:
        assert ready.wait(300)
    device.close()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), thread.name
    wrong = {name: error for name, error in ends.items() if not isinstance(error, Closed)}
    assert not wrong, [f"{name}: {error!r}" for name, error in wrong.items()]
    assert len(ends) == len(threads)


def test_a_copy_under_way_ends_before_the_device_does(
    opener: Callable[[], Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opener()
    core = device.driver.core
    buffer, data = device.alloc(1 << 12), np.ones(1 << 12, np.uint8)
    inside, ended = threading.Event(), threading.Event()
    write, shutdown = core.driver.write_memory, core.driver.shutdown
    early: list[bool] = []
    errors: list[BaseException] = []

    def held(buffer: Buffer, data: memoryview) -> bool:
        inside.set()
        early.append(ended.wait(0.05))
        return write(buffer, data)

    def seen() -> None:
        ended.set()
        shutdown()

    def upload() -> None:
        try:
            buffer.copy_from(data)
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(core.driver, "write_memory", held)
    monkeypatch.setattr(core.driver, "shutdown", seen)
    thread = threading.Thread(target=upload)
    thread.start()
    assert inside.wait(300)
    device.close()
    thread.join(300)
    assert not thread.is_alive() and early == [False]
    # The driver's own copy was not cut off; one through staging buffers had not begun.
    assert all(isinstance(error, Closed) for error in errors)


def test_two_threads_close_at_once(opener: Callable[[], Device]) -> None:
    device = opener()
    buffer = device.alloc(1 << 20)
    device.queue(QueueKind.COPY).fill(buffer, 1).submit()
    gate = threading.Barrier(4)
    errors: list[BaseException] = []

    def close() -> None:
        gate.wait()
        try:
            device.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert not errors and device.closed
