"""Recordings of a transport's accesses, and their replay as a transport.

A recording is text, one access a line, in order:

    identity 1002:744c 0xc8 1002:0e3b 0x30000
    window 5 0x100000
    read bar5 0x5a464 4 0x80000000
    write bar0 0x1000 8192 data 7f454c46...

Replaying holds a driver to the recorded order: each access must be the next one, and reads give
what was read then. What the device wrote to memory shared by DMA is not recorded, so that a driver
which waits for such writes cannot be replayed; one that speaks through windows alone can.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from hcq.errors import BadArgument, Closed, NotSupported, TransportError
from hcq.memory import BusAddr
from hcq.transport.base import (
    DmaSegment,
    Interrupts,
    PciIdentity,
    ResetKind,
    Transport,
)
from hcq.transport.trace import CONFIG, Access, TracingTransport

PAGE = 4096


@dataclass
class Recording:
    """Accesses in order, with what is needed to stand in for the device."""

    identity: PciIdentity
    windows: dict[int, int] = field(default_factory=dict)  # BAR index -> size in bytes
    accesses: list[Access] = field(default_factory=list)

    def save(self) -> str:
        """As text, see the module's docstring."""
        one = self.identity
        lines = [
            f"identity {one.vendor:04x}:{one.device:04x} {one.revision:#x} "
            f"{one.subsystem_vendor:04x}:{one.subsystem_device:04x} {one.class_code:#x}"
        ]
        lines += [f"window {index} {size:#x}" for index, size in sorted(self.windows.items())]
        for access in self.accesses:
            if access.data is None:
                lines.append(str(access))
            else:
                head = str(access).rsplit(" ", 2)[0]
                lines.append(f"{head} data {access.data.hex()}")
        return "\n".join(lines) + "\n"

    @staticmethod
    def load(text: str) -> Recording:
        """Read what `save` wrote; BadArgument names the line that is wrong."""
        recording: Recording | None = None
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            try:
                if not words:
                    continue
                if words[0] == "identity":
                    recording = Recording(_identity(words))
                elif recording is None:
                    raise ValueError("no identity yet")
                elif words[0] == "window":
                    recording.windows[int(words[1])] = int(words[2], 16)
                else:
                    recording.accesses.append(_access(words))
            except (ValueError, IndexError) as error:
                raise BadArgument(f"line {number} of the recording: {error}", line=line) from None
        if recording is None:
            raise BadArgument("a recording begins with an identity")
        return recording


def _identity(words: list[str]) -> PciIdentity:
    vendor, device = (int(part, 16) for part in words[1].split(":"))
    subsystem = [int(part, 16) for part in words[3].split(":")]
    return PciIdentity(
        vendor, device, int(words[2], 16), subsystem[0], subsystem[1], int(words[4], 16)
    )


def _access(words: list[str]) -> Access:
    verb, place, offset, width = words[0], words[1], int(words[2], 16), int(words[3])
    if verb not in ("read", "write") or not (place == "config" or place.startswith("bar")):
        raise ValueError(f"no access: {verb} {place}")
    window = CONFIG if place == "config" else int(place[3:])
    if words[4] == "data":
        data = bytes.fromhex(words[5] if len(words) > 5 else "")
        if len(data) != width:
            raise ValueError(f"{len(data)} bytes of data, {width} expected")
        return Access(window, offset, width, verb == "write", None, data)
    return Access(window, offset, width, verb == "write", int(words[4], 16))


def record(inner: Transport) -> tuple[TracingTransport, Recording]:
    """A transport around `inner`, and the recording that grows while it is used."""
    recording = Recording(inner.identity)

    def note(access: Access) -> None:
        if access.window >= 0:
            recording.windows.setdefault(access.window, inner.window(access.window).size)
        recording.accesses.append(access)

    return TracingTransport(inner, note), recording


class ReplayMemory:
    """Host memory with a made-up bus address; no device ever writes to it."""

    def __init__(self, size: int, address: int) -> None:
        self.size = -(-size // PAGE) * PAGE
        self.view = memoryview(bytearray(self.size))
        self.segments = (DmaSegment(BusAddr(address), self.size),)

    def close(self) -> None:
        """Nothing to release."""


class ReplayWindow:
    """A window whose accesses must be the recorded ones."""

    def __init__(self, owner: ReplayTransport, index: int, size: int) -> None:
        self._owner = owner
        self.index = index
        self.size = size

    def read32(self, offset: int) -> int:
        return self._number(offset, 4)

    def write32(self, offset: int, value: int) -> None:
        self._check(offset, 4, 4)
        self._owner.expect(Access(self.index, offset, 4, True, value))

    def read64(self, offset: int) -> int:
        return self._number(offset, 8)

    def write64(self, offset: int, value: int) -> None:
        self._check(offset, 8, 8)
        self._owner.expect(Access(self.index, offset, 8, True, value))

    def read(self, offset: int, size: int) -> bytes:
        self._check(offset, size, 4)
        found = self._owner.expect(Access(self.index, offset, size, False, None, b""))
        return found.data or b""

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._check(offset, len(data), 4)
        self._owner.expect(Access(self.index, offset, len(data), True, None, bytes(data)))

    def _number(self, offset: int, width: int) -> int:
        self._check(offset, width, width)
        found = self._owner.expect(Access(self.index, offset, width, False, 0))
        return found.value or 0

    def _check(self, offset: int, size: int, align: int) -> None:
        outside = offset < 0 or size < 0 or offset + size > self.size
        if outside or offset % align or size % 4:
            raise BadArgument("bad offset or size", offset=offset, size=size, window=self.size)


class ReplayTransport:
    """Stands in for a recorded device. `finish` raises unless all of the recording was used."""

    def __init__(self, recording: Recording, name: str = "recording") -> None:
        self.name = name
        self.identity = recording.identity
        self.recording = recording
        self.position = 0
        self._closed = False
        self._windows = {
            index: ReplayWindow(self, index, size) for index, size in recording.windows.items()
        }
        self._next_address = 0x1_0000_0000

    def expect(self, access: Access) -> Access:
        """Take the next recorded access; TransportError unless `access` is that one."""
        self._check_open()
        if self.position >= len(self.recording.accesses):
            raise TransportError("an access after the end of the recording", access=str(access))
        wanted = self.recording.accesses[self.position]
        same = (access.window, access.offset, access.width, access.is_write) == (
            wanted.window,
            wanted.offset,
            wanted.width,
            wanted.is_write,
        ) and (access.data is None) == (wanted.data is None)
        if same and access.is_write:
            same = (access.value, access.data) == (wanted.value, wanted.data)
        if not same:
            raise TransportError(
                "not the recorded access",
                position=self.position,
                access=str(access),
                recorded=str(wanted),
            )
        self.position += 1
        return wanted

    def finish(self) -> None:
        """TransportError if accesses of the recording were not made."""
        rest: Iterable[Access] = self.recording.accesses[self.position :]
        first = next(iter(rest), None)
        if first is not None:
            raise TransportError("accesses are missing", position=self.position, first=str(first))

    def config_read(self, offset: int, width: int = 4) -> int:
        return self.expect(Access(CONFIG, offset, width, False, 0)).value or 0

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        self.expect(Access(CONFIG, offset, width, True, value))

    def window(self, index: int) -> ReplayWindow:
        self._check_open()
        if index not in self._windows:
            raise BadArgument("no such window in the recording", index=index)
        return self._windows[index]

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> ReplayMemory:
        self._check_open()
        memory = ReplayMemory(size, self._next_address)
        self._next_address += memory.size
        return memory

    @property
    def interrupts(self) -> Interrupts | None:
        """None: a recording interrupts nobody."""
        return None

    def reset(self, kind: ResetKind) -> None:
        raise NotSupported("a recording cannot be reset", kind=kind.value)

    def present(self) -> bool:
        return not self._closed

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.name} was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
