"""Guest tests: the virtual bridge under a real xHCI driver and a real libusb."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import usb1

from lab.kernel.guest.usb import usb_stack
from lab.kernel.guest.usb.usb_stack import hand, ms, opened

Note = Callable[[str, object], None]


def test_the_kernel_enumerates_it() -> None:
    with opened() as bridge:
        device = bridge.handle.getDevice()
        assert usb_stack.speed() == 5000
        assert device.getProduct().startswith("custom")
        assert device.getSerialNumber() == "0badcafe"
        settings = list(device[0][0])
        assert [len(list(setting)) for setting in settings] == [2, 4]
        assert settings[0][0].getMaxPacketSize() == 1024


def test_requests(record_property: Note) -> None:
    with opened() as bridge:
        bridge.poke(0x4000, 0x5A)
        assert bridge.xdata(0x4000, 512)[:2] == b"\x5a\x00"
        with pytest.raises(usb1.USBErrorTimeout):
            bridge.xdata(0x4000, 513, 0.2)
        assert bridge.xdata(0x4000) == b"\x5a"
        bridge.power(True)
        assert bridge.xdata(0xB450) == b"\x78"
        assert bridge.config(0, 0) == 0x24631B21
        assert bridge.config(1, 0) is None
        begin = time.perf_counter()
        for _ in range(100):
            bridge.xdata(0x4000, 8)
        took = (time.perf_counter() - begin) / 100
        record_property("control transfer over QEMU's xHCI (us)", f"{took * 1e6:.0f}")


def test_bulk(record_property: Note) -> None:
    size = 256 << 10
    data = bytes(at * 7 + (at >> 8) & 0xFF for at in range(size))
    with opened() as bridge:
        begin = time.perf_counter()
        for _ in range(4):
            bridge.arm(size)
            assert bridge.out(data) == size
        took = time.perf_counter() - begin
        record_property("SRAM writes over QEMU's xHCI (MB/s)", f"{4 * size / took / 1e6:.0f}")
        with pytest.raises(usb1.USBErrorTimeout):
            bridge.out(bytes(512), 0.2)  # nothing was armed
        with pytest.raises(usb1.USBErrorTimeout):
            bridge.sent_to_us(1024, 0.2)
        bridge.handle.clearHalt(0x02)
        bridge.handle.clearHalt(0x81)
        bridge.arm(512)
        assert bridge.out(b"\x77" * 512) == 512


def test_a_cable_for_high_speed() -> None:
    with hand() as host:
        host.ask("plug", high_speed=True)
        try:
            with opened() as bridge:
                assert usb_stack.speed() == 480
                assert len(bridge.xdata(0x4000, 64)) == 64
                with pytest.raises(usb1.USBErrorTimeout):
                    bridge.xdata(0x4000, 65, 0.2)
                bridge.arm(4096)
                assert bridge.out(b"\x21" * 4096) == 4096
        finally:
            host.ask("plug")
    with opened():
        assert usb_stack.speed() == 5000


def test_a_reset_of_the_port() -> None:
    with opened() as bridge:
        bridge.poke(0x4000, 0x11)
        bridge.handle.resetDevice()
        assert bridge.xdata(0x4000) == b"\x11"
        bridge.arm(512)
        assert bridge.out(bytes(512), ms(1) / 1000) == 512
