"""BARs and files of sysfs that are not what they should be: each is a named error, never a raw
OSError, ValueError or OverflowError, and nothing stays open."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.pci.sysfs_tree import GPU, SysfsTree
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    DeviceLost,
    HostError,
    TransportError,
    UgpuError,
)
from ugpu.hcq.transport.pci.sysfs import SysfsTransport, bar_sizes
from ugpu.hcq.transport.system import System

_MEMORY = 0x40200


def _bars(folder: Path, first: str) -> None:
    lines = (folder / "resource").read_text().splitlines()
    (folder / "resource").write_text("\n".join([first, *lines[1:]]) + "\n")


def _sized(size: int) -> Callable[[Path], None]:
    start = 0x10_0000_0000
    return lambda folder: _bars(folder, f"{start:#x} {start + size - 1:#x} {_MEMORY:#x}")


def _replaced(by: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "resource0").unlink()
        by(folder / "resource0")

    return change


def _unlinked(folder: Path) -> None:
    (folder / "resource0").unlink()


HOSTILE: dict[str, tuple[Callable[[Path], None], type[UgpuError]]] = {
    "size 0": (lambda folder: _bars(folder, "0x0 0x0 0x0"), BadArgument),
    "an odd size": (_sized((1 << 20) - 3), BadArgument),
    "larger than its file": (_sized(1 << 21), TransportError),
    "larger than an address space": (_sized(1 << 62), TransportError),
    "larger than a number": (_sized((1 << 63) + 4096), TransportError),
    "no numbers": (lambda folder: _bars(folder, "what ever this"), TransportError),
    "two numbers": (lambda folder: _bars(folder, "0x1000 0x1fff"), TransportError),
    "gone": (_unlinked, DeviceLost),
    "a folder": (_replaced(lambda path: path.mkdir()), TransportError),
    "a FIFO": (_replaced(os.mkfifo), TransportError),
    "an empty file": (_replaced(lambda path: path.touch()), TransportError),
    "a dead link": (_replaced(lambda path: path.symlink_to("nowhere")), DeviceLost),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_bar_is_a_named_error(tmp_path: Path, what: str) -> None:
    change, kind = HOSTILE[what]
    system = SysfsTree(tmp_path)
    before = set(os.listdir("/proc/self/fd"))
    transport = SysfsTransport(GPU, system=system)
    with transport:
        change(system.folder)
        if what == "an odd size":
            window = transport.window(0)
            with pytest.raises(kind):
                window.read32((1 << 20) - 4)
            assert window.read64((1 << 20) - 16) == 0
        else:
            with pytest.raises(kind):
                transport.window(0)
        if "numbers" not in what:  # of all BARs
            assert transport.window(5).read32(0) == 0, "the other BAR works on"
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EIO, errno.ENOMEM, errno.EAGAIN])
def test_a_map_that_the_kernel_refuses(tmp_path: Path, number: int) -> None:
    class Refusing(SysfsTree):
        def map(self, descriptor: int, size: int, offset: int) -> object:  # type: ignore[override]
            raise OSError(number, os.strerror(number))

    with SysfsTransport(GPU, system=Refusing(tmp_path)) as transport:
        with pytest.raises(TransportError, match="cannot map") as caught:
            transport.window(0)
        assert caught.value.facts["reason"] == os.strerror(number)


@pytest.mark.parametrize("name", ["open", "pread"])
def test_a_pagemap_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    system = SysfsTree(tmp_path)
    with SysfsTransport(GPU, system=system) as transport:
        real = getattr(system, name)

        def fail(*arguments: object) -> object:
            path = arguments[0]
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")
            if "pagemap" not in str(path):
                return real(*arguments)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        setattr(system, name, fail)
        with pytest.raises(HostError, match="pagemap cannot be read"):
            transport.allocate_dma(4096)


@pytest.mark.parametrize("size", [1 << 62, 1 << 63, 1 << 80])
def test_memory_of_no_sensible_size(tmp_path: Path, size: int) -> None:
    system = SysfsTree(tmp_path)
    with (
        SysfsTransport(GPU, system=system) as transport,
        pytest.raises(HostError, match="out of host memory"),
    ):
        transport.allocate_dma(size)


def test_sizes_that_are_no_number(tmp_path: Path) -> None:
    system = SysfsTree(tmp_path)
    with SysfsTransport(GPU, system=system) as transport:
        (system.folder / "resource0_resize").write_text("several\n")
        with pytest.raises(TransportError, match="sizes of BAR 0"):
            transport.resize(0, 1 << 20)
        assert bar_sizes(transport.function, 1) == []


def test_attributes_that_are_fifos_hold_nobody_up(tmp_path: Path) -> None:
    system = System(tmp_path)
    os.mkfifo(tmp_path / "attribute")
    assert system.read_text("attribute") == ""
    with pytest.raises(OSError):
        system.write_text(tmp_path / "attribute", "1")
    with SysfsTransport(GPU, system=SysfsTree(tmp_path / "tree")) as transport:
        (transport.function.folder / "reset").unlink()
        os.mkfifo(transport.function.folder / "reset")
        with pytest.raises(TransportError, match="rejected a write"):
            transport._write_attribute("reset", "1")


def test_a_file_that_may_not_be_opened(tmp_path: Path) -> None:
    class Forbidding(SysfsTree):
        def open(self, path: Path, flags: int = os.O_RDWR) -> int:
            if path.name == "resource0":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return super().open(path, flags)

    system = Forbidding(tmp_path)
    with SysfsTransport(GPU, system=system) as transport, pytest.raises(AccessDenied):
        transport.window(0)
