"""vfio-user between processes, where each side looks for messages before it sleeps: it ends well
however the other one ends."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.pci.descriptors import leaked, settled
from tests.support.pci.vfio_user_device import COMMAND, STATUS
from tests.support.pci.vfio_user_wire import exchange, send
from tests.support.waiting import came, until, when
from ugpu.hcq.errors import DeviceBusy, DeviceLost
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport

ROOT = Path(__file__).resolve().parents[4]
LIMIT_S = 60
RESTING = 50  # looks of at least 2 ms each in which a process has not run
SERVE = """
import sys
from ugpu.virtual.serve.server import Server
from tests.support.pci.vfio_user_device import MemoryDevice
server = Server(sys.argv[1], MemoryDevice())
print("ready", flush=True)
server.run()
"""
READ = """
import sys
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
registers = VfioUserTransport(sys.argv[1]).window(5)
registers.write32(8, 0x5A)
registers.read32(8)
print("ready", flush=True)
while True:
    registers.read32(8)
"""


@contextmanager
def process(code: str, path: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said it is ready; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", code, path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
            yield one
        finally:
            one.kill()


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="vu-") as folder:
        yield str(Path(folder) / "s")


@pytest.fixture
def server(path: str) -> Iterator[subprocess.Popen[str]]:
    with process(SERVE, path) as one:
        yield one


def opened(path: str) -> VfioUserTransport:
    """The server may still be putting the last client away."""
    found: list[VfioUserTransport] = []

    def free() -> bool:
        with contextlib.suppress(DeviceBusy):
            found.append(VfioUserTransport(path))
        return bool(found)

    until(free, "the last client to be put away")
    return found[0]


def test_registers_from_another_process(server: subprocess.Popen[str], path: str) -> None:
    with opened(path) as transport:
        registers = transport.window(5)
        for value in range(2000):
            registers.write32(8, value)
            assert registers.read32(8) == value
        registers.write64(0x10, 1 << 40)
        assert registers.read64(0x10) == 1 << 40
        assert transport.config_read(0) == 0x5678_1234


def test_interrupts_come_while_it_is_read(server: subprocess.Popen[str], path: str) -> None:
    with opened(path) as transport:
        registers, interrupts = transport.window(5), transport.interrupts
        assert interrupts is not None
        for _ in range(50):
            registers.write32(COMMAND, 3)
            assert registers.read32(STATUS) == 1
            assert interrupts.wait(LIMIT_S)


def test_threads_of_one_client(server: subprocess.Popen[str], path: str) -> None:
    wrong: list[int] = []
    with opened(path) as transport:
        memory = transport.window(0)

        def work(place: int) -> None:
            for value in range(300):
                memory.write32(place, value)
                if memory.read32(place) != value:
                    wrong.append(place)

        threads = [threading.Thread(target=work, args=(4 * place,)) for place in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(LIMIT_S)
            assert not one.is_alive()
    assert not wrong


def test_a_server_killed_while_it_is_read_is_a_lost_device(path: str) -> None:
    before = settled()
    with process(SERVE, path) as server, opened(path) as transport:
        registers = transport.window(5)
        registers.read32(0)
        reads: list[int] = []
        ending = when(lambda: len(reads) > 100, server.kill)
        with pytest.raises(DeviceLost):
            while True:
                reads.append(registers.read32(0))
        ending.join(LIMIT_S)
        assert not transport.present()
    assert not leaked(before)


def test_a_client_killed_while_it_reads_makes_room_for_the_next(
    server: subprocess.Popen[str], path: str
) -> None:
    for _ in range(3):
        with process(READ, path):
            pass
        with opened(path) as transport:
            assert transport.window(5).read32(8) == 0x5A


def test_half_a_read_and_gone(server: subprocess.Popen[str], path: str) -> None:
    whole = struct.pack("<HHIIIQII", 1, 9, 32, 0, 0, 8, 5, 4)
    for kept in (1, 15, 16, 23, 31):
        with opened(path) as transport:
            assert transport.window(5).read32(8) == 0
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(LIMIT_S)
            wire.connect(path)
            exchange(wire, 1, bytes(4))
            for _ in range(40):  # by now the server looks for the next one, if it ever does
                exchange(wire, 9, whole[16:])
            wire.send(whole[:kept])
    with opened(path) as transport:
        assert transport.window(5).read32(8) == 0


def test_a_read_in_two_halves(server: subprocess.Popen[str], path: str) -> None:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(LIMIT_S)
        wire.connect(path)
        exchange(wire, 1, bytes(4))
        send(wire, 10, struct.pack("<QII", 8, 5, 4) + b"word", flags=0x10)
        request = struct.pack("<HHIIIQII", 7, 9, 32, 0, 0, 8, 5, 4)
        for place in range(1, 32):
            wire.send(request[:place])
            wire.send(request[place:])
            answer = wire.recv(36, socket.MSG_WAITALL)
            assert answer == struct.pack("<HHIIIQII", 7, 9, 36, 1, 0, 8, 5, 4) + b"word"


def test_client_after_client(server: subprocess.Popen[str], path: str) -> None:
    before = settled()
    for turn in range(20):
        with opened(path) as transport:
            registers = transport.window(5)
            assert registers.read32(8) == turn
            registers.write32(8, turn + 1)
            assert registers.read32(8) == turn + 1
    assert not leaked(before)


def test_who_is_left_alone_sleeps(server: subprocess.Popen[str], path: str) -> None:
    def asleep() -> bool:
        tasks = Path(f"/proc/{server.pid}/task").iterdir()
        texts = [(one / "stat").read_text() for one in tasks]
        return {text.rsplit(")", 1)[1].split()[0] for text in texts} == {"S"}

    def ran() -> int:
        text = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(text[11]) + int(text[12])  # proc(5): utime, stime

    with opened(path) as transport:
        for _ in range(500):
            transport.window(5).read32(0)
        assert came(asleep)
        ticks: list[int] = []  # of 10 ms; one that went on looking would run for some of them

        def rests() -> bool:
            ticks.append(ran())
            return ticks[-RESTING:] == ticks[-1:] * RESTING

        assert came(rests)
