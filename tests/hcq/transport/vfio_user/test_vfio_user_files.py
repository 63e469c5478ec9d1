"""Files that clients share: where they are mapped, one client after the other."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator

import pytest

from ugpu.hcq.errors import BadArgument, OutOfMemory
from ugpu.hcq.transport.vfio_user import files as shared_files
from ugpu.hcq.transport.vfio_user.files import SharedFiles, sealed_memory

LENGTH = (1 << 27) + 4096


def huge_pages() -> int | None:
    """A file of huge pages, none of which need exist; None where the kernel makes none."""
    try:
        descriptor = os.memfd_create("huge", os.MFD_HUGETLB | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    os.ftruncate(descriptor, 1 << 30)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


@pytest.fixture(autouse=True)
def _no_former_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests leave places behind, which are taken in turn."""
    monkeypatch.setattr(shared_files, "_PLACES", shared_files._Places())


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
        for place in (address, address + LENGTH - 4096):
            ctypes.memset(place, 0x5A, 4096)  # an engine that was about to
    assert len(places) == 1
    assert os.pread(file, 6, 0) == b"theirs"


def test_two_files_at_once_have_places_of_their_own(file: int) -> None:
    other = sealed_memory("other", LENGTH)
    files = SharedFiles()
    first, second = (files.map(one, 0, LENGTH, writable=True) for one in (file, other))
    assert abs(first[0] - second[0]) >= LENGTH
    ctypes.memset(second[0], 1, 4096)
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


@pytest.mark.parametrize("writable", [False, True])
def test_huge_pages_are_refused(writable: bool) -> None:
    """To touch one where none is left ends the process, whatever is sealed."""
    descriptor = huge_pages()
    if descriptor is None:
        pytest.skip("the kernel has no huge pages (CONFIG_HUGETLBFS)")
    with pytest.raises(BadArgument, match="ordinary pages, got huge ones"):
        SharedFiles().map(descriptor, 0, 1 << 21, writable=writable)
    os.close(descriptor)


def test_lengths_that_clients_think_of_take_no_new_addresses() -> None:
    places = set()
    for pages in range(200, 256):
        descriptor, files = sealed_memory("test", pages << 21), SharedFiles()
        address, key = files.map(descriptor, 0, 4096, writable=True)
        places.add(address)
        files.release(key)
        os.close(descriptor)
    assert len(places) == 1


@pytest.mark.parametrize("what", ["MOST_FILES", "MOST_BYTES"])
def test_a_client_shares_a_bounded_number(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, what, {"MOST_FILES": 3, "MOST_BYTES": 3 << 16}[what])
    files, several = SharedFiles(), [sealed_memory("test", 1 << 16) for _ in range(4)]
    keys = [files.map(each, 0, 4096, writable=True)[1] for each in several[:3]]
    files.release(files.map(several[0], 4096, 4096, writable=True)[1])  # it is there already
    with pytest.raises(OutOfMemory, match="at most"):
        files.map(several[3], 0, 4096, writable=True)
    files.release(keys[1])
    files.map(several[3], 0, 4096, writable=True)
    for each in several:
        os.close(each)


def test_memory_that_cannot_be_given_back_is_let_go(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have no room for the mapping that takes the file's place."""
    files = SharedFiles()
    address, key = files.map(file, 0, LENGTH, writable=True)

    def full(*_: object) -> int:
        raise OutOfMemory("the shared file cannot be mapped")

    with monkeypatch.context() as patched:
        patched.setattr(shared_files, "_map", full)
        files.release(key)
    assert ctypes.string_at(address, 6) == b"theirs", "still there: an engine may be about to look"
    again, key = files.map(file, 0, LENGTH, writable=True)
    assert again != address, "and no other file comes there"
    files.release(key)
