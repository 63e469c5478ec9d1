"""vfio-user between two processes of this machine, against a raw socket and a raw mapping.

The device is memory that answers at once, so that the figures are the protocol's.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ugpu.am.device.device import open_device
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.hcq.transport.window import MappedWindow

ROOT = Path(__file__).resolve().parents[3]
BULK = 32 << 20
ROUNDS = 5

SERVE = """
import sys
from ugpu.virtual.serve.server import Server
from tests.support.pci.vfio_user_device import MemoryDevice
server = Server(sys.argv[1], MemoryDevice(bar0=64 << 20, share=len(sys.argv) > 2))
print("ready", flush=True)
server.run()
"""
# The virtual Navi31, and where the images go that its driver wants.
SERVE_CARD = """
import sys
from pathlib import Path
from ugpu.am.chips.navi31.facts import FACTS
from ugpu.virtual.amd.bus.served import ServedChip
from tests.support.amd.am_navi31 import build_chip
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.serve.server import Server
from ugpu.tools.control.serve import write_firmware
write_firmware(FACTS, Path(sys.argv[2]))
server = Server(sys.argv[1], ServedChip(build_chip(ChipOptions(vram=256 << 20))))
print("ready", flush=True)
server.run()
"""
# Takes a stream, then gives one: what vfio-user's bulk transfers are measured against.
STREAM = """
import socket, sys
size = int(sys.argv[2])
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(1)
print("ready", flush=True)
peer, _ = listener.accept()
room = bytearray(1 << 20)
while peer.recv(1):
    left = size
    while left:
        left -= peer.recv_into(room, min(left, len(room)))
    peer.sendall(bytes(1))
    for _ in range(size // len(room)):
        peer.sendall(room)
"""
# Answers each message: what a read of a register is measured against. Asleep until one comes, or
# looking for it all the time, which only the measurement may.
ECHO = """
import select, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(1)
print("ready", flush=True)
peer, _ = listener.accept()
poll = select.poll()
poll.register(peer, select.POLLIN)
awake = len(sys.argv) > 2
while True:
    while awake and not poll.poll(0):
        pass
    if not peer.recv(64):
        break
    peer.sendall(bytes(36))
"""


@contextmanager
def _process(code: str, *arguments: str) -> Iterator[None]:
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _best(run: Callable[[], None], count: int = 1) -> float:
    """Seconds of the fastest round, divided by `count`."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best / count


def _round_trip(count: int, *, awake: bool) -> float:
    """Seconds of a message of a read's size to another process and back."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/echo"
        how = ["awake"] if awake else []
        with _process(ECHO, path, *how), socket.socket(socket.AF_UNIX) as peer:
            peer.connect(path)
            poll = select.poll()
            poll.register(peer, select.POLLIN)

            def trips() -> None:
                for _ in range(count):
                    peer.sendall(bytes(32))
                    while awake and not poll.poll(0):
                        pass
                    peer.recv(64)

            return _best(trips, count)


def _registers(transport: VfioUserTransport) -> list[dict[str, object]]:
    registers = transport.window(5)
    count = 1000

    def reads() -> None:
        for _ in range(count):
            registers.read32(0)

    def reads_of_configuration() -> None:
        for _ in range(count):
            transport.config_read(4)

    def awaited() -> None:
        for _ in range(count):
            transport.config_write(0x3C, 0, 1)

    def posted() -> None:
        for value in range(count):
            registers.write32(8, value)
        registers.read32(0)

    def batched() -> None:
        for _ in range(count // 50):
            with transport.batch():
                for value in range(50):
                    registers.write32(8, value)
            registers.read32(0)

    def batched_sent() -> None:
        for _ in range(count // 50):
            with transport.batch():
                for value in range(50):
                    registers.write32(8, value)

    read, whole = _best(reads, count), _best(batched, count)
    asleep = _round_trip(count, awake=False)
    awake = _round_trip(count, awake=True) if len(os.sched_getaffinity(0)) > 1 else None
    rows: list[dict[str, object]] = [
        {
            "name": "vfio-user: 4-byte read",
            "value": read * 1e6,
            "unit": "us",
            "peer": "raw socket, to a process and back",
            "peer_value": asleep * 1e6,
            "ratio": asleep / read,
        },
    ]
    if awake is not None:
        rows.append(
            {
                "name": "vfio-user: 4-byte read, beside a socket polled by both sides",
                "value": read * 1e6,
                "unit": "us",
                "peer": "raw socket, polled",
                "peer_value": awake * 1e6,
                "ratio": awake / read,
            }
        )
    return [
        *rows,
        {"name": "vfio-user: configuration read",
         "value": _best(reads_of_configuration, count) * 1e6, "unit": "us"},
        {"name": "vfio-user: configuration write, until done",
         "value": _best(awaited, count) * 1e6, "unit": "us"},
        {"name": "vfio-user: register write, posted", "value": _best(posted, count) * 1e6,
         "unit": "us"},
        {"name": "vfio-user: register write, 50 in one message, until done",
         "value": (whole - read / 50) * 1e6, "unit": "us"},
        {"name": "vfio-user: register write, 50 in one message, until sent",
         "value": _best(batched_sent, count) * 1e6, "unit": "us"},
    ]  # fmt: skip


def _bulk(transport: VfioUserTransport, folder: str) -> list[dict[str, object]]:
    memory = transport.window(0)
    data = os.urandom(1 << 20) * (BULK >> 20)

    def write() -> None:
        memory.write(0, data)
        memory.read32(0)

    def read() -> None:
        memory.read(0, BULK)

    path = str(Path(folder) / "stream")
    with _process(STREAM, path, str(BULK)), socket.socket(socket.AF_UNIX) as raw:
        raw.connect(path)
        sending, receiving = float("inf"), float("inf")
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            raw.sendall(b"g")
            raw.sendall(data)
            raw.recv(1)
            middle = time.perf_counter()
            # As `Window.read` must: into new bytes.
            pieces = [raw.recv(1 << 20, socket.MSG_WAITALL) for _ in range(BULK >> 20)]
            assert len(b"".join(pieces)) == BULK
            sending = min(sending, middle - begin)
            receiving = min(receiving, time.perf_counter() - middle)
    found = []
    for name, mine, peer in (("write", _best(write), sending), ("read", _best(read), receiving)):
        rate, peer_rate = BULK / mine / 1e6, BULK / peer / 1e6
        found.append(
            {"name": f"vfio-user: block {name}, 32 MiB", "value": rate, "unit": "MB/s",
             "peer": "raw socket", "peer_value": peer_rate, "ratio": rate / peer_rate}
        )  # fmt: skip
    return found


def _memory(transport: VfioUserTransport) -> list[dict[str, object]]:
    def map_and_unmap() -> None:
        for _ in range(100):
            transport.allocate_dma(1 << 16).close()

    return [
        {"name": "vfio-user: allocate, map, unmap and free 64 KiB",
         "value": _best(map_and_unmap, 100) * 1e6, "unit": "us"}
    ]  # fmt: skip


def _shared(path: str) -> list[dict[str, object]]:
    with VfioUserTransport(path) as transport, mmap.mmap(-1, BULK) as plain:
        window = transport.window(0)
        assert isinstance(window, MappedWindow)
        data = bytes(BULK)

        def through() -> None:
            window.write(0, data)

        def raw() -> None:
            plain[:] = data

        through_s, raw_s = _best(through), _best(raw)
    rate, peer_rate = BULK / through_s / 1e6, BULK / raw_s / 1e6
    return [
        {"name": "vfio-user: block write, shared region", "value": rate, "unit": "MB/s",
         "peer": "raw mmap", "peer_value": peer_rate, "ratio": rate / peer_rate}
    ]  # fmt: skip


class _Unbatched(VfioUserTransport):
    """Each register write in a message of its own."""

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()


def _boot_once(path: str, images: str, kind: type[VfioUserTransport]) -> tuple[float, int]:
    """Seconds of a cold boot, and the messages that it took."""
    transport = kind(path)
    start = time.perf_counter()
    with open_device("vfio-user", Attachment(transport), firmware=images, leave="cold"):
        return time.perf_counter() - start, transport.messages


def _boot(folder: str) -> list[dict[str, object]]:
    """The boot of the virtual Navi31, which waits for its firmware most of the time; the parts in
    turn, so that a busy machine spoils both."""
    path, images = str(Path(folder) / "c"), str(Path(folder) / "firmware")
    taken: dict[type[VfioUserTransport], list[tuple[float, int]]] = {}
    with _process(SERVE_CARD, path, images):
        for _ in range(ROUNDS + 1):
            for kind in (VfioUserTransport, _Unbatched):
                taken.setdefault(kind, []).append(_boot_once(path, images, kind))
    mine, plain = taken[VfioUserTransport], taken[_Unbatched]
    return [
        {"name": name, "value": value, "unit": unit, "peer": "each write a message",
         "peer_value": peer, "ratio": value / peer}
        for name, unit, value, peer in (
            ("vfio-user: cold boot of virtual:navi31", "ms",
             min(mine)[0] * 1e3, min(plain)[0] * 1e3),
            ("vfio-user: messages of that boot", "messages",
             min(count for _, count in mine), min(count for _, count in plain)),
        )
    ]  # fmt: skip


def measure() -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="vu-") as folder:
        path = str(Path(folder) / "s")
        with _process(SERVE, path), VfioUserTransport(path) as transport:
            found = [*_registers(transport), *_bulk(transport, folder), *_memory(transport)]
        path = str(Path(folder) / "m")
        with _process(SERVE, path, "share"):
            found += _shared(path)
        found += _boot(folder)
    return found
