"""A USB device through libusb, on a made-up bus, as a stand. See tests.support.usb.fake_usb1.

The bus has a device that keeps what it is sent: a register for control requests, a buffer for bulk
transfers. A planted fault takes the place of one answer.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from lab.campaign.stands.stand import Stand
from tests.support.usb.fake_usb1 import Bus, Transfer, USBError
from tests.support.usb.usb_script import IDENTITY
from ugpu.hcq.errors import UgpuError
from ugpu.usbgpu.link.libusb import LibUsbDevice

_IN, _OUT, _PACKET = 0x81, 0x02, 1024
_WRITE, _READ = 0xE5, 0xE4
_WORDS = bytes(range(256)) * 8
_LIMIT_S = 20.0
#: status of a transfer, how many bytes of it were moved: for one that ends in another way
End = tuple[int, int]


class LibUsbStand(Stand):
    """Stages: control requests, bulk transfers to and from the device, reset and close."""

    stages = ("control", "bulk in", "bulk out", "settings", "reset", "close")
    device: LibUsbDevice

    def __init__(self, seed: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._opened = False
        self.limit_s = _LIMIT_S
        self._switch_on()

    def _switch_on(self) -> None:
        self.bus = Bus()
        self.error: type[USBError] | None = None  # of the next control request or submission
        self.end: End | None = None  # of the next bulk transfer
        self.silent = False  # the next bulk transfer does not end
        self.short = False  # the next control request takes a byte less
        self.struck = False
        self._register = b"\0" * 4
        self._content = b""
        self.bus.answer = self._answer
        self.bus.on_submit = self._submitted

    # ---- the device ----------------------------------------------------------------------------

    def _answer(self, data: bytes = b"") -> bytes:
        if self.error is not None:
            self.struck, error, self.error = True, self.error, None
            raise error
        if not data:
            return self._register
        self._register = bytes(data)
        if self.short:
            self.struck, self.short = True, False
            return data[:-1]
        return data

    def _submitted(self, transfer: Transfer) -> None:
        if self.error is not None:
            self.struck, error, self.error = True, self.error, None
            self.bus.submitted.remove(transfer)
            raise error
        if self.silent:
            self.struck, self.silent = True, False
            return
        to_host = transfer.endpoint & 0x80
        if not to_host:
            self._content = bytes(transfer.buffer)
        data = self._content[: len(transfer.buffer)]
        status, count = self.bus.usb1.TRANSFER_COMPLETED, len(data)
        if self.end is not None:
            self.struck = True
            (status, count), self.end = self.end, None
        transfer.end(status, data[:count] if to_host else None, count)

    # ---- the stand -----------------------------------------------------------------------------

    def open(self, stage: str = "", plant: Callable[[], object] | None = None) -> None:
        if plant is not None:
            plant()
        self.device = LibUsbDevice(IDENTITY, library=self.bus.usb1, sysfs=Path(self._folder.name))
        self._opened = True

    def again(self) -> None:
        """Plug another device of the kind in, in place of the one that left."""
        self.close()
        self._switch_on()

    def prepare(self) -> None:
        self.device.submit_out(_OUT, _WORDS).wait(_LIMIT_S)

    def do(self, stage: str, plant: Callable[[], object]) -> None:
        plant()
        {
            "control": self.control, "bulk in": self.bulk_in, "bulk out": self.bulk_out,
            "settings": self.settings, "reset": self.reset, "close": self.device.close,
        }[stage]()  # fmt: skip

    def control(self) -> None:
        self.device.control_out(_WRITE, 1, 2, b"abcd")
        assert self.device.control_in(_READ, 1, 2, 4) == b"abcd"

    def bulk_in(self) -> None:
        pending = self.device.submit_in(_IN, len(_WORDS))
        assert pending.wait(self.limit_s) == _WORDS

    def bulk_out(self) -> None:
        self.device.submit_out(_OUT, _WORDS).wait(self.limit_s)

    def settings(self) -> None:
        self.device.set_alternate(0)
        self.device.clear_halt(_IN)

    def hasty(self) -> None:
        """Wait no longer for a transfer that does not end."""
        self.silent, self.limit_s = True, 0.0

    def limit(self, *, short: bool) -> None:
        self.limit_s = _LIMIT_S

    def reset(self) -> None:
        self.device.reset()

    def work(self) -> None:
        self.control()
        self.bulk_out()
        self.bulk_in()
        self.settings()

    def intact(self) -> str:
        self.bulk_in()
        return ""

    def close(self) -> None:
        if self._opened:
            with contextlib.suppress(UgpuError):
                self.device.close()

    def left(self) -> str:
        handle, found = self.bus.handle, []
        if self.bus.open or self.bus.submitted:
            found.append("a context or transfers")
        if handle is not None and (handle.claimed or not handle.closed):
            found.append("a handle or a claimed interface")
        return ", ".join(found)

    def stop(self) -> None:
        self.close()
        self._folder.cleanup()
