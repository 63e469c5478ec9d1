"""A card with a header and nothing behind it; implements `hcq.transport.endpoint.Endpoint`."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.endpoint import Aperture, EndpointFunction


class PlainFunction:
    """One BAR of 16 MiB that reads as zeros."""

    def __init__(self, vendor: int, device: int, class_code: int) -> None:
        self._ids = (vendor, device, class_code)
        self.reset()

    def reset(self) -> None:
        """Take the state after power-on."""
        vendor, device, class_code = self._ids
        self._bytes = bytearray(4096)
        struct.pack_into("<HH", self._bytes, 0, vendor, device)
        struct.pack_into("<I", self._bytes, 8, class_code << 8)

    def config_read(self, offset: int, width: int) -> int:
        return int.from_bytes(self._bytes[offset : offset + width], "little")

    def config_write(self, offset: int, value: int, width: int) -> None:
        if 0x04 <= offset < 0x06 or 0x10 <= offset < 0x14:
            self._bytes[offset : offset + width] = value.to_bytes(width, "little")
        size = 16 << 20
        (bar,) = struct.unpack_from("<I", self._bytes, 0x10)
        struct.pack_into("<I", self._bytes, 0x10, bar & ~(size - 1))

    def apertures(self) -> Sequence[Aperture]:
        if not self._bytes[4] & 2:
            return ()
        return (Aperture(0, self.config_read(0x10, 4), 16 << 20, False),)

    def read(self, index: int, offset: int, size: int) -> bytes:
        return bytes(size)

    def write(self, index: int, offset: int, data: bytes) -> None:
        """Nothing takes it."""


class PlainCard:
    """A card of any kind, which always trains."""

    alive = True

    def __init__(self, *, vendor: int, device: int, class_code: int) -> None:
        self._function = PlainFunction(vendor, device, class_code)
        self.functions: Sequence[EndpointFunction] = (self._function,)
        self.clock = Clock()
        self.firmware: Mapping[str, bytes] = {}
        self.model: object = self

    def power(self, on: bool) -> None:
        self._function.reset()

    def reset(self) -> None:
        self._function.reset()

    def map_dma(self, address: int, size: int, host: int) -> None:
        """It never uses it."""

    def memory_changed(self) -> None:
        """It polls none."""

    def unmap_dma(self, address: int, size: int) -> None:
        """It never used it."""

    def close(self) -> None:
        """Nothing to give back."""
