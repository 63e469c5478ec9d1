"""SystemNode: files of a kernel driver on this machine, tried on files of the test's own."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import threading
from pathlib import Path

import pytest

from tests.support.pci import descriptors
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.system_node import SystemNode


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev/thing0").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "proc/version").write_text("thing 1.2\n")
    return tmp_path


def test_files_are_opened_mapped_and_released(root: Path) -> None:
    node = SystemNode("thing", System(root))
    assert node.read_text("/proc/version") == "thing 1.2\n"
    handle = node.open("/dev/thing0")
    mapping = node.map(handle, 100, 4096)
    node.release(handle)  # the mapping keeps what it needs
    assert mapping.view is not None and len(mapping.view) == 100
    assert mapping.read32(4) == 0x07060504
    mapping.write32(8, 0xDEADBEEF)
    assert (root / "dev/thing0").read_bytes()[4104:4108] == bytes.fromhex("efbeadde")
    assert mapping.address % 4096 == 0
    for offset in (-4, 2, 100, 1 << 20):
        with pytest.raises(BadArgument):
            mapping.read32(offset)
    mapping.close()
    mapping.close()
    assert mapping.view is None
    with pytest.raises(Closed):
        mapping.read32(0)
    node.close()


def test_a_view_that_is_held_outlives_its_mapping(root: Path) -> None:
    node = SystemNode("thing", System(root))
    mapping = node.map(node.open("/dev/thing0"), 4096)
    assert mapping.view is not None
    part = mapping.view[:4]
    node.close()
    assert bytes(part) == bytes(range(4))


def test_closing_gives_back_every_descriptor(root: Path) -> None:
    before = descriptors.settled()
    node = SystemNode("thing", System(root))
    for _ in range(5):
        node.map(node.open("/dev/thing0"), 4096)
    assert descriptors.count() > before
    node.close()
    node.close()
    assert descriptors.leaked(before) == 0
    with pytest.raises(Closed):
        node.open("/dev/thing0")


def test_errors_are_the_systems(root: Path) -> None:
    node = SystemNode("thing", System(root))
    with pytest.raises(FileNotFoundError):
        node.open("/dev/other")
    with pytest.raises(FileNotFoundError):
        node.read_text("/proc/other")
    handle = node.open("/dev/thing0")
    with pytest.raises(OSError, match="nappropriate"):
        node.ioctl(handle, 0xC0304627, bytearray(48))
    node.release(handle)
    for call in (lambda: node.release(handle), lambda: node.map(handle, 4096)):
        with pytest.raises(BadArgument, match="not open"):
            call()
    node.close()


def test_an_ioctl_writes_its_argument_in_place(root: Path) -> None:
    class Kernel(System):
        def ioctl(
            self, descriptor: int, request: int, argument: bytearray | memoryview | int
        ) -> int:
            if request == 1:
                return fcntl.ioctl(descriptor, request, argument)
            assert not isinstance(argument, int)
            struct.pack_into("<I", argument, 4, request)
            return -22 if request == 9 else 0

    node = SystemNode("thing", Kernel(root))
    handle = node.open("/dev/thing0")
    block = bytearray(8)
    node.ioctl(handle, 7, memoryview(block))
    assert struct.unpack("<2I", block) == (0, 7)
    with pytest.raises(OSError, match="Invalid argument"):
        node.ioctl(handle, 9, block)
    node.close()


def test_a_forked_child_asks_the_driver_nothing(root: Path) -> None:
    """Nor does it unmap what the parent has mapped; its own copies of descriptors are closed."""
    asked: list[int] = []

    class Kernel(System):
        def ioctl(
            self, descriptor: int, request: int, argument: bytearray | memoryview | int
        ) -> int:
            asked.append(request)
            return 0

    node = SystemNode("thing", Kernel(root))
    handle = node.open("/dev/thing0")
    mapping = node.map(handle, 4096)
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:  # a thread of the parent is inside the node
        with node._lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)
        refused = 0
        for use in (
            lambda: node.ioctl(handle, 7, bytearray(8)),
            lambda: node.open("/dev/thing0"),
            lambda: node.map(handle, 4096),
            lambda: node.release(handle),
            lambda: node.read_text("/proc/version"),
            lambda: mapping.read32(0),
        ):
            try:
                use()
            except Closed:
                refused += 1
        node.close()
        try:
            os.fstat(handle)
        except OSError:
            refused += 1
        os._exit(refused if not asked else 99)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert mapping.read32(4) == 0x07060504
    node.ioctl(handle, 7, bytearray(8))
    assert asked == [7]
    node.close()
