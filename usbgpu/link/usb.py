"""A USB device for the bridge's driver: control requests, bulk transfers, streams.

There are two implementations: libusb for a bridge in a port (`usbgpu.link.libusb`), and a virtual
bridge (`virtual.usb`). Terms are those of the USB 3.2 specification; endpoints are addresses as in
descriptors, with bit 7 set for IN. Lengths are bytes.

Transfers submitted to one endpoint (and stream) take place in the order of submission. Transfers of
different endpoints are not ordered, except by what the device does with them. One thread at a time
may submit; `Pending.wait` and `close` may be called from any thread.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

SYSFS_USB = Path("/sys/bus/usb/devices")
#: bit 7 of an endpoint's address
IN = 0x80


class Speed(enum.IntEnum):
    """Signalling rate of the link, in Mbit/s."""

    FULL = 12
    HIGH = 480
    SUPER = 5_000
    SUPER_PLUS = 10_000
    SUPER_PLUS_X2 = 20_000


class Recipient(enum.IntEnum):
    """Recipient of a control request; bits 4:0 of bmRequestType."""

    DEVICE = 0
    INTERFACE = 1
    ENDPOINT = 2


class Kind(enum.IntEnum):
    """The type of a control request; bits 6:5 of bmRequestType."""

    STANDARD = 0
    CLASS = 1
    VENDOR = 2


@dataclass(frozen=True)
class UsbIdentity:
    """The identity of a USB device. serial is "" where the device has none.

    port: bus number and the ports from the root hub to the device, as Linux names them ("2-1.4").
    It stays the same when a device is plugged into the same port again; address does not.
    """

    vendor: int
    product: int
    release: int  # bcdDevice
    manufacturer: str
    name: str  # iProduct
    serial: str
    speed: Speed
    port: str
    address: int


class Pending(Protocol):
    """A submitted transfer. It keeps its buffer alive until it has ended."""

    def wait(self, limit_s: float) -> bytes:
        """Wait for the end of the transfer; return the received bytes, or b"" for a transfer out.

        Raises TransferTimeout after `limit_s`, and cancels the transfer first; EndpointStalled;
        TransferOverrun where the device sent more than was requested; DeviceLost. A short packet
        ends a transfer in without an error, and fewer bytes are returned. A transfer out that was
        accepted only in part raises TransportError with sent and length. A repeated call has the
        same result.
        """
        ...

    def cancel(self) -> None:
        """Cancel the transfer if it has not ended; return at once. `wait` then raises
        TransportError."""
        ...


class UsbDevice(Protocol):
    """One USB device whose interface we have claimed; a context manager. `close` is idempotent and
    cancels pending transfers."""

    identity: UsbIdentity

    @property
    def streams(self) -> int:
        """Return the number of bulk streams per endpoint after `allocate_streams`; 0 without
        streams."""
        ...

    def control_in(
        self, request: int, value: int, index: int, length: int, *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> bytes:  # fmt: skip
        """Make a control transfer to the host, with at most `length` (0 to 65,535) bytes of data.

        value and index are 16 bits. Raises EndpointStalled where the device refuses the request,
        TransferTimeout, TransferOverrun, DeviceLost.
        """
        ...

    def control_out(
        self, request: int, value: int, index: int, data: bytes = b"", *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> None:  # fmt: skip
        """Make a control transfer to the device, with `data` (0 to 65,535 bytes) in its data
        stage."""
        ...

    def submit_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, stream: int = 0
    ) -> Pending:
        """Start a bulk transfer to the device. `data` must not change until the transfer has ended.

        stream: 1 to `streams` where the endpoint has streams, else 0. BadArgument for an endpoint
        that the claimed interface lacks.
        """
        ...

    def submit_in(self, endpoint: int, length: int, stream: int = 0) -> Pending:
        """Start a bulk transfer of at most `length` bytes to the host. `length` must be a multiple
        of the endpoint's maximum packet size (else BadArgument: the endpoint could babble)."""
        ...

    def packet_size(self, endpoint: int) -> int:
        """Return wMaxPacketSize of the endpoint at the link's speed."""
        ...

    def endpoints(self) -> Sequence[int]:
        """Return the addresses of the bulk endpoints of the claimed interface's alternate
        setting."""
        ...

    def set_alternate(self, setting: int) -> None:
        """Send SET_INTERFACE, which resets the interface's endpoints."""
        ...

    def allocate_streams(self, count: int, endpoints: Sequence[int]) -> int:
        """Request bulk streams; return the number allocated, at most `count`. NotSupported where
        the host controller or the device has none."""
        ...

    def clear_halt(self, endpoint: int) -> None:
        """Send CLEAR_FEATURE(ENDPOINT_HALT), after a STALL."""
        ...

    def reset(self) -> None:
        """Reset the port. DeviceLost where the device comes back with another identity."""
        ...

    def on_departure(self, call: Callable[[], None]) -> None:
        """Call `call` once, from any thread, when the device leaves the bus; at once if it has
        already left. `call` must neither block nor use the device."""
        ...

    def present(self) -> bool:
        """Return whether the device is still on the bus, as far as the host knows."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
