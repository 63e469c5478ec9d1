"""The bridge's SPI flash, programmed through the registers of its controller.

Source: asm2464pd-firmware src/include/registers.h (0xC8A1 to 0xC8AF, buffer at 0x7000),
handmade/e4_flash.py (sequences), pull request 83 (a read needs one byte before it, and samples
must agree; USB 2 stages 64 bytes). A remark in the later tree: bit 0 of 0xCA81 left set broke PCI
Express on a 9060; so `close` restores the registers that `open` sets up. UNSURE: what 0xCC33 reads
as; it is left as written. Commands and times: Winbond W25Q80DV data sheet, 8.2 and 9.6; parts
of other vendors share them.
"""

from __future__ import annotations

import contextlib

from ugpu.hcq.errors import BadArgument, ChipError, DeviceLost, NotSupported
from ugpu.hcq.state.clock import Clock
from ugpu.usbgpu.bridge.checks import require
from ugpu.usbgpu.bridge.interface import Ability, Bridge

BLOCK = 64 << 10  # bytes that `erase` erases
PAGE = 256
_BUFFER, _BUFFER_SIZE = 0x7000, 0x1000
_ENABLE, _ENABLED = 0xCA81, 0x01
_SETUP = ((0xCC33, 0x04), (0xC805, 0x02), (0xC8A6, 0x04))  # clock gate, buffer mode, SPI divider
_RESTORED = (0xC805, 0xC8A6)  # those of _SETUP that keep what is written
_ADDRESS_LOW = 0xC8A1  # then middle, and length high, low
_GO, _BUSY = 0xC8A9, 0x01
_COMMAND = 0xC8AA  # then address high, address mode, direction, offset in the buffer (two)
_MODE = 0xC8AD
_NO_ADDRESS, _ADDRESS = 0x04, 0x07
_WRITE_STATUS, _PROGRAM, _READ, _READ_STATUS = 0x01, 0x02, 0x03, 0x05
_WRITE_ENABLE, _READ_ID, _ERASE = 0x06, 0x9F, 0xD8
_PROTECTED = 0x1C  # status: block protection
_WRITING = 0x01  # status
_SMALLEST, _LARGEST = 16, 24  # log2 of bytes; three bytes address 16 MiB
_SAMPLES = 3
# TIMEOUT: transfers take microseconds; 2 s is twice the data sheet's maximum for a block.
_TRANSFER_LIMIT_S, _WRITE_LIMIT_S = 1.0, 4.0


class Flash:
    """The part behind a bridge. `open` must be the first call, `close` the last. One thread at a
    time."""

    def __init__(self, bridge: Bridge, clock: Clock) -> None:
        self._bridge = bridge
        self._clock = clock
        self.size = 0
        self._status = 0
        self._before: dict[int, int] = {}  # registers that `open` has changed

    def open(self) -> None:
        """Set the controller up and identify the part. NotSupported for a part of unknown size, and
        where the bridge's firmware passes no data to the controller."""
        require(self._bridge, Ability.FLASH, "the flash part")
        try:
            self._set_up()
            self._identify()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Restore the registers as `open` found them; idempotent. An unplugged bridge has lost them
        with its power."""
        before, self._before = self._before, {}
        with contextlib.suppress(DeviceLost):
            for address, value in reversed(before.items()):
                self._bridge.write_xdata(address, bytes([value]))

    def _set_up(self) -> None:
        for address in (_ENABLE, *_RESTORED):
            self._before[address] = self._bridge.read_xdata(address, 1)[0]
        enabled = self._before[_ENABLE] | _ENABLED
        self._bridge.write_xdata(_ENABLE, bytes([enabled]))
        for address, value in _SETUP:
            self._bridge.write_xdata(address, bytes([value]))

    def _identify(self) -> None:
        identity = self._sampled(_READ_ID, 0, 3, _NO_ADDRESS)
        if not _SMALLEST <= identity[2] <= _LARGEST:
            raise NotSupported(
                f"flash part of unknown size: expected 2^{_SMALLEST} to 2^{_LARGEST} bytes, got "
                f"identity {identity.hex()}", identity=identity.hex(),
            )  # fmt: skip
        self.size = 1 << identity[2]

    # ---- reading -----------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        """Read bytes. Two of at most three samples of each chunk must agree, else ChipError."""
        self._check(address, size)
        parts = []
        most = _BUFFER_SIZE - 1
        for start in range(address, address + size, most):
            want = min(most, address + size - start)
            before = (start - 1) % self.size  # the first byte of a read may be stale
            parts.append(self._sampled(_READ, before, want + 1, _ADDRESS)[1:])
        return b"".join(parts)

    def _sampled(self, command: int, address: int, size: int, mode: int) -> bytes:
        skipped = 1 if command == _READ else 0
        seen: set[bytes] = set()
        for _ in range(_SAMPLES):
            self._transfer(command, address, size, mode)
            sample = self._bridge.read_xdata(_BUFFER, size)
            if sample[skipped:] in seen:
                return sample
            seen.add(sample[skipped:])
        raise ChipError(f"flash: {_SAMPLES} reads at {address:#x} differ", address=address)

    # ---- writing -----------------------------------------------------------------------------

    def unprotect(self) -> None:
        """Allow erasing and programming, until `protect`."""
        self._status = self._read_status()
        self._write_status(self._status & ~_PROTECTED)

    def protect(self) -> None:
        """Restore the protection that `unprotect` found."""
        self._write_status(self._status)

    def erase(self, address: int) -> None:
        """Erase a block: its bytes are 0xFF."""
        self._check(address, BLOCK)
        if address % BLOCK:
            raise BadArgument(f"address must be a multiple of {BLOCK:#x}, got {address:#x}")
        self._enable_writes()
        self._transfer(_ERASE, address, 0, _ADDRESS)
        self._await_write()

    def program(self, address: int, data: bytes) -> None:
        """Clear bits. Bytes that are 0xFF need no write and get none."""
        self._check(address, len(data))
        step = self._bridge.stage_limit
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            if piece.strip(b"\xff"):
                if (address + start) % PAGE + len(piece) > PAGE:
                    raise BadArgument(f"programming at {address + start:#x} crosses a page")
                self._bridge.stage(piece)
                self._enable_writes()
                self._transfer(_PROGRAM, address + start, len(piece), _ADDRESS, outward=True)
                self._await_write()

    def _read_status(self) -> int:
        self._transfer(_READ_STATUS, 0, 1, _NO_ADDRESS)
        return self._bridge.read_xdata(_BUFFER, 1)[0]

    def _write_status(self, value: int) -> None:
        bits = value & _PROTECTED
        self._bridge.stage(bytes([bits]))
        self._enable_writes()
        self._transfer(_WRITE_STATUS, 0, 1, _NO_ADDRESS, outward=True)
        self._await_write()
        status = self._read_status() & _PROTECTED
        if status != bits:
            raise ChipError(f"flash protection: expected {bits:#04x}, got {status:#04x}")

    def _enable_writes(self) -> None:
        """ORDER: call it after staging; it moves no data, so the staged data stays in the
        buffer."""
        self._transfer(_WRITE_ENABLE, 0, 0, _NO_ADDRESS)

    def _await_write(self) -> None:
        self._clock.wait_until(
            lambda: not self._read_status() & _WRITING,
            unit="bridge flash", waiting_for="the end of a write", limit_s=_WRITE_LIMIT_S,
        )  # fmt: skip

    # ---- the controller ----------------------------------------------------------------------

    def _transfer(
        self, command: int, address: int, size: int, mode: int, *, outward: bool = False
    ) -> None:
        place = bytes([address & 0xFF, address >> 8 & 0xFF, size >> 8, size & 0xFF])
        self._bridge.write_xdata(_ADDRESS_LOW, place)
        self._bridge.write_xdata(_COMMAND, bytes([command, address >> 16, mode, outward, 0, 0]))
        self._bridge.write_xdata(_GO, bytes([_BUSY]))
        self._clock.wait_until(
            lambda: not self._bridge.read_xdata(_GO, 1)[0] & _BUSY,
            unit="bridge flash", waiting_for="the end of a transfer", limit_s=_TRANSFER_LIMIT_S,
        )  # fmt: skip
        if outward:
            # e4_flash.py: one write for each bit that ends; "collapsing" them corrupts data.
            for _ in range(4):
                self._bridge.write_xdata(_MODE, b"\0")

    def _check(self, address: int, size: int) -> None:
        if not 0 <= address <= address + size <= self.size:
            raise BadArgument(
                f"flash addresses must be below {self.size:#x}, got {address:#x} and {size} bytes"
            )
