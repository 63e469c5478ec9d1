"""Device nodes of a stock kernel driver, which owns the hardware.

A vendor's kernel driver (NVIDIA's resource manager, amdkfd, KGSL) provides character devices: files
that are opened, controlled by ioctl and mapped. `Node` has these operations and nothing more, so
that a driver runs unchanged on the system's files (`hcq.transport.system_node`), on a model of the
kernel driver in this process, and on a recording of either.

A driver is given a node and never searches for one. Files are named by handles that `open` returns.
On the system they are file descriptors; if an ioctl's parameters contain a descriptor, the handle
is used there. Pointers in parameters are addresses in this process."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ugpu.hcq.errors import BadArgument, Closed, NotSupported
from ugpu.hcq.state.clock import Clock


class NodeMapping(Protocol):
    """Part of a node's memory in this process, until `close` (idempotent). Offsets and sizes are
    bytes; accesses are aligned and inside `size`, else BadArgument.

    Attributes:
        size: in bytes.
        address: the memory's address in this process; 0 if `view` is None.
        view: the memory itself, writable and shared with the device; None if a store must reach a
            model immediately (a doorbell): then only read32 and write32 work.
    """

    size: int
    address: int
    view: memoryview | None

    def read32(self, offset: int) -> int: ...
    def write32(self, offset: int, value: int) -> None: ...
    def close(self) -> None: ...


class ViewMapping:
    """Memory of this process as a NodeMapping. Its owner frees it."""

    def __init__(self, view: memoryview) -> None:
        self.size = len(view)
        self.view: memoryview | None = view
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0
        # A memoryview with a cast format copies exactly one item: one aligned access of its width.
        self._words = view[: self.size & ~3].cast("I")
        self._closed = False

    def read32(self, offset: int) -> int:
        return self._words[self._index(offset)]

    def write32(self, offset: int, value: int) -> None:
        self._words[self._index(offset)] = value

    def _index(self, offset: int) -> int:
        if self._closed:
            raise Closed("mapping used after close")
        if offset & 3 or not 0 <= offset < self.size & ~3:
            raise BadArgument("the access must be aligned and inside the mapping", offset=offset)
        return offset >> 2

    def close(self) -> None:
        """Release the views; idempotent. BufferError if a part is still referenced."""
        if not self._closed:
            self._closed = True
            self._words.release()
            if self.view is not None:
                self.view.release()


class Node(Protocol):
    """The files of one kernel driver. `close` is idempotent and releases all handles and mappings.
    Any thread may call; the kernel driver behind it orders what must be ordered.

    Attributes:
        name: as opened.

    `clock` is time as this node counts it; drivers wait, sleep and read the time by this clock
    alone.
    """

    name: str

    @property
    def clock(self) -> Clock: ...

    def open(self, path: str) -> int:
        """Open a device file for reading and writing; return a handle. FileNotFoundError and
        PermissionError are raised as by the system: the driver names the remedy."""
        ...

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        """Perform one ioctl; `argument` is read and written in place. OSError with the errno on
        failure.

        The caller must check a status inside the argument: a kernel driver may report a failure
        there while the call itself succeeds.
        """
        ...

    def map(self, handle: int, size: int, offset: int = 0) -> NodeMapping:
        """Map `size` bytes at `offset` of a handle, shared, readable and writable."""
        ...

    def release(self, handle: int) -> None:
        """Close one handle. BadArgument if it is not open."""
        ...

    def read_text(self, path: str) -> str:
        """Return the content of the driver's file in /proc or /sys. FileNotFoundError if it does
        not exist."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Reopenable(Protocol):
    """A node that a program can have several of, each with its own files."""

    def another(self) -> Node:
        """Return a second node of the same kernel driver, which has no file open. The caller closes
        it; neither node outlives or ends the other."""
        ...


def take_gap(node: object) -> NotSupported | None:
    """Return the feature that the model behind a node or a transport lacks, if that ended work
    which hardware would have done; None if there is none, as always with a real driver. Each is
    reported once."""
    gaps: list[NotSupported] = getattr(node, "gaps", [])
    return gaps.pop(0) if gaps else None


def code_of(node: object) -> str:
    """Return the only kind of code that the model behind a node or a transport executes, such as
    "PTX"; empty if it executes all, as a real driver does."""
    kind: str = getattr(node, "code", "")
    return kind


@dataclass(frozen=True)
class NodeAttachment:
    """A connection to one GPU through its kernel driver, passed to ugpu's driver, which then owns
    the node.

    Attributes:
        node: the kernel driver's files.
        driver: key of hcq.find.registry.NODE_DRIVERS.
        index: the GPU's minor number (`/dev/nvidia<index>`).
        chip: the model behind a virtual node, for inspecting it or provoking a fault; None for a
            real one.
    """

    node: Node
    driver: str
    index: int = 0
    chip: object = None
