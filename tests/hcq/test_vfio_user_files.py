"""Files that clients share: where they are mapped, one client after the other."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator

import pytest

from hcq.errors import BadArgument, OutOfMemory
from hcq.transport.vfio_user.files import SharedFiles, sealed_memory

LENGTH = 37 * 4096  # that no other test has


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = sealed_memory("test", LENGTH)
    os.pwrite(descriptor, b"theirs", 0)
    yield descriptor
    os.close(descriptor)


def test_clients_take_each_others_places(file: int) -> None:
    """Else a server's addresses, and its mappings, would end after enough clients."""
    places = set()
    for _ in range(20):
        files = SharedFiles()
        address, key = files.map(file, 0, LENGTH, writable=True)
        assert ctypes.string_at(address, 6) == b"theirs"
        places.add(address)
        files.release(key)
        assert ctypes.string_at(address, 6) == bytes(6), "still there, and nobody's"
        ctypes.memset(address, 0x5A, LENGTH)  # an engine that was about to
    assert len(places) == 1
    assert os.pread(file, 6, 0) == b"theirs"


def test_two_files_at_once_have_places_of_their_own(file: int) -> None:
    other = sealed_memory("other", LENGTH)
    files = SharedFiles()
    first, second = (files.map(one, 0, LENGTH, writable=True) for one in (file, other))
    assert abs(first[0] - second[0]) >= LENGTH
    ctypes.memset(second[0], 1, LENGTH)
    assert ctypes.string_at(first[0], 6) == b"theirs"
    files.release(first[1])
    files.release(second[1])
    os.close(other)


def test_a_place_survives_a_file_that_does_not_map(file: int) -> None:
    files = SharedFiles()
    address, key = files.map(file, 0, LENGTH, writable=True)
    files.release(key)
    reading = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
    with pytest.raises((BadArgument, OutOfMemory)):
        files.map(reading, 0, LENGTH, writable=True)
    assert fcntl.fcntl(reading, fcntl.F_GETFD) >= 0, "the caller's"
    os.close(reading)
    assert ctypes.string_at(address, 6) == bytes(6)
    places = []
    for _ in range(3):
        again, key = files.map(file, 0, LENGTH, writable=True)
        places.append(again)
        files.release(key)
    assert address in places
