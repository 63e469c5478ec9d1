"""A virtual enclosure in place of libusb, for tinygrad's USB back end.

tinygrad reaches the bridge by one class, USB3 (0.14.0, runtime/support/usb.py): control and bulk
transfers, some of them submitted and awaited later. `install` puts the class here in its place; the
back end, the bridge's protocol and the driver of the card are as installed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ugpu.hcq.errors import UgpuError
from ugpu.usbgpu.link.usb import Pending, UsbDevice
from ugpu.virtual.usb.enclosure import Enclosure

OUT, IN = 0x02, 0x81
PACKET = 1024
LIMIT_S = 30.0
P = ParamSpec("P")
Result = TypeVar("Result")


class TransferFailed(RuntimeError):
    """An error of the link, as tinygrad's USB3 reports those of libusb."""


def install(enclosure: Enclosure, *modules: Any) -> None:
    """Let tinygrad's modules find and open `enclosure`, which stays the caller's."""

    class VirtualUsb3:
        """Takes the place of USB3."""

        @classmethod
        def list_devices(cls, vendor: int, product: int) -> list[tuple[Any, str]]:
            identity = enclosure.identity
            found = (identity.vendor, identity.product) == (vendor, product)
            return [(enclosure, f"usb:{identity.port}")] if found else []

        def __init__(self, device: Enclosure, *_: Any) -> None:
            self._usb: UsbDevice = device.open()
            self.product = self._usb.identity.name
            self._tags = itertools.count(1)
            self._waiting: dict[int, Pending] = {}

        def control_write(
            self, request: int, value: int = 0, index: int = 0, data: bytes = b"",
            timeout: int = 1000,
        ) -> None:  # fmt: skip
            limit = timeout / 1000
            self._tried(self._usb.control_out, request, value, index, bytes(data), limit_s=limit)

        def control_read(
            self, request: int, length: int, value: int = 0, index: int = 0, timeout: int = 1000
        ) -> memoryview:
            limit = timeout / 1000
            got = self._tried(self._usb.control_in, request, value, index, length, limit_s=limit)
            if len(got) != length:
                raise TransferFailed(f"expected {length} bytes, got {len(got)}")
            return memoryview(got)

        def bulk_write(self, payload: bytes, timeout: int = 1000) -> None:
            self._tried(self._usb.submit_out(OUT, bytes(payload)).wait, timeout / 1000)

        def bulk_read(self, length: int, timeout: int = 1000) -> memoryview:
            room = -(-length // PACKET) * PACKET
            got = self._tried(self._usb.submit_in(IN, room).wait, timeout / 1000)
            return memoryview(got[:length])

        def bulk_write_async(self, payload: memoryview, timeout: int = 10000) -> int:
            tag = next(self._tags)
            self._waiting[tag] = self._usb.submit_out(OUT, bytes(payload))
            return tag

        def control_write_async(
            self, request: int, value: int = 0, index: int = 0, data: bytes = b"",
            timeout: int = 1000,
        ) -> int:  # fmt: skip
            """A control transfer takes place at once: the order on endpoint 0 is the same."""
            self.control_write(request, value, index, data, timeout)
            return next(self._tags)

        def control_read_async(
            self, request: int, length: int, value: int = 0, index: int = 0, timeout: int = 1000
        ) -> tuple[int, memoryview]:
            return next(self._tags), self.control_read(request, length, value, index, timeout)

        def bulk_wait(self, tag: int | None) -> None:
            pending = None if tag is None else self._waiting.pop(tag, None)
            if pending is not None:
                self._tried(pending.wait, LIMIT_S)

        @staticmethod
        def _tried(call: Callable[P, Result], *arguments: P.args, **options: P.kwargs) -> Result:
            try:
                return call(*arguments, **options)
            except UgpuError as error:
                raise TransferFailed(str(error)) from error

    for module in modules:
        module.USB3 = VirtualUsb3
