"""The ASM2464PD with ASMedia's firmware as tinygrad patched it: SCSI commands over UAS.

Sources: tinygrad runtime/support/usb.py at f1041dc0ac and 0.12 (commands E4, E5 and WRITE(16),
registers, endpoints), extra/usbgpu/patch.py (strings, ids); asm2464pd-firmware handmade/src
(pcie_pio.h: how the request engine is started; main.c: its status) and src/include/registers.h.

Command E4 reads XDATA, E5 writes a byte of it, and WRITE(16) fills SRAM from its start. The
registers of the request engine, which E5 writes and E4 reads, send PCI Express requests.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from ugpu.hcq.errors import BadArgument, LinkDegraded, NotSupported
from ugpu.hcq.transport.bulk import Data
from ugpu.usbgpu.bridge.checks import check_memory, check_xdata, completion_of
from ugpu.usbgpu.bridge.interface import SECTOR, SRAM_SIZE, Ability, Completion, Status, Tlp
from ugpu.usbgpu.link.uas import Command, Pipes, Uas
from ugpu.usbgpu.link.usb import Speed, UsbDevice

# Prefix of the product string; the ids are those of the open firmware.
PRODUCTS = ("USB 3.2 PCIe TinyEnclosure",)

PIPES = Pipes(setting=1, command=0x04, status=0x83, data_in=0x81, data_out=0x02)
STREAMS = 31
_XDATA_READ, _XDATA_WRITE, _WRITE_16 = 0xE4, 0xE5, 0x8A
_SPACE = 0x50  # bits 23:16 of an address in XDATA; the bank is bit 16
_XDATA_LIMIT = 255
# Registers that tinygrad writes when it opens the bridge. UNSURE: all of their meanings.
_SETUP = (
    (0x54B, b"\x20"), (0x54E, b"\x04"), (0x5A8, b"\x02"), (0x5F8, b"\x04"),
    (0x7EC, b"\x01\0\0\0"), (0xC422, b"\x02"), (0x0000, b"\x33"),
)  # fmt: skip
# The request engine (registers.h; integers are big-endian).
_KIND, _ENABLES, _ADDRESS, _DATA = 0xB210, 0xB217, 0xB218, 0xB220
_HEADER = 0xB22A  # of the completion: status in bits 15:13
_GO, _STATE = 0xB254, 0xB296
_GO_NOW, _CLEAR, _DONE, _ERROR = b"\x0f", b"\x07", 2, 1
_ANSWER = _HEADER + 2 - _DATA
_HAS_DATA = 0x40
# A write to SRAM takes slots of 16 KiB in turn; these writes free them (tinygrad, scsi_write).
_ARM, _FREE, _FREE_ALL = (0x171, b"\xff\xff\xff"), (0xCE6E, b"\0\0"), (0xCE40, bytes(4))
_ONE_SLOT, _MOST = 16 << 10, 64 << 10  # bytes: the largest write to one slot, and the largest write
_RETRIES, _RETRY_PAUSE_S = 10, 1e-3
# TIMEOUT: tinygrad's for all of these.
_LIMIT_S = 1.0
# TIMEOUT: a completion has 50 us to 50 ms (PCI Express Base Specification 5.0, 2.8).
_COMPLETION_LIMIT_S = 0.1


class StockBridge:
    """See usbgpu.bridge.interface.Bridge. Takes ownership of `usb`."""

    abilities = frozenset({Ability.FILL})
    stage_limit = 0

    def __init__(
        self,
        usb: UsbDevice,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Select the alternate setting with streams. LinkDegraded on a USB 2 link, which has no
        streams."""
        identity = usb.identity
        if identity.speed < Speed.SUPER:
            raise LinkDegraded(
                f"the bridge at port {identity.port} has a USB 2 link: its firmware needs bulk "
                "streams, which are of USB 3",
                expected=int(Speed.SUPER), found=int(identity.speed),
                remedy="use a USB 3 port and a cable for it, or install the open firmware",
            )  # fmt: skip
        self.usb = usb
        self.firmware = f"{identity.name} ({identity.release:04x})"
        self._sleep = sleep
        self._now = now
        self._lock = threading.RLock()
        self._held: dict[int, int] = {}  # known contents of the request engine's registers
        self._taken = True  # whether SRAM slots may be taken, e.g. by an interrupted write
        self._uas = Uas(usb, PIPES, STREAMS)
        for address, data in _SETUP:
            self.write_xdata(address, data)

    @property
    def transfers(self) -> int:
        """See Bridge.transfers."""
        return self._uas.transfers

    # ---- the bridge itself -------------------------------------------------------------------

    def read_xdata(self, address: int, size: int, bank: int = 0) -> bytes:
        """See Bridge.read_xdata; a command for each 255 bytes."""
        check_xdata(address, size, bank)
        starts = range(0, size, _XDATA_LIMIT)
        commands = [
            _read(address + start, min(_XDATA_LIMIT, size - start), bank) for start in starts
        ]
        with self._lock:
            return b"".join(self._run(commands))

    def write_xdata(self, address: int, data: bytes, bank: int = 0) -> None:
        """See Bridge.write_xdata; a command for each byte."""
        check_xdata(address, len(data), bank)
        with self._lock:
            self._run(_write(address, bytes(data), bank))

    def power(self, on: bool) -> None:
        """See Bridge.power: always raises; the firmware itself powers the slot, permanently."""
        raise NotSupported("the bridge's firmware does not switch the supply of the slot")

    def stage(self, data: bytes) -> None:
        """See Bridge.stage."""
        raise NotSupported("the bridge's firmware gives no way to the flash controller's buffer")

    # ---- PCI Express -------------------------------------------------------------------------

    def request(self, kind: Tlp, address: int, value: int = 0, enable: int = 0xF) -> Completion:
        """See Bridge.request: up to 18 commands at once. A request that failed in transit is sent
        again, up to ten times, 1 ms apart."""
        check_memory(address, 4)
        with self._lock:
            for left in reversed(range(_RETRIES + 1)):
                commands = self._start(kind, address, value, enable)
                if kind.posted:
                    self._run(commands)
                    return Completion(Status.OK)
                *_, state, answer = self._run([*commands, *_LOOK])
                done = self._completed(state[0], answer)
                if done is not None:
                    return done
                if left:
                    self._sleep(_RETRY_PAUSE_S)
        return Completion(Status.UNSUPPORTED)

    def post(self, kind: Tlp, address: int, value: int, enable: int = 0xF) -> None:
        """See Bridge.post."""
        check_memory(address, 4)
        with self._lock:
            self._run(self._start(kind, address, value, enable))

    def read_block(self, kind: Tlp, address: int, size: int) -> bytes | None:
        """See Bridge.read_block: at least five commands for each dword. A request that failed, or
        is not done when its state is read, is sent again alone.

        UNSURE: that no request takes longer than the firmware needs to start the next command.
        """
        check_memory(address, size)
        parts: list[bytes] = []
        done = Completion(Status.OK)
        places = range(address, address + size, 4)
        with self._lock:
            while len(parts) < len(places):
                group = [
                    [*self._start(kind, place, 0, 0xF), *_LOOK]
                    for place in places[len(parts) : len(parts) + _GROUP]
                ]
                answers = iter(self._run([command for batch in group for command in batch]))
                for batch in group:
                    *_, state, answer = (next(answers) for _ in batch)
                    if state[0] & (_DONE | _ERROR) != _DONE:
                        done = self.request(kind, places[len(parts)])
                        self._hold(b"")
                        parts.append(done.value.to_bytes(4, "little"))
                        break  # later ones may have been sent too early
                    self._hold(answer)
                    done = _completion(answer)
                    parts.append(done.value.to_bytes(4, "little"))
        return b"".join(parts) if done.status is Status.OK else None

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """See Bridge.write_memory: at least three commands for each dword, and one for each byte of
        data and address that differs from that of the dword before."""
        view = memoryview(data).cast("B") if data else memoryview(b"")
        check_memory(address, len(view))
        with self._lock:
            commands: list[Command] = []
            for start in range(0, len(view), 4):
                value = int.from_bytes(view[start : start + 4], "little")
                commands += self._start(Tlp.MEMORY_WRITE, address + start, value, 0xF)
                if len(commands) >= _FLUSHED:
                    self._run(commands)
                    commands = []
            self._run(commands)

    def _start(self, kind: Tlp, address: int, value: int, enable: int) -> list[Command]:
        """Return the commands that make the request engine send one request."""
        enables = struct.pack(">BII", enable, address & 0xFFFF_FFFF, address >> 32)
        commands = self._set(_KIND, bytes([kind])) + self._set(_ENABLES, enables)
        if kind & _HAS_DATA:
            commands += self._set(_DATA, value.to_bytes(4, "big"))
        if not kind.posted:
            self._hold(b"")  # a completion may overwrite the data register
        return [*commands, *_write(_STATE, _CLEAR), *_write(_GO, _GO_NOW)]

    def _set(self, address: int, data: bytes) -> list[Command]:
        """Return commands that write those registers of the engine whose contents differ."""
        commands = []
        for register, byte in enumerate(data, address):
            if self._held.get(register) != byte:
                commands += _write(register, bytes([byte]))
                self._held[register] = byte
        return commands

    def _hold(self, data: bytes) -> None:
        """Record the contents of the data register; without `data` they become unknown."""
        for register in range(_DATA, _DATA + 4):
            self._held.pop(register, None)
        self._held |= dict(enumerate(data[:4], _DATA))

    def _completed(self, state: int, answer: bytes) -> Completion | None:
        """Wait for the last request and return its outcome; None where it was not sent."""
        end = self._now() + _COMPLETION_LIMIT_S
        while not state & (_DONE | _ERROR):
            if self._now() >= end:
                return Completion(Status.TIMEOUT)
            states, answer = self._run(_LOOK)
            state = states[0]
        if state & _ERROR:
            return None
        self._hold(answer)
        return _completion(answer)

    # ---- SRAM --------------------------------------------------------------------------------

    def read_sram(
        self,
        offset: int,
        sizes: Sequence[int],
        begun: Callable[[], object],
        arrived: Callable[[int, bytes], object],
    ) -> None:
        """See Bridge.read_sram."""
        raise NotSupported("the bridge's firmware does not send SRAM")

    def write_sram(self, offset: int, size: int, pieces: Iterable[Data]) -> None:
        """See Bridge.write_sram."""
        raise NotSupported("the bridge's firmware writes SRAM from its start on alone")

    def fill_sram(self, data: bytes | bytearray | memoryview) -> None:
        """See Bridge.fill_sram: one command for each 64 KiB, with five that make the next one
        continue where it ended, and four more for more than 16 KiB.

        UNSURE: whether WRITE(16) ends with good status where the bridge has no disk; no public
        driver checks it.
        """
        view = memoryview(data).cast("B") if data else memoryview(b"")
        if len(view) > SRAM_SIZE:
            raise BadArgument(f"SRAM has {SRAM_SIZE} bytes", size=len(view))
        if not view:
            return
        whole = SECTOR if len(view) <= _ONE_SLOT else _MOST
        with self._lock:
            if self._taken:
                self._run(_write(*_FREE) + _write(*_FREE_ALL))
            self._taken = True
            for start in range(0, len(view), _MOST):
                part = view[start : start + _MOST]
                self._run([_fill(part, whole), *_write(*_ARM)])
                self._run(_write(*_FREE))
            if len(view) > _ONE_SLOT:
                self._run(_write(*_FREE_ALL))
            self._taken = False

    # ---- commands ----------------------------------------------------------------------------

    def _run(self, commands: Sequence[Command]) -> list[bytes]:
        try:
            return self._uas.run(commands, _LIMIT_S)
        except BaseException:
            self._held.clear()  # it is unknown which commands took effect
            raise

    def close(self) -> None:
        """See Bridge.close."""
        self.usb.close()

    def __repr__(self) -> str:
        return f"<StockBridge {self.usb.identity.serial or self.usb.identity.port}>"


def _place(address: int, bank: int) -> bytes:
    return bytes((_SPACE | bank,)) + address.to_bytes(2, "big")


def _read(address: int, size: int, bank: int = 0) -> Command:
    return Command(bytes((_XDATA_READ, size)) + _place(address, bank), receive=size)


def _write(address: int, data: bytes, bank: int = 0) -> list[Command]:
    return [
        Command(bytes((_XDATA_WRITE, byte)) + _place(place, bank))
        for place, byte in enumerate(data, address)
    ]


def _fill(data: memoryview, whole: int) -> Command:
    """Return a WRITE(16) of whole sectors (SBC-3, 5.34), padded with zeros to a multiple of
    `whole`."""
    size = -(-len(data) // whole) * whole
    padded = data if size == len(data) else bytes(data).ljust(size, b"\0")
    cdb = struct.pack(">BxQI", _WRITE_16, 0, size // SECTOR)
    return Command(cdb, send=padded, any_status=True)


def _completion(answer: bytes) -> Completion:
    status = answer[_HEADER - _DATA] >> 5
    return completion_of(status, int.from_bytes(answer[:4], "big"))


_LOOK = (_read(_STATE, 1), _read(_DATA, _ANSWER))
_GROUP = 6  # dwords of a block whose commands fit into the streams
_FLUSHED = 8 * STREAMS  # commands prepared at once, our choice
