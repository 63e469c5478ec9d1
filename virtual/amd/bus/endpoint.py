"""A virtual card behind a bus model: its functions, power and DMA.

Implements `hcq.transport.endpoint.Endpoint`. Interrupt messages are dropped, because the bus in
front of the card does not forward them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ugpu.hcq.errors import BadArgument, DeviceBusy
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.endpoint import Aperture, EndpointFunction
from ugpu.virtual.amd.bus.pci import windows_of
from ugpu.virtual.amd.chip import Chip

_AUDIO_CLASS = 0x040300
_AUDIO_BAR = 16 << 10
_DOORBELLS = 2  # BAR
_COMMAND, _BAR0, _MEMORY = 0x04, 0x10, 1 << 1


class GraphicsFunction:
    """Function 0: the chip."""

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self._windows = windows_of(chip)

    def config_read(self, offset: int, width: int) -> int:
        with self._chip.lock:
            return self._chip.config.read(offset, width)

    def config_write(self, offset: int, value: int, width: int) -> None:
        with self._chip.lock:
            self._chip.config.write(offset, value, width)

    def apertures(self) -> Sequence[Aperture]:
        with self._chip.lock:
            config = self._chip.config
            if not config.memory_enabled or self._chip.lost:
                return ()
            return tuple(
                Aperture(index, config.bar_address(index), config.bar_size(index), index == 0)
                for index in self._windows
            )

    def read(self, index: int, offset: int, size: int) -> bytes:
        window = self._windows[index]
        if index == 0:
            return window.read(offset, size)
        words = (window.read32(offset + at) for at in range(0, size, 4))
        return b"".join(word.to_bytes(4, "little") for word in words)

    def write(self, index: int, offset: int, data: bytes) -> None:
        window = self._windows[index]
        if index == 0:
            if (offset | len(data)) % 4:
                self._write_bytes(offset, data)
            else:
                window.write(offset, data)
            return
        if (offset | len(data)) % 4:
            self._chip.fault(f"write of {len(data)} bytes to BAR{index} at {offset:#x}")
            return
        if index == _DOORBELLS:
            self._let_time_pass()
        for at in range(0, len(data), 4):
            window.write32(offset + at, int.from_bytes(data[at : at + 4], "little"))

    def _let_time_pass(self) -> None:
        """Drain writes to VRAM before a doorbell that is written without a flush.

        On a bus like USB, the doorbell arrives 100 us or more after the writes. tinygrad's driver
        omits the flush there (runtime/ops_amd.py, signal_doorbell), and runs on boards. So this is
        a note here; on PCI Express, where nothing takes the time, the writes stay behind.
        """
        chip = self._chip
        with chip.lock:
            if chip.hdp.waits:
                chip.note("a doorbell is rung while writes wait in the HDP")
                chip.hdp.drain()

    def _write_bytes(self, offset: int, data: bytes) -> None:
        chip = self._chip
        with chip.lock:
            if chip.answers() and not chip.dark and offset + len(data) <= chip.vram.size:
                chip.hdp.write(offset, data)


class AudioFunction:
    """Function 1: HDMI audio. No registers are modelled; a driver must not take it for the GPU."""

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self._bytes = bytearray(4096)
        self.reset()

    def reset(self) -> None:
        """Enter the state after a reset."""
        vendor = self._chip.facts.generation.vendor
        struct.pack_into("<HH", self._bytes, 0, vendor, self._chip.generation.audio_device)
        struct.pack_into("<HHI", self._bytes, _COMMAND, 0, 0, _AUDIO_CLASS << 8)
        self._bytes[0x0E] = 0x80
        struct.pack_into("<I", self._bytes, _BAR0, 0)
        struct.pack_into("<HH", self._bytes, 0x2C, vendor, self._chip.generation.audio_device)

    def config_read(self, offset: int, width: int) -> int:
        if self._chip.lost:
            return (1 << 8 * width) - 1
        return int.from_bytes(self._bytes[offset : offset + width], "little")

    def config_write(self, offset: int, value: int, width: int) -> None:
        start = offset & ~3
        word = bytearray(self._bytes[start : start + 4])
        word[offset - start : offset - start + width] = value.to_bytes(width, "little")
        new = int.from_bytes(word, "little")
        if start == _COMMAND:
            struct.pack_into("<H", self._bytes, _COMMAND, new & 0x0547)
        elif start == _BAR0:
            struct.pack_into("<I", self._bytes, _BAR0, new & ~(_AUDIO_BAR - 1) & 0xFFFF_FFFF)

    def apertures(self) -> Sequence[Aperture]:
        if self._chip.lost or not self._bytes[_COMMAND] & _MEMORY:
            return ()
        return (Aperture(0, self.config_read(_BAR0, 4), _AUDIO_BAR, False),)

    def read(self, index: int, offset: int, size: int) -> bytes:
        """Return zeros: no register of this function is modelled."""
        return bytes(size)

    def write(self, index: int, offset: int, data: bytes) -> None:
        """Ignore the write."""


class ChipEndpoint:
    """A chip with the option `platform=False`: no platform firmware has assigned BAR addresses.

    owns_chip: `close` also closes the chip; otherwise the caller keeps the chip, still powered.
    """

    def __init__(
        self, chip: Chip, *, firmware: Mapping[str, bytes] | None = None, owns_chip: bool = False
    ) -> None:
        if chip.options.platform:
            raise BadArgument("expected a chip with platform=False, got one that has a platform")
        if chip.msi is not None:
            raise DeviceBusy(f"virtual:{chip.facts.name} is already attached")
        self.chip = chip
        self.model: object = chip
        self.clock: Clock = chip.clock
        self.firmware: Mapping[str, bytes] = firmware or {}
        self._audio = AudioFunction(chip)
        self._functions: tuple[EndpointFunction, ...] = (GraphicsFunction(chip), self._audio)
        self._owns_chip = owns_chip
        chip.msi = _nowhere

    @property
    def functions(self) -> Sequence[EndpointFunction]:
        return self._functions

    @property
    def alive(self) -> bool:
        return not self.chip.lost

    def power(self, on: bool) -> None:
        if on:
            self.chip.power_cycle()
            self._audio.reset()
        else:
            self.chip.unplug()

    def reset(self) -> None:
        self.chip.bus_reset()
        self._audio.reset()

    def map_dma(self, address: int, size: int, host: int) -> None:
        self.chip.map_dma(address, size, host)

    def memory_changed(self) -> None:
        self.chip.memory_changed()

    def unmap_dma(self, address: int, size: int) -> None:
        self.chip.unmap_dma(address, size)

    def close(self) -> None:
        """Release the chip for another attachment; idempotent."""
        if self.chip.msi is _nowhere:
            self.chip.msi = None
        if self._owns_chip:
            self.chip.close()


def _nowhere(vector: int) -> None:
    """Drop an interrupt message, which the bus does not forward."""
