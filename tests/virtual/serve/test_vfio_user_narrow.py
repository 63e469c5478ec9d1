"""Accesses of bytes and words to BARs, the interrupt line and MSI-X, by hand-packed messages."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.pci.vfio_user_device import MemoryDevice
from tests.support.pci.vfio_user_served import raw_client, served
from tests.support.pci.vfio_user_wire import exchange, refused
from tests.virtual.serve.test_vfio_user_server import HELLO, set_irqs
from ugpu.virtual.serve.delivery import Delivery

READ, WRITE, WRITES, IRQ_INFO, SET_IRQS = 9, 10, 15, 7, 8
INTX, MSI, MSIX = 0, 1, 2
EVENTFD, NONE, TRIGGER, MASK, UNMASK = 0x4, 0x1, 0x20, 0x8, 0x10
TABLE = 5  # messages of the device's MSI-X capability


@pytest.fixture
def device() -> MemoryDevice:
    made = MemoryDevice(vectors=3)
    config = made.function._config
    config[0x06] |= 0x10  # a list of capabilities
    config[0x34], config[0x60:0x64] = 0x60, struct.pack("<BBH", 0x11, 0, TABLE - 1)
    return made


@pytest.fixture
def wire(device: MemoryDevice) -> Iterator[socket.socket]:
    with served(device) as server, raw_client(server) as connection:
        exchange(connection, 1, HELLO)
        yield connection


@pytest.fixture
def events() -> Iterator[list[int]]:
    with ExitStack() as stack:
        made = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(TABLE)]
        for event in made:
            stack.callback(os.close, event)
        yield made


def count(event: int) -> int:
    try:
        return os.eventfd_read(event)
    except BlockingIOError:
        return 0


# ---- narrow accesses -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 12, 13])
def test_any_bytes_of_a_bar(wire: socket.socket, device: MemoryDevice, size: int) -> None:
    memory = device.function.window(0)
    content = bytes(range(1, 33))
    for offset in range(8):
        memory.write(0x200, content)
        place = struct.pack("<QII", 0x200 + offset, 0, size)
        assert exchange(wire, READ, place) == place + content[offset : offset + size]
        data = bytes(0x80 + n for n in range(size))
        assert exchange(wire, WRITE, place + data) == place
        after = content[:offset] + data + content[offset + size :]
        assert memory.read(0x200, 32) == after


def test_the_last_bytes_of_a_bar(wire: socket.socket) -> None:
    end = 1 << 16
    place = struct.pack("<QII", end - 1, 0, 1)
    exchange(wire, WRITE, place + b"\x5a")
    assert exchange(wire, READ, place)[16:] == b"\x5a"
    assert refused(wire, READ, struct.pack("<QII", end - 1, 0, 2)) == errno.EINVAL


def test_bytes_of_several_writes_at_once(wire: socket.socket, device: MemoryDevice) -> None:
    entries = b"".join(struct.pack("<QIIQ", 0x300 + n, 0, 1, 0x41 + n) for n in range(4))
    exchange(wire, WRITES, struct.pack("<Q", 4) + entries)
    assert device.function.window(0).read(0x300, 4) == b"ABCD"


# ---- interrupts ----------------------------------------------------------------------------------


def test_types_that_are_offered(wire: socket.socket) -> None:
    for index, expected in {INTX: (7, 1), MSI: (9, 3), MSIX: (9, TABLE), 3: (0, 0)}.items():
        answer = exchange(wire, IRQ_INFO, struct.pack("<IIII", 16, 0, index, 0))
        assert struct.unpack("<IIII", answer)[1:] == (expected[0], index, expected[1])
    pin = struct.pack("<QII", 0x3D, 7, 1)
    assert exchange(wire, READ, pin)[16:] == b"\1"


def test_a_device_without_interrupts_has_no_pin() -> None:
    with served(MemoryDevice(vectors=0)) as server, raw_client(server) as connection:
        exchange(connection, 1, HELLO)
        assert exchange(connection, READ, struct.pack("<QII", 0x3D, 7, 1))[16:] == b"\0"
        for index in (INTX, MSI, MSIX):
            answer = exchange(connection, IRQ_INFO, struct.pack("<IIII", 16, 0, index, 0))
            assert struct.unpack("<IIII", answer)[1:] == (0, index, 0)


def test_the_line_is_masked_until_the_client_unmasks_it(
    wire: socket.socket, device: MemoryDevice, events: list[int]
) -> None:
    exchange(wire, SET_IRQS, set_irqs(EVENTFD | TRIGGER, INTX), fds=events[:1])
    assert device.client is not None
    for _ in range(3):
        device.client.interrupt(2)  # the line has no number
    assert count(events[0]) == 1
    exchange(wire, SET_IRQS, set_irqs(NONE | UNMASK, INTX))
    assert count(events[0]) == 1, "what came meanwhile"
    exchange(wire, SET_IRQS, set_irqs(NONE | UNMASK, INTX))
    assert count(events[0]) == 0
    exchange(wire, SET_IRQS, set_irqs(NONE | MASK, INTX))
    device.client.interrupt()
    assert count(events[0]) == 0
    exchange(wire, SET_IRQS, set_irqs(0x2 | UNMASK, INTX, data=b"\0"))
    assert count(events[0]) == 0
    exchange(wire, SET_IRQS, set_irqs(0x2 | UNMASK, INTX, data=b"\1"))
    assert count(events[0]) == 1


def test_messages_by_a_table(wire: socket.socket, device: MemoryDevice, events: list[int]) -> None:
    exchange(wire, SET_IRQS, set_irqs(EVENTFD | TRIGGER, MSIX, 0, TABLE), fds=events)
    assert device.client is not None
    for vector in (0, 2, 2):
        device.client.interrupt(vector)
    exchange(wire, SET_IRQS, set_irqs(NONE | TRIGGER, MSIX, 4))
    assert [count(event) for event in events] == [1, 0, 2, 0, 1]
    exchange(wire, SET_IRQS, set_irqs(NONE | TRIGGER, MSIX, 0, 0))
    device.client.interrupt(0)
    assert count(events[0]) == 0


def test_one_type_at_a_time(wire: socket.socket, device: MemoryDevice, events: list[int]) -> None:
    assert device.client is not None
    for before, after in ((INTX, MSI), (MSI, MSIX), (MSIX, INTX)):
        exchange(wire, SET_IRQS, set_irqs(EVENTFD | TRIGGER, before), fds=events[:1])
        other = set_irqs(EVENTFD | TRIGGER, after)
        assert refused(wire, SET_IRQS, other, fds=events[1:2]) == errno.EINVAL
        device.client.interrupt()
        assert [count(event) for event in events[:2]] == [1, 0]
        exchange(wire, SET_IRQS, set_irqs(NONE | TRIGGER, before, 0, 0))
    for index, action in ((MSI, MASK), (MSIX, UNMASK)):
        assert refused(wire, SET_IRQS, set_irqs(NONE | action, index)) == errno.EINVAL
    resample = set_irqs(EVENTFD | UNMASK, INTX)
    assert refused(wire, SET_IRQS, resample, fds=events[:1]) == errno.EINVAL


def test_an_interrupt_without_a_client_that_wants_it() -> None:
    delivery = Delivery(2)
    delivery.offer(line=True, table=4)
    delivery.signal(0)
    delivery.disable(INTX)
    assert [delivery.count(index) for index in range(5)] == [1, 2, 4, 0, 0]
    delivery.close()
