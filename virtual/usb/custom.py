"""The custom firmware: vendor requests, streams of memory requests, SRAM transfers, slot power.

Facts: asm2464pd-firmware handmade/src/main.c and usb.h as of 2026-04-29. Its 8051 serves one
interrupt at a time. It never stalls: the host times out on a request that it does not answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ugpu.usbgpu.link.usb import Kind, Recipient
from ugpu.virtual.usb.hardware import Hardware

OUT_ENDPOINT, IN_ENDPOINT = 0x02, 0x81
_READ, _WRITE, _REQUEST, _SRAM, _POWER = 0xE4, 0xE5, 0xF0, 0xF2, 0xF3
_CLEAR_FEATURE, _SET_CONFIGURATION, _SET_INTERFACE = 0x01, 0x09, 0x0B
_CONTROL_BUFFER = 0x9E00
_ENDPOINTS, _ARM_OUT = 0x9094, 0x10  # registers.h: USB endpoint configuration 2
_LONGEST_READ, _LONGEST_READ_HIGH_SPEED = 512, 64
_REQUEST_BYTES = 12
# 500,000 polls of the 8051. UNSURE: how long they take; tinygrad waits 5 s for the whole request.
_POLLING_S = 1.0
_LINK_LOOKS, _LINK_STABLE, _LINK_LOOK_S = 20, 3, 0.1


@dataclass(frozen=True)
class Setup:
    """A control request. inward: its data stage goes to the host."""

    inward: bool
    kind: Kind
    recipient: Recipient
    request: int
    value: int
    index: int
    length: int


_Serve = Callable[["CustomFirmware", Setup, bytes], bytes | None]


class CustomFirmware:
    """The custom firmware of the 8051, and the endpoints that it arms.

    hung: it waits for a completion that never arrives; it answers nothing until power is lost.
    """

    identity = (0xADD1, 0x0001, 0x0001, "tiny", "custom v0.1")
    streams = 0
    powers_slot = False  # at start
    window = False  # see Memory
    #: bulk endpoints of each alternate setting, by whether the link is SuperSpeed
    alternates = ((IN_ENDPOINT, OUT_ENDPOINT), (IN_ENDPOINT, OUT_ENDPOINT, 0x83, 0x04))
    alternates_high_speed = ((IN_ENDPOINT, OUT_ENDPOINT, 0x83, 0x04),)
    interface_classes = ((0xFF, 0xFF, 0xFF), (0xFF, 0xFF, 0xFF))

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.hung = False
        self._dwords = 0
        self._out_armed = False
        self._staging = False  # armed by a write of the register: the packet stays in the buffer
        hardware.memory.hook(_ENDPOINTS, read=lambda: 0, write=self._configure_endpoints)
        self._inward = False  # whether the stream of `_dwords` goes to the host
        self._packets: list[bytes] = []  # in the IN endpoint's FIFO

    # ---- control requests ---------------------------------------------------------------------

    def control(self, setup: Setup, data: bytes) -> bytes | None:
        """Serve a request. Return data for the host, b"" for a bare acknowledgement, None for no
        answer."""
        if self.hung:
            return None
        if setup.kind is Kind.STANDARD:
            return self._standard(setup)
        vendor = setup.kind is Kind.VENDOR and setup.recipient is Recipient.DEVICE
        serve = self._REQUESTS.get((setup.request, setup.inward)) if vendor else None
        if serve is not None:
            return serve(self, setup, data)
        return b"" if setup.length == 0 else None

    def _standard(self, setup: Setup) -> bytes | None:
        if setup.request == _CLEAR_FEATURE and setup.recipient is Recipient.ENDPOINT:
            self._clear(setup.index & 0xFF)
        elif setup.request in (_SET_CONFIGURATION, _SET_INTERFACE):
            self._clear(OUT_ENDPOINT)
            self._clear(IN_ENDPOINT)
        return b"" if setup.length == 0 else None

    def _configure_endpoints(self, value: int) -> None:
        if value == _ARM_OUT:
            self._out_armed = self._staging = True

    def _clear(self, endpoint: int) -> None:
        if endpoint == OUT_ENDPOINT:
            self._out_armed = self._staging = False
        elif endpoint == IN_ENDPOINT:
            self._packets.clear()
        self._dwords = 0

    def _read_xdata(self, setup: Setup, _data: bytes) -> bytes:
        longest = _LONGEST_READ if self._hardware.super_speed else _LONGEST_READ_HIGH_SPEED
        size = min(setup.length, longest)
        found = self._hardware.memory.read(setup.value, size, setup.index >> 8)
        self._to_buffer(found)
        return found

    def _write_xdata(self, setup: Setup, _data: bytes) -> bytes:
        self._hardware.memory.write(setup.value, setup.index & 0xFF, setup.index >> 8)
        self._hardware.memory_written()
        return b""

    def _to_buffer(self, data: bytes) -> None:
        for at, byte in enumerate(data):
            self._hardware.memory.write(_CONTROL_BUFFER + at, byte)

    def _arm_sram(self, setup: Setup, _data: bytes) -> bytes:
        self._hardware.sram.arm(
            setup.value & 0x7FFF, bool(setup.value & 0x8000), setup.index & 0xFF, setup.index >> 8
        )
        return b""

    def _switch_power(self, setup: Setup, _data: bytes) -> bytes:
        hardware = self._hardware
        hardware.power(bool(setup.value & 1))
        if setup.value & 1:
            stable = 0
            for _ in range(_LINK_LOOKS):
                stable = stable + 1 if hardware.link_up() else 0
                hardware.clock.advance(_LINK_LOOK_S)
                if stable >= _LINK_STABLE:
                    break
        return b""

    def _send_request(self, setup: Setup, data: bytes) -> bytes | None:
        if not data:
            return None  # it acts on the data stage, which never arrives
        if len(data) != _REQUEST_BYTES:
            self._hardware.object_to(f"F0 with {len(data)} bytes of data, expected 12")
        self._to_buffer(data)
        buffer = self._hardware.memory.read(_CONTROL_BUFFER, _REQUEST_BYTES)
        address = int.from_bytes(buffer[:8], "little")
        value = int.from_bytes(buffer[8:], "little")
        engine = self._hardware.requests
        self._dwords = 0
        engine.prepare(setup.value & 0xFF, setup.value >> 8, address)
        mode = setup.index & 3
        if mode == 0:
            if setup.value & 0x40:
                engine.data = value
            engine.run()
            return b""
        if mode != (1 if setup.value & 0x40 else 2):
            self._hardware.object_to(f"F0 in mode {mode} with format {setup.value & 0xFF:#04x}")
        if address & 3:
            self._hardware.object_to(f"stream at {address:#x}, expected a multiple of 4")
        self._dwords = value
        self._inward = mode == 2
        if value and mode == 1:
            self._out_armed = True
        elif value and mode == 2:
            self._fetch()
        return None if self.hung else b""

    def _get_answer(self, _setup: Setup, _data: bytes) -> bytes:
        engine = self._hardware.requests
        if engine.failed:
            return bytes(7) + b"\x01"
        answer = engine.answer()
        if answer is None:
            self._hardware.clock.advance(_POLLING_S)
            return bytes(7) + b"\xff"
        return answer + b"\x00"

    _REQUESTS: ClassVar[dict[tuple[int, bool], _Serve]] = {
        (_READ, True): _read_xdata,
        (_WRITE, False): _write_xdata,
        (_REQUEST, False): _send_request,
        (_REQUEST, True): _get_answer,
        (_SRAM, False): _arm_sram,
        (_POWER, False): _switch_power,
    }

    # ---- bulk ---------------------------------------------------------------------------------

    @property
    def _chunk(self) -> int:
        return self._hardware.packet_size

    def _fetch(self) -> None:
        """Read the next chunk of a stream from the card and arm the IN endpoint with it."""
        size = min(self._dwords * 4, self._chunk)
        found = self._hardware.requests.stream_read(size)
        if found is None:
            self.hung = True
            return
        self._hardware.move(IN_ENDPOINT, size // 4 * self._hardware.costs.read_dword_s)
        self._dwords -= size // 4
        self._packets.append(found)

    def put(self, endpoint: int, stream: int, data: memoryview) -> int:
        """Accept packets of a bulk transfer from the host; return how many bytes were accepted."""
        if self.hung or endpoint != OUT_ENDPOINT or stream:
            return 0
        taken = 0
        while taken < len(data):
            packet = data[taken : taken + self._chunk]
            if self._out_armed:
                taken += self._put_packet(packet)
                continue
            rest = data[taken:]
            if not self._hardware.sram.remaining:
                break
            put = self._hardware.sram.put(rest)
            self._hardware.memory_written()
            self._hardware.move(OUT_ENDPOINT, put / self._hardware.bulk_rate)
            taken += put
            break
        return taken

    def _put_packet(self, packet: memoryview) -> int:
        self._out_armed, staging = False, self._staging
        self._staging = False
        dwords = len(packet) // 4
        if len(packet) % 4:
            self._hardware.object_to(f"packet of {len(packet)} bytes, expected whole dwords")
        if staging and not self._dwords:
            self._hardware.flash.stage(bytes(packet))
            return len(packet)
        if self._inward or self._dwords < dwords:
            # The firmware accepts a packet that is longer than announced, and drops it.
            self._hardware.object_to(
                f"packet of {dwords} dwords where the stream expects {self._dwords}: dropped"
            )
            return len(packet)
        self._hardware.requests.stream_write(bytes(packet[: 4 * dwords]))
        self._hardware.move(OUT_ENDPOINT, dwords * self._hardware.costs.write_dword_s)
        self._dwords -= dwords
        self._out_armed = self._dwords > 0
        return len(packet)

    def take(self, endpoint: int, stream: int, room: int) -> bytes:
        """Return the packets that are ready, at most `room` bytes; stop after the first short
        one."""
        if self.hung or endpoint != IN_ENDPOINT or stream:
            return b""
        parts = []
        while room and self._packets:
            packet = self._packets.pop(0)
            parts.append(packet)
            room -= len(packet)
            if self._dwords and self._inward:
                self._fetch()
            if len(packet) < self._chunk:
                return b"".join(parts)
        sram = self._hardware.sram
        if room and not parts and sram.ready():
            parts.append(sram.take(room))
            self._hardware.move(IN_ENDPOINT, len(parts[-1]) / self._hardware.bulk_rate)
        return b"".join(parts)

    @property
    def awaits_card(self) -> bool:
        """Return whether a transfer to the host waits for an action of the card."""
        return not self.hung and self._hardware.sram.awaits_card
