"""A whole ugpud on two `cpu` devices: leases, rights, wrong input, clients that die."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import contract_object
from tests.support.service.daemon import ROOT, DaemonProcess, Running, scaled, started, until_closed
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    DeviceBusy,
    DeviceHang,
    DeviceLost,
    DeviceNotFound,
    OutOfMemory,
    TransportError,
    UgpuError,
)
from ugpu.hcq.remote.address import Address, parse
from ugpu.hcq.remote.channel import Disconnected
from ugpu.hcq.remote.wire import Message, encode
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import Queue


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = started(tmp_path_factory.mktemp("d"), "message = 1048576\n[lease]\ndrain_s = 0.2")
    yield made
    made.close()


@contextlib.contextmanager
def endless(gpu: Any) -> Iterator[Queue]:
    """A launch that has begun and does not end by itself; its process ends with the lease."""
    program, flag = gpu.load(contract_object(gpu.target)), gpu.alloc(64)
    queue = gpu.queue().launch(program["spin"], grid=(1,), block=(1,), args=(flag,))
    value = queue.submit()
    until(lambda: "kernel" in gpu.driver.diagnose(queue.timeline, value), "the kernel has begun")
    yield queue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


# ---- leases ----------------------------------------------------------------------------------


def test_two_holders_and_a_third_that_waits(running: Running) -> None:
    with running.lease() as one, running.lease() as two:
        assert {one.grant.device, two.grant.device} == {"cpu#0", "cpu#1"}
        assert scaled(one) and scaled(two)
        with pytest.raises(DeviceBusy, match=r"cpu#0: leased to .*; cpu#1: leased to"):
            running.lease()
        found: list[Device] = []
        waiting = threading.Thread(target=lambda: found.append(running.lease(wait_s=60)))
        waiting.start()
        while not running.listed()["waiting"]:
            pass
        two.close()
        waiting.join(60)
        (third,) = found
        assert third.grant.device == two.grant.device and scaled(third)
        third.close()
    running.settle()
    assert running.listed() == {"leases": [], "waiting": []}


def test_a_first_kernel_takes_few_round_trips_and_a_replay_one_message(running: Running) -> None:
    with running.lease() as gpu:
        assert scaled(gpu)
        assert gpu.driver.connection.calls < 15
        with gpu.alloc(4096) as a, gpu.alloc(4096) as b:
            with gpu.capture() as graph:
                compute, copy = gpu.queue(), gpu.queue(hcq.QueueKind.COPY)
                compute.fill(a, 7).submit()
                copy.wait(compute.timeline).copy(b, a).submit()
            graph.replay()
            graph.wait()
            calls, posts = gpu.driver.connection.calls, gpu.driver.connection.posts
            graph.replay()
            graph.wait()
            assert (gpu.driver.connection.calls, gpu.driver.connection.posts) == (calls, posts + 1)
            assert (b.numpy(np.uint32) == 7).all()
            graph.close()


def test_memory_is_zero_whatever_was_there(running: Running) -> None:
    size = 1 << 20
    for _ in range(3):
        for placement in Placement:
            with running.lease("cpu#0") as gpu:
                buffers = [gpu.alloc(size, placement=placement) for _ in range(4)]
                assert not any(buffer.numpy().any() for buffer in buffers)
                for buffer in buffers:
                    buffer.fill(0x5EC2E75)


def test_what_a_lease_may_not_reach(running: Running) -> None:
    """Raw messages that name memory, kernels, images and queues that are not the lease's."""
    with running.lease("cpu#0", memory="64K") as gpu:
        with pytest.raises(OutOfMemory, match="no memory left"):
            gpu.alloc(1 << 20)
        connection, mine = gpu.driver.connection, gpu.alloc(4096)
        at = int(mine.address)
        for call in (
            ("read", at + 1, 4096),
            ("read", at - 1, 2),
            ("read", 0, 8),
            ("read", at, 1 << 40),
            ("watch", at + 4090, 1, 0.0),
            ("allocate", 8, "moon"),
            ("diagnose", 99, 1),
            ("reset", [1], 0, 0),
            ("reset", [0, 0], 77, 0),
        ):
            with pytest.raises(BadArgument):
                connection.call(*call)
        for words in ([2, 0, 0, 0, 0, 8, 0], [3, 1, 0, 4, 0, 7], [9], [1, 5, 0], [4, 1, 0, 0, 0]):
            data = np.array(words, np.uint32).tobytes()
            with pytest.raises(BadArgument):
                connection.call("submit", 0, 1 << 40, data=data)
        with pytest.raises(BadArgument):
            connection.call("place", 1, 0, 99, data=b"1234")
        with pytest.raises(BadArgument, match="no image 5"):
            connection.call("replay", [5, 1])
        assert scaled(gpu)
        mine.close()


def test_a_failure_of_a_message_without_a_reply_is_the_devices(running: Running) -> None:
    with running.lease("cpu#0") as gpu:
        gpu.driver.connection.post("submit", 0, 1 << 40, data=b"\x09\0\0\0")
        with pytest.raises(BadArgument, match="is not an operation"):
            while True:
                gpu.queue()
                gpu.driver.core.check_failures()
        gpu.reset()
        assert scaled(gpu)


def test_a_lease_ends_in_time_unless_it_is_extended(running: Running) -> None:
    with running.lease("cpu#0", limit_s=60) as gpu:
        assert gpu.extend(3600) == 3600
        (row,) = running.listed()["leases"]
        assert 3500 < row["left_s"] <= 3600
        gpu.extend(0.01)
        with pytest.raises(DeviceLost, match="time limit is over"):
            while True:
                gpu.driver.core.check_failures()
        with pytest.raises(DeviceLost):
            gpu.alloc(64)
    with running.lease("cpu#0", wait_s=60) as gpu:
        assert scaled(gpu)


def test_a_kernel_that_never_ends_does_not_outlive_its_lease(running: Running) -> None:
    with pytest.raises(Disconnected), running.lease("cpu#0") as gpu, endless(gpu):
        gpu.driver.connection.close()
        with running.lease("cpu#0", wait_s=60) as other:
            assert scaled(other)


def test_an_admin_ends_the_lease_of_another(running: Running) -> None:
    with running.lease("cpu#0") as gpu, running.connect() as admin:
        admin.call("release", gpu.grant.lease)
        with pytest.raises(DeviceLost, match="released by"):
            while True:
                gpu.driver.core.check_failures()
        with pytest.raises(BadArgument, match="lease 12345 does not exist"):
            admin.call("release", 12345)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"device": "gfx9*"}, DeviceNotFound, "no device matches 'gfx9\\*'"),
        ({"memory": "900T"}, DeviceNotFound, "bytes of memory"),
        ({"kind": "observer"}, BadArgument, "has no queues"),
        ({"token": "ugpu_wrong"}, AccessDenied, "does not know this token"),
    ],
)
def test_leases_that_cannot_be(running: Running, options: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        running.lease(**options)


# ---- strangers -------------------------------------------------------------------------------


def test_noise_ends_its_connection_alone(running: Running) -> None:
    with running.lease("cpu#0", wait_s=60) as gpu:
        random_ = random.Random(5)
        hello = b"".join(map(bytes, encode(Message("hello", [1, None, 0], 1))))
        for _ in range(60):
            with socket.socket(socket.AF_UNIX) as made:
                made.connect(running.socket)
                if random_.randrange(2):
                    made.sendall(hello)
                made.sendall(random_.randbytes(random_.randint(0, 200)))
                made.shutdown(socket.SHUT_WR)
                until_closed(made)
        assert scaled(gpu)
    running.settle()


def test_random_messages_are_refused_by_name(running: Running) -> None:
    from ugpu.hcq.remote.wire import REQUESTS

    random_ = random.Random(6)
    with running.lease("cpu#0") as gpu:
        made = {
            "number": lambda: random_.choice([0, 1, 2, 1 << 20, (1 << 64) - 1]),
            "numbers": lambda: [random_.randrange(5) for _ in range(random_.randrange(4))],
            "text": lambda: random_.choice(["", "device", "x" * 50]),
            "real": lambda: 0.0,
            "map": lambda: {"device": "*", random_.choice("ab"): 1},
        }
        without = ("release", "extend", "hello", "ack", "bye")  # which end the lease, or no reply
        names = [name for name in REQUESTS if name not in without]
        for _ in range(400):
            name = random_.choice(names)
            given = [made[kind.rstrip("?")]() for kind in REQUESTS[name]]
            data = random_.randbytes(4 * random_.randrange(8))
            try:
                gpu.driver.connection.call(name, *given, data=data)
            except UgpuError:
                continue
    with running.lease("cpu#0", wait_s=60) as gpu:  # the one before was told of work it knows not
        assert scaled(gpu)


def test_a_message_above_the_limit_is_refused(running: Running) -> None:
    with running.lease("cpu#0") as gpu:
        gpu.driver.connection.post("load", data=bytes(2 << 20))
        with pytest.raises(TransportError, match="at most 1048576 bytes of data"):
            while True:
                gpu.driver.core.check_failures()


def test_clients_have_a_limit(folder: Path) -> None:
    made = started(folder, "clients = 2", count=1)
    try:
        with made.connect(), made.connect(), pytest.raises(UgpuError):
            made.connect()
        made.settle()
        with made.lease() as gpu:
            assert scaled(gpu)
    finally:
        made.close()


def test_no_daemon() -> None:
    with pytest.raises(DeviceNotFound, match="no ugpud is listening on /nowhere"):
        hcq.lease(daemon="/nowhere/ugpud.sock")
    for text in ("http://x", "tls://", "tls://x:0", "tls://x:port"):
        with pytest.raises(BadArgument, match=r"tls://HOST\[:PORT\]"):
            parse(text)
    assert parse("tls://gpu-1") == Address(host="gpu-1")
    assert str(parse("tls://[::1]:99")) == "tls://::1:99"


# ---- processes that die ----------------------------------------------------------------------

HOLDER = """
import sys, hcq, numpy as np
from tests.support.kernels import contract_object
gpu = hcq.lease("cpu", daemon=sys.argv[1])
program, flag = gpu.load(contract_object(gpu.target)), gpu.alloc(1 << 20)
gpu.queue().launch(program["spin"], grid=(1,), block=(1,), args=(flag,)).submit()
flag2 = gpu.alloc(64)
print("holds", flush=True)
sys.stdin.read()
"""


def test_processes_that_are_killed() -> None:
    """A client in the middle of an endless kernel, then the daemon under a client."""
    with DaemonProcess(["cpu"], "[lease]\ndrain_s = 0.1") as daemon:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, daemon.socket],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout is not None and holder.stdout.readline() == "holds\n"
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
        gpu = hcq.lease("cpu", daemon=daemon.socket, wait_s=60)
        assert scaled(gpu)
        daemon.kill()
        with pytest.raises(DeviceLost, match="ended; its lease is lost"):
            gpu.alloc(64).copy_from(bytes(64))
        with pytest.raises(DeviceLost, match="its lease is lost"):
            gpu.synchronize()
            gpu.queue()
        gpu.close()
        assert Path(daemon.socket).exists(), "a stale file"
        daemon.start()
        with hcq.lease("cpu", daemon=daemon.socket) as gpu:
            assert scaled(gpu)


def test_a_hang_is_the_clients_to_report(running: Running) -> None:
    with running.lease("cpu#0") as gpu, endless(gpu) as queue:
        with pytest.raises(DeviceHang) as caught:
            queue.timeline.wait(queue.submit(), limit_s=0.01)
        assert caught.value.facts["kernel"] == "spin" and "daemon" in caught.value.facts
        gpu.reset()
        assert scaled(gpu)
