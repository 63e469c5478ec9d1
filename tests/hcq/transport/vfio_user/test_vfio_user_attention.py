"""When a receiver of vfio-user messages looks for the next one, and when it sleeps at once."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from ugpu.hcq.transport.vfio_user.attention import (
    LIMIT_S,
    LONGEST_REST,
    Attention,
    attention_to,
    sleep_at_once,
)


class Peer:
    """Answers after `delay` looks; a look takes a tenth of the limit."""

    def __init__(self) -> None:
        self.delay = 1
        self.looks = 0
        self.now = 0.0

    def ready(self) -> bool:
        self.looks += 1
        self.now += LIMIT_S / 10
        return self.looks >= self.delay

    def taken(self, look: Callable[[], None]) -> int:
        """How many looks one message took."""
        self.looks = 0
        look()
        return self.looks


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def look(peer: Peer) -> Callable[[], None]:
    return Attention(peer.ready, lambda: peer.now).look


def test_a_peer_that_answers_is_looked_at_until_it_does(
    peer: Peer, look: Callable[[], None]
) -> None:
    for delay in (1, 2, 9) * 100:
        peer.delay = delay
        assert peer.taken(look) == delay


def test_a_silent_peer_costs_less_and_less(peer: Peer, look: Callable[[], None]) -> None:
    peer.delay = 1000
    first = peer.taken(look)
    assert 9 <= first <= 12, "no longer than the limit"
    looks = [peer.taken(look) for _ in range(20 * LONGEST_REST)]
    assert max(looks) <= 12
    tries = [place for place, count in enumerate(looks) if count]
    gaps = [after - before for before, after in pairwise(tries)]
    assert max(gaps) == LONGEST_REST + 1 and gaps[-3:] == [LONGEST_REST + 1] * 3
    assert len(tries) < 40


def test_a_peer_that_wakes_up_is_looked_at_again(peer: Peer, look: Callable[[], None]) -> None:
    peer.delay = 1000
    for _ in range(10 * LONGEST_REST):
        look()
    peer.delay = 2
    looks = [peer.taken(look) for _ in range(LONGEST_REST + 40)]
    assert looks[-30:] == [2] * 30


def test_one_failure_among_many_successes_changes_nothing(
    peer: Peer, look: Callable[[], None]
) -> None:
    for turn in range(500):
        peer.delay = 1000 if turn % 8 == 7 else 2
        assert peer.taken(look) > 0


def test_more_failures_than_pay_are_given_up(peer: Peer, look: Callable[[], None]) -> None:
    asleep = 0
    for turn in range(4000):
        peer.delay = 1000 if turn % 2 else 2
        asleep += peer.taken(look) == 0
    assert asleep > 3000


def test_what_is_there_already_is_no_success(peer: Peer, look: Callable[[], None]) -> None:
    asleep = 0
    for turn in range(4000):
        peer.delay = 1000 if turn % 8 == 7 else 1
        asleep += peer.taken(look) == 0
    assert asleep > 3000


# ---- whom it pays to look at -----------------------------------------------------------------


@contextmanager
def another_process() -> Iterator[socket.socket]:
    """A connection to a process that does nothing."""
    with tempfile.TemporaryDirectory(prefix="vu-") as folder, socket.socket(socket.AF_UNIX) as at:
        path = str(Path(folder) / "s")
        at.bind(path)
        at.listen(1)
        child = os.fork()
        if not child:
            at.close()
            with socket.socket(socket.AF_UNIX) as ours:
                ours.connect(path)
                ours.recv(1)
            os._exit(0)
        connection, _ = at.accept()
        with connection:
            yield connection
    os.waitpid(child, 0)


def cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))


def test_another_process_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    cores(monkeypatch, 2)
    with another_process() as connection:
        look = attention_to(connection)
        assert look is not sleep_at_once
        for _ in range(50):
            look()  # returns, though nothing comes


def test_one_core_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    cores(monkeypatch, 1)
    with another_process() as connection:
        assert attention_to(connection) is sleep_at_once


def test_a_thread_of_this_process_is_left_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores(monkeypatch, 2)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert attention_to(ours) is sleep_at_once


def test_a_look_ends_when_the_peer_hangs_up_or_the_socket_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores(monkeypatch, 2)
    with another_process() as connection:
        look = attention_to(connection)
        connection.shutdown(socket.SHUT_RDWR)
        look()
        connection.close()
        look()
