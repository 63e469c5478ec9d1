"""The vfio-user server, by bytes written by hand from QEMU's docs/interop/vfio-user.rst."""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.support.pci.descriptors import leaked, settled
from tests.support.pci.vfio_user_device import MemoryDevice
from tests.support.pci.vfio_user_served import raw_client, served
from tests.support.pci.vfio_user_wire import exchange, receive, refused, send, take
from tests.support.waiting import came
from ugpu.hcq.errors import BadArgument, DeviceBusy
from ugpu.virtual.serve.server import Server

HELLO = b'\0\0\0\0{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":4096,"pgsizes":4096}}\0'


@pytest.fixture
def device() -> MemoryDevice:
    return MemoryDevice()


@pytest.fixture
def server(device: MemoryDevice) -> Iterator[Server]:
    with served(device) as one:
        yield one


@pytest.fixture
def wire(server: Server) -> Iterator[socket.socket]:
    with raw_client(server) as connection:
        exchange(connection, 1, HELLO)
        yield connection


def memory(size: int, *, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def dma_map(address: int, size: int, offset: int = 0, flags: int = 3, argsz: int = 32) -> bytes:
    return struct.pack("<IIQQQ", argsz, flags, offset, address, size)


# ---- version ---------------------------------------------------------------------------------


def test_version(server: Server) -> None:
    with raw_client(server) as connection:
        answer = exchange(connection, 1, HELLO)
        assert answer[:4] == bytes(4) and answer[-1:] == b"\0"
        offered = json.loads(answer[4:-1])["capabilities"]
        assert set(offered) <= {"max_msg_fds", "max_data_xfer_size", "pgsizes"}, "a subset"
        assert offered["max_msg_fds"] <= 16, "what QEMU takes"
        assert refused(connection, 1, HELLO) == errno.EINVAL, "once only"


def test_version_alone_is_enough(server: Server) -> None:
    with raw_client(server) as connection:
        assert exchange(connection, 1, bytes(4))[:4] == bytes(4)


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"", errno.EINVAL),
        (b"\1\0\0\0", errno.ENOTSUP),
        (b"\0\0\0\0{}", errno.EINVAL),
        (b"\0\0\0\0[]\0", errno.EINVAL),
        (b"\0\0\0\0{\0", errno.EINVAL),
        (b"\0\0\0\0\xff\xfe\0", errno.EINVAL),
        (b"\0\0\0\0" + b"[" * 4000 + b"\0", errno.EINVAL),
        (b'\0\0\0\0{"capabilities":{"max_msg_fds":-1}}\0', errno.EINVAL),
        (b'\0\0\0\0{"capabilities":{"max_data_xfer_size":true}}\0', errno.EINVAL),
        (b'\0\0\0\0{"capabilities":{"write_multiple":1}}\0', errno.EINVAL),
        (b'\0\0\0\0{"capabilities":{"twin_socket":[]}}\0', errno.EINVAL),
    ],
)
def test_wrong_versions(server: Server, payload: bytes, error: int) -> None:
    with raw_client(server) as connection:
        assert refused(connection, 1, payload) == error
        assert refused(connection, 4, struct.pack("<IIII", 16, 0, 0, 0)) == errno.EINVAL


# ---- what the device is ----------------------------------------------------------------------


def test_device_info(wire: socket.socket) -> None:
    answer = exchange(wire, 4, struct.pack("<IIII", 16, 0, 0, 0))
    assert struct.unpack("<IIII", answer) == (16, 3, 9, 5), "resettable, PCI, as linux/vfio.h"
    assert refused(wire, 4, struct.pack("<IIII", 15, 0, 0, 0)) == errno.EINVAL
    assert refused(wire, 4, b"\x10\0\0\0") == errno.EINVAL


def test_region_info(wire: socket.socket) -> None:
    sizes = {0: 1 << 16, 1: 0, 5: 4096, 6: 0, 7: 4096, 8: 0}
    for index, size in sizes.items():
        answer = exchange(wire, 5, struct.pack("<IIIIQQ", 32, 0, index, 0, 0, 0))
        flags = 3 if size else 0
        assert struct.unpack("<IIIIQQ", answer) == (32, flags, index, 0, size, 0)
    assert refused(wire, 5, struct.pack("<IIIIQQ", 32, 0, 9, 0, 0, 0)) == errno.EINVAL
    assert refused(wire, 5, struct.pack("<IIIIQQ", 31, 0, 0, 0, 0, 0)) == errno.EINVAL


def test_a_region_shared_in_part_says_so() -> None:
    device = MemoryDevice(bar0=1 << 16, share=True, shared_size=1 << 15)
    with served(device) as server, raw_client(server) as wire:
        exchange(wire, 1, HELLO)
        for room, capabilities in ((32, False), (64, True)):
            send(wire, 5, struct.pack("<IIIIQQ", room, 0, 0, 0, 0, 0))
            head, carried, _, _ = wire.recvmsg(16, 64)
            assert carried, "the file comes with the reply's first byte"
            descriptors = array.array("i", carried[0][2])
            assert os.fstat(descriptors[0]).st_size == 1 << 15
            os.close(descriptors[0])
            payload = take(wire, struct.unpack("<HHIII", head)[2] - 16)
            whole, flags, _, place, size, _ = struct.unpack_from("<IIIIQQ", payload)
            assert (whole, flags, size) == (64, 0xF, 1 << 16)
            assert len(payload) == (64 if capabilities else 32)
            if capabilities:
                kind, version, following = struct.unpack_from("<HHI", payload, place)
                assert (kind, version, following) == (1, 1, 0)
                assert struct.unpack_from("<IIQQ", payload, place + 8) == (1, 0, 0, 1 << 15)


def test_irq_info(wire: socket.socket) -> None:
    for index, (flags, count) in {0: (7, 1), 1: (9, 1), 2: (0, 0), 4: (0, 0)}.items():
        answer = exchange(wire, 7, struct.pack("<IIII", 16, 0, index, 0))
        assert struct.unpack("<IIII", answer) == (16, flags, index, count)
    assert refused(wire, 7, struct.pack("<IIII", 16, 0, 5, 0)) == errno.EINVAL


def test_unknown_commands(wire: socket.socket) -> None:
    for command in (0, 6, 11, 12, 14, 16, 17, 18, 19, 0xFFFF):
        assert refused(wire, command, bytes(64)) == errno.ENOTSUP


# ---- regions ---------------------------------------------------------------------------------


def test_read_and_write(wire: socket.socket, device: MemoryDevice) -> None:
    place = struct.pack("<QII", 0x100, 0, 8)
    assert exchange(wire, 10, place + b"abcdefgh") == place
    assert exchange(wire, 9, place) == place + b"abcdefgh"
    assert device.function.window(0).read(0x100, 8) == b"abcdefgh"
    config = struct.pack("<QII", 0, 7, 4)
    assert exchange(wire, 9, config) == config + bytes.fromhex("34127856")


@pytest.mark.parametrize(
    ("offset", "region", "count"),
    [
        (0, 0, 0), (0, 9, 4), (1 << 16, 0, 4), ((1 << 16) - 2, 0, 4), (1 << 16, 0, 1),
        ((1 << 64) - 4, 0, 8), (0, 1, 4), (0, 6, 4), (4096, 7, 1), (4094, 7, 4),
        (0, 0, 0xFFFF_FFFF), (0, 0xFFFF_FFFF, 4),
    ],
)  # fmt: skip
def test_wrong_places(wire: socket.socket, offset: int, region: int, count: int) -> None:
    place = struct.pack("<QII", offset, region, count)
    assert refused(wire, 9, place) == errno.EINVAL
    assert refused(wire, 10, place + bytes(min(count, 64))) == errno.EINVAL


def test_a_write_carries_what_it_says(wire: socket.socket) -> None:
    place = struct.pack("<QII", 0, 0, 8)
    assert refused(wire, 10, place + bytes(4)) == errno.EINVAL
    assert refused(wire, 10, place + bytes(12)) == errno.EINVAL
    assert refused(wire, 10, place[:15]) == errno.EINVAL


def test_write_multi(wire: socket.socket, device: MemoryDevice) -> None:
    one = struct.pack("<QIIQ", 8, 5, 4, 0xAABBCCDD)
    two = struct.pack("<QIIQ", 16, 0, 8, 0x1122_3344_5566_7788)
    assert exchange(wire, 15, struct.pack("<Q", 2) + one + two) == struct.pack("<Q", 2)
    assert device.function.window(5).read32(8) == 0xAABBCCDD
    assert device.function.window(0).read64(16) == 0x1122_3344_5566_7788
    wrong = struct.pack("<QIIQ", 0, 5, 9, 0)
    before = bytes(device.function.window(0).read(16, 8))
    for entries, count in ((one, 2), (one + two, 1), (one, 1 << 63)):
        assert refused(wire, 15, struct.pack("<Q", count) + entries) == errno.EINVAL
    changed = struct.pack("<QIIQ", 16, 0, 8, 1)
    assert refused(wire, 15, struct.pack("<Q", 2) + changed + wrong) == errno.EINVAL
    assert device.function.window(0).read(16, 8) == before, "all or nothing"


def test_no_reply_is_no_reply(wire: socket.socket, device: MemoryDevice) -> None:
    place = struct.pack("<QII", 0x20, 0, 4)
    send(wire, 10, place + b"post", flags=0x10)
    send(wire, 10, struct.pack("<QII", 1, 0, 4) + b"none", flags=0x10)  # refused in silence
    assert exchange(wire, 9, place) == place + b"post", "done in order, before the reply"


def test_bars_are_the_clients_to_place(wire: socket.socket, device: MemoryDevice) -> None:
    place = struct.pack("<QII", 0x10, 7, 4)
    before = device.function.config_read(0x10)
    exchange(wire, 10, place + b"\xff\xff\xff\xff")
    assert exchange(wire, 9, place)[16:] == struct.pack("<I", 0xFFFF_0000), "64 KiB"
    exchange(wire, 10, place + struct.pack("<I", 0xFE12_3456))
    assert exchange(wire, 9, place)[16:] == struct.pack("<I", 0xFE12_0000)
    assert device.function.config_read(0x10) == before, "the device's own stay"
    assert exchange(wire, 9, struct.pack("<QII", 0x3D, 7, 1))[16:] == b"\1", "the pin of the device"
    exchange(wire, 10, struct.pack("<QII", 4, 7, 2) + b"\6\0")
    assert device.function.config_read(4, 2) == 6


def test_reset(wire: socket.socket, device: MemoryDevice) -> None:
    exchange(wire, 10, struct.pack("<QII", 8, 5, 4) + b"gone")
    assert exchange(wire, 13) == b""
    assert device.function.window(5).read32(8) == 0 and len(device.function.resets) == 1


# ---- memory ----------------------------------------------------------------------------------


def test_dma_of_shared_memory(wire: socket.socket, device: MemoryDevice) -> None:
    descriptor = memory(3 * 4096)
    os.pwrite(descriptor, b"from the client!", 4096 + 16)
    assert exchange(wire, 2, dma_map(0x10000, 8192, 4096), fds=[descriptor]) == b""
    assert device.read(0x10010, 16) == b"from the client!"
    device.write(0x11FF0, b"from the device!")
    assert os.pread(descriptor, 16, 3 * 4096 - 16) == b"from the device!"
    unmap = struct.pack("<IIQQ", 24, 0, 0x10000, 8192)
    assert exchange(wire, 3, unmap) == unmap, "the entry comes back"
    assert not device.maps
    os.close(descriptor)


def test_maps_do_not_overlap(wire: socket.socket, device: MemoryDevice) -> None:
    exchange(wire, 2, dma_map(0x10000, 0x4000))
    for address, size in (
        (0x10000, 0x4000), (0xF000, 0x2000), (0x13000, 0x1000), (0x8000, 0x10000), (0x13000, 0x8000)
    ):  # fmt: skip
        assert refused(wire, 2, dma_map(address, size)) == errno.EEXIST
    exchange(wire, 2, dma_map(0x14000, 0x1000))
    exchange(wire, 2, dma_map(0xF000, 0x1000))
    assert refused(wire, 3, struct.pack("<IIQQ", 24, 0, 0x10000, 0x1000)) == errno.EINVAL, "cut"
    exchange(wire, 3, struct.pack("<IIQQ", 24, 0, 0, 1 << 63)), "several at once, as QEMU does"
    assert not device.maps


@pytest.mark.parametrize(
    "payload",
    [
        dma_map(1, 4096), dma_map(0, 4095), dma_map(0, 0), dma_map((1 << 64) - 4096, 8192),
        dma_map(0, 4096, flags=0), dma_map(0, 4096, flags=4), dma_map(0, 4096, argsz=31),
        dma_map(0, 4096)[:31], dma_map(0, 4096) + b"\0",
    ],
)  # fmt: skip
def test_wrong_maps(wire: socket.socket, device: MemoryDevice, payload: bytes) -> None:
    assert refused(wire, 2, payload) == errno.EINVAL
    assert not device.maps


def test_memory_that_could_vanish_is_not_taken(wire: socket.socket, device: MemoryDevice) -> None:
    unsealed, short, sealed = memory(8192, seals=0), memory(4096), memory(8192)
    assert refused(wire, 2, dma_map(0, 8192), fds=[unsealed]) == errno.EINVAL
    assert refused(wire, 2, dma_map(0, 8192), fds=[short]) == errno.EINVAL
    assert refused(wire, 2, dma_map(0, 8192, 4096), fds=[sealed]) == errno.EINVAL
    assert refused(wire, 2, dma_map(0, 4096, 1), fds=[sealed]) == errno.EINVAL
    assert refused(wire, 2, dma_map(0, 4096), fds=[sealed, sealed]) == errno.EINVAL
    with socket.socket() as stranger:
        assert refused(wire, 2, dma_map(0, 4096), fds=[stranger.fileno()]) == errno.EINVAL
    assert not device.maps
    for descriptor in (unsealed, short, sealed):
        os.close(descriptor)


# ---- interrupts ------------------------------------------------------------------------------


def set_irqs(
    flags: int, index: int = 1, start: int = 0, count: int = 1, data: bytes = b""
) -> bytes:
    return struct.pack("<IIIII", 20 + len(data), flags, index, start, count) + data


def test_interrupts(wire: socket.socket, device: MemoryDevice) -> None:
    event = os.eventfd(0, os.EFD_NONBLOCK)
    exchange(wire, 8, set_irqs(0x24), fds=[event])
    assert device.client is not None
    device.client.interrupt()
    assert os.eventfd_read(event) == 1
    exchange(wire, 8, set_irqs(0x21))  # a client may trigger it too
    assert os.eventfd_read(event) == 1
    exchange(wire, 8, set_irqs(0x22, data=b"\0"))
    exchange(wire, 8, set_irqs(0x22, data=b"\1"))
    assert os.eventfd_read(event) == 1
    exchange(wire, 8, set_irqs(0x21, count=0))  # all off
    device.client.interrupt()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(event)
    os.close(event)


def test_wrong_interrupts(wire: socket.socket) -> None:
    reader, writer = os.pipe()
    event = os.eventfd(0)
    for payload, fds in (
        (set_irqs(0x24), [writer]),  # no eventfd: a write to it could block us
        (set_irqs(0x24, count=2), [event, event]),
        (set_irqs(0x24), [event, event]),
        (set_irqs(0x24, start=1), [event]),
        (set_irqs(0x24, start=0xFFFF_FFFF), [event]),
        (set_irqs(0x24, index=2), [event]),
        (set_irqs(0x24, index=5), [event]),
        (set_irqs(0x0C), [event]),  # mask: messages have none
        (set_irqs(0x27), [event]),
        (set_irqs(0x22), []),
        (set_irqs(0x24)[:19], [event]),
    ):
        assert refused(wire, 8, payload, fds=fds) == errno.EINVAL
    for descriptor in (reader, writer, event):
        os.close(descriptor)


# ---- descriptors -----------------------------------------------------------------------------


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # what we had sent was not read to its end
        return True


def test_descriptors_on_the_wrong_message_are_closed(wire: socket.socket) -> None:
    descriptor = memory(4096)
    before = settled()
    place = struct.pack("<QII", 0, 0, 4)
    for _ in range(5):
        send(wire, 9, place, fds=[descriptor] * 8)
        receive(wire, 9)
    assert not leaked(before)
    os.close(descriptor)


def test_descriptors_belong_to_the_message_whose_first_byte_carries_them(
    wire: socket.socket, device: MemoryDevice
) -> None:
    descriptor = memory(4096)
    head = struct.pack("<HHIII", 0x1234, 2, 48, 0, 0)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    wire.sendmsg([head])
    wire.sendmsg([dma_map(0x1000, 4096)], rights)  # too late: on the payload
    assert receive(wire, 2) == (0, b"")
    assert device.maps[0x1000] == (4096, None), "a map without memory"
    before = settled()
    # Two messages at once; the descriptor rides on the first byte of the second.
    first = struct.pack("<HHIII", 0x1234, 9, 32, 0, 0) + struct.pack("<QII", 0, 0, 4)
    wire.send(first)
    send(wire, 2, dma_map(0x2000, 4096), fds=[descriptor])
    receive(wire, 9)
    assert receive(wire, 2) == (0, b"")
    assert device.maps[0x2000][1] is not None
    assert not leaked(before)
    os.close(descriptor)


def test_too_many_descriptors_end_the_connection(wire: socket.socket, server: Server) -> None:
    descriptor = memory(4096)
    send(wire, 9, struct.pack("<QII", 0, 0, 4), fds=[descriptor] * 20)
    assert ended(wire)
    os.close(descriptor)


# ---- clients come and go ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "half",
    [b"", b"\1", bytes(15), struct.pack("<HHIII", 1, 9, 32, 0, 0),
     struct.pack("<HHIII", 1, 9, 32, 0, 0) + bytes(7)],
)  # fmt: skip
def test_half_a_message_and_gone(server: Server, device: MemoryDevice, half: bytes) -> None:
    with raw_client(server) as connection:
        exchange(connection, 1, HELLO)
        exchange(connection, 2, dma_map(0x1000, 4096))
        connection.send(half) if half else None
    assert came(lambda: device.client is None and not device.maps)
    with raw_client(server) as connection:
        exchange(connection, 1, HELLO)
        place = struct.pack("<QII", 0x100, 0, 4)
        exchange(connection, 9, place)


@pytest.mark.parametrize(
    "head",
    [struct.pack("<HHIII", 1, 9, 15, 0, 0), struct.pack("<HHIII", 1, 9, 0xFFFF_FFFF, 0, 0),
     struct.pack("<HHIII", 1, 9, 16, 2, 0), struct.pack("<HHIII", 1, 9, 16, 1, 0)],
    ids=["short", "long", "neither a command nor a reply", "a reply to nothing"],
)  # fmt: skip
def test_impossible_headers_end_the_connection(wire: socket.socket, head: bytes) -> None:
    wire.send(head)
    assert ended(wire)


def test_state_outlives_a_client_and_its_memory_does_not(
    server: Server, device: MemoryDevice
) -> None:
    place = struct.pack("<QII", 8, 5, 4)
    before = settled()
    for turn in range(4):
        with raw_client(server) as connection:
            exchange(connection, 1, HELLO)
            expected = bytes(4) if turn == 0 else b"kept"
            assert exchange(connection, 9, place)[16:] == expected
            exchange(connection, 10, place + b"kept")
            descriptor, event = memory(4096), os.eventfd(0)
            exchange(connection, 2, dma_map(0x1000, 4096), fds=[descriptor])
            exchange(connection, 8, set_irqs(0x24), fds=[event])
            os.close(descriptor)
            os.close(event)
        assert came(lambda: device.client is None and not device.maps)
    assert not leaked(before), "nothing is left of four clients"
    assert device.attached == 4


def test_an_heir_is_let_in_before_the_server_has_noticed_the_end(
    server: Server, device: MemoryDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ugpu.virtual.serve.server.TAKEOVER_LIMIT_S", 0.0)
    for _ in range(30):
        with raw_client(server) as connection:
            exchange(connection, 1, HELLO)
    assert device.attached == 30


def test_a_second_client_is_told(wire: socket.socket, server: Server) -> None:
    with raw_client(server) as second:
        assert refused(second, 1, HELLO) == errno.EBUSY
    exchange(wire, 9, struct.pack("<QII", 0, 0, 4))


def test_a_slow_client_holds_no_other_up_and_is_told_too(
    wire: socket.socket, server: Server
) -> None:
    """A busy host lets it say nothing for a while; one that comes later is refused meanwhile."""
    with raw_client(server) as slow:
        for _ in range(6):
            with raw_client(server) as quick:
                assert refused(quick, 1, HELLO) == errno.EBUSY
        assert refused(slow, 1, HELLO) == errno.EBUSY
    exchange(wire, 9, struct.pack("<QII", 0, 0, 4))


def test_the_socket_in_use_is_not_taken(server: Server) -> None:
    with pytest.raises(DeviceBusy):
        Server(server.path, MemoryDevice())
    plain = server.path.with_name("plain")
    plain.write_text("precious")
    with pytest.raises(BadArgument):
        Server(plain, MemoryDevice())
    assert plain.read_text() == "precious"
    with pytest.raises(BadArgument):
        Server("/tmp/" + "x" * 120, MemoryDevice())
