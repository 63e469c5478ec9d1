"""The request engine: registers at XDATA 0xB210 that send one PCI Express request at a time.

Facts: tinygrad runtime/support/usb.py at f1041dc0ac (registers, byte order, completion checks),
asm2464pd-firmware handmade/src/main.c and pcie_pio.h (status bits, order of accesses).
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from ugpu.virtual.usb.fabric import Completion, Fabric, Status
from ugpu.virtual.usb.memory import Memory

_FORMAT, _ENABLES, _ADDRESS, _ADDRESS_HIGH = 0xB210, 0xB217, 0xB218, 0xB21C
_DATA, _HEADER, _KIND = 0xB220, 0xB22A, 0xB284
_GO, _STATUS, _LTSSM = 0xB254, 0xB296, 0xB450
_GO_VALUE = 0x0F
_ERROR, _COMPLETE = 1, 2
_HAS_DATA = 0x40
_L0 = 0x78
_DETECT = 0x01


class Request(enum.IntEnum):
    """Format and type of a request (PCI Express Base Specification 5.0, table 2-3).

    UNSURE: whether the engine takes 0x00 and 0x40, memory requests with 32-bit addresses; every
    public driver sends 0x20 and 0x60, even for addresses below 4 GiB.
    """

    CONFIG_READ_0 = 0x04
    CONFIG_READ_1 = 0x05
    CONFIG_WRITE_0 = 0x44
    CONFIG_WRITE_1 = 0x45
    MEMORY_READ = 0x20
    MEMORY_WRITE = 0x60


class RequestEngine:
    """Registers and their effect. object_to: records accesses that no driver should make.

    lost_completions: the number of requests, from now on, that get no answer.
    """

    def __init__(
        self,
        memory: Memory,
        fabric: Fabric,
        link_up: Callable[[], bool],
        object_to: Callable[[str], None],
    ) -> None:
        self._memory = memory
        self._fabric = fabric
        self._link_up = link_up
        self._object_to = object_to
        self._status = 0
        self.lost_completions = 0
        memory.hook(_GO, write=self._go)
        memory.hook(_STATUS, lambda: self._status, self._clear)
        memory.hook(_LTSSM, lambda: _L0 if link_up() else _DETECT, lambda _value: None)

    # ---- registers ----------------------------------------------------------------------------

    def _get(self, address: int, size: int) -> int:
        return int.from_bytes(self._memory.read(address, size), "big")

    def _set(self, address: int, value: int, size: int) -> None:
        for at, byte in enumerate(value.to_bytes(size, "big")):
            self._memory.write(address + at, byte)

    @property
    def address(self) -> int:
        """The 64-bit address register."""
        return self._get(_ADDRESS, 4) | self._get(_ADDRESS_HIGH, 4) << 32

    @address.setter
    def address(self, value: int) -> None:
        self._set(_ADDRESS, value & 0xFFFF_FFFF, 4)
        self._set(_ADDRESS_HIGH, value >> 32 & 0xFFFF_FFFF, 4)

    def prepare(self, kind: int, enables: int, address: int) -> None:
        """Set the registers of a request other than its data."""
        self._memory.write(_FORMAT, kind)
        self._memory.write(_ENABLES, enables)
        self.address = address

    @property
    def data(self) -> int:
        """The data register: its most significant byte comes first."""
        return self._get(_DATA, 4)

    @data.setter
    def data(self, value: int) -> None:
        self._set(_DATA, value, 4)

    def answer(self) -> bytes | None:
        """Return data (little endian), header and kind of the completion; None without one."""
        if not self._status & _COMPLETE:
            return None
        kind = self._memory.read(_KIND, 1)
        return self.data.to_bytes(4, "little") + self._memory.read(_HEADER, 2) + kind

    @property
    def failed(self) -> bool:
        """Return whether the engine refused the request; reading clears it, as the firmware
        does."""
        failed = bool(self._status & _ERROR)
        self._status &= ~_ERROR
        return failed

    def _clear(self, value: int) -> None:
        self._status &= ~(value & (_ERROR | _COMPLETE))

    # ---- single requests ----------------------------------------------------------------------

    def run(self) -> None:
        """Send the request that the registers describe."""
        self._status = 0
        self._go(_GO_VALUE)

    def _go(self, value: int) -> None:
        if value != _GO_VALUE:
            return
        kind, enables, address = self._get(_FORMAT, 1), self._get(_ENABLES, 1), self.address
        if kind not in tuple(Request) or enables > 0xF or address & 3:
            self._object_to(
                f"request {kind:#04x} with enables {enables:#x} at {address:#x}: malformed"
            )
            self._status |= _ERROR
            return
        if kind == Request.MEMORY_WRITE:
            self._write(address, self.data, enables)
            return  # posted: there is never a completion
        if self.lost_completions:
            self.lost_completions -= 1
            return
        if kind == Request.MEMORY_READ:
            self._complete(self._read(address), enables.bit_count())
        else:
            self._complete(self._configure(kind, address, enables), 4)

    def _write(self, address: int, value: int, enables: int) -> None:
        content = value.to_bytes(4, "little")
        if enables == 0xF:
            self._fabric.write(address, content)
            return
        for at in range(4):
            if enables >> at & 1:
                self._fabric.write(address + at, content[at : at + 1])

    def _read(self, address: int) -> Completion:
        found = self._fabric.read(address, 4) if self._link_up() else None
        if found is None:
            return Completion(Status.UNSUPPORTED)
        return Completion(Status.SUCCESS, int.from_bytes(found, "little"))

    def _configure(self, kind: int, address: int, enables: int) -> Completion:
        bus, device, function = address >> 24 & 0xFF, address >> 19 & 0x1F, address >> 16 & 7
        value = self.data if kind & _HAS_DATA else None
        if address >> 32 or address & 0xF000:
            self._object_to(f"configuration request to {address:#x}: reserved bits are set")
        if kind & 1 == (bus == 0):
            self._object_to(f"configuration request of type {kind & 1} to bus {bus}")
        return self._fabric.configure(
            kind & 1, bus, device, function, address & 0xFFC, enables, value
        )

    def _complete(self, completion: Completion, count: int) -> None:
        # UNSURE: what the data register holds after a completion without data; it stays here.
        if completion.data is not None:
            self.data = completion.data
        self._set(_HEADER, completion.status << 13 | count, 2)
        self._memory.write(_KIND, int(completion.data is not None))
        self._status |= _COMPLETE

    # ---- streams: requests that the firmware itself sends, by dword ----------------------------

    def stream_write(self, content: bytes) -> None:
        """Write whole dwords from the address register on, and advance that register."""
        address = self.address
        self.address = address + len(content)
        self._fabric.write(address, content)
        if content:
            self.data = int.from_bytes(content[-4:], "little")
        self._status = 0

    def stream_read(self, size: int) -> bytes | None:
        """Read whole dwords likewise. None: an answer is missing, and the firmware waits forever.

        The requests are of the kind in the registers. A refused one yields the current contents of
        the data register: the firmware checks no status, but the last completion stays in the
        registers.
        """
        if self.lost_completions:
            self.lost_completions -= 1
            return None
        address, kind = self.address, self._get(_FORMAT, 1)
        self.address = address + size
        if kind in (Request.CONFIG_READ_0, Request.CONFIG_READ_1):
            return b"".join(self._configured(kind, at) for at in range(address, address + size, 4))
        found = self._fabric.read(address, size) if self._link_up() else None
        if found is None:
            self._object_to(f"stream read of {size} bytes at {address:#x}, which nothing decodes")
            self._complete(Completion(Status.UNSUPPORTED), 4)
            return self.data.to_bytes(4, "little") * (size // 4)
        self._complete(Completion(Status.SUCCESS, int.from_bytes(found[-4:], "little")), 4)
        return found

    def _configured(self, kind: int, address: int) -> bytes:
        """Return the data register after a configuration read."""
        self._complete(self._configure(kind, address, self._get(_ENABLES, 1)), 4)
        return self.data.to_bytes(4, "little")
