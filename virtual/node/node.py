"""The device files of a kernel driver in one program: opened, mapped, closed."""

from __future__ import annotations

import errno
import itertools
import threading
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.state import life
from ugpu.hcq.state.clock import Clock
from ugpu.virtual.node.mapping import Mapping
from ugpu.virtual.node.refusal import refused


class Machine(Protocol):
    """A machine with the kernel driver. nodes: of its programs. lock: of the driver's state."""

    lock: threading.RLock
    nodes: list[object]

    @property
    def clock(self) -> Clock: ...
    def close(self) -> None: ...


M = TypeVar("M", bound=Machine)
F = TypeVar("F")


class DeviceNode(ABC, Generic[M, F]):
    """One program's access to the driver; with `open` and `ioctl` a `hcq.transport.node.Node`.

    Closing it ends the program: all its files are closed and its memory is freed. owns_machine:
    closing also switches the machine off. files: the open ones, by handle.
    """

    def __init__(self, name: str, machine: M, *, owns_machine: bool = False) -> None:
        self.name = name
        self.machine = machine
        self.clock = machine.clock
        self.files: dict[int, F] = {}
        self._owns_machine = owns_machine
        self._handles = itertools.count(100)
        self._mappings: list[Mapping] = []
        self._closed = False
        machine.nodes.append(self)
        life.inherits(self)

    @abstractmethod
    def _map(self, file: F, size: int, offset: int) -> Mapping:
        """Map a part of a file; OSError if the driver refuses it. The lock is held."""

    @abstractmethod
    def _file_closed(self, handle: int, file: F) -> None:
        """Free what a file held that is no longer in `files`. The lock is held."""

    def _close_files(self) -> None:
        """Close all files, as the program ends. The lock is held."""
        for handle in list(self.files):
            self.release(handle)

    def map(self, handle: int, size: int, offset: int = 0) -> Mapping:
        """Map a part of a file; OSError if the driver refuses it."""
        self._need_open()
        with self.machine.lock:
            mapping = self._map(self._file(handle), size, offset)
            self._mappings = [old for old in self._mappings if not old.closed]
            self._mappings.append(mapping)
            return mapping

    def release(self, handle: int) -> None:
        """Close one file and free what it held. BadArgument if it is not open."""
        self._need_open()
        with self.machine.lock:
            if handle not in self.files:
                raise BadArgument("this handle is not open", handle=handle)
            self._file_closed(handle, self.files.pop(handle))

    def abandon(self) -> None:
        """Disable the node in a forked child, which has neither its threads nor the holders of its
        locks."""
        self._closed = True

    def close(self) -> None:
        """End the program; idempotent."""
        if self._closed:
            return
        with self.machine.lock:
            if self._closed:
                return
            self._close_files()
            for mapping in self._mappings:
                mapping.close()
            self._mappings = []
            self._closed = True
            self.machine.nodes.remove(self)
        if self._owns_machine:
            self.machine.close()

    def _need_open(self) -> None:
        """Raise if the program has ended. Comes before the lock, which is the parent's in a forked
        child."""
        if self._closed:
            raise Closed(f"{self.name}: the process has ended")

    def _file(self, handle: int) -> F:
        self._need_open()
        file = self.files.get(handle)
        if file is None:
            raise refused(errno.EBADF, f"handle {handle}")
        return file


def block_of(request: int, argument: bytearray | memoryview) -> memoryview:
    """Return as much of an ioctl's argument as its number says (Linux asm-generic/ioctl.h); OSError
    if it is shorter."""
    size = request >> 16 & 0x3FFF
    if size > len(argument):
        raise refused(errno.EFAULT, f"ioctl {request:#x}: cannot read {size} bytes")
    return memoryview(argument)[:size]
