"""Interrupts of clients that do what they can to hold a server up."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.pci.vfio_user_device import MemoryDevice
from tests.support.pci.vfio_user_served import raw_client, served
from tests.support.pci.vfio_user_wire import exchange, refused
from tests.support.waiting import until
from tests.virtual.serve.test_vfio_user_server import dma_map, memory, set_irqs
from ugpu.hcq.errors import BadArgument, OutOfMemory
from ugpu.hcq.transport.vfio_user import files as shared_files
from ugpu.hcq.transport.vfio_user.wire import Interrupt
from ugpu.virtual.serve.events import Events
from ugpu.virtual.serve.server import Server

FULL = 2**64 - 2  # eventfd(2): the largest count
LIMIT_S = 60.0  # of what takes no time, on a busy host


@pytest.fixture
def event() -> Iterator[int]:
    made = os.eventfd(0)
    yield made
    os.close(made)


def filled(event: int) -> None:
    os.set_blocking(event, True)
    os.eventfd_write(event, FULL - os.eventfd_read(event) if count(event) else FULL)


def count(event: int) -> int:
    with open(f"/proc/self/fdinfo/{event}") as info:
        (line,) = (line for line in info if line.startswith("eventfd-count"))
    return int(line.split()[1], 16)


def test_a_count_that_is_full_is_left_alone(event: int) -> None:
    events = Events(2)
    events.assign(1, 1, [os.dup(event)])
    events.signal(1)
    assert count(event) == 1
    filled(event)
    for vector in (0, 1, 2):  # no eventfd, a full one, no such vector
        events.signal(vector)
    events.close()
    events.close()
    events.signal(1)
    assert count(event) == FULL


def held_up(events: Events, event: int, monkeypatch: pytest.MonkeyPatch) -> threading.Thread:
    """A thread in `signal` whose eventfd was filled after it had looked."""
    write, reached = os.eventfd_write, threading.Event()

    def late(descriptor: int, value: int) -> None:
        os.set_blocking(event, True)
        write(event, FULL)
        reached.set()
        write(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", late)
    thread = threading.Thread(target=events.signal, args=(0,), daemon=True)
    thread.start()
    assert reached.wait(LIMIT_S)
    monkeypatch.undo()
    return thread


@pytest.mark.parametrize("how", ["release", "close"])
def test_a_thread_that_is_held_up_goes_on(
    event: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events(1)
    events.assign(0, 1, [os.dup(event)])
    thread = held_up(events, event, monkeypatch)
    while thread.is_alive():
        getattr(events, how)()
        thread.join(0.01)
    events.close()


def test_only_eventfds_are_taken(event: int) -> None:
    events, (reader, writer) = Events(2), os.pipe()
    for given in ([writer], [event, event]):
        with pytest.raises(BadArgument):
            events.assign(0, 1, given)
        assert given, "the caller's"
    os.close(reader)
    os.close(writer)


# ---- servers -----------------------------------------------------------------------------------


def attached(server: Server) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(LIMIT_S)
    connection.connect(str(server.path))
    exchange(connection, 1, bytes(4) + b"{}\0")
    return connection


def test_a_server_outlives_a_client_with_a_full_count(event: int) -> None:
    device = MemoryDevice()
    with served(device) as server:
        client = attached(server)
        exchange(client, 8, set_irqs(0x24), fds=[event])
        filled(event)
        exchange(client, 8, set_irqs(0x21))  # trigger it: in the thread that serves
        assert device.client is not None
        device.client.interrupt()  # and in one of the model's
        client.close()
        attached(server).close()


@pytest.mark.parametrize("end", ["client", "server"])
def test_a_server_outlives_a_client_that_fills_the_count_in_time(
    event: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = MemoryDevice()
    with served(device) as server:
        client = attached(server)
        exchange(client, 8, set_irqs(0x24), fds=[event])
        assert server.session is not None
        messages = server.session._delivery._events[Interrupt.MSI]
        thread = held_up(messages, event, monkeypatch)
        if end == "client":
            client.close()
            attached(server).close()
        else:
            server.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        client.close()


def test_a_server_outlives_a_client_that_shares_too_many_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_files, "MOST_FILES", 5)
    device = MemoryDevice()
    with served(device) as server:
        client = attached(server)
        for number in range(8):
            shared = memory(4096)
            answer = refused(client, 2, dma_map(number << 12, 4096), fds=[shared])
            assert answer == (0 if number < 5 else errno.ENOMEM)
            os.close(shared)
        client.close()
        attached(server).close()
        assert not device.maps


@pytest.mark.parametrize("what", ["unmap_dma", "detach"])
def test_a_client_s_end_is_whole_whatever_fails_in_it(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else each later client would be told that the device is taken."""
    device = MemoryDevice()
    with served(device) as server:
        with raw_client(server) as client:
            exchange(client, 1, bytes(4) + b"{}\0")
            for address in (0, 1 << 20):
                shared = memory(4096)
                exchange(client, 2, dma_map(address, 4096), fds=[shared])
                os.close(shared)
            session = server.session
            assert session is not None

            def fails(*_: object) -> None:
                raise OutOfMemory("no memory left")

            monkeypatch.setattr(device, what, fails)
        assert session.ended.wait(LIMIT_S)
        assert len(session._memory) == 0 and session._memory._files._files == {}
        monkeypatch.undo()
        device.client = None
        device.maps.clear()
        attached(server).close()
        until(lambda: "a client was not cleaned up completely" in caplog.text)
