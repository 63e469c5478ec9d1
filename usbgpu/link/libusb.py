"""USB devices through libusb: asynchronous transfers, bulk streams, and notice of departure.

One thread handles the library's events. A thread that waits for a transfer sleeps until the
transfer has ended.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    Closed,
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
    EndpointStalled,
    MissingDependency,
    TransferOverrun,
    TransferTimeout,
    TransportError,
)
from ugpu.hcq.state.threads import start
from ugpu.usbgpu.link.libusb_streams import StreamCalls
from ugpu.usbgpu.link.power import REMEDY, KeptAwake
from ugpu.usbgpu.link.usb import IN, SYSFS_USB, Kind, Recipient, UsbIdentity

log = logging.getLogger(__name__)

INTERFACE = 0
_MOST_CONTROL = 0xFFFF
# TIMEOUT: host controllers return a cancelled transfer within a frame or two; our choice.
_CANCEL_LIMIT_S = 1.0
# TIMEOUT: how long notice of a departure may take after the first transfer that it ended.
_DEPARTURE_S = 0.05
_EVENTS_S = 0.1  # the thread's longest sleep; closing interrupts it


def load() -> Any:  # a module without types
    """Return the binding, which loads the library. MissingDependency without either."""
    try:
        import usb1
    except ImportError as error:
        raise MissingDependency(
            "the package libusb1 is missing", install="pip install 'ugpu[usb]'"
        ) from error
    try:
        usb1.loadLibrary()
    except OSError as error:
        raise MissingDependency(
            "the library libusb-1.0 is missing", install="sudo apt install libusb-1.0-0"
        ) from error
    return usb1


class LibUsbDevice:
    """See usbgpu.link.usb.UsbDevice."""

    def __init__(
        self, identity: UsbIdentity, *, library: Any = None, sysfs: Path = SYSFS_USB
    ) -> None:
        """Open the device that `usbgpu.bridge.discovery` has found, and claim its interface.

        AccessDenied with the rule that grants access, DeviceBusy, DeviceNotFound for a device that
        has left. library: the binding, for tests.
        """
        self.identity = identity
        self.streams = 0
        self._with_streams: tuple[int, ...] = ()
        self._usb1 = library if library is not None else load()
        self._calls = StreamCalls(self._usb1)
        self._lock = threading.RLock()
        self._closed = False
        self._departed = threading.Event()
        self._departures: list[Callable[[], None]] = []
        self._pending: set[LibUsbTransfer] = set()
        self._ends = contextlib.ExitStack()
        try:
            self._open(sysfs)
        except BaseException:
            self.close()
            raise

    def _open(self, sysfs: Path) -> None:
        usb1, bus = self._usb1, int(self.identity.port.partition("-")[0])
        self._context = usb1.USBContext()
        self._context.open()
        self._ends.callback(self._context.close)
        place = (bus, self.identity.address)
        devices = self._context.getDeviceIterator(skip_on_error=True)
        device = next(
            (d for d in devices if (d.getBusNumber(), d.getDeviceAddress()) == place), None
        )
        if device is None:
            raise DeviceNotFound(f"the bridge at port {self.identity.port} was unplugged")
        self._packets, self._alternates = _endpoints(device)
        awake = KeptAwake(sysfs / self.identity.port)
        self._ends.callback(awake.restore)
        with self._errors("open"):
            self._handle = device.open()
        self._ends.callback(self._handle.close)
        with self._errors("claim"):
            with contextlib.suppress(usb1.USBErrorNotSupported):
                self._handle.setAutoDetachKernelDriver(True)
            self._handle.claimInterface(INTERFACE)
        self._ends.callback(self._release)
        self._alternate = 0
        self._stop = threading.Event()
        if self._context.hasCapability(usb1.CAP_HAS_HOTPLUG):
            self._context.hotplugRegisterCallback(
                self._hotplug,
                events=usb1.HOTPLUG_EVENT_DEVICE_LEFT,
                flags=0,
                vendor_id=self.identity.vendor,
                product_id=self.identity.product,
            )
        self._thread = threading.Thread(
            target=self._run, name=f"usb {self.identity.port}", daemon=True
        )
        start(self._thread)
        self._ends.callback(self._end_thread)
        self._ends.callback(self._cancel_all)

    # ---- control -----------------------------------------------------------------------------

    def control_in(
        self, request: int, value: int, index: int, length: int, *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> bytes:  # fmt: skip
        """See UsbDevice.control_in."""
        if not 0 <= length <= _MOST_CONTROL:
            raise BadArgument("length must be 0 to 65535", length=length)
        facts = _control_facts(request, value, index, length, limit_s)
        with self._errors("control", **facts):
            return bytes(
                self._open_handle().controlRead(
                    IN | kind << 5 | recipient, request, value, index, length, _ms(limit_s)
                )
            )

    def control_out(
        self, request: int, value: int, index: int, data: bytes = b"", *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> None:  # fmt: skip
        """See UsbDevice.control_out."""
        if len(data) > _MOST_CONTROL:
            raise BadArgument("data must be at most 65535 bytes", length=len(data))
        facts = _control_facts(request, value, index, len(data), limit_s)
        with self._errors("control", **facts):
            sent = self._open_handle().controlWrite(
                kind << 5 | recipient, request, value, index, data, _ms(limit_s)
            )
        if sent != len(data):
            raise TransportError("a control request was truncated", sent=sent, length=len(data))

    # ---- bulk --------------------------------------------------------------------------------

    def submit_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, stream: int = 0
    ) -> LibUsbTransfer:
        """See UsbDevice.submit_out."""
        self._check(endpoint, stream, out=True)
        return self._submit(endpoint, bytearray(data), len(data), stream)

    def submit_in(self, endpoint: int, length: int, stream: int = 0) -> LibUsbTransfer:
        """See UsbDevice.submit_in."""
        self._check(endpoint, stream, out=False)
        if length <= 0 or length % self.packet_size(endpoint):
            raise BadArgument(
                f"length must be a multiple of {self.packet_size(endpoint)}, got {length}"
            )
        return self._submit(endpoint, length, length, stream)

    def _submit(
        self, endpoint: int, buffer: bytearray | int, length: int, stream: int
    ) -> LibUsbTransfer:
        with self._lock:
            transfer = LibUsbTransfer(self, endpoint, length)
            raw = self._open_handle().getTransfer()
            raw.setBulk(endpoint, buffer, callback=transfer.ended, timeout=0)
            transfer.raw = raw
            if stream:
                self._calls.assign(raw, stream)
            self._pending.add(transfer)
            try:
                with self._errors("bulk", endpoint=endpoint, length=length):
                    raw.submit()
            except BaseException:
                self._pending.discard(transfer)
                raise
            return transfer

    def _check(self, endpoint: int, stream: int, *, out: bool) -> None:
        if endpoint not in self.endpoints() or bool(endpoint & IN) == out:
            raise BadArgument("the interface has no such endpoint", endpoint=endpoint)
        most = self.streams if endpoint in self._with_streams else 0
        if not bool(most) <= stream <= most:
            raise BadArgument(
                "the endpoint has no such stream", endpoint=endpoint, stream=stream, most=most
            )

    def packet_size(self, endpoint: int) -> int:
        """See UsbDevice.packet_size."""
        if endpoint not in self._packets:
            raise BadArgument("the interface has no such endpoint", endpoint=endpoint)
        return self._packets[endpoint]

    def endpoints(self) -> Sequence[int]:
        """See UsbDevice.endpoints."""
        return self._alternates[self._alternate]

    # ---- the interface -----------------------------------------------------------------------

    def set_alternate(self, setting: int) -> None:
        """See UsbDevice.set_alternate."""
        if setting not in self._alternates:
            raise BadArgument("the interface has no such setting", setting=setting)
        with self._errors("set interface"):
            self._open_handle().setInterfaceAltSetting(INTERFACE, setting)
        self._alternate, self.streams, self._with_streams = setting, 0, ()

    def allocate_streams(self, count: int, endpoints: Sequence[int]) -> int:
        """See UsbDevice.allocate_streams. A reset or another setting ends the streams."""
        for endpoint in endpoints:
            self.packet_size(endpoint)
        with self._errors("streams", count=count):
            allocated = self._calls.allocate(self._open_handle(), count, endpoints)
        self.streams, self._with_streams = min(allocated, count), tuple(endpoints)
        return self.streams

    def clear_halt(self, endpoint: int) -> None:
        """See UsbDevice.clear_halt."""
        with self._errors("clear halt", endpoint=endpoint):
            self._open_handle().clearHalt(endpoint)

    def reset(self) -> None:
        """See UsbDevice.reset."""
        with self._errors("reset"):
            self._open_handle().resetDevice()
        self._alternate, self.streams, self._with_streams = 0, 0, ()

    # ---- departure ---------------------------------------------------------------------------

    def on_departure(self, call: Callable[[], None]) -> None:
        """See UsbDevice.on_departure."""
        with self._lock:
            if not self._departed.is_set():
                self._departures.append(call)
                return
        call()

    def present(self) -> bool:
        """See UsbDevice.present."""
        return not self._closed and not self._departed.is_set()

    def _hotplug(self, context: object, device: Any, event: object) -> bool:
        bus = int(self.identity.port.partition("-")[0])
        if (device.getBusNumber(), device.getDeviceAddress()) == (bus, self.identity.address):
            self._leave()
        return False

    def _leave(self) -> None:
        self._departed.set()  # ORDER: a caller that waits for this holds the lock
        with self._lock:
            calls, self._departures = self._departures, []
        for call in calls:
            call()

    # ---- life --------------------------------------------------------------------------------

    def close(self) -> None:
        """See UsbDevice.close."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._ends.close()

    def _open_handle(self) -> Any:
        if self._closed:
            raise Closed(f"the USB device at port {self.identity.port} was closed")
        if self._departed.is_set():
            raise self._lost()
        return self._handle

    def _lost(self) -> DeviceLost:
        return DeviceLost("the bridge was unplugged", port=self.identity.port)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._context.handleEventsTimeout(_EVENTS_S)
            except self._usb1.USBErrorInterrupted:
                continue
            except self._usb1.USBError as error:
                log.debug("usb %s: events: %s", self.identity.port, error)
                self._stop.wait(_EVENTS_S)

    def _end_thread(self) -> None:
        self._stop.set()
        self._context.interruptEventHandler()
        if self._thread is not threading.current_thread():
            self._thread.join(_CANCEL_LIMIT_S)

    def _cancel_all(self) -> None:
        with self._lock:
            pending = list(self._pending)
        for transfer in pending:
            transfer.cancel()
        for transfer in pending:
            transfer.over.wait(_CANCEL_LIMIT_S)

    def _release(self) -> None:
        with contextlib.suppress(self._usb1.USBError):
            self._handle.releaseInterface(INTERFACE)

    def forget(self, transfer: LibUsbTransfer) -> None:
        """Remove a transfer that has ended."""
        with self._lock:
            self._pending.discard(transfer)

    @contextlib.contextmanager
    def _errors(self, what: str, **facts: object) -> Iterator[None]:
        """Turn the library's errors into ours."""
        usb1 = self._usb1
        try:
            yield
        except usb1.USBErrorPipe as error:
            raise EndpointStalled(
                f"USB {what}: the device rejected the request", **facts
            ) from error
        except usb1.USBErrorTimeout as error:
            raise TransferTimeout(f"USB {what}: no response in time", **facts) from error
        except usb1.USBErrorOverflow as error:
            raise TransferOverrun(f"USB {what}: more data than requested", **facts) from error
        except usb1.USBErrorAccess as error:
            raise AccessDenied(
                f"no permission to open the bridge at port {self.identity.port}", remedy=REMEDY
            ) from error
        except usb1.USBErrorBusy as error:
            raise DeviceBusy(
                f"the bridge at port {self.identity.port} is in use", holder="another program"
            ) from error
        except usb1.USBErrorNoDevice as error:
            self._leave()
            raise self._lost() from error
        except usb1.USBError as error:
            # A transfer that unplugging interrupts ends before the host learns the cause.
            if self._departed.wait(_DEPARTURE_S):
                raise self._lost() from error
            raise TransportError(f"USB {what} failed: {error}", **facts) from error

    def ended_badly(self, transfer: LibUsbTransfer, status: int) -> Exception:
        """Return the error for a transfer that did not complete."""
        usb1, facts = self._usb1, {"endpoint": transfer.endpoint, "length": transfer.length}
        if status == usb1.TRANSFER_STALL:
            return EndpointStalled("the device halted a USB endpoint", **facts)
        if status == usb1.TRANSFER_OVERFLOW:
            return TransferOverrun("the device sent more than was asked for", **facts)
        if status == usb1.TRANSFER_NO_DEVICE or self._departed.wait(_DEPARTURE_S):
            self._leave()
            return self._lost()
        if status == usb1.TRANSFER_CANCELLED:
            return TransportError("the USB transfer was cancelled", **facts)
        return TransportError("the USB transfer failed", status=status, **facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LibUsbDevice {self.identity.port} {self.identity.name}>"


class LibUsbTransfer:
    """See usbgpu.link.usb.Pending."""

    raw: Any = None  # of the binding, which has no types

    def __init__(self, device: LibUsbDevice, endpoint: int, length: int) -> None:
        self.endpoint = endpoint
        self.length = length
        self.over = threading.Event()
        self._device = device
        self._status = 0
        self._data = b""
        self._count = 0
        self._late: float | None = None  # the limit that it exceeded

    def ended(self, raw: Any) -> None:
        """Handle the library's notice that the transfer has ended, on the event thread."""
        self._status = raw.getStatus()
        self._count = raw.getActualLength()
        if self.endpoint & IN:
            self._data = bytes(raw.getBuffer()[: self._count])
        self._device.forget(self)
        self.over.set()

    def wait(self, limit_s: float) -> bytes:
        """See Pending.wait."""
        if not self.over.wait(limit_s):
            if self._late is None:
                self._late = limit_s
            self.cancel()
            self.over.wait(_CANCEL_LIMIT_S)
        usb1 = self._device._usb1
        if self._status == usb1.TRANSFER_COMPLETED and self.over.is_set():
            if not self.endpoint & IN and self._count != self.length:
                raise TransportError(
                    "the device accepted only part of the data",
                    sent=self._count,
                    length=self.length,
                )
            return self._data
        lost = self._status == usb1.TRANSFER_NO_DEVICE or not self._device.present()
        if self._late is not None and not lost:
            raise TransferTimeout(
                f"endpoint {self.endpoint:#x}: the transfer did not end within {self._late} s",
                endpoint=self.endpoint, length=self.length, limit_s=self._late,
            )  # fmt: skip
        raise self._device.ended_badly(self, self._status)

    def cancel(self) -> None:
        """See Pending.cancel."""
        if self.over.is_set():
            return
        usb1 = self._device._usb1
        with contextlib.suppress(usb1.USBErrorNotFound, usb1.USBErrorNoDevice):
            self.raw.cancel()


def _endpoints(device: Any) -> tuple[dict[int, int], dict[int, tuple[int, ...]]]:
    """Return packet sizes of all bulk endpoints of our interface, and the endpoints of each
    setting."""
    packets: dict[int, int] = {}
    settings: dict[int, tuple[int, ...]] = {}
    for configuration in device.iterConfigurations():
        for setting in next(iter(configuration.iterInterfaces())):
            bulk = [
                endpoint
                for endpoint in setting.iterEndpoints()
                if endpoint.getAttributes() & 3 == 2
            ]
            settings[setting.getAlternateSetting()] = tuple(
                endpoint.getAddress() for endpoint in bulk
            )
            packets |= {
                endpoint.getAddress(): endpoint.getMaxPacketSize() & 0x7FF for endpoint in bulk
            }
        break
    return packets, settings


def _control_facts(
    request: int, value: int, index: int, length: int, limit_s: float
) -> dict[str, object]:
    return {
        "request": request, "value": value, "index": index, "length": length, "limit_s": limit_s,
    }  # fmt: skip


def _ms(limit_s: float) -> int:
    return max(1, round(limit_s * 1000))
