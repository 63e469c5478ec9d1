"""The part of the libusb1 package that we use, over a made-up bus: names, signatures and errors as
its version 3.4 has them. What a transfer does is decided by the test, from its own thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any


class USBError(Exception):
    pass


class USBErrorIO(USBError):
    pass


class USBErrorPipe(USBError):
    pass


class USBErrorTimeout(USBError):
    pass


class USBErrorOverflow(USBError):
    pass


class USBErrorAccess(USBError):
    pass


class USBErrorBusy(USBError):
    pass


class USBErrorNoDevice(USBError):
    pass


class USBErrorNotFound(USBError):
    pass


class USBErrorNotSupported(USBError):
    pass


class USBErrorInterrupted(USBError):
    pass


class RawTransfer(ctypes.Structure):
    """struct libusb_transfer, as far as streams need it (libusb.h)."""

    _fields_ = (
        ("dev_handle", ctypes.c_void_p), ("flags", ctypes.c_uint8), ("endpoint", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte), ("timeout", ctypes.c_uint), ("status", ctypes.c_int),
    )  # fmt: skip


class Transfer:
    """USBTransfer. end: what the host controller reports, from the thread of events."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.status = self.count = 0
        self.cancelled = False
        self._USBTransfer__transfer = ctypes.pointer(RawTransfer(type=2))

    def setBulk(
        self, endpoint: int, buffer: bytearray | int, callback: Callable[[Any], None],
        user_data: object = None, timeout: int = 0,
    ) -> None:  # fmt: skip
        assert timeout == 0, "the driver keeps the time"
        self.endpoint, self.callback = endpoint, callback
        self.buffer = bytearray(buffer) if isinstance(buffer, int) else buffer

    def submit(self) -> None:
        if self.handle.bus.gone:
            raise USBErrorNoDevice
        self.handle.bus.submitted.append(self)
        self.handle.bus.on_submit(self)

    def cancel(self) -> None:
        self.cancelled = True
        if self in self.handle.bus.submitted:
            self.end(self.handle.bus.usb1.TRANSFER_CANCELLED)
        else:
            raise USBErrorNotFound

    def end(self, status: int, data: bytes | None = None, count: int = 0) -> None:
        if data is not None:
            self.buffer[: len(data)] = data
            count = len(data)
        self.status, self.count = status, count
        self.handle.bus.submitted.remove(self)
        self.handle.bus.post(lambda: self.callback(self))

    def getStatus(self) -> int:
        return self.status

    def getActualLength(self) -> int:
        return self.count

    def getBuffer(self) -> bytearray:
        return self.buffer


class Handle:
    """USBDeviceHandle."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.closed = self.claimed = False
        self._USBDeviceHandle__handle = 0x1234

    def close(self) -> None:
        assert not self.bus.submitted, "closed under a transfer"
        self.closed = True

    def setAutoDetachKernelDriver(self, enable: bool) -> None:
        raise USBErrorNotSupported

    def claimInterface(self, interface: int) -> None:
        if self.bus.busy:
            raise USBErrorBusy
        self.claimed = True

    def releaseInterface(self, interface: int) -> None:
        self.claimed = False

    def _check(self) -> None:
        if self.bus.gone:
            raise USBErrorNoDevice

    def setInterfaceAltSetting(self, interface: int, setting: int) -> None:
        self._check()
        self.bus.log.append(("alternate", setting))

    def clearHalt(self, endpoint: int) -> None:
        self._check()
        self.bus.log.append(("clear", endpoint))

    def resetDevice(self) -> None:
        self._check()
        self.bus.log.append(("reset",))

    def controlRead(
        self, kind: int, request: int, value: int, index: int, length: int, timeout: int
    ) -> bytearray:
        self._check()
        self.bus.log.append(("read", kind, request, value, index, length, timeout))
        return bytearray(self.bus.answer())

    def controlWrite(
        self, kind: int, request: int, value: int, index: int, data: bytes, timeout: int
    ) -> int:
        self._check()
        self.bus.log.append(("write", kind, request, value, index, bytes(data), timeout))
        return len(self.bus.answer(data))

    def getTransfer(self) -> Transfer:
        return Transfer(self)


class Endpoint:
    def __init__(self, address: int, size: int, kind: int = 2) -> None:
        self.address, self.size, self.kind = address, size, kind

    def getAddress(self) -> int:
        return self.address

    def getMaxPacketSize(self) -> int:
        return self.size

    def getAttributes(self) -> int:
        return self.kind


class Setting:
    def __init__(self, number: int, endpoints: list[Endpoint]) -> None:
        self.number, self.endpoints = number, endpoints

    def getAlternateSetting(self) -> int:
        return self.number

    def iterEndpoints(self) -> Iterator[Endpoint]:
        return iter(self.endpoints)


class Configuration:
    def iterInterfaces(self) -> Iterator[list[Setting]]:
        two = [Endpoint(0x81, 1024), Endpoint(0x02, 1024)]
        four = [*two, Endpoint(0x83, 1024), Endpoint(0x04, 1024), Endpoint(0x85, 16, 3)]
        return iter([[Setting(0, two), Setting(1, four)]])


class Device:
    """USBDevice."""

    def __init__(self, bus: Bus, number: int, address: int) -> None:
        self.bus, self.number, self.address = bus, number, address

    def getBusNumber(self) -> int:
        return self.number

    def getDeviceAddress(self) -> int:
        return self.address

    def iterConfigurations(self) -> Iterator[Configuration]:
        return iter([Configuration()])

    def open(self) -> Handle:
        if self.bus.denied:
            raise USBErrorAccess
        self.bus.handle = Handle(self.bus)
        return self.bus.handle


class Context:
    """USBContext."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    def open(self) -> None:
        self.bus.open = True

    def close(self) -> None:
        self.bus.open = False

    def getDeviceIterator(self, skip_on_error: bool = False) -> Iterator[Device]:
        return iter([Device(self.bus, 1, 3), Device(self.bus, 2, 3)] if not self.bus.gone else [])

    def hasCapability(self, capability: int) -> bool:
        return True

    def hotplugRegisterCallback(
        self, callback: Callable[..., bool], events: int, flags: int, vendor_id: int,
        product_id: int,
    ) -> None:  # fmt: skip
        assert (vendor_id, product_id) == (0xADD1, 1)
        self.bus.hotplug = callback

    def handleEventsTimeout(self, limit_s: float) -> None:
        self.bus.handle_events(limit_s)

    def interruptEventHandler(self) -> None:
        self.bus.post(lambda: None)


class Bus:
    """One bus with one bridge, at 2-1, address 3."""

    def __init__(self) -> None:
        self.usb1 = Usb1(self)
        self.log: list[tuple[object, ...]] = []
        self.submitted: list[Transfer] = []
        self.open = self.gone = self.denied = self.busy = False
        self.handle: Handle | None = None
        self.hotplug: Callable[..., bool] | None = None
        self.answer: Callable[..., bytes] = lambda data=b"": bytes(data)
        self.on_submit: Callable[[Transfer], None] = lambda transfer: None
        self._events: list[Callable[[], None]] = []
        self._ready = threading.Condition()

    def post(self, event: Callable[[], None]) -> None:
        with self._ready:
            self._events.append(event)
            self._ready.notify()

    def handle_events(self, limit_s: float) -> None:
        with self._ready:
            self._ready.wait_for(lambda: bool(self._events), limit_s)
            events, self._events = self._events, []
        for event in events:
            event()

    def unplug(self, *, status: int | None = None) -> None:
        """Transfers in flight end, then word of the departure comes."""
        self.gone = True
        for transfer in list(self.submitted):
            transfer.end(self.usb1.TRANSFER_ERROR if status is None else status)
        hotplug = self.hotplug
        assert hotplug is not None
        self.post(lambda: (hotplug(None, Device(self, 2, 3), 2), None)[1])


class Library:
    """The C functions for streams. allocated: what the next call returns."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.allocated = 31
        # Attributes of function objects: the caller declares their types.
        self.libusb_alloc_streams = lambda *arguments: self._allocate(*arguments)
        self.libusb_transfer_set_stream_id = lambda *arguments: self._assign(*arguments)

    def _allocate(self, handle: int, count: int, endpoints: Any, number: int) -> int:
        self.bus.log.append(("streams", handle, count, bytes(endpoints[:number])))
        return self.allocated

    def _assign(self, transfer: Any, stream: int) -> None:
        self.bus.log.append(("stream", stream, transfer.contents.type))


class Raw:
    """usb1.libusb1."""

    libusb_device_handle_p = ctypes.c_void_p
    libusb_transfer = RawTransfer
    libusb_transfer_p = ctypes.POINTER(RawTransfer)

    def __init__(self, bus: Bus) -> None:
        self.libusb = Library(bus)


class Declares:
    """A class of the binding that has the attribute which streams need."""

    _USBDeviceHandle__handle = _USBTransfer__transfer = None


class Usb1:
    """The module."""

    USBDeviceHandle = USBTransfer = Declares

    CAP_HAS_HOTPLUG, HOTPLUG_EVENT_DEVICE_LEFT = 1, 2
    TRANSFER_COMPLETED, TRANSFER_ERROR, TRANSFER_TIMED_OUT, TRANSFER_CANCELLED = 0, 1, 2, 3
    TRANSFER_STALL, TRANSFER_NO_DEVICE, TRANSFER_OVERFLOW = 4, 5, 6
    USBError, USBErrorIO, USBErrorPipe, USBErrorTimeout = (
        USBError, USBErrorIO, USBErrorPipe, USBErrorTimeout,
    )  # fmt: skip
    USBErrorOverflow, USBErrorAccess, USBErrorBusy = USBErrorOverflow, USBErrorAccess, USBErrorBusy
    USBErrorNoDevice, USBErrorNotFound = USBErrorNoDevice, USBErrorNotFound
    USBErrorNotSupported, USBErrorInterrupted = USBErrorNotSupported, USBErrorInterrupted

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.libusb1 = Raw(bus)

    def raiseUSBError(self, code: int) -> None:
        raise {-4: USBErrorNoDevice, -6: USBErrorBusy}.get(code, USBErrorIO)

    def USBContext(self) -> Context:
        return Context(self._bus)
