"""A session's sending side: an exception at any line sends nothing twice and loses nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.interrupts import interrupted
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.queue import RemoteQueue, RemoteResident
from ugpu.hcq.remote.session import ACKNOWLEDGED, FULL, Session
from ugpu.hcq.remote.wire import Limits, Message
from ugpu.hcq.work.command_buffer import CommandBuffer, Relocation, Symbol

Ends = tuple[Session, Session]


@pytest.fixture
def ends() -> Iterator[Ends]:
    left, right = socket.socketpair()
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    made = Session(Channel(left, Limits())), Session(Channel(right, Limits()))
    for each in made:
        each.keeps = True
    yield made
    for each in made:
        each.channel.close()
        each.channel.release()


def arrived(session: Session) -> list[int]:
    """The numbers of the messages that have come."""
    found = []
    while (message := session.receive(0)) is not None:
        found.append(message.arguments[0])
    return found


@pytest.mark.parametrize("size", [0, 100, 200_000], ids=["short", "with data", "in parts"])
def test_an_exception_at_any_line_of_sending(ends: Ends, size: int) -> None:
    one, two = ends
    sent: list[int] = []

    def post() -> None:
        one.post(Message("write", [len(sent)], 0, bytes(size)))

    for place in interrupted(post):
        taken = one._sent + one.unsent > len(sent)
        sent += [len(sent)] if taken else []
        got = arrived(two)
        while one.push():
            got += arrived(two)
        got += arrived(two)
        assert got == (sent[-1:] if taken else []), place
        assert one._kept[-1].sequence == one._sent if sent else not one._kept, place
        two.send(Message("ack", []))
        assert one.receive(0) is None and not one._kept, place
    assert len(sent) > 5


def test_an_exception_within_a_frame_and_another_connection(ends: Ends) -> None:
    """What was sent in part is sent again as a whole."""
    one, two = ends
    assert one.post(Message("write", [0], 0, bytes(200_000)))
    assert one.post(Message("write", [1], 0, b"")) and one.unsent == 2
    left, right = socket.socketpair()
    two.channel.close()
    one.replace(Channel(left, Limits()), two.received)
    two.replace(Channel(right, Limits()), 0)
    sender = threading.Thread(target=one.flush)
    sender.start()
    for number in (0, 1):
        message = two.receive(60)
        assert message is not None and message.arguments == [number]
    sender.join()
    assert not one.unsent and not one.push()


def test_much_that_is_not_acknowledged_holds_back_a_client_alone(ends: Ends) -> None:
    one, two = ends
    one.waits = True
    reader = threading.Thread(target=lambda: [two.receive(60) for _ in range(66)])
    reader.start()
    for _ in range(66):
        events = one.post(Message("write", [1], 0, bytes(1 << 20)))
        while events > 0:
            one.await_peer(events)
            events = one.push()
    assert events == ACKNOWLEDGED and one.unsent and one._bytes > FULL
    two.send(Message("ack", []))
    assert one.receive(0) is None  # takes note of it
    one.flush()
    reader.join()
    assert not one.unsent


Place = tuple[int, int, int]  # word, first bit, width


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.integers(0, 1 << 32), st.data())
def test_values_of_an_image_are_the_bits_of_its_places(
    count: int, seed: int, data: st.DataObject
) -> None:
    words = np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint64).astype(np.uint32)
    places: list[Place] = []
    relocations: list[Relocation] = []
    word = 0
    while word < count:
        kind = data.draw(st.sampled_from(["none", "wide", "word", "parts"]))
        symbol = Symbol("parameter", slot=word)
        if kind == "wide" and word + 1 < count:
            relocations += [Relocation(word, symbol), Relocation(word + 1, symbol, shift=32)]
            places.append((word, 0, 64))
            word += 1
        elif kind == "word":
            relocations.append(Relocation(word, symbol))
            places.append((word, 0, 32))
        elif kind == "parts":
            for lsb, width in ((0, 8), (16, 16)):
                relocations.append(Relocation(word, symbol, lsb=lsb, width=width))
                places.append((word, lsb, width))
        word += 1
    bits = int.from_bytes(words.tobytes(), "little")
    expected = [bits >> 32 * word + lsb & (1 << width) - 1 for word, lsb, width in places]
    image = RemoteResident(cast(RemoteQueue, None), CommandBuffer(words, count, relocations))
    assert image.values().tolist() == expected
    assert len(image.values().tobytes()) == 8 * len(expected)
