"""The observer interface: what other processes read of a device, and what it costs its owner."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forked import in_child
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.device import observe
from ugpu.hcq.device.core import Core
from ugpu.hcq.device.observe import Observer, Reader, Sampler
from ugpu.hcq.errors import Closed, DeviceHang, DeviceNotFound, TransportError
from ugpu.hcq.find import registry
from ugpu.hcq.state.config import Config
from ugpu.hcq.state.telemetry import Sample, Sensor, Telemetry, from_json, loads


class Device:
    """A `cpu` device with sensors of a test's own, and a clock that moves as they are read."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.now = 100.0
        self.cost = 0.0
        self.reads = 0
        self.error: Exception | None = None
        self.held = threading.Event()  # a sensor waits for it
        self.held.set()
        core.driver.sensors = self.sensors  # type: ignore[method-assign]

    def sensors(self) -> Sequence[Sensor]:
        return (Sensor("power_watts", "W", self.read, "socket"),)

    def read(self) -> float:
        self.held.wait()
        if self.error is not None:
            raise self.error
        self.reads += 1
        self.now += self.cost
        return 42.0 + self.reads

    def sampler(self) -> Sampler:
        return Sampler(self.core, lambda: self.now)


@pytest.fixture
def device() -> Iterator[Device]:
    with hcq.open("cpu") as opened:
        yield Device(opened.driver.core)


def test_another_connection_reads_all_of_it(device: Device, tmp_path: Path) -> None:
    observer = Observer(device.core, tmp_path / "o", device.sampler())
    assert stat.S_IMODE((tmp_path / "o").stat().st_mode) == 0o700
    with Reader(observer.path) as reader:
        first, second = reader.read(), reader.read()
    assert first.device == "cpu" and first.pid == os.getpid() and first.state == "ok"
    assert first.samples == (Sample("power_watts", "W", 43.0, "socket"),)
    assert first.value("power_watts") == 43.0 and first.value("power_watts", "gfx") is None
    assert second.samples == first.samples and device.reads == 1
    observer.stop()
    assert not observer.path.exists() and observe.sockets(tmp_path / "o") == []
    observer.stop()


def test_sampling_takes_a_hundredth_of_the_time_at_most(device: Device) -> None:
    sampler, device.cost = device.sampler(), 0.02
    begin = device.now
    while device.now < begin + 50:
        device.now += 0.01
        sampler.answer()
    assert 6 <= device.reads <= 9
    found = sampler.take(read=False)
    assert found.samples_age_s is not None and 0 < found.samples_age_s < 6.1


def test_a_device_in_use_gives_the_last_values(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "_LOCK_S", 0.001)
    sampler = device.sampler()
    sampler.take()
    device.now += 60
    with device.core.lock:
        found: list[Telemetry] = []
        thread = threading.Thread(target=lambda: found.append(sampler.take()))
        thread.start()
        thread.join()
    assert found[0].samples[0].value == 43.0 and found[0].samples_age_s == 60
    assert found[0].trouble == "the device was in use"
    assert sampler.take().trouble == ""


def test_a_failed_device_is_not_asked(device: Device) -> None:
    sampler = device.sampler()
    assert from_json(json.loads(sampler.answer())).state == "ok"
    device.core.failure = DeviceHang("stuck")
    device.core._note(device.core.failure)
    found = from_json(json.loads(sampler.answer()))
    assert (found.state, device.reads) == ("failed", 1)
    assert "stuck" in found.failure and found.errors == {"DeviceHang": 1}
    device.core.failure = None


def test_a_sensor_that_fails_is_named_and_not_asked_again_at_once(device: Device) -> None:
    sampler, device.error = device.sampler(), DeviceHang("no answer of the SMU")
    found = sampler.take()
    assert found.samples == () and found.samples_age_s is None
    assert "no answer of the SMU" in found.trouble


def test_launches_and_queues_are_counted(device: Device) -> None:
    sampler, cpu = device.sampler(), device.core.device
    before = sampler.take()
    buffer = cpu.alloc(64)
    buffer.fill(1)
    cpu.synchronize()
    after = sampler.take()
    assert after.submissions == before.submissions + 1
    assert (after.launches, after.queue_depth) == (0, 0)


def test_kernels_are_counted_also_in_graphs(device: Device) -> None:
    from ugpu.compiler import Tensor, jit

    cpu = device.core.device
    data = Tensor(np.arange(8, dtype=np.float32), device=cpu)
    begin = device.core.launches
    (data + 1.0).numpy()
    assert device.core.launches == begin + 1
    twice = jit(lambda x: (x * 2.0).realize())
    for _ in range(4):
        twice(data).numpy()
    assert device.core.launches == begin + 5


def test_a_device_that_hangs_delays_those_alone_who_ask_for_it(tmp_path: Path) -> None:
    with hcq.open("cpu") as one, hcq.open("cpu") as other:
        wedged, well = Device(one.driver.core), Device(other.driver.core)
        wedged.held.clear()
        observers = [Observer(each.core, tmp_path, each.sampler()) for each in (wedged, well)]
        with Reader(observers[0].path, 0.01) as slow, Reader(observers[1].path) as quick:
            with pytest.raises(TransportError, match=r"no response within 0\.01 s"):
                slow.read()
            assert quick.read().samples
        wedged.held.set()
        for observer in observers:
            observer.stop()


def test_a_socket_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    program = (
        "import sys, hcq; from pathlib import Path; from ugpu.hcq.device.observe import Observer\n"
        "d = hcq.open('cpu'); Observer(d.driver.core, Path(sys.argv[1]))\n"
        "print('there', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"there\n"
        found = observe.find("cpu", tmp_path)
        assert found is not None and found.pid == owner.pid
        owner.send_signal(signal.SIGKILL)
    (path,) = observe.sockets(tmp_path)
    with pytest.raises(DeviceNotFound, match="has ended"):
        Reader(path)
    assert observe.sockets(tmp_path) == [] and observe.find("cpu", tmp_path) is None


def test_requests_that_are_none(device: Device, tmp_path: Path) -> None:
    observer = Observer(device.core, tmp_path, device.sampler())
    for junk in (b"x" * 300, b""):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(observer.path))
            client.sendall(junk)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
    crowd = [Reader(observer.path) for _ in range(20)]
    served = 0
    for reader in crowd:
        with contextlib.suppress(Closed):
            served += bool(reader.read())
    for reader in crowd:  # not before: who leaves makes room
        reader.close()
    assert served == 16

    def room() -> bool:
        with contextlib.suppress(Closed), Reader(observer.path) as late:
            return late.read().device == "cpu"
        return False

    until(room, "the owner to notice that they have left")
    observer.stop()


def test_a_folder_that_others_can_write_is_not_used(device: Device, tmp_path: Path) -> None:
    observer = Observer(device.core, tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(TransportError, match="written by others"):
        Reader(observer.path)
    assert observe.offer(device.core, tmp_path) is None
    assert observe.sockets(tmp_path) == observe.sockets(None) == []
    tmp_path.chmod(0o700)
    observer.stop()


def test_a_forked_child_serves_nothing(device: Device, tmp_path: Path) -> None:
    observer = Observer(device.core, tmp_path)

    def child() -> None:
        assert observer._listener.fileno() == -1
        device.core.close()

    assert in_child({"use": child}) == {"use": "accepted"}
    with Reader(observer.path) as reader:
        assert reader.read().device == "cpu"
    observer.stop()


def test_a_device_that_is_opened_is_offered_until_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30) / "observe"
    monkeypatch.setattr(registry, "config", lambda: Config(observe_folder=folder))
    with hcq.open("virtual:navi31") as device:
        (path,) = observe.sockets(folder)
        with Reader(path) as reader:
            found = reader.read()
            device.close()
            with pytest.raises(Closed):
                reader.read()
    assert found.device == "virtual:navi31" and found.target == "gfx1100"
    names = {sample.name for sample in found.samples}
    assert names >= {"memory_used_bytes", "memory_total_bytes", "clock_throttled", "power_watts"}
    assert observe.sockets(folder) == []
    with hcq.open("cpu"):
        assert observe.sockets(folder) == []


@given(st.recursive(st.none() | st.integers() | st.text() | st.floats(), lambda inner: st.lists(
    inner) | st.dictionaries(st.text(), inner), max_leaves=8), st.sampled_from(
    ["samples", "errors", "pid", "time", "samples_age_s", "format", "state"]))  # fmt: skip
def test_what_is_no_telemetry_is_refused(junk: object, member: str) -> None:
    good = Telemetry("d", "t", "ok", 1, "c", 2.0, samples=(Sample("a", "W", 1.0),)).as_json()
    try:
        assert isinstance(from_json({**good, member: junk, "new": 1}), Telemetry)
    except TransportError as error:
        assert re.search("telemetry", str(error))


@pytest.mark.parametrize("text", [b"", b"\xff", b"[" * 100_000, b"7", b"1" * 5000, "{"])
def test_text_that_is_no_telemetry_is_refused(text: bytes | str) -> None:
    with pytest.raises(TransportError, match="telemetry"):
        loads(text)


def test_telemetry_through_json() -> None:
    given = Telemetry(
        "d", "t", "ok", 1, "c", 2.0, samples=(Sample("a", "W", 1.0, "l"),), samples_age_s=0.5,
        errors={"PageFault": 2},
    )  # fmt: skip
    assert from_json(given.as_json()) == given == loads(json.dumps(given.as_json()))
