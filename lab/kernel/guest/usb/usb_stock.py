"""Guest tests: the vendor's patched firmware under real xhci_hcd, Linux' uas and libusb streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.kernel.guest.host import within
from lab.kernel.guest.usb.usb_stack import APPEARS_LIMIT_S, hand
from ugpu.hcq.errors import EndpointStalled
from ugpu.usbgpu import attach
from ugpu.usbgpu.bridge import discovery as found
from ugpu.usbgpu.bridge.interface import Bridge, Status, Tlp

Note = Callable[[str, object], None]
_SYSFS = Path("/sys/bus/usb/devices")


def appeared() -> None:
    """Wait until the bridge is on the bus and has its settings."""
    awaited(
        "no bridge appears",
        lambda: any((_SYSFS / f"{one.port}:1.0").is_dir() for one in found.bridges()),
    )


@contextmanager
def opened() -> Iterator[Bridge]:
    appeared()
    bridge = attach.by_name("0")
    try:
        yield bridge
    finally:
        bridge.close()


def awaited(what: str, reached: Callable[[], bool]) -> None:
    end = time.monotonic() + within(APPEARS_LIMIT_S)
    while not reached():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_linux_takes_it_for_a_disk() -> None:
    """The kernel's own driver selects the setting with streams and asks for the disk's identity."""
    appeared()
    interface = _SYSFS / f"{found.bridges()[0].port}:1.0"
    awaited("uas takes no interface", lambda: (interface / "driver").is_symlink())
    assert (interface / "driver").resolve().name == "uas"
    assert (interface / "bAlternateSetting").read_text().strip() == "1"
    assert (interface / "bInterfaceProtocol").read_text().strip() == "62"

    def vendors() -> list[str]:
        units = interface.glob("host*/target*/*/vendor")
        return [unit.read_text().strip() for unit in units]

    awaited("the kernel finds no disk", lambda: vendors() == ["tiny"])


def test_many_commands_on_their_streams(record_property: Note) -> None:
    """Our driver takes the interface from the kernel's."""
    with opened() as bridge:
        assert bridge.usb.streams == 31 and bridge.firmware.startswith("USB 3.2 PCIe TinyEnclosure")
        data = bytes(at * 7 & 0xFF for at in range(100))
        begin = time.perf_counter()
        bridge.write_xdata(0x4000, data)
        assert bridge.read_xdata(0x4000, 100) == data
        record_property("a command (us)", f"{(time.perf_counter() - begin) / 101 * 1e6:.0f}")
        assert bridge.read_xdata(0xB450, 1) == b"\x78"
        done = bridge.request(Tlp.CONFIG_READ_0, 0)
        assert (done.status, done.value) == (Status.OK, 0x24631B21)
        assert bridge.request(Tlp.CONFIG_READ_1, 0x0100_0000).status is Status.UNSUPPORTED


def test_sram(record_property: Note) -> None:
    data = bytes(at * 11 + (at >> 8) & 0xFF for at in range(448 << 10))
    with opened() as bridge:
        begin = time.perf_counter()
        bridge.fill_sram(data)
        took = time.perf_counter() - begin
        assert bridge.read_xdata(0xF000, 4096) == data[:4096]
        record_property("SRAM (MB/s)", f"{len(data) / took / 1e6:.0f}")


def test_a_halted_pipe_is_named_and_the_port_reset() -> None:
    with hand() as host, opened() as bridge:
        for endpoint in (0x04, 0x83, 0x81, 0x02):
            host.ask("halt", endpoint=endpoint)
            with pytest.raises(EndpointStalled):
                bridge.read_xdata(0x4000, 1)
                bridge.fill_sram(bytes(512))
            bridge.write_xdata(0x4000, b"\x5a")
            assert bridge.read_xdata(0x4000, 1) == b"\x5a"
