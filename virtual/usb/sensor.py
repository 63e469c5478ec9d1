"""An INA231 on two pins of the virtual bridge: a slave on an I2C bus, edge by edge.

Source: NXP UM10204 (I2C: start, stop, acknowledge, open-drain lines), TI SBOS644 (registers, the
pointer that a write sets), asm2464pd-firmware scripts/ina231_monitor.py (pins).
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.usb.memory import Memory

CLOCK, DATA, INPUTS = 0xC629, 0xC62A, 0xC651
_CLOCK_LEVEL, _DATA_LEVEL = 1 << 1, 1 << 2
_DRIVEN_LOW = 0x02
POWER_ON = {CLOCK: 0x13, DATA: 0x14}  # the pins' functions before a driver takes them
_LAST_REGISTER = 0x07


class Sensor:
    """The sensor. registers: 16 bits each. present: whether the board has it. address: 7 bits."""

    def __init__(self, memory: Memory, object_to: Callable[[str], None]) -> None:
        self.address, self.present = 0x45, True
        self.registers = {0x00: 0x4127, 0x01: 0}
        self.supply(12.0)
        self.pins = dict(POWER_ON)
        self._object_to = object_to
        self._pulls = False  # whether the slave holds data low
        self._active = False  # between start and stop, and addressed or being so
        self._sends = False
        self._bits: list[int] = []
        self._bytes: list[int] = []  # since the start
        self._pointer = 0
        self._left: list[int] = []  # bits still to be sent
        self._acknowledges = False
        for pin in (CLOCK, DATA):
            memory.hook(pin, self._reader(pin), self._writer(pin))
        memory.hook(INPUTS, self._inputs)

    def supply(self, volts: float) -> None:
        """Set the bus voltage: steps of 1.25 mV."""
        self.registers[0x02] = round(volts / 1.25e-3)

    def _reader(self, pin: int) -> Callable[[], int]:
        return lambda: self.pins[pin]

    def _writer(self, pin: int) -> Callable[[int], None]:
        def write(value: int) -> None:
            clock, data = self._clock, self._line
            self.pins[pin] = value
            self._edges(clock, data)

        return write

    @property
    def _clock(self) -> bool:
        return self.pins[CLOCK] != _DRIVEN_LOW

    @property
    def _line(self) -> bool:
        return self.pins[DATA] != _DRIVEN_LOW and not self._pulls

    def _inputs(self) -> int:
        return _CLOCK_LEVEL * self._clock | _DATA_LEVEL * self._line

    def _edges(self, clock: bool, data: bool) -> None:
        if clock and self._clock and data != self._line:
            self._start() if data else self._stop()
        elif self._active and not clock and self._clock:
            self._sample()
        elif self._active and clock and not self._clock:
            self._next()

    def _start(self) -> None:
        self._active, self._sends, self._pulls = self.present, False, False
        self._bits, self._bytes, self._left = [], [], []
        self._acknowledges = False

    def _stop(self) -> None:
        if self._active and len(self._bits) % 8 > 1:
            self._object_to("I2C: a stop in the middle of a byte")
        self._active = self._pulls = False

    def _sample(self) -> None:
        """Handle a rising clock."""
        if self._acknowledges:
            if self._sends and not self._left and self._line:
                self._active = False  # the master ends the read
            return
        if not self._sends:
            self._bits.append(int(self._line))

    def _next(self) -> None:
        """Handle a falling clock: the slave may change data."""
        self._pulls = False
        if self._acknowledges:
            self._acknowledges = False
            if self._sends:
                self._load()
        elif self._sends:
            self._left.pop(0)
            if not self._left:
                self._acknowledges = True  # the master's
        elif len(self._bits) == 8:
            self._take(int("".join(map(str, self._bits)), 2))
            self._bits = []
            return
        if self._sends and self._left:
            self._pulls = not self._left[0]

    def _load(self) -> None:
        """Load the next byte of the register, the high one first."""
        word = self.registers.get(self._pointer, 0)
        byte = word >> 8 if not self._bytes[1:] else word & 0xFF
        self._bytes.append(byte)
        self._left = [byte >> place & 1 for place in reversed(range(8))]

    def _take(self, byte: int) -> None:
        self._bytes.append(byte)
        if len(self._bytes) == 1 and byte >> 1 != self.address:
            self._active = False
            return
        if len(self._bytes) == 1:
            self._sends = bool(byte & 1)
        elif len(self._bytes) == 2:
            self._pointer = byte
            if byte > _LAST_REGISTER:
                self._object_to(f"INA231: register {byte:#04x}, expected 0 to 7")
        else:
            self._object_to("INA231: a register is written")
        self._acknowledges = self._pulls = True
