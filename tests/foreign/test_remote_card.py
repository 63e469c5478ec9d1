"""The bridge by which tinygrad reaches a transport, spoken to by bytes written by hand."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from tests.foreign.remote_card import RemoteCard
from tests.support.amd.am_navi31 import build_chip
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.options import ChipOptions

PROBE, MAP_BAR, CFG_READ, CFG_WRITE = 0, 1, 3, 4
MMIO_READ, MMIO_WRITE, MAP_SYSMEM, SYSMEM_READ, SYSMEM_WRITE = 6, 7, 8, 9, 10


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)

    def ask(self, command: int, *arguments: int, bar: int = 0, payload: bytes = b"") -> None:
        three = (*arguments, 0, 0, 0)[:3]
        self.socket.sendall(struct.pack("<BIIQQQ", command, 0, bar, *three) + payload)

    def take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return data

    def answer(self) -> tuple[int, int, int]:
        status, first, second = struct.unpack("<BQQ", self.take(17))
        return status, first, second


@pytest.fixture
def card() -> Iterator[RemoteCard]:
    chip = build_chip(ChipOptions(vram=256 << 20))
    with RemoteCard(VirtualTransport(chip, owns_chip=True)) as made:
        yield made


def test_requests_reach_the_card(card: RemoteCard) -> None:
    client = Client(card.port)
    wanted = struct.pack("<4I", 0xFFFF, 0x74A1, 0xFFFF, 0x744C)
    client.ask(PROBE, 0, len(wanted), 0x1002, payload=wanted)
    assert client.answer() == (0, 1, 0) and client.take(1) == b"0"
    client.ask(CFG_READ, 4, 2)
    assert client.answer()[1] & 2, "memory decoding is on"
    client.ask(CFG_WRITE, 4, 2, 6)
    client.ask(CFG_READ, 4, 2)
    assert [client.answer()[1] & 6 for _ in range(2)] == [0, 6]
    client.ask(MAP_BAR, bar=0)
    assert client.answer()[2] == 256 << 20
    client.ask(MMIO_WRITE, 0x10_0001, 6, bar=0, payload=b"abcdef")  # not aligned
    client.ask(MMIO_READ, 0x10_0002, 4, bar=0)
    assert client.answer() == (0, 0, 0) and client.take(4) == b"bcde"
    client.socket.close()
    assert card.refused == []


def test_memory_of_the_host_is_given_back_with_the_connection(card: RemoteCard) -> None:
    first = Client(card.port)
    first.ask(MAP_SYSMEM, 3 * 4096, 0)
    _, size, handle = first.answer()
    pages = struct.unpack("<3Q", first.take(size))
    assert handle == 0 and pages[1] == pages[0] + 4096
    first.ask(SYSMEM_WRITE, 5, 4, bar=handle, payload=b"host")
    first.ask(SYSMEM_READ, 4, 6, bar=handle)
    assert first.answer()[0] == 0 and first.take(6) == b"\0host\0"
    first.socket.close()
    second = Client(card.port)
    second.ask(SYSMEM_READ, 0, 4, bar=handle)
    status, length, _ = second.answer()
    assert status == 1 and b"IndexError" in second.take(length)
    second.ask(MAP_BAR, bar=3)
    status, length, _ = second.answer()
    assert status == 1 and b"the memory BARs" in second.take(length)
    second.socket.close()
    assert len(card.refused) == 2
