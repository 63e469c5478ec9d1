"""Windows of a client: BARs accessed by messages, and BARs whose memory the server shares."""

from __future__ import annotations

import mmap

from ugpu.hcq.errors import BadArgument, TransportError
from ugpu.hcq.transport.vfio_user import wire
from ugpu.hcq.transport.vfio_user.connection import Connection
from ugpu.hcq.transport.vfio_user.files import check_shared
from ugpu.hcq.transport.vfio_user.wire import Command
from ugpu.hcq.transport.window import MappedWindow
from ugpu.hcq.uapi import constants

_LARGEST_INFO = 1 << 16  # bytes of a region's description, capabilities included


def open_window(
    connection: Connection, name: str, index: int
) -> MessageWindow | SharedWindow | MappedWindow:
    """Open BAR `index`; BadArgument if there is none."""
    info, descriptors = _region_info(connection, index)
    try:
        size, offset, flags = info[4], info[5], info[1]
        if not size:
            raise BadArgument(f"{name} has no BAR {index}", index=index)
        shared = _shared_size(info, size)
        if not flags & constants("vfio").VFIO_REGION_INFO_FLAG_MMAP or not descriptors:
            return MessageWindow(connection, index, size)
        try:
            check_shared(descriptors[0], offset, shared)
            mapping = mmap.mmap(descriptors[0], shared, offset=offset)
        except (BadArgument, OSError):
            # Memory that may disappear, or cannot be mapped; messages access it safely.
            return MessageWindow(connection, index, size)
    finally:
        wire.close_all(descriptors)
    if shared == size:
        return MappedWindow(index, mapping, size)
    return SharedWindow(
        MappedWindow(index, mapping, shared), MessageWindow(connection, index, size)
    )


def _region_info(connection: Connection, index: int) -> tuple[tuple[int, ...], list[int]]:
    """Return a region's description, whose last item is the bytes of its capabilities, and
    files."""
    room = wire.REGION_INFO.size
    while True:
        request = wire.REGION_INFO.pack(room, 0, index, 0, 0, 0)
        payload, descriptors = connection.call_for_descriptors(
            Command.DEVICE_GET_REGION_INFO, (request,)
        )
        try:
            info = wire.unpack(wire.REGION_INFO, payload)
            if info[2] != index or info[4] >= 1 << 62 or info[5] >= 1 << 62:
                raise TransportError("a region's description is invalid", index=index)
            if info[0] > _LARGEST_INFO:
                raise TransportError("a region's description is too long", size=info[0])
            if info[0] <= room:
                first = _first_area(payload, info)
                return (*info, *first), descriptors
        except BaseException:
            wire.close_all(descriptors)
            raise
        wire.close_all(descriptors)
        room = info[0]


def _first_area(payload: bytes, info: tuple[int, ...]) -> tuple[int, ...]:
    """Return (offset, size) of each area that may be mapped, flattened; empty if all may be."""
    names = constants("vfio")
    if not info[1] & names.VFIO_REGION_INFO_FLAG_CAPS:
        return ()
    at, seen = info[3], 0
    while at:
        if at < wire.REGION_INFO.size or at + wire.CAPABILITY.size > len(payload) or seen > 64:
            raise TransportError("a region's capability offsets are invalid", offset=at)
        kind, _, following = wire.CAPABILITY.unpack_from(payload, at)
        if kind == names.VFIO_REGION_INFO_CAP_SPARSE_MMAP:
            start = at + wire.CAPABILITY.size
            if start + wire.SPARSE.size > len(payload):
                raise TransportError("a list of areas is truncated")
            count, _ = wire.SPARSE.unpack_from(payload, start)
            areas = payload[start + wire.SPARSE.size :][: count * wire.AREA.size]
            if len(areas) != count * wire.AREA.size:
                raise TransportError("a list of areas is truncated", areas=count)
            return tuple(number for area in wire.AREA.iter_unpack(areas) for number in area)
        at, seen = following, seen + 1
    return ()


def _shared_size(info: tuple[int, ...], size: int) -> int:
    """Return the bytes from the region's start that can be mapped; areas elsewhere are not used."""
    areas = info[6:]
    if not areas:
        return size
    start, length = areas[0], areas[1]
    if len(areas) != 2 or start != 0 or length > size:
        return 0
    return length


class MessageWindow:
    """A BAR accessed by messages. Writes are posted; reads wait for them."""

    def __init__(self, connection: Connection, index: int, size: int) -> None:
        self.index = index
        self.size = size
        self._connection = connection

    def _refuse(self, offset: int, width: int) -> None:
        raise BadArgument(
            f"BAR {self.index}: the access must be aligned to its width and inside the window",
            offset=offset, width=width, size=self.size,
        )  # fmt: skip

    def _check_value(self, value: int, bits: int) -> None:
        if not 0 <= value < 1 << bits:
            raise BadArgument(f"the value must fit in {bits} bits", value=value)

    def read32(self, offset: int) -> int:
        """Read one register: one message and its answer."""
        if offset & 3 or not 0 <= offset <= self.size - 4:
            self._refuse(offset, 4)
        return self._connection.read_register(self.index, offset, 4)

    def write32(self, offset: int, value: int) -> None:
        """Post one register write."""
        if offset & 3 or not 0 <= offset <= self.size - 4:
            self._refuse(offset, 4)
        self._check_value(value, 32)
        self._connection.post(self.index, offset, 4, value)

    def read64(self, offset: int) -> int:
        """Read one 64-bit register."""
        if offset & 7 or not 0 <= offset <= self.size - 8:
            self._refuse(offset, 8)
        return self._connection.read_register(self.index, offset, 8)

    def write64(self, offset: int, value: int) -> None:
        """Post one 64-bit register write."""
        if offset & 7 or not 0 <= offset <= self.size - 8:
            self._refuse(offset, 8)
        self._check_value(value, 64)
        self._connection.post(self.index, offset, 8, value)

    def read(self, offset: int, size: int) -> bytes:
        """Read a block of memory."""
        if offset < 0 or size < 0 or (offset | size) & 3 or offset + size > self.size:
            self._refuse(offset, size)
        if not size:
            return b""
        return self._connection.read_many(self.index, offset, size)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Post a block of memory; the caller may change `data` afterwards."""
        view = memoryview(data).cast("B") if data else memoryview(b"")
        if offset < 0 or (offset | len(view)) & 3 or offset + len(view) > self.size:
            self._refuse(offset, len(view))
        self._connection.post_many(self.index, offset, view)

    def close(self) -> None:
        """Do nothing; the connection ends with the transport."""

    def __repr__(self) -> str:
        return f"<MessageWindow BAR {self.index}, {self.size} bytes>"


class SharedWindow:
    """A BAR whose first part is shared memory and whose rest is accessed by messages."""

    def __init__(self, shared: MappedWindow, rest: MessageWindow) -> None:
        self._shared = shared
        self._rest = rest
        self.index = rest.index
        self.size = rest.size

    def _part(self, offset: int, width: int) -> MappedWindow | MessageWindow:
        return self._shared if 0 <= offset <= self._shared.size - width else self._rest

    def read32(self, offset: int) -> int:
        """Read one dword."""
        return self._part(offset, 4).read32(offset)

    def write32(self, offset: int, value: int) -> None:
        """Write one dword."""
        self._part(offset, 4).write32(offset, value)

    def read64(self, offset: int) -> int:
        """Read one quadword."""
        return self._part(offset, 8).read64(offset)

    def write64(self, offset: int, value: int) -> None:
        """Write one quadword."""
        self._part(offset, 8).write64(offset, value)

    def read(self, offset: int, size: int) -> bytes:
        """Read a block of memory."""
        return self._part(offset, size).read(offset, size)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a block of memory."""
        self._part(offset, memoryview(data).nbytes).write(offset, data)

    def close(self) -> None:
        """Unmap; idempotent."""
        self._shared.close()

    def __repr__(self) -> str:
        return f"<SharedWindow BAR {self.index}, {self._shared.size} of {self.size} bytes>"
