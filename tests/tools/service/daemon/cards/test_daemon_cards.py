"""Virtual cards, each in a process of its own: what ends one ends its own leases alone."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import faulty_work
from tests.support.amd.am_faulty import faulty_object
from tests.support.kernels import contract_object
from tests.support.service.daemon import ROOT, Running, scaled, settings_text
from tests.support.waiting import LIMIT_S, until
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, DeviceLost, OutOfMemory, PageFault, UgpuError
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.session import Session
from ugpu.hcq.remote.wire import Limits, Message, WireError
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.tools.base.events import LEASE_FAULT, event_of
from ugpu.tools.service.daemon.cards.confinement import exhausted
from ugpu.tools.service.daemon.cards.distant import DistantOwned
from ugpu.tools.service.daemon.cards.forks import readable
from ugpu.tools.service.daemon.cards.process import relog
from ugpu.tools.service.daemon.cards.relay import Relay
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.config import parse

NAME = "virtual:navi31"
MORE = "[lease]\ndrain_s = 0.2\n[recovery]\ntrips = 100\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(
        parse(settings_text(tmp_path_factory.mktemp("c"), [NAME], MORE, count=2, inside=False))
    )
    yield made
    made.close()


def packed(value: object) -> bytes:
    content: bytes = msgpack.packb(value, default=str)
    return content


def card(running: Running, lease: Any) -> DistantOwned:
    """The card of a lease."""
    (owned,) = [each for each in running.daemon.owned if each.name == lease.grant.device]
    assert isinstance(owned, DistantOwned)
    return owned


def endless(gpu: Device) -> Any:
    """Launch a kernel that never ends; the queue, and the value of its end."""
    out = gpu.alloc(64)
    queue = gpu.queue()
    queue.launch(gpu.load(faulty_object())["forever"], grid=(1,), block=(32,), args=(out,))
    return queue, queue.submit()


def ready(running: Running) -> bool:
    return all(owned.card.state is State.READY for owned in running.daemon.owned)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_the_end_of_a_cards_process_ends_its_leases_alone(
    running: Running, number: signal.Signals
) -> None:
    with running.lease(wait_s=LIMIT_S) as other, running.lease(wait_s=LIMIT_S) as gpu:
        pid = card(running, gpu).pid
        assert pid not in (os.getpid(), card(running, other).pid)
        queue, end = endless(gpu)
        gpu.info()  # a call of ugpud itself: the submission has arrived
        os.kill(pid, number)
        with pytest.raises(DeviceLost, match=f"its process was ended by {number.name}"):
            queue.timeline.wait(end, limit_s=LIMIT_S)
        with pytest.raises(DeviceLost, match=number.name):
            gpu.alloc(64)
        assert scaled(other)
        with running.lease(wait_s=LIMIT_S) as again:
            assert again.grant.device == gpu.grant.device and scaled(again)
            assert card(running, again).pid != pid
        assert scaled(other)


def test_the_end_of_an_idle_process_and_of_shared_leases(running: Running) -> None:
    until(lambda: ready(running), "both cards are ready")
    owned = running.daemon.owned[1]
    assert isinstance(owned, DistantOwned)
    shares = [
        running.lease(NAME + "#1", shared=True, memory="64M", wait_s=LIMIT_S) for _ in range(2)
    ]
    assert all(map(scaled, shares))
    os.kill(pid := owned.pid, signal.SIGKILL)
    for gpu in shares:
        with pytest.raises(DeviceLost, match="SIGKILL"):
            scaled(gpu)
        gpu.close()
    until(lambda: owned.is_open and owned.pid != pid and ready(running), "another process")
    os.kill(pid := owned.pid, signal.SIGKILL)
    until(lambda: owned.is_open and owned.pid != pid and ready(running), "another process")
    with running.lease(NAME + "#1", wait_s=LIMIT_S) as gpu:
        assert scaled(gpu)
    history = running.daemon.history.records()[owned.name]
    assert history.failures >= 2


def test_a_process_that_does_not_answer_is_ended(running: Running) -> None:
    """It runs native code that never ends, and nothing of ours runs beside it."""
    until(lambda: ready(running), "both cards are ready")
    with running.lease(wait_s=LIMIT_S) as gpu:
        assert scaled(gpu)
        checked = card(running, gpu)._process
        assert checked is not None
        checked.ping_s, checked.answer_s = 0.05, 2.0
        os.kill(card(running, gpu).pid, signal.SIGSTOP)
        with pytest.raises(DeviceLost, match="did not answer ping"):
            scaled(gpu)
    with running.lease(wait_s=LIMIT_S) as again:
        assert scaled(again)


def without_memory(pid: int) -> None:
    """Let a process have no memory beyond what it has."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (used,) = [int(line.split()[1]) << 10 for line in status if line.startswith("VmData:")]
    _, most = resource.prlimit(pid, resource.RLIMIT_DATA)
    assert used < most < used + (33 << 30), "of the card, and host_memory"
    resource.prlimit(pid, resource.RLIMIT_DATA, (used, used))


def too_much(gpu: Device, out: Buffer, pid: int) -> None:
    """Send a message that the process has no memory for: an error of Python."""
    out.copy_from(np.ones(32 << 20, np.uint8))
    gpu.synchronize()


def abort(gpu: Device, out: Buffer, pid: int) -> None:
    """What LLVM does without memory."""
    os.kill(pid, signal.SIGABRT)
    out.numpy(np.uint8)


def null(gpu: Device, out: Buffer, pid: int) -> None:
    """What code does that does not check what malloc returns."""
    os.kill(pid, signal.SIGSEGV)
    out.numpy(np.uint8)


@pytest.mark.parametrize("way", [too_much, abort, null])
def test_a_process_without_memory_is_ended(
    running: Running, way: Callable[[Device, Buffer, int], None]
) -> None:
    with running.lease(wait_s=LIMIT_S) as gpu:
        owned = card(running, gpu)
        out, pid = gpu.alloc(32 << 20), owned.pid
        without_memory(pid)
        with pytest.raises(OutOfMemory, match="no memory left"):
            gpu.alloc(64 << 20, placement=Placement.HOST)
        with pytest.raises(DeviceLost, match="its process had no memory left"):
            way(gpu, out, pid)
        with pytest.raises(DeviceLost, match="its process had no memory left"):
            gpu.alloc(64)

    def works() -> bool:
        with contextlib.suppress(UgpuError), running.lease(owned.name) as again:
            return scaled(again) and owned.pid != pid
        return False

    until(works, "a process with memory")


@pytest.mark.parametrize("number", exhausted.SIGNALS)
def test_a_signal_is_want_of_memory_only_if_there_is_none(number: signal.Signals) -> None:
    code = (
        "import os, resource, sys\n"
        "from ugpu.tools.service.daemon.cards.confinement import exhausted\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "exhausted.arm()\n"
        "most = int(sys.argv[2])\n"
        "if most: resource.setrlimit(resource.RLIMIT_DATA, (most, most))\n"
        "os.kill(os.getpid(), int(sys.argv[1]))"
    )
    for most, status in ((1 << 20, exhausted.EXHAUSTED), (0, -number)):
        command = [sys.executable, "-c", code, str(int(number)), str(most)]
        assert subprocess.run(command, cwd=ROOT).returncode == status


@pytest.mark.skipif(shutil.which("llvm-mc") is None, reason="llvm-mc is not installed")
@pytest.mark.parametrize("machine", exhausted.HANDLERS)
def test_the_handler_is_its_assembly(machine: str, tmp_path: Path) -> None:
    text, code = exhausted.HANDLERS[machine]
    words = ["llvm-mc", f"-triple={machine}-linux-gnu", "-filetype=obj"]
    built = subprocess.run(words, input=text.encode(), capture_output=True, check=True).stdout
    assert bytes.fromhex(code) in built
    assert f"{exhausted.ASKED:#x}" in text and f"#{exhausted.EXHAUSTED}" in text.replace("$", "#")


def test_requests_of_ugpud_between_those_of_the_lease(running: Running) -> None:
    """The client's socket goes to the card's process and comes back, and no message is lost."""
    with running.lease(wait_s=LIMIT_S) as gpu:
        for _ in range(5):
            assert scaled(gpu)
            assert gpu.extend(600.0) == 600.0
            listed = gpu.driver.connection.call("leases").arguments[0]
            assert gpu.grant.lease in [each["lease"] for each in listed["leases"]]
        assert gpu.info() and gpu.sensors()
        with pytest.raises(BadArgument, match="already has a lease"):
            gpu.driver.connection.call("lease", {})


def test_a_late_first_request_is_carried_out_first(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes by ugpud, those after it by the client's socket, which may be faster."""
    pass_socket, never = Relay._pass_socket, threading.Event()

    def slow(relay: Relay) -> bool:
        away = pass_socket(relay)
        never.wait(0.3)  # the process would have time for the next request
        return away

    monkeypatch.setattr(Relay, "_pass_socket", slow)
    with running.lease() as gpu, pytest.raises(UgpuError):
        gpu.queue(QueueKind.COPY).fill(faulty_work.unmapped(gpu.driver.core), 1).submit()
        later = gpu.queue(QueueKind.COPY).barrier()
        later.timeline.wait(later.submit())


def test_a_lease_with_a_token(running: Running) -> None:
    """Its messages are passed one by one: each is checked against the token."""
    token = running.daemon.tokens.create("card", "use", "*", 0.0)
    with running.lease(wait_s=LIMIT_S, token=token) as gpu:
        assert scaled(gpu)
        running.daemon.tokens.revoke("card")
        with pytest.raises(UgpuError):
            scaled(gpu)
    with running.lease(wait_s=LIMIT_S) as gpu:
        assert scaled(gpu)


def test_a_connection_that_breaks_and_is_resumed(running: Running) -> None:
    with running.lease(wait_s=LIMIT_S) as gpu:
        program = gpu.load(contract_object(gpu.target))
        for _ in range(3):
            assert scaled(gpu)
            gpu.driver.connection._session.channel.close()
            assert scaled(gpu)
        assert gpu.driver.connection.resumed == 3
        program.close()


def test_bytes_that_are_no_message_end_the_connection(running: Running) -> None:
    with running.lease(wait_s=LIMIT_S) as gpu:
        assert scaled(gpu)
        raw: socket.socket = gpu.driver.connection._session.channel._socket
        raw.send(b"?" * 64)
        with pytest.raises(UgpuError, match="starts with"):
            scaled(gpu)
    until(lambda: ready(running), "the lease is over")


def test_a_fault_in_the_process_is_an_event_of_ugpud(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), running.lease(wait_s=LIMIT_S) as gpu:
        queue, out, place = gpu.queue(), gpu.alloc(64), np.uint64(1 << 46)
        write = gpu.load(faulty_object())["write_at"]
        queue.launch(write, grid=(1,), block=(32,), args=(out, place))
        with pytest.raises(PageFault):
            queue.timeline.wait(queue.submit(), limit_s=LIMIT_S)

        def told() -> bool:
            events = [event_of(record) for record in caplog.records]
            return any(event is not None and event.kind is LEASE_FAULT for event in events)

        until(told, "the event")


@pytest.mark.parametrize(
    "sent", [b"", b"\xff", b"[]", b"[1,2,3,4]", b'["ugpu.x",30,"t",["no kind","","",{}]]']
)
def test_what_is_no_record_is_logged_as_such(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    relog("card", sent)
    assert "sent no record" in caplog.text


def test_ugpud_tells_when_it_stops(tmp_path: Path) -> None:
    running = Running(parse(settings_text(tmp_path, [NAME], MORE, inside=False)))
    try:
        gpu = running.lease(wait_s=LIMIT_S)
        assert scaled(gpu)
        pid = card(running, gpu).pid
    finally:
        running.close()
    with pytest.raises(DeviceLost, match="ugpud stops"):
        scaled(gpu)
    gpu.close()
    assert not Path(f"/proc/{pid}").exists()


@given(
    st.binary(max_size=64)
    | st.lists(st.integers(0, 1 << 60) | st.binary() | st.booleans()).map(packed)
)
def test_a_state_that_is_none_is_refused(state: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(WireError):
        Session(Channel(ours, Limits())).unpack(state)


def test_a_session_goes_on_in_another_process() -> None:
    """Numbers, kept frames and half a message go along."""
    ours, theirs = socket.socketpair()
    peer, first = Session(Channel(theirs, Limits())), Session(Channel(ours, Limits()))
    peer.keeps = first.keeps = True
    first.send(Message("reached", [0, 1, 0]))
    peer.send(Message("free", [7]))
    late = Message("write", [4096], 0, bytes(5000))
    peer.send(late)
    received = first.receive()
    assert received is not None and received.arguments == [7]
    second = Session(Channel(socket.socket(fileno=os.dup(ours.fileno())), Limits()))
    second.unpack(first.pack(received))
    for expected in (received, late):
        again = second.receive()
        assert again is not None and (again.operation, bytes(again.data)) == (
            expected.operation,
            bytes(expected.data),
        )
    assert second.received == 2
    second.send(Message("reached", [0, 2, 0]))
    values = [message.arguments[1] for message in (peer.receive(), peer.receive()) if message]
    assert values == [1, 2] and peer.received == 2
    for session in (peer, first, second):
        session.channel.release()


def test_waiting_for_a_process_with_many_descriptors_open() -> None:
    """select(2) has none above 1023."""
    ours, theirs = socket.socketpair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("the system grants fewer than 2,048 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ours, theirs:
        high = fcntl.fcntl(ours, fcntl.F_DUPFD, 2000)
        try:
            assert not readable(high, 0.0)
            theirs.send(b"x")
            assert readable(high, LIMIT_S)
        finally:
            os.close(high)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
