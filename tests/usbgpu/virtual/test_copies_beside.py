"""Copies through the bridge beside threads that have the device's lock and need the bridge."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hcq.bulk_transfer import BulkTransfer
from hcq.core import Core
from hcq.device import Device
from hcq.errors import DeviceHang, PageFault
from tests.usbgpu.virtual.pulls import enclosed, opened

LATE = 60  # looks that find the half still full: more than a copy makes without the device's lock
LIMIT_S = 300.0  # TIMEOUT: for threads that do not wait for each other


class Beside:
    """Copies to a device, of which another thread takes the lock while data is under way."""

    def __init__(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        self.core: Core = device.driver.core
        transfer = self.core.copies.transfer
        assert isinstance(transfer, BulkTransfer)
        self.bulk = transfer.bulk
        self.buffer = device.alloc(4 * transfer.half)
        self.buffer.copy_from(np.zeros(self.buffer.size, np.uint8))  # what first use makes is there
        self.sending = False
        self.looks = 0
        self.taken = threading.Event()
        self.other = threading.Thread(target=self.take, daemon=True)
        self.send, self.read_fence = self.bulk.send, self.bulk.read_fence
        monkeypatch.setattr(self.bulk, "send", self.watched)
        monkeypatch.setattr(self.bulk, "read_fence", self.late)

    def take(self) -> None:
        """What loads, allocations and launches do."""
        with self.core.lock:
            self.taken.set()
            self.bulk.write_signals(0, self.bulk.read_signals(0, 4))

    def watched(self, *args: object) -> None:
        self.sending = True
        try:
            self.send(*args)  # type: ignore[arg-type]
        finally:
            self.sending = False

    def late(self) -> int:
        """The fence, which the engine does not raise for a while."""
        if not self.sending:
            return self.read_fence()
        if not self.looks:
            self.other.start()
            assert self.taken.wait(LIMIT_S)
        self.looks += 1
        return self.read_fence() if self.looks > LATE else 0

    def copy(self) -> list[BaseException]:
        """Copy in a thread; the errors of it."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                self.buffer.copy_from(np.full(self.buffer.size, 7, np.uint8))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        for each in (thread, self.other):
            each.join(LIMIT_S)
            assert not each.is_alive()
        return errors


def test_the_engine_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with enclosed() as box, opened(box) as device:
        beside = Beside(device, monkeypatch)
        assert beside.copy() == []
        assert (beside.buffer.numpy() == 7).all()
        assert beside.looks > LATE


def test_the_engine_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    with enclosed() as box, opened(box) as device:
        beside = Beside(device, monkeypatch)
        beside.core.limit_s = 0.2
        monkeypatch.setattr(beside, "read_fence", lambda: 0)
        errors = beside.copy()
        assert [type(error) for error in errors] == [DeviceHang]


@pytest.mark.parametrize("held", [False, True])
def test_the_engine_has_failed(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    """Its failure is what the copy raises, at once where the lock is free."""
    with enclosed() as box, opened(box) as device:
        beside = Beside(device, monkeypatch)
        beside.core.limit_s = 0.2 if held else LIMIT_S
        fault = PageFault("planted", address=0x1000)
        monkeypatch.setattr(beside, "read_fence", lambda: 0)
        monkeypatch.setattr(beside.core.driver, "poll", lambda: fault if beside.looks else None)
        if not held:
            beside.other = threading.Thread(target=beside.taken.set, daemon=True)
        errors = beside.copy()
        assert errors == [fault]
