"""A USB device as the bridge's driver sees it: control requests, bulk transfers, streams.

Two sides implement this: libusb for a bridge in a port (`usbgpu.libusb`), and a virtual bridge
(`usbgpu.virtual`). Terms are those of the USB 3.2 specification; endpoints are addresses as in
descriptors, with bit 7 set for IN. Lengths are bytes.

Submitted transfers of one endpoint (and stream) take place in the order of their submission; those
of different endpoints are not ordered, but for what a device does with them. One thread at a time
may submit; `Pending.wait` and `close` may be called from any thread.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

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
    """Whom a control request addresses; bits 4:0 of bmRequestType."""

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

    port: bus number and the ports on the way from the root hub, as Linux names them ("2-1.4"). It
    stays the same when a device is plugged into the same port again; address does not.
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
    """A transfer that was submitted. It keeps its buffer alive until it has ended."""

    def wait(self, limit_s: float) -> bytes:
        """Wait for the end of the transfer; return the received bytes, or b"" for a transfer out.

        Raises TransferTimeout after `limit_s`, after cancelling it; EndpointStalled;
        TransferOverrun where the device sent more than was asked for; DeviceLost. A short packet
        ends a transfer in without an error: fewer bytes come back. A transfer out that was taken
        only in part raises TransportError with sent and length. The answer stays the same when
        asked again.
        """
        ...

    def cancel(self) -> None:
        """End it where it has not ended; returns at once. `wait` then raises TransportError."""
        ...


class UsbDevice(Protocol):
    """One USB device whose interface we have claimed; a context manager, `close` is idempotent and
    cancels what is pending."""

    identity: UsbIdentity

    @property
    def streams(self) -> int:
        """Bulk streams of each endpoint that has them, after `allocate_streams`; else 0."""
        ...

    def control_in(
        self, request: int, value: int, index: int, length: int, *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> bytes:  # fmt: skip
        """A control transfer to the host, with at most `length` (0 to 65,535) bytes of data.

        value and index are 16 bits. Raises EndpointStalled where the device refuses the request,
        TransferTimeout, TransferOverrun, DeviceLost.
        """
        ...

    def control_out(
        self, request: int, value: int, index: int, data: bytes = b"", *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> None:  # fmt: skip
        """A control transfer to the device, with `data` (0 to 65,535 bytes) in its data stage."""
        ...

    def submit_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, stream: int = 0
    ) -> Pending:
        """Start a bulk transfer to the device. `data` must not change until it has ended.

        stream: 1 to `streams` where the endpoint has streams, else 0. BadArgument for an endpoint
        that the claimed interface lacks.
        """
        ...

    def submit_in(self, endpoint: int, length: int, stream: int = 0) -> Pending:
        """Start a bulk transfer of at most `length` bytes to the host; `length` is a multiple of
        the endpoint's maximum packet size (else BadArgument: it could babble)."""
        ...

    def packet_size(self, endpoint: int) -> int:
        """wMaxPacketSize of the endpoint at the link's speed."""
        ...

    def endpoints(self) -> Sequence[int]:
        """Addresses of the bulk endpoints of the claimed interface's alternate setting."""
        ...

    def set_alternate(self, setting: int) -> None:
        """SET_INTERFACE; resets the interface's endpoints."""
        ...

    def allocate_streams(self, count: int, endpoints: Sequence[int]) -> int:
        """Ask for bulk streams; returns how many there are, at most `count`. NotSupported where
        host controller or device have none."""
        ...

    def clear_halt(self, endpoint: int) -> None:
        """CLEAR_FEATURE(ENDPOINT_HALT), after a STALL."""
        ...

    def reset(self) -> None:
        """Reset the port. DeviceLost where the device comes back as another one."""
        ...

    def on_departure(self, call: Callable[[], None]) -> None:
        """Call `call` once, from any thread, when the device leaves the bus; at once where it
        has left. It must not block nor use the device."""
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
