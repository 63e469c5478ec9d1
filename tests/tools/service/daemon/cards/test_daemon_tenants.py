"""An AMD card that ugpud shares: holders that hang, are killed, or run out of time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.service.daemon import ROOT, DaemonProcess, Running, scaled, settings_text
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, DeviceHang, DeviceLost, PageFault
from ugpu.hcq.state.telemetry import from_json
from ugpu.hcq.work.queue import QueueKind
from ugpu.tools.service.daemon.config import parse

NAME = "virtual:navi31"
MORE = "[lease]\ndrain_s = 0.2\n"
HOLDER = """
import sys, hcq, numpy as np
from tests.support.amd.am_faulty import faulty_object
gpu = hcq.lease("virtual:navi31", shared=True, memory="64M", daemon=sys.argv[1])
out = gpu.alloc(64)
out.fill(0)
program = gpu.load(faulty_object())
with gpu.queue() as queue:
    queue.launch(program["forever"], grid=(1,), block=(32,), args=(out,))
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    text = settings_text(tmp_path_factory.mktemp("t"), [NAME], MORE)
    made = Running(parse(text))
    yield made
    made.close()


def share(running: Running, **options: Any) -> Any:
    return running.lease(NAME, shared=True, memory="64M", **options)


def used(running: Running) -> int:
    told = from_json(json.loads(running.daemon.owned[0].telemetry()))
    value = told.value("memory_used_bytes")
    assert value is not None
    return int(value)


def endless(gpu: Any) -> Any:
    """Launch a kernel that never ends; the queue, and the value of its end."""
    out = gpu.alloc(64)
    out.fill(0)
    queue = gpu.queue()
    queue.launch(gpu.load(faulty_object())["forever"], grid=(1,), block=(32,), args=(out,))
    return queue, queue.submit()


def test_a_holder_that_hangs_and_one_that_works(running: Running) -> None:
    with share(running) as one, share(running) as other:
        queue, end = endless(other)
        assert scaled(one)
        with pytest.raises(DeviceHang):
            queue.timeline.wait(end, limit_s=0.2)
        assert scaled(one)
        other.reset()
        assert scaled(other) and scaled(one)
        with pytest.raises(PageFault):
            with other.queue() as queue:
                program, out = other.load(faulty_object()), other.alloc(64)
                queue.launch(
                    program["write_at"], grid=(1,), block=(32,), args=(out, np.uint64(1 << 40))
                )
            other.synchronize()
            out.numpy()  # the kernel goes on after its fault, and may end before it is reported
        assert scaled(one)


def test_a_holder_may_not_reset_the_card(running: Running) -> None:
    with share(running) as one, share(running) as other:
        with pytest.raises(hcq.errors.UgpuError, match="ends the work of other holders"):
            other.reset("mode1")
        assert scaled(one) and one.failure is None


def test_time_that_is_up_ends_one_holders_work(running: Running) -> None:
    with share(running) as one:
        other = share(running, limit_s=1.0)
        queue, end = endless(other)
        with pytest.raises((DeviceLost, DeviceHang)):
            queue.timeline.wait(end, limit_s=60)
        with pytest.raises(DeviceLost):
            other.synchronize()
        other.close()
        assert scaled(one)
        with share(running) as third:
            assert scaled(third) and scaled(one)


def test_the_card_has_seven_seats(running: Running) -> None:
    assert running.daemon.owned[0].card.shares == 7
    held = [share(running) for _ in range(7)]
    with pytest.raises(hcq.errors.DeviceBusy):
        share(running)
    for gpu in held:
        assert scaled(gpu)
    held.pop(2).close()
    with share(running, wait_s=30) as gpu:
        assert scaled(gpu)
    for gpu in held:
        gpu.close()


def test_a_hundred_leases_leave_nothing(running: Running) -> None:
    with share(running) as one:
        assert scaled(one)
        before = used(running)
        for number in range(100):
            with share(running) as gpu:
                gpu.alloc(4096).fill(number)
        running.settle()
        assert used(running) == before
        assert scaled(one)


def test_holders_work_at_the_same_time(running: Running) -> None:
    right: list[bool] = []

    def work() -> None:
        with share(running, wait_s=60) as gpu:
            right.extend(scaled(gpu) for _ in range(5))
            with gpu.alloc(1 << 20) as buffer, gpu.queue(QueueKind.COPY) as queue:
                queue.fill(buffer, 3)
            gpu.synchronize()

    threads = [threading.Thread(target=work) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 45


def test_a_holder_that_is_killed_disturbs_no_other(tmp_path: Path) -> None:
    with DaemonProcess([NAME], MORE) as daemon:
        with hcq.lease("gfx11*", shared=True, memory="2G", daemon=daemon.socket) as one:
            assert one.grant.memory == 2 << 30
            for _ in range(3):
                holder = subprocess.Popen(
                    [sys.executable, "-c", HOLDER, daemon.socket], cwd=ROOT,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                assert holder.stdout is not None and holder.stdout.readline() == "holds\n"
                assert scaled(one)
                os.kill(holder.pid, signal.SIGKILL)
                holder.communicate()
                assert scaled(one)
                with hcq.lease(NAME, shared=True, memory="64M", daemon=daemon.socket) as other:
                    assert scaled(other)
            assert one.failure is None
        with hcq.lease(NAME, wait_s=60, daemon=daemon.socket) as gpu:
            assert scaled(gpu)


def test_addresses_of_another_holder_are_refused(running: Running) -> None:
    with share(running) as one, share(running) as other:
        far = one.alloc(1 << 20)
        with pytest.raises(BadArgument):
            hcq.Buffer(other.driver.core, far.address, far.size, far.placement).numpy()
