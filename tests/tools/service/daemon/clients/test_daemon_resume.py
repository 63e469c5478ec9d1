"""Connections to ugpud that break, at every frame, and go on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.service.daemon import Running, scaled, started
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, DeviceLost
from ugpu.hcq.remote.channel import Channel, Disconnected, Frame
from ugpu.hcq.remote.session import ACK_FRAMES, Session
from ugpu.hcq.remote.wire import Limits, Message, WireError
from ugpu.hcq.work.queue import QueueKind
from ugpu.tools.service.daemon.config import parse


class Cutter:
    """Breaks a connection at one frame: before it, in the middle of it, or behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.where, self.fired = -1, "", 0
        self._lock = threading.Lock()
        plain = Channel.push

        def push(channel: Channel, frame: Frame) -> int:
            with self._lock:
                numbered = frame.sequence or frame.message.operation == "ack"
                self.left -= bool(numbered and not frame.counts)
                now = numbered and self.left == 0
                self.fired += now
                if now:
                    self.left = -1
            if not now:
                return plain(channel, frame)
            if self.where == "behind":
                while plain(channel, frame):
                    continue
            elif self.where == "within":
                rest = frame.rest
                frame.counts.append(channel._socket.send(rest[: len(rest) // 2]))
            channel.close()
            raise Disconnected("cut")

        monkeypatch.setattr(Channel, "push", push)

    def arm(self, frame: int, where: str) -> None:
        with self._lock:
            self.left, self.where, self.fired = frame, where, 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = started(tmp_path_factory.mktemp("d"), count=1)
    yield made
    made.close()


@pytest.mark.parametrize("where", ["before", "within", "behind"])
def test_a_copy_and_a_replay_survive_a_cut_at_every_frame(
    running: Running, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    data = np.random.default_rng(7).integers(0, 256, (5 << 19) + 12, np.uint8)
    with running.lease() as gpu, gpu.alloc(len(data)) as big, gpu.alloc(64) as count:
        kernel_free = gpu.alloc(64)
        with gpu.capture() as graph:
            gpu.queue().fill(count, 5).submit()
            gpu.queue(QueueKind.COPY).copy(kernel_free, count).submit()
        cutter, frame = Cutter(monkeypatch), 0
        while True:
            frame += 1
            before = gpu.driver.connection.resumed
            cutter.arm(frame, where)
            big.fill(0)
            gpu.synchronize()
            big.copy_from(data)
            graph.replay()
            graph.wait()
            found = big.numpy()
            fired = cutter.fired
            cutter.arm(-1, where)
            assert (found == data).all(), frame
            assert (count.numpy(np.uint32) == 5).all()
            if not fired:
                break
            assert gpu.driver.connection.resumed >= before
        assert frame > 12 and gpu.driver.connection.resumed > 10
        graph.close()
        assert scaled(gpu)
    running.settle()
    assert running.listed()["leases"] == []


def test_a_lease_is_kept_for_the_time_of_grace_and_no_longer(tmp_path: Path) -> None:
    running = started(tmp_path, "[lease]\ngrace_s = 0.05", count=1)
    try:
        gpu = running.lease()
        (client,) = running.daemon.clients
        gpu.driver.connection._closing.set()  # this client does not come back
        gpu.driver.connection._session.channel.close()
        until(lambda: client not in running.daemon.clients, "the end of the lease")
        with running.lease() as other:
            assert scaled(other)
        with pytest.raises(DeviceLost):
            gpu.alloc(64)
        gpu.close()
    finally:
        running.close()
    assert parse('[lease]\ngrace_s = 0\n[[device]]\nname = "cpu"').grace_s == 0
    with pytest.raises(BadArgument, match="grace_s: expected"):
        parse('[lease]\ngrace_s = -1\n[[device]]\nname = "cpu"')


def test_without_grace_a_broken_connection_ends_the_lease(tmp_path: Path) -> None:
    running = started(tmp_path, "[lease]\ngrace_s = 0", count=1)
    try:
        gpu = running.lease()
        gpu.driver.connection._session.channel.close()
        with pytest.raises(DeviceLost, match="its lease is lost"):
            while True:
                gpu.driver.core.check_failures()
        gpu.close()
        with running.lease(wait_s=60) as other:
            assert scaled(other)
    finally:
        running.close()


def test_a_session_is_the_holders_alone(running: Running) -> None:
    """A wrong number, and one of a session that has ended."""
    with running.lease() as gpu:
        number = gpu.driver.connection._number
    until(lambda: number not in running.daemon._sessions, "the end of the session")
    for session in (number, number ^ 2, 1):
        with socket.socket(socket.AF_UNIX) as made:
            made.connect(running.socket)
            channel = Channel(made, Limits())
            channel.send(Message("hello", [1, None, session], 1))
            reply = channel.receive(60)
            assert reply is not None and reply.operation == "error"
            assert "its lease is lost" in reply.arguments[1]


def test_a_daemon_that_stops_says_so_to_a_client_that_is_away(tmp_path: Path) -> None:
    running = started(tmp_path, count=1)
    gpu = running.lease()
    running.close()
    with pytest.raises(DeviceLost, match="ugpud stops"):
        while True:
            gpu.driver.core.check_failures()
    gpu.close()


# ---- sessions --------------------------------------------------------------------------------


def ends() -> tuple[Session, Session]:
    left, right = socket.socketpair()
    made = Session(Channel(left, Limits())), Session(Channel(right, Limits()))
    for each in made:
        each.keeps = True
    return made


def release(*sessions: Session) -> None:
    for each in sessions:
        each.channel.close()
        each.channel.release()


def test_frames_are_kept_until_they_are_acknowledged() -> None:
    one, two = ends()
    try:
        for number in range(ACK_FRAMES):
            one.send(Message("free", [number]))
            assert not two.owes
            assert two.receive() is not None
        assert len(one._kept) == ACK_FRAMES and two.owes
        two.send(Message("ack", []))
        two.send(Message("position", [1]))
        found = one.receive()
        assert found is not None and found.operation == "position" and not one._kept
        assert one._bytes == 0
    finally:
        release(one, two)


def test_what_came_twice_is_dropped_and_what_is_missing_is_an_error() -> None:
    one, two = ends()
    try:
        for sequence in (1, 1, 2, 1, 2):
            assert not one.channel.push(Frame(Message("free", [sequence]), sequence))
        found = [two.receive(), two.receive()]
        assert [each.arguments for each in found if each] == [[1], [2]]
        assert two.receive(0) is None
        assert not one.channel.push(Frame(Message("free", [4]), 4))
        with pytest.raises(WireError, match="expected frame 3, got 4"):
            two.receive()
        assert not one.channel.push(Frame(Message("free", [3]), 0, acknowledged=1))
        with pytest.raises(WireError, match="1 frames are acknowledged, 0 were sent"):
            two.receive()
    finally:
        release(one, two)


def test_a_client_killed_in_the_time_of_grace_is_not_waited_for(tmp_path: Path) -> None:
    """Its process is gone: nobody can come back."""
    import subprocess
    import sys

    from tests.support.service.daemon import ROOT

    running = started(tmp_path, "[lease]\ngrace_s = 100000", count=1)
    program = (
        "import sys; from ugpu import hcq\n"
        "g = hcq.lease(daemon=sys.argv[1]); print('holds', flush=True)\n"
    )
    try:
        with subprocess.Popen(
            [sys.executable, "-c", program + "sys.stdin.read()", running.socket],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as holder:  # fmt: skip
            assert holder.stdout is not None and holder.stdout.readline() == "holds\n"
            holder.kill()
            with hcq.lease(daemon=running.socket, wait_s=60) as gpu:
                assert scaled(gpu)
    finally:
        running.close()
