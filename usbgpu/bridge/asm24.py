"""The ASM2464PD with the open firmware: vendor requests on endpoint 0, data on two bulk endpoints.

Source: tinygrad/asm2464pd-firmware of 2026-04-29 (handmade/src/main.c, pcie_pio.h), read for its
facts. Requests: E4 and E5 read and write XDATA; F0 sends PCI Express requests, one at a time or as
a stream of dwords to or from ascending addresses; F2 arms the transfer of a run of SRAM slots; F3
switches the card's supply.
"""

from __future__ import annotations

import functools
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from ugpu.hcq.errors import BadArgument, DeviceLost, NotSupported, TransportError, UgpuError
from ugpu.hcq.transport.bulk import Data
from ugpu.usbgpu.bridge.checks import check_memory, check_xdata, completion_of
from ugpu.usbgpu.bridge.interface import (
    PIECE,
    SECTOR,
    SLOT,
    SRAM_SIZE,
    Ability,
    Completion,
    Status,
    Tlp,
)
from ugpu.usbgpu.link.usb import Pending, Speed, UsbDevice

log = logging.getLogger(__name__)

# (vendor, product) of bridges with this firmware, and the prefix of their product strings
IDS = ((0xADD1, 0x0001), (0x3801, 0x0001))
PRODUCTS = ("custom", "AS2462")

DATA_OUT, DATA_IN = 0x02, 0x81
_XDATA_READ, _XDATA_WRITE, _TLP, _SRAM, _POWER = 0xE4, 0xE5, 0xF0, 0xF2, 0xF3
_SINGLE, _STREAM_WRITE, _STREAM_READ = 0, 1, 2
_TO_HOST = 0x8000
_PLACE = struct.Struct("<III")  # address low and high; value, or count of dwords
_ANSWER = struct.Struct("<IBBBB")  # value; completion header high and low; kind; return code
_DONE, _ERROR = 0, 1  # return codes; 0xFF: no completion came
# A larger E4 request times out on a USB 2 link, or returns too few bytes.
_XDATA_LIMIT, _XDATA_LIMIT_USB2 = 255, 64
# handmade/e4_flash.py: the firmware overwrites what follows; pull request 83: one packet of USB 2.
_STAGE_LIMIT, _STAGE_LIMIT_USB2 = 128, 64
_ENDPOINTS, _ARM_OUT = 0x9094, 0x10  # registers.h: the next packet out goes to the buffer
_RETRIES, _RETRY_PAUSE_S = 10, 1e-3
# TIMEOUT: a control request is answered at once, except F0, which polls for a completion as long
# as the firmware counts to 500,000, and F3, which samples the link up to 20 times 100 ms apart.
_CONTROL_LIMIT_S, _TLP_LIMIT_S, _POWER_LIMIT_S = 1.0, 5.0, 10.0
# TIMEOUT: the bridge's processor moves dwords one by one; its DMA engine moves SRAM.
_STREAM_LIMIT_S, _SRAM_LIMIT_S = 30.0, 10.0
_LARGEST_STREAM = 1 << 20  # bytes in one transfer, our choice


class CustomBridge:
    """See usbgpu.bridge.interface.Bridge. Takes ownership of `usb`."""

    abilities = frozenset({Ability.POWER, Ability.SLOTS, Ability.FLASH, Ability.PINS})

    def __init__(self, usb: UsbDevice, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.usb = usb
        self.firmware = f"{usb.identity.name} ({usb.identity.release:04x})"
        self.transfers = 0
        self._sleep = sleep
        self._lock = threading.RLock()
        self._owed = 0  # bytes that an F2 request announced and that have not been transferred,
        self._owed_to = 0  # and the direction: _TO_HOST or 0
        slow = usb.identity.speed < Speed.SUPER
        self._xdata_limit = _XDATA_LIMIT_USB2 if slow else _XDATA_LIMIT
        self.stage_limit = _STAGE_LIMIT_USB2 if slow else _STAGE_LIMIT

    # ---- the bridge itself -------------------------------------------------------------------

    def read_xdata(self, address: int, size: int, bank: int = 0) -> bytes:
        """See Bridge.read_xdata; one transfer for each 255 bytes (64 on USB 2)."""
        check_xdata(address, size, bank)
        parts = []
        with self._lock:
            for start in range(0, size, self._xdata_limit):
                want = min(self._xdata_limit, size - start)
                parts.append(self._control_in(_XDATA_READ, address + start, bank << 8, want))
        return b"".join(parts)

    def write_xdata(self, address: int, data: bytes, bank: int = 0) -> None:
        """See Bridge.write_xdata; one transfer for each byte."""
        check_xdata(address, len(data), bank)
        with self._lock:
            for position, value in enumerate(data):
                self._control_out(_XDATA_WRITE, address + position, bank << 8 | value)

    def power(self, on: bool) -> None:
        """See Bridge.power."""
        with self._lock:
            self._control_out(_POWER, int(on), 0, limit_s=_POWER_LIMIT_S)

    def stage(self, data: bytes) -> None:
        """See Bridge.stage: two transfers. Padded with zeros to whole dwords."""
        if not 0 < len(data) <= self.stage_limit:
            raise BadArgument(f"expected 1 to {self.stage_limit} bytes, got {len(data)}")
        with self._lock:
            arm = functools.partial(self.write_xdata, _ENDPOINTS, bytes([_ARM_OUT]))
            padded = data.ljust(-(-len(data) // 4) * 4, b"\0")
            self._bulk_out(arm, memoryview(padded), _CONTROL_LIMIT_S)

    # ---- PCI Express -------------------------------------------------------------------------

    def request(self, kind: Tlp, address: int, value: int = 0, enable: int = 0xF) -> Completion:
        """See Bridge.request: one transfer for a posted request, else two. A request that failed in
        transit is sent again, up to ten times, 1 ms apart."""
        check_memory(address, 4)
        with self._lock:
            for left in reversed(range(_RETRIES + 1)):
                self._send(kind, enable, _SINGLE, address, value)
                if kind.posted:
                    return Completion(Status.OK)
                done = self._completed()
                if done is not None:
                    return done
                if left:
                    self._sleep(_RETRY_PAUSE_S)
        return Completion(Status.UNSUPPORTED)

    def post(self, kind: Tlp, address: int, value: int, enable: int = 0xF) -> None:
        """See Bridge.post: one transfer.

        UNSURE: that a configuration write has been completed when the next request arrives, at
        least one control transfer (100 us or more) later; the firmware does not check before it
        sends.
        """
        check_memory(address, 4)
        with self._lock:
            self._send(kind, enable, _SINGLE, address, value)

    def read_block(self, kind: Tlp, address: int, size: int) -> bytes | None:
        """See Bridge.read_block: two transfers for each MiB, plus one: the registers of the request
        engine keep the last completion (pcie_read_chunk), and F0 in the other direction returns
        it."""
        check_memory(address, size)
        data = b""
        if not size:
            return data
        with self._lock:
            for start in range(0, size, _LARGEST_STREAM):
                want = min(_LARGEST_STREAM, size - start)
                place = (_STREAM_READ, address + start, want // 4)
                arm = functools.partial(self._send, kind, 0xF, *place)
                data += self._bulk_in(arm, want, _STREAM_LIMIT_S)
            last = self._completed()
            if last is None:
                last = self.request(kind, address + size - 4)
                data = data[:-4] + last.value.to_bytes(4, "little")
        return data if last.status is Status.OK else None

    def _completed(self) -> Completion | None:
        """Return the outcome of the last request; None where it was not sent because another one
        was in progress."""
        answer = self._control_in(_TLP, 0, 0, _ANSWER.size, limit_s=_TLP_LIMIT_S)
        data, header, _, _, code = _ANSWER.unpack(answer)
        if code == _DONE:
            return completion_of(header >> 5, data)
        return None if code == _ERROR else Completion(Status.TIMEOUT)

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """See Bridge.write_memory: two transfers for each MiB; one for a single dword."""
        view = memoryview(data).cast("B") if data else memoryview(b"")
        check_memory(address, len(view))
        if len(view) == 4:
            self.request(Tlp.MEMORY_WRITE, address, int.from_bytes(view, "little"))
            return
        with self._lock:
            for start in range(0, len(view), _LARGEST_STREAM):
                part = view[start : start + _LARGEST_STREAM]
                place = (_STREAM_WRITE, address + start, len(part) // 4)
                arm = functools.partial(self._send, Tlp.MEMORY_WRITE, 0xF, *place)
                self._bulk_out(arm, part, _STREAM_LIMIT_S)

    def _send(self, kind: Tlp, enable: int, mode: int, address: int, value: int) -> None:
        place = _PLACE.pack(address & 0xFFFF_FFFF, address >> 32, value)
        self._control_out(_TLP, kind | enable << 8, mode, place, limit_s=_TLP_LIMIT_S)

    # ---- SRAM --------------------------------------------------------------------------------

    def read_sram(
        self,
        offset: int,
        sizes: Sequence[int],
        begun: Callable[[], object],
        arrived: Callable[[int, bytes], object],
    ) -> None:
        """See Bridge.read_sram: one transfer, one for each piece, and those of the callbacks."""
        total = sum(sizes)
        _check_sram(offset, total)
        _check_pieces(sizes)
        if not total:
            return
        pending: list[Pending] = []
        packet = self.usb.packet_size(DATA_IN)
        with self._lock:
            try:
                self._arm(_TO_HOST, -(-total // SECTOR), offset, total)
                for size in sizes:
                    self.transfers += 1
                    pending.append(self.usb.submit_in(DATA_IN, -(-size // packet) * packet))
                begun()
                for position, size in enumerate(sizes):
                    data = pending[position].wait(_SRAM_LIMIT_S)
                    expected = -(-size // SECTOR) * SECTOR
                    _check_length(data, expected)
                    self._owed -= expected
                    arrived(position, data[:size])
            except DeviceLost:
                raise
            except BaseException:
                self._give_up(DATA_IN, pending)
                raise

    def write_sram(self, offset: int, size: int, pieces: Iterable[Data]) -> None:
        """See Bridge.write_sram: one transfer, one for each piece, and those of producing the
        pieces."""
        _check_sram(offset, size)
        if not size:
            return
        pending: list[Pending] = []
        sent: list[int] = []
        left = size
        with self._lock:
            try:
                self._arm(0, -(-size // SECTOR), offset, size)
                for piece in pieces:
                    view = memoryview(piece).cast("B")
                    left -= len(view)
                    if left < 0 or (left and len(view) % PIECE):
                        raise _bad_piece(len(view))
                    if len(view) % SECTOR:
                        view = memoryview(
                            bytes(view).ljust(-(-len(view) // SECTOR) * SECTOR, b"\0")
                        )
                    self.transfers += 1
                    pending.append(self.usb.submit_out(DATA_OUT, view))
                    sent.append(len(view))
                    if len(pending) > 1:
                        pending[-2].wait(_SRAM_LIMIT_S)
                        self._owed -= sent[-2]
                if left:
                    raise BadArgument(f"expected pieces of {size} bytes in all, got {size - left}")
                pending[-1].wait(_SRAM_LIMIT_S)
                self._owed = 0
            except DeviceLost:
                raise
            except BaseException:
                self._give_up(DATA_OUT, pending)
                raise

    def fill_sram(self, data: bytes | bytearray | memoryview) -> None:
        """See Bridge.fill_sram."""
        raise NotSupported("the bridge's firmware does not say when data is in its SRAM")

    def _arm(self, direction: int, sectors: int, offset: int, size: int) -> None:
        """ORDER: send the request before its data: the firmware takes no bulk transfer that was not
        armed."""
        self._settle()
        self._owed, self._owed_to = sectors * SECTOR, direction
        self._control_out(_SRAM, direction | sectors, offset // SLOT | -(-size // SLOT) << 8)

    def _settle(self) -> None:
        """Finish a transfer that was armed before an exception interrupted it: only that disarms
        it."""
        owed, self._owed = self._owed, 0
        if not owed:
            return
        try:
            if self._owed_to == _TO_HOST:
                self._bulk_in(_armed, owed, _CONTROL_LIMIT_S)
            else:
                self._bulk_out(_armed, memoryview(bytes(owed)), _CONTROL_LIMIT_S)
        except TransportError as error:
            log.debug("an interrupted transfer was not completed: %s", error)

    def _give_up(self, endpoint: int, pending: Sequence[Pending]) -> None:
        """After an exception, end the transfers in flight and those that the firmware still
        expects."""
        for transfer in pending:
            transfer.cancel()
        self._clear(endpoint)

    # ---- transfers ---------------------------------------------------------------------------

    def _control_out(
        self, request: int, value: int, index: int, data: bytes = b"",
        limit_s: float = _CONTROL_LIMIT_S,
    ) -> None:  # fmt: skip
        self.transfers += 1
        self.usb.control_out(request, value, index, data, limit_s=limit_s)

    def _control_in(
        self, request: int, value: int, index: int, size: int, limit_s: float = _CONTROL_LIMIT_S
    ) -> bytes:
        self.transfers += 1
        data = self.usb.control_in(request, value, index, size, limit_s=limit_s)
        if len(data) != size:
            raise TransportError(
                f"request {request:#x}: expected {size} bytes, got {len(data)}",
                request=request, value=value, length=len(data),
            )  # fmt: skip
        return data

    def _bulk_out(
        self,
        arm: Callable[[], object],
        data: memoryview,
        limit_s: float,
    ) -> None:
        """Send `data` after `arm`, the request that makes the firmware expect it."""
        try:
            arm()
            self.transfers += 1
            pending = self.usb.submit_out(DATA_OUT, data)
            try:
                pending.wait(limit_s)
            except BaseException:
                pending.cancel()
                raise
        except DeviceLost:
            raise
        except BaseException:
            self._clear(DATA_OUT)
            raise

    def _bulk_in(
        self,
        arm: Callable[[], object],
        size: int,
        limit_s: float,
    ) -> bytes:
        """Receive `size` bytes after `arm`, the request that makes the firmware send them."""
        try:
            arm()
            self.transfers += 1
            packet = self.usb.packet_size(DATA_IN)
            pending = self.usb.submit_in(DATA_IN, -(-size // packet) * packet)
            try:
                data = pending.wait(limit_s)
            except BaseException:
                pending.cancel()
                raise
            _check_length(data, size)
        except DeviceLost:
            raise
        except BaseException:
            self._clear(DATA_IN)
            raise
        return data

    def _clear(self, endpoint: int) -> None:
        """After a failed transfer, end what the firmware still expects of it: CLEAR_FEATURE resets
        the endpoint there and cancels a stream. ORDER: at once, as it would cancel a later stream
        too. Therefore never from a generator, which an exception may leave to the garbage
        collector."""
        try:
            self.usb.clear_halt(endpoint)
        except UgpuError as error:
            log.debug("endpoint %#x could not be cleared: %s", endpoint, error)

    def close(self) -> None:
        """See Bridge.close."""
        self.usb.close()

    def __repr__(self) -> str:
        return f"<CustomBridge {self.usb.identity.serial or self.usb.identity.port}>"


def _armed() -> None:
    """No-op `arm` for a transfer that the firmware already expects."""


def _check_length(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise TransportError(
            f"endpoint {DATA_IN:#x}: expected {expected} bytes, got {len(data)}",
            endpoint=DATA_IN, length=len(data),
        )  # fmt: skip


def _check_pieces(sizes: Sequence[int]) -> None:
    for size in sizes[:-1]:
        if size % PIECE or size <= 0:
            raise _bad_piece(size)
    if sizes and sizes[-1] <= 0:
        raise _bad_piece(sizes[-1])


def _bad_piece(size: int) -> BadArgument:
    return BadArgument(f"pieces but the last must be multiples of {PIECE} bytes, got {size}")


def _check_sram(offset: int, size: int) -> None:
    if offset % SLOT or size < 0 or not 0 <= offset <= SRAM_SIZE - size:
        raise BadArgument(
            f"SRAM transfers must start at a multiple of {SLOT} and end below {SRAM_SIZE}",
            offset=offset, size=size,
        )  # fmt: skip
