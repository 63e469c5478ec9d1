"""A USB device through libusb: every way in which a transfer, or the device, can end."""

from __future__ import annotations

import builtins
import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.usb import fake_usb1
from tests.support.usb.fake_usb1 import Bus, Transfer
from tests.support.usb.usb_script import IDENTITY
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    Closed,
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
    EndpointStalled,
    MissingDependency,
    NotSupported,
    TransferOverrun,
    TransferTimeout,
    TransportError,
)
from ugpu.usbgpu.link import libusb
from ugpu.usbgpu.link.libusb import LibUsbDevice
from ugpu.usbgpu.link.libusb_streams import StreamCalls
from ugpu.usbgpu.link.usb import Kind, Recipient

LIMIT_S = 10.0


@pytest.fixture
def bus() -> Iterator[Bus]:
    made = Bus()
    yield made
    assert not made.open and not made.submitted
    assert made.handle is None or (made.handle.closed and not made.handle.claimed)


def opened(bus: Bus, sysfs: Path) -> LibUsbDevice:
    return LibUsbDevice(IDENTITY, library=bus.usb1, sysfs=sysfs)


@pytest.fixture
def device(bus: Bus, tmp_path: Path) -> Iterator[LibUsbDevice]:
    with opened(bus, tmp_path) as made:
        yield made


# ---- opening -----------------------------------------------------------------------------------


def test_what_cannot_be_opened(bus: Bus, tmp_path: Path) -> None:
    bus.denied = True
    with pytest.raises(AccessDenied, match="write-udev"):
        opened(bus, tmp_path)
    bus.denied, bus.busy = False, True
    with pytest.raises(DeviceBusy):
        opened(bus, tmp_path)
    bus.gone = True
    with pytest.raises(DeviceNotFound):
        opened(bus, tmp_path)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: object, **kwargs: object) -> object:
        if name == "usb1":
            raise ImportError(name)
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingDependency, match=r"ugpu\[usb\]"):
        libusb.load()


def test_a_port_is_awake_while_it_is_open(bus: Bus, tmp_path: Path) -> None:
    control = tmp_path / "2-1" / "power" / "control"
    control.parent.mkdir(parents=True)
    control.write_text("auto\n")
    with opened(bus, tmp_path):
        assert control.read_text() == "on"
    assert control.read_text() == "auto"


# ---- control -----------------------------------------------------------------------------------


def test_control_requests(bus: Bus, device: LibUsbDevice) -> None:
    bus.answer = lambda data=b"": b"abc"
    assert device.control_in(0xE4, 0xB450, 0x100, 3) == b"abc"
    device.control_out(0xF0, 1, 2, b"xyz", limit_s=0.0001)
    device.control_out(1, 0, 0x81, b"abc", kind=Kind.STANDARD, recipient=Recipient.ENDPOINT)
    assert bus.log == [
        ("read", 0xC0, 0xE4, 0xB450, 0x100, 3, 1000),
        ("write", 0x40, 0xF0, 1, 2, b"xyz", 1),
        ("write", 0x02, 1, 0, 0x81, b"abc", 1000),
    ]
    with pytest.raises(TransportError):
        device.control_out(0xF0, 0, 0, b"four")
    for wrong in (-1, 0x1_0000):
        with pytest.raises(BadArgument):
            device.control_in(0xE4, 0, 0, wrong)
    with pytest.raises(BadArgument):
        device.control_out(0xE4, 0, 0, bytes(0x1_0000))


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (fake_usb1.USBErrorPipe, EndpointStalled),
        (fake_usb1.USBErrorTimeout, TransferTimeout),
        (fake_usb1.USBErrorOverflow, TransferOverrun),
        (fake_usb1.USBErrorIO, TransportError),
    ],
)
def test_control_requests_that_fail(
    bus: Bus, device: LibUsbDevice, error: type[Exception], ours: type[Exception]
) -> None:
    def fail(data: bytes = b"") -> bytes:
        raise error

    bus.answer = fail
    with pytest.raises(ours) as caught:
        device.control_in(0xE4, 1, 2, 3)
    assert type(caught.value) is ours
    with pytest.raises(ours):
        device.control_out(0xE5, 1, 2)
    assert device.present()


@pytest.mark.parametrize("error", [fake_usb1.USBErrorIO, fake_usb1.USBErrorNoDevice])
def test_a_control_request_that_unplugging_cut_off(
    bus: Bus, device: LibUsbDevice, error: type[Exception]
) -> None:
    def unplugged(data: bytes = b"") -> bytes:
        bus.unplug()
        raise error

    bus.answer = unplugged
    with pytest.raises(DeviceLost):
        device.control_in(0xE4, 1, 2, 3)
    assert not device.present()
    with pytest.raises(DeviceLost):
        device.submit_in(0x81, 1024)


# ---- bulk --------------------------------------------------------------------------------------


def ends(bus: Bus, status: int, data: bytes | None = None, count: int = 0) -> None:
    bus.on_submit = lambda transfer: transfer.end(status, data, count)


def test_bulk_transfers(bus: Bus, device: LibUsbDevice) -> None:
    ends(bus, 0, b"short")
    pending = device.submit_in(0x81, 2048)
    assert pending.wait(LIMIT_S) == b"short" == pending.wait(LIMIT_S)
    ends(bus, 0, count=3)
    assert device.submit_out(0x02, memoryview(b"abc")).wait(LIMIT_S) == b""
    ends(bus, 0, count=2)
    with pytest.raises(TransportError) as caught:
        device.submit_out(0x02, b"abc").wait(LIMIT_S)
    assert caught.value.facts == {"sent": 2, "length": 3}


@pytest.mark.parametrize(
    ("status", "ours"),
    [(4, EndpointStalled), (6, TransferOverrun), (5, DeviceLost), (1, TransportError)],
)
def test_bulk_transfers_that_fail(
    bus: Bus, device: LibUsbDevice, status: int, ours: type[Exception]
) -> None:
    ends(bus, status)
    pending = device.submit_in(0x81, 1024)
    for _ in range(2):
        with pytest.raises(ours) as caught:
            pending.wait(LIMIT_S)
        assert type(caught.value) is ours
    assert device.present() == (ours is not DeviceLost)


def test_a_transfer_that_is_late_is_taken_back(bus: Bus, device: LibUsbDevice) -> None:
    pending = device.submit_in(0x81, 1024)
    for limit_s in (0.0, LIMIT_S):
        with pytest.raises(TransferTimeout) as caught:
            pending.wait(limit_s)
        assert caught.value.facts["limit_s"] == 0.0
    assert not bus.submitted


def test_a_transfer_that_is_cancelled(bus: Bus, device: LibUsbDevice) -> None:
    pending = device.submit_in(0x81, 1024)
    pending.cancel()
    pending.cancel()
    with pytest.raises(TransportError) as caught:
        pending.wait(LIMIT_S)
    assert type(caught.value) is TransportError


def test_what_no_endpoint_takes(device: LibUsbDevice) -> None:
    assert tuple(device.endpoints()) == (0x81, 0x02) and device.packet_size(0x81) == 1024
    calls: list[Callable[[], object]] = [
        lambda: device.submit_in(0x02, 1024),
        lambda: device.submit_out(0x81, b"abcd"),
        lambda: device.submit_in(0x83, 1024),
        lambda: device.submit_in(0x81, 1000),
        lambda: device.submit_in(0x81, 0),
        lambda: device.submit_in(0x81, 1024, stream=1),
        lambda: device.packet_size(0x85),
        lambda: device.set_alternate(2),
    ]
    for call in calls:
        with pytest.raises(BadArgument):
            call()


# ---- streams -----------------------------------------------------------------------------------


def with_streams(bus: Bus, device: LibUsbDevice) -> None:
    device.set_alternate(1)
    assert device.allocate_streams(31, (0x02, 0x81, 0x83)) == device.streams == 31
    assert bus.log == [("alternate", 1), ("streams", 0x1234, 31, b"\x02\x81\x83")]
    bus.log.clear()


def test_a_transfer_of_a_stream(bus: Bus, device: LibUsbDevice) -> None:
    with_streams(bus, device)
    bus.on_submit = lambda transfer: transfer.end(
        0, b"abc" if transfer.endpoint & 0x80 else None, 4
    )
    assert device.submit_in(0x83, 1024, 31).wait(LIMIT_S) == b"abc"
    device.submit_out(0x02, b"abcd", 1).wait(LIMIT_S)
    device.submit_out(0x04, b"abcd").wait(LIMIT_S)
    assert bus.log == [("stream", 31, 4), ("stream", 1, 4)], "LIBUSB_TRANSFER_TYPE_BULK_STREAM"


def test_streams_that_there_are_not(bus: Bus, device: LibUsbDevice) -> None:
    with_streams(bus, device)
    calls: list[Callable[[], object]] = [
        lambda: device.submit_in(0x83, 1024),
        lambda: device.submit_in(0x83, 1024, 32),
        lambda: device.submit_out(0x04, b"abcd", 1),
        lambda: device.allocate_streams(31, (0x85,)),
    ]
    for call in calls:
        with pytest.raises(BadArgument):
            call()


@pytest.mark.parametrize("end", ["reset", "setting"])
def test_streams_go_with_the_setting(bus: Bus, device: LibUsbDevice, end: str) -> None:
    with_streams(bus, device)
    if end == "reset":
        device.reset()
        assert tuple(device.endpoints()) == (0x81, 0x02)
    else:
        device.set_alternate(1)
    assert device.streams == 0
    with pytest.raises(BadArgument):
        device.submit_in(0x81, 1024, 1)


@pytest.mark.parametrize(
    ("code", "error"),
    [(-12, NotSupported), (-2, NotSupported), (-4, DeviceLost), (-6, DeviceBusy),
     (-1, TransportError)],
)  # fmt: skip
def test_streams_that_are_refused(
    bus: Bus, device: LibUsbDevice, code: int, error: type[Exception]
) -> None:
    bus.usb1.libusb1.libusb.allocated = code
    with pytest.raises(error):
        device.allocate_streams(31, (0x81,))
    assert device.streams == 0


def test_fewer_streams_than_asked_for(bus: Bus, device: LibUsbDevice) -> None:
    bus.usb1.libusb1.libusb.allocated = 15
    assert device.allocate_streams(31, (0x81,)) == 15
    with pytest.raises(BadArgument):
        device.submit_in(0x81, 1024, 16)


@pytest.mark.parametrize(
    ("owner", "name"),
    [("libusb1.libusb", "libusb_alloc_streams"), ("libusb1", "libusb_transfer"),
     ("libusb1", "libusb"), ("", "libusb1")],
)  # fmt: skip
def test_a_binding_that_is_not_as_known(
    bus: Bus, device: LibUsbDevice, monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    target: object = bus.usb1
    for part in owner.split("."):
        target = getattr(target, part) if part else target
    monkeypatch.delattr(target if name in vars(target) else type(target), name)
    with pytest.raises(NotSupported, match=r"libusb1 3\.x"):
        device.allocate_streams(31, (0x81,))


def test_the_real_binding_is_as_known() -> None:
    """Without a device: the library's functions and the binding's attributes."""
    usb1 = pytest.importorskip("usb1")
    package = pytest.importorskip("libusb_package")
    usb1.loadLibrary(ctypes.CDLL(str(package.get_library_path())))
    allocate, assign = StreamCalls(usb1).calls()
    assert allocate.restype is ctypes.c_int and len(assign.argtypes) == 2
    with usb1.USBContext() as context:
        assert context is not None
    transfer = usb1.libusb1.libusb_alloc_transfer(0)
    assign(transfer, 7)
    read = usb1.libusb1.libusb.libusb_transfer_get_stream_id
    read.argtypes, read.restype = (usb1.libusb1.libusb_transfer_p,), ctypes.c_uint32
    assert read(transfer) == 7
    usb1.libusb1.libusb_free_transfer(transfer)


def test_the_interface(bus: Bus, device: LibUsbDevice) -> None:
    device.set_alternate(1)
    assert tuple(device.endpoints()) == (0x81, 0x02, 0x83, 0x04)
    device.clear_halt(0x81)
    device.reset()
    assert bus.log == [("alternate", 1), ("clear", 0x81), ("reset",)]


# ---- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [1, 5])
def test_unplugging_ends_every_wait(bus: Bus, device: LibUsbDevice, status: int) -> None:
    pending = [device.submit_in(0x81, 1024) for _ in range(3)]
    found: list[Exception] = []
    told = threading.Event()
    device.on_departure(told.set)

    def wait(transfer: libusb.LibUsbTransfer) -> None:
        try:
            transfer.wait(LIMIT_S)
        except DeviceLost as error:
            found.append(error)

    threads = [threading.Thread(target=wait, args=(one,)) for one in pending]
    for thread in threads:
        thread.start()
    bus.unplug(status=status)
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(found) == 3 and told.wait(LIMIT_S) and not device.present()
    late = threading.Event()
    device.on_departure(late.set)
    assert late.is_set(), "at once where it has left"


def test_closing_takes_transfers_back(bus: Bus, tmp_path: Path) -> None:
    device = opened(bus, tmp_path)
    pending = [device.submit_in(0x81, 1024), device.submit_out(0x02, b"abcd")]
    device.close()
    device.close()
    for one in pending:
        with pytest.raises(TransportError):
            one.wait(LIMIT_S)
    with pytest.raises(Closed):
        device.control_in(0xE4, 0, 0, 1)
    with pytest.raises(Closed):
        device.submit_in(0x81, 1024)
    assert not device.present()


def test_a_submission_that_is_refused_leaves_nothing(bus: Bus, device: LibUsbDevice) -> None:
    def refuse(transfer: Transfer) -> None:
        bus.submitted.remove(transfer)
        raise fake_usb1.USBErrorIO

    bus.on_submit = refuse
    with pytest.raises(TransportError):
        device.submit_in(0x81, 1024)
