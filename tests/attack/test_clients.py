"""Strangers, revoked tokens, greedy and deaf clients at ugpud's socket: what they get, and that
others are served meanwhile. Events are counted, not seconds."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import cast

import pytest

from tests.support.service.daemon import Running, started
from tests.support.service.raw_client import Raw, frame
from tests.support.waiting import until
from ugpu.hcq.errors import AccessDenied, DeviceBusy
from ugpu.hcq.remote import channel as channels
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.session import Session
from ugpu.hcq.remote.wire import CHUNK, Buffered, Limits, Message, WireError, encode
from ugpu.tools.base import ledger
from ugpu.tools.service.daemon.clients import client, places
from ugpu.tools.service.daemon.clients.places import Crowd, Places, Unfinished, share
from ugpu.tools.service.daemon.clients.tokens import ACTIONS, ROLES, Rights
from ugpu.tools.service.daemon.outlets import outbox
from ugpu.tools.service.daemon.outlets.outbox import Outbox
from ugpu.tools.service.daemon.ports import Spare

USER = "user_clients = 3\n[lease]\nuser_leases = 2\ngrace_s = 0"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = started(tmp_path, USER)
    yield made
    made.close()


def token(running: Running, name: str, role: str = "use", device: str = "*") -> str:
    return running.daemon.tokens.create(name, role, device, 0.0)


# ---- places ----------------------------------------------------------------------------------


def test_the_oldest_stranger_of_the_busiest_host_loses_its_place() -> None:
    crowd: Crowd[str] = Crowd(3)
    assert [crowd.enter(name, name[0]) for name in ("a1", "b1", "a2")] == [None, None, None]
    assert crowd.enter("a3", "a") == "a1" and crowd.enter("a4", "a") == "a2"
    crowd.leave("a3")
    assert crowd.enter("c1", "c") is None and crowd.enter("b2", "b") == "b1"
    assert len(crowd) == 3


def test_one_user_takes_only_a_part_of_the_places() -> None:
    places, busy = Places(4, 2, "clients", "user_clients"), Rights("busy", "use")
    places.take(busy)
    places.take(busy)
    with pytest.raises(DeviceBusy, match=r"busy has 2 clients, at most 2 .*user_clients"):
        places.take(busy)
    places.take(Rights("other", "use"))
    places.give_back(busy)
    places.take(busy)
    root = Rights("root", "admin", limited=False)
    places.take(root)
    with pytest.raises(DeviceBusy, match="serves no more clients"):
        places.take(root)


def test_silent_strangers_make_room(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd: Crowd[client.Client] = Crowd(4)
    monkeypatch.setitem(running.daemon._strangers, True, crowd)
    with ExitStack() as undo:
        silent = [undo.enter_context(Raw(running.socket)) for _ in range(12)]
        with Raw(running.socket) as known:
            assert known.hello()[0] == "reply"
        for each in silent[:8]:
            each.until_closed()
        until(lambda: len(crowd) <= 4, "no more strangers than places")


def test_connections_leases_and_waiters_of_one_token_are_limited(running: Running) -> None:
    greedy, other = token(running, "greedy"), token(running, "other")
    with ExitStack() as undo:
        mine = [undo.enter_context(Raw(running.socket)) for _ in range(4)]
        assert [each.hello(greedy)[0] for each in mine] == ["reply"] * 3 + ["error"]
        request = {"device": "cpu#0", "wait_s": 60.0}
        assert mine[0].call("lease", request)[0] == "reply"
        mine[1].post("lease", request, call=1)
        until(lambda: running.listed()["waiting"], "a waiter")
        assert mine[2].call("lease", {"device": "cpu#1"}) == ("error", "DeviceBusy")
        theirs = undo.enter_context(Raw(running.socket))
        assert theirs.hello(other)[0] == "reply"
        assert theirs.call("lease", {"device": "cpu#1"})[0] == "reply"


# ---- rights ----------------------------------------------------------------------------------


def test_a_role_may_do_what_lesser_ones_may() -> None:
    for action, least in ACTIONS.items():
        for role in ROLES:
            rights = Rights("x", role)
            if ROLES.index(role) >= ROLES.index(least):
                rights.check(action)
            else:
                with pytest.raises(AccessDenied, match=f"requires the role '{least}'"):
                    rights.check(action)


def test_an_admin_of_one_device_changes_no_other(running: Running) -> None:
    admin = token(running, "admin", "admin", "cpu#0")
    with Raw(running.socket) as holder, Raw(running.socket) as one:
        assert holder.hello()[0] == "reply" and one.hello(admin)[0] == "reply"
        kind, grant = holder.call("lease", {"device": "cpu#1"})
        assert kind == "reply"
        for request in (
            ("release", grant["lease"]),
            ("extend", grant["lease"], 50.0),
            ("quarantine", "cpu#1", "x"),
            ("quarantine", "*", "x"),
            ("recover", "cpu#1"),
            ("telemetry", "cpu#1"),
            ("lease", {"device": "cpu#1"}),
        ):
            assert one.call(*request) == ("error", "AccessDenied"), request
        assert holder.call("allocate", 4096, "device")[0] == "reply"
        assert one.call("lease", {"device": "cpu#0"})[0] == "reply"


def test_a_revoked_token_loses_what_it_has(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HELLO_LIMIT_S", 3.0)
    secret = token(running, "gone")
    with Raw(running.socket) as one, Raw(running.socket) as idle:
        assert one.hello(secret)[0] == "reply" and idle.hello(secret)[0] == "reply"
        assert one.call("lease", {"device": "cpu#0"})[0] == "reply"
        running.daemon.tokens.revoke("gone")
        assert one.call("allocate", 4096, "device") == ("error", "AccessDenied")
        assert [kind for kind, _ in one.events] == ["ended"]
        assert one.call("lease", {"device": "cpu#1"}) == ("error", "AccessDenied")
        until(lambda: not running.listed()["leases"], "the end of the lease")
        one.until_closed()
        monkeypatch.setattr(client, "CHECK_IDLE_S", 0.1)
    with running.lease("cpu#0", wait_s=60) as gpu:
        assert gpu.grant.device == "cpu#0"


def test_an_expired_token_loses_a_lease_that_is_not_used(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, clock = running.daemon.tokens.create("short", "use", "*", 100.0), [50.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    with Raw(running.socket) as one:
        assert one.hello(secret)[0] == "reply"
        assert one.call("lease", {"device": "cpu#0"})[0] == "reply"
        clock[0] = 101.0
        kind, _, (reason,) = one.message()
        assert kind == "ended" and "expired" in reason
        until(lambda: not running.listed()["leases"], "the end of the lease")


# ---- bytes -----------------------------------------------------------------------------------


def test_a_header_alone_allocates_little() -> None:
    buffered = Buffered(Limits())
    head = frame("write", (0,), data=b"", announced=64 << 20)
    buffered.space()[: len(head)] = head
    assert buffered.took(len(head)) is None and buffered.partial
    assert len(buffered._frame) < 2 * CHUNK


@pytest.mark.parametrize("size", [0, 1, CHUNK, 2 * CHUNK + 17, 5 * CHUNK])
def test_a_large_frame_arrives_whole_however_it_is_cut(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    head, body = encode(Message("write", [1], 0, data[:size]))
    stream, at, found = head + bytes(body), 0, None
    buffered = Buffered(Limits())
    while found is None:
        space = buffered.space()
        count = min(len(space), 100_003, len(stream) - at)
        space[:count] = stream[at : at + count]
        at, found = at + count, buffered.took(count)
        assert len(buffered._frame) <= 2 * max(at, CHUNK)
    assert bytes(found.data) == data[:size] and not buffered.partial


@pytest.mark.parametrize("data", [(64 << 10) + 1, 64 << 20])
def test_a_client_without_a_lease_sends_no_data(running: Running, data: int) -> None:
    with Raw(running.socket) as one:
        one.hello()
        one.socket.sendall(frame("devices", announced=data, sequence=1))
        kind, _, (error, *_) = one.message()
        assert (kind, error) == ("error", "WireError") or error == "TransportError"
        one.until_closed()


def test_messages_of_all_clients_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ROOM_S", 0.0)
    ended: list[str] = []
    memory: Unfinished[str] = Unfinished(100, ended.append)
    told = {name: memory.of(name, Rights(name[0], "use")) for name in ("a1", "a2", "b1", "c1")}
    told["a1"](30)
    told["a2"](40)
    told["b1"](30)
    told["b1"](0)
    told["c1"](30)
    assert ended == []
    told["b1"](20)  # user a has most, and its largest message ends
    assert ended == ["a2"]
    told["a1"](50)
    with pytest.raises(WireError, match="no memory left"):
        told["a1"](80)
    told["b1"](70)
    assert ended == ["a2"]
    memory.forget("b1")
    memory.forget("b1")
    told["c1"](100)
    assert ended == ["a2"]


def test_a_message_waits_for_memory() -> None:
    memory: Unfinished[str] = Unfinished(100, lambda name: None)
    first, second = (memory.of(name, Rights(name, "use")) for name in ("a", "b"))
    first(80)
    waiting = threading.Thread(target=second, args=(80,))
    waiting.start()
    first(0)
    waiting.join()
    assert memory._sizes == {"b": 80}


def pour(channel: Channel, data: bytes) -> None:
    """Send a part of a message."""
    rest = memoryview(data)
    while rest:
        select.select([], [channel.fileno()], [])
        rest = rest[channel._socket.send(rest[:1000]) :]


def test_a_greedy_token_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lease may send large messages; all together may not fill the memory."""
    monkeypatch.setattr(places, "ROOM_S", 0.0)
    running = started(tmp_path, 'message = "4M"\nmessages = "8M"', count=4)
    try:
        tokens = [token(running, "greedy")] * 3 + [token(running, "modest")]
        leases = [running.lease("cpu", token=each) for each in tokens]
        for lease in leases[:3]:
            head, data = encode(Message("write", [0], 7, bytes(4 << 20)), 1 << 20)
            pour(lease.driver.connection._session.channel, bytes(head) + bytes(data)[: 3 << 20])
        with leases[3].alloc(4 << 20) as memory:
            memory.copy_from(bytes([7]) * (4 << 20))
            assert memory.numpy()[-1] == 7
        until(lambda: sum(each.lease is not None for each in running.daemon.clients) < 4)
        leases[3].synchronize()
    finally:
        running.close()
        for lease in leases:
            lease.close()


def test_a_message_has_a_limit_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    made = Channel(ours, Limits())
    try:
        theirs.send(b"u")
        assert made.receive(0.01) is None and made.receive(0.01) is None
        monkeypatch.setattr(channels, "MESSAGE_LIMIT_S", 0.0)
        with pytest.raises(WireError, match="did not arrive in time"):
            made.receive()
    finally:
        made.release()
        theirs.close()


def test_bytes_one_by_one_do_not_prolong_hello(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HELLO_LIMIT_S", 0.3)
    sent, hello = 0, frame("hello", (1, "x" * 8000, 0))
    with Raw(running.socket) as one, contextlib.suppress(OSError):
        while not select.select([one.socket], [], [], 0.02)[0]:
            one.socket.send(hello[sent : sent + 1])
            sent += 1
    assert 0 < sent < len(hello)


# ---- nobody waits ----------------------------------------------------------------------------


def test_a_deaf_client_delays_no_thread_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    monkeypatch.setattr(outbox, "SEND_LIMIT_S", 0.2)
    session, sender = Session(Channel(ours, Limits())), Outbox()
    sender.start()
    try:
        for _ in range(200):
            sender.post(session, Message("ended", ["x" * 1000]))
        assert session.unsent
        until(lambda: session.channel.closed, "the end of a client that takes nothing")
    finally:
        sender.close()
        session.channel.release()
        theirs.close()


def test_a_slow_client_gets_every_message() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    session, sender, reader = Session(Channel(ours, Limits())), Outbox(), Channel(theirs, Limits())
    sender.start()
    try:
        for number in range(300):
            sender.post(session, Message("position", [number, "x" * 500]))
        found = [reader.receive(60.0) for _ in range(300)]
        assert [each.arguments[0] for each in found if each is not None] == list(range(300))
    finally:
        sender.close()
        session.channel.release()
        reader.release()


def test_a_client_that_never_reads_is_cut_before_memory_is_gone() -> None:
    ours, theirs = socket.socketpair()
    session, sender = Session(Channel(ours, Limits())), Outbox()
    for _ in range(outbox.MOST_UNSENT + 2000):
        sender.post(session, Message("position", [1]))
    assert session.channel.closed and session.unsent <= outbox.MOST_UNSENT + 1
    sender.close()
    session.channel.release()
    theirs.close()


def test_nothing_is_sent_or_written_with_the_lock_held(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = vars(type(running.daemon.lock))["_is_owned"].__get__(running.daemon.lock)
    wrong: list[str] = []
    push, opened = Channel.push, ledger.Ledger.opened

    def checked_push(self: Channel, frame: channels.Frame) -> int:
        if owned():
            wrong.append("push")
        return push(self, frame)

    def checked_opened(self: ledger.Ledger) -> AbstractContextManager[sqlite3.Connection]:
        if owned():
            wrong.append("disk")
        return opened(self)

    monkeypatch.setattr(Channel, "push", checked_push)
    monkeypatch.setattr(ledger.Ledger, "opened", checked_opened)
    with Raw(running.socket) as one, Raw(running.socket) as two, Raw(running.socket) as three:
        for each in (one, two, three):
            assert each.hello()[0] == "reply"
        one.post("lease", {"device": "cpu#0", "limit_s": 0.2}, call=9)
        assert one.message()[0] in ("reply", "ended"), "the lease, or its end by its limit"
        two.post("lease", {"device": "cpu#0", "wait_s": 60.0}, call=9)
        three.post("lease", {"device": "cpu#0", "wait_s": 0.01}, call=9)
        assert three.message()[0] in ("position", "error")
        one.until_closed()
        while two.message()[1] != 9:
            pass
        assert two.call("quarantine", "*", "planted")[0] in ("reply", "error")
    with running.connect() as admin:
        admin.call("recover", "*")
        admin.call("devices")
    assert not wrong


# ---- descriptors -----------------------------------------------------------------------------


class NoneLeft:
    """A listener in a process without a free descriptor."""

    refused = 0

    def accept(self) -> tuple[socket.socket, str]:
        self.refused += 1
        return socket.socketpair()[0], ""


def test_without_descriptors_connections_are_refused_and_the_log_has_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spare, listener = Spare(), NoneLeft()
    made = cast("socket.socket", listener)
    scarce = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with caplog.at_level(logging.WARNING, "ugpu.tools.service.daemon.ports"):
        assert not any(spare.refused(made, scarce) for _ in range(50))
    assert listener.refused == 50 and len(caplog.records) == 1
    assert spare.refused(made, OSError(errno.ECONNABORTED, ""))
    spare.close()
    spare.close()


def test_a_daemon_uses_what_descriptors_there_are() -> None:
    assert share(12, 10_000_000) > share(1, 10_000_000) > 0
    assert share(1, 5) == 5
