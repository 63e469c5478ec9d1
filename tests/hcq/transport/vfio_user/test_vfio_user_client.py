"""The vfio-user client: against our server, and against a peer that says what it should not."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pci.descriptors import leaked, settled
from tests.support.pci.vfio_user_device import (
    ADDRESS,
    COMMAND,
    REFUSED,
    SIZE,
    STATUS,
    VECTOR,
    MemoryDevice,
)
from tests.support.pci.vfio_user_served import served
from ugpu.hcq.errors import (
    BadArgument,
    Closed,
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
    NotSupported,
    TransportError,
    UgpuError,
)
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.hcq.transport.vfio_user.regions import MessageWindow, SharedWindow
from ugpu.hcq.transport.window import MappedWindow
from ugpu.virtual.serve.server import Server

VERSION = b"\0\0\0\0{}\0"
LIMIT_S = 60


@pytest.fixture
def device() -> MemoryDevice:
    return MemoryDevice()


@pytest.fixture
def server(device: MemoryDevice) -> Iterator[Server]:
    with served(device) as one:
        yield one


@pytest.fixture
def transport(server: Server) -> Iterator[VfioUserTransport]:
    with VfioUserTransport(str(server.path)) as opened:
        yield opened


# ---- with our server -------------------------------------------------------------------------


def test_what_it_is(transport: VfioUserTransport) -> None:
    assert str(transport.identity) == "1234:5678" and transport.identity.class_code == 0x30000
    assert isinstance(transport.window(0), MessageWindow)
    assert "1234:5678" in repr(transport)


def start_dma(transport: VfioUserTransport, address: int, size: int, command: int) -> int:
    registers = transport.window(5)
    registers.write64(ADDRESS, address)
    registers.write32(SIZE, size)
    registers.write32(COMMAND, command)
    return registers.read32(STATUS)


@pytest.mark.parametrize("share", [True, False], ids=["shared", "by messages"])
def test_dma_both_ways_and_interrupts(server: Server, share: bool) -> None:
    with VfioUserTransport(str(server.path), share_memory=share) as transport:
        interrupts = transport.interrupts
        assert interrupts is not None and not interrupts.wait(0)
        memory = transport.allocate_dma(8192)
        memory.view[4090:4100] = b"crosses it"
        address = memory.segments[0].address
        assert start_dma(transport, address + 4088, 16, 1) == 1
        assert interrupts.wait(LIMIT_S)
        assert transport.window(0).read(0, 16) == b"\0\0crosses it\0\0\0\0"
        transport.window(0).write(0, b"and back")
        assert start_dma(transport, address, 8, 2) == 1
        assert bytes(memory.view[:8]) == b"and back"
        assert start_dma(transport, address + 8192, 8, 1) == REFUSED, "past its end"
        memory.close()
        assert start_dma(transport, address, 8, 1) == REFUSED, "taken back"


def test_vectors_are_told_apart_and_survive_enabling_more() -> None:
    with (
        served(MemoryDevice(vectors=20)) as server,
        VfioUserTransport(str(server.path)) as transport,
    ):
        interrupts = transport.interrupts
        assert interrupts is not None and interrupts.vectors == 20

        def raise_vector(vector: int) -> None:
            registers = transport.window(5)
            registers.write32(VECTOR, vector)
            registers.write32(COMMAND, 3)
            assert registers.read32(STATUS) == 1

        raise_vector(0)
        raise_vector(7)  # nobody wants it yet
        interrupts.enable(20)
        assert interrupts.wait(LIMIT_S) and not interrupts.wait(0, 7)
        for vector in (19, 0, 7, 7):
            raise_vector(vector)
        assert [vector for vector in range(20) if interrupts.wait(0, vector)] == [0, 7, 19]
        woken: list[bool] = []
        waiting = threading.Thread(target=lambda: woken.append(interrupts.wait(LIMIT_S, 3)))
        waiting.start()
        raise_vector(4)
        assert not woken
        raise_vector(3)
        waiting.join(LIMIT_S)
        assert woken == [True] and interrupts.wait(0, 4)


def test_a_device_asks_for_memory_from_a_thread_of_its_own(
    server: Server, device: MemoryDevice
) -> None:
    """Without the second socket, its requests share the main one with our commands."""
    with VfioUserTransport(str(server.path)) as transport:
        memory = transport.allocate_dma(4096)
        memory.view[:4] = b"mine"
        client, address = device.client, memory.segments[0].address
        assert client is not None
        found: list[bytes] = []
        asking = threading.Thread(target=lambda: found.append(client.read_memory(address, 4)))
        asking.start()
        while asking.is_alive():
            transport.config_read(0)  # answers what the server asks while it waits
            asking.join(0.001)
        assert found == [b"mine"]
        refusals: list[UgpuError] = []

        def ask_wrongly() -> None:
            try:
                client.write_memory(address + 4090, bytes(16))
            except TransportError as error:
                refusals.append(error)

        asking = threading.Thread(target=ask_wrongly)
        asking.start()
        while asking.is_alive():
            transport.config_read(0)
            asking.join(0.001)
        assert refusals


def test_batches(transport: VfioUserTransport, device: MemoryDevice) -> None:
    registers = transport.window(5)
    with transport.batch():
        for value in range(600):  # more than one message
            registers.write32(8, value)
        registers.write64(0x18, 5)
        assert registers.read32(8) == 599, "a read comes after the writes before it"
        registers.write32(8, 1)
    assert registers.read32(8) == 1
    with contextlib.suppress(ZeroDivisionError), transport.batch():
        registers.write32(8, 2)
        raise ZeroDivisionError
    assert registers.read32(8) == 2, "what was written was written"


@pytest.mark.parametrize(("part", "kind"), [(1, MappedWindow), (2, SharedWindow)])
def test_shared_regions(part: int, kind: type) -> None:
    device = MemoryDevice(bar0=1 << 16, share=True, shared_size=(1 << 16) // part)
    with served(device) as server, VfioUserTransport(str(server.path)) as transport:
        window = transport.window(0)
        assert isinstance(window, kind) and window.size == 1 << 16
        window.write32(0x100, 77)
        shared = device.shared(0)
        assert shared is not None
        assert os.pread(shared.descriptor, 4, 0x100) == struct.pack("<I", 77)
        window.write(0xFFF0, b"at its very end.")
        assert window.read(0xFFF0, 16) == b"at its very end."
        with pytest.raises(BadArgument):
            window.read32(1 << 16)


def test_resets(transport: VfioUserTransport, device: MemoryDevice) -> None:
    transport.window(5).write32(8, 3)
    transport.reset(ResetKind.FUNCTION)
    assert transport.window(5).read32(8) == 0
    transport.reset(ResetKind.BUS)
    assert len(device.function.resets) == 2
    with pytest.raises(NotSupported):
        transport.reset(ResetKind.POWER)


def test_large_blocks(transport: VfioUserTransport) -> None:
    device = MemoryDevice(bar0=8 << 20)
    data = os.urandom(1 << 20) * 7
    with served(device) as server, VfioUserTransport(str(server.path)) as big:
        window = big.window(0)
        window.write(4, data)
        assert window.read(4, len(data)) == data
        assert window.read32(0) == 0


def test_busy_then_free(server: Server, transport: VfioUserTransport) -> None:
    with pytest.raises(DeviceBusy):
        VfioUserTransport(str(server.path))
    transport.close()
    with VfioUserTransport(str(server.path)) as next_one:
        assert next_one.present()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(DeviceNotFound, match="no vfio-user server"):
        VfioUserTransport(str(tmp_path / "none"))
    for path in ("", "x" * 200):
        with pytest.raises(BadArgument):
            VfioUserTransport(path)


def test_the_server_goes(server: Server, transport: VfioUserTransport) -> None:
    memory = transport.allocate_dma(4096)
    interrupts = transport.interrupts
    server.stop()
    with pytest.raises(DeviceLost):
        for _ in range(10_000):  # posted writes may be on their way; a read cannot be answered
            transport.window(5).write32(8, 1)
            transport.window(5).read32(8)
    assert not transport.present()
    memory.view[:4] = b"ours"  # our memory is still ours
    memory.close()
    assert interrupts is not None and not interrupts.wait(0)
    transport.close()
    with pytest.raises(Closed):
        transport.config_read(0)


def test_a_forked_process_cannot_disturb_it(transport: VfioUserTransport) -> None:
    window = transport.window(5)
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(Closed):
            transport.config_read(0)
            os._exit(1)
        with contextlib.suppress(Closed):
            window.read32(0)
            os._exit(2)
        transport.close()
        code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    window.write32(8, 4)
    assert window.read32(8) == 4 and transport.present()


def test_a_killed_client_leaves_nothing(server: Server, device: MemoryDevice) -> None:
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        transport = VfioUserTransport(str(server.path))
        transport.allocate_dma(1 << 20)
        transport.window(5).write32(8, 0x5A)
        assert transport.interrupts is not None
        transport.window(5).read32(8)
        os.write(tell, b"x")
        signal.pause()
    os.read(ready, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with VfioUserTransport(str(server.path)) as transport:
        assert transport.window(5).read32(8) == 0x5A, "the device's state is kept"
        assert not device.maps, "the dead client's memory is gone"
    os.close(ready)
    os.close(tell)


def test_close_from_another_thread_wakes_a_wait(transport: VfioUserTransport) -> None:
    interrupts = transport.interrupts
    assert interrupts is not None
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            interrupts.wait(LIMIT_S)
        except Closed as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    transport.close()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()


def test_nothing_leaks(server: Server) -> None:
    def once() -> None:
        with VfioUserTransport(str(server.path)) as transport:
            transport.allocate_dma(4096)
            transport.allocate_dma(1 << 20).close()
            assert transport.interrupts is not None
            transport.window(0).read32(0)

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:ugpu-dma")

    once()
    before, mapped = settled(), mappings()
    for _ in range(3):
        once()
    with VfioUserTransport(str(server.path)):  # comes after the server has put the last one away
        pass
    assert not leaked(before + 2)
    assert mappings() <= mapped


# ---- with a peer of its own ideas ------------------------------------------------------------


@contextlib.contextmanager
def peer(answers: Callable[[int, bytes], list[bytes]]) -> Iterator[str]:
    """A server that sends `answers(command, payload)` for each message; its path."""
    with tempfile.TemporaryDirectory(prefix="vu-") as folder, socket.socket(socket.AF_UNIX) as at:
        path = str(Path(folder) / "s")
        at.bind(path)
        at.listen(1)

        def run() -> None:
            connection, _ = at.accept()
            with connection, contextlib.suppress(OSError, struct.error):
                while True:
                    head = connection.recv(16, socket.MSG_WAITALL)
                    number, command, size, flags, _ = struct.unpack("<HHIII", head)
                    payload = connection.recv(size - 16, socket.MSG_WAITALL) if size > 16 else b""
                    for answer in answers(command, payload):
                        connection.sendall(answer.replace(b"NUMBER", struct.pack("<H", number)))
                    if flags & 0x10:
                        continue

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield path
        at.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)


def reply(command: int, payload: bytes = b"", *, flags: int = 1, error: int = 0) -> bytes:
    return b"NUMBER" + struct.pack("<HIII", command, 16 + len(payload), flags, error) + payload


def proper(command: int, payload: bytes) -> bytes:
    """What a well-behaved server of a small device says."""
    if command == 9:
        offset, _, count = struct.unpack("<QII", payload)
        identity = struct.pack("<Q", 0x5678_1234)
        return reply(9, payload + identity[offset % 8 :][:count].ljust(count, b"\0"))
    answers = {
        1: VERSION,
        4: struct.pack("<IIII", 16, 3, 9, 5),
        5: struct.pack("<IIIIQQ", 32, 3, int.from_bytes(payload[8:12], "little"), 0, 4096, 0),
        7: struct.pack("<IIII", 16, 9, 1, 1),
    }
    return reply(command, answers.get(command, b""))


def test_a_hand_written_server_is_understood() -> None:
    honest = peer(lambda command, payload: [proper(command, payload)])
    with honest as path, VfioUserTransport(path) as transport:
        assert str(transport.identity) == "1234:5678"
        assert transport.window(5).read32(8) == 0x5678_1234


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({1: reply(1, b"\1\0\0\0")}, NotSupported),
        ({1: reply(1, b"\0\0\1\0")}, NotSupported),
        ({1: reply(1, b"\0\0\0\0{")}, TransportError),
        (
            {1: reply(1, b'\0\0\0\0{"capabilities":{"twin_socket":{"supported":true}}}\0')},
            TransportError,
        ),
        ({1: reply(1, flags=0x21, error=errno.EBUSY)}, DeviceBusy),
        ({1: b"HTTP/1.1 400 Bad Request\r\n\r\n"}, TransportError),
        ({1: reply(4, VERSION)}, TransportError),
        ({4: reply(4, b"\0")}, TransportError),
        ({4: reply(4, struct.pack("<IIII", 16, 1, 9, 5))}, NotSupported),
        ({4: reply(4, struct.pack("<IIII", 16, 3, 3, 5))}, NotSupported),
        ({9: reply(9, bytes(16))}, TransportError),
        ({9: reply(9, bytes(200))}, TransportError),
        ({9: reply(9, flags=0x21, error=errno.ENODEV)}, DeviceLost),
        ({9: reply(9, flags=0x21, error=9999)}, TransportError),
        ({9: b"NUMBER" + struct.pack("<HIII", 9, 1 << 31, 1, 0)}, TransportError),
        ({9: b""}, DeviceLost),
    ],
)
def test_wrong_answers_when_opening(wrong: dict[int, bytes], error: type[UgpuError]) -> None:
    def answers(command: int, payload: bytes) -> list[bytes]:
        if command in wrong and not wrong[command]:
            raise OSError  # hangs up
        return [wrong.get(command) or proper(command, payload)]

    with peer(answers) as path, pytest.raises(error):
        VfioUserTransport(path)


@pytest.mark.parametrize(
    "info",
    [
        struct.pack("<IIIIQQ", 32, 3, 4, 0, 4096, 0),  # another region
        struct.pack("<IIIIQQ", 32, 3, 5, 0, 1 << 63, 0),
        struct.pack("<IIIIQQ", 1 << 30, 3, 5, 0, 4096, 0),
        struct.pack("<IIIIQQ", 32, 0xF, 5, 32, 4096, 0),  # capabilities past the end
        struct.pack("<IIIIQQ", 32, 0xF, 5, 8, 4096, 0),  # inside the head
        bytes(31),
    ],
)
def test_wrong_regions(info: bytes) -> None:
    def answers(command: int, payload: bytes) -> list[bytes]:
        return [reply(5, info) if command == 5 else proper(command, payload)]

    with (
        peer(answers) as path,
        VfioUserTransport(path) as transport,
        pytest.raises(TransportError),
    ):
        transport.window(5)


def test_a_server_asks_only_for_what_is_mapped() -> None:
    asked = struct.pack("<HHIII", 7, 11, 32, 0, 0) + struct.pack("<QQ", 1 << 40, 64)

    def answers(command: int, payload: bytes) -> list[bytes]:
        if command == 11:  # our answer to it
            refused.append(command)
            return []
        return [asked, proper(command, payload)] if command == 9 else [proper(command, payload)]

    refused: list[int] = []
    with peer(answers) as path, VfioUserTransport(path) as transport:
        assert transport.config_read(0, 4) == 0x5678_1234
    assert refused


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 16), st.binary(max_size=80), st.booleans())
def test_any_answer_is_an_error_or_an_answer(which: int, noise: bytes, framed: bool) -> None:
    def answers(command: int, payload: bytes) -> list[bytes]:
        if command != which:
            return [proper(command, payload)]
        if framed:
            return [reply(command, noise)]
        return [noise] if len(noise) >= 16 else []

    with (
        peer(answers) as path,
        contextlib.suppress(UgpuError),
        VfioUserTransport(path, limit_s=0.1) as transport,
    ):
        transport.window(5).read32(0)
