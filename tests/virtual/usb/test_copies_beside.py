"""Copies through the bridge beside threads that have the device's lock and need the bridge."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.virtual.usb.pulls import enclosed, opened
from ugpu.hcq.copies import bulk_transfer
from ugpu.hcq.copies.bulk_transfer import BulkTransfer
from ugpu.hcq.device.core import Core
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceHang, PageFault

LATE = 60  # looks that find the half still full: more than a copy makes without the device's lock
TRANSFERS = 3  # of five chunks, two halves in each
LIMIT_S = 300.0  # TIMEOUT: for threads that do not wait for each other


class Beside:
    """Copies to a device, of which another thread takes the lock while data is under way."""

    def __init__(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        self.core: Core = device.driver.core
        transfer = self.core.copies
        assert isinstance(transfer, BulkTransfer)
        self.bulk = transfer.bulk
        self.buffer = device.alloc(4 * transfer.half)
        self.buffer.copy_from(np.zeros(self.buffer.size, np.uint8))  # what first use makes is there
        self.sending = False
        self.looks = self.sends = 0
        self.taken = threading.Event()
        self.other = threading.Thread(target=self.take, daemon=True)
        self.send, self.read_fence = self.bulk.send, self.bulk.read_fence
        self.transfer, self.wait = transfer, transfer._await
        monkeypatch.setattr(transfer, "_await", self.no_more)
        monkeypatch.setattr(self.bulk, "send", self.watched)
        monkeypatch.setattr(self.bulk, "read_fence", self.late)

    def take(self) -> None:
        """What loads, allocations and launches do."""
        with self.core.lock:
            self.taken.set()
            self.bulk.write_signals(0, self.bulk.read_signals(0, 4))

    def no_more(self, number: int) -> None:
        """The copy knows of this chunk alone that it is done, not of the next one."""
        self.wait(number)
        self.transfer._reached = min(self.transfer._reached, number)

    def watched(self, *args: Any) -> None:  # those of BulkMemory.send
        self.sending = True
        self.sends += 1
        try:
            self.send(*args)
        finally:
            self.sending = False

    def late(self) -> int:
        """The fence, which the engine does not raise for a while."""
        if not self.sending:
            return self.read_fence()
        if not self.taken.is_set():
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


@pytest.mark.parametrize("again", [False, True])
def test_the_engine_is_late(monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """Also where a transfer is given up for it, and begins again."""
    if again:
        monkeypatch.setattr(bulk_transfer, "_SOON_S", 1e-9)
    with enclosed() as box, opened(box) as device:
        beside = Beside(device, monkeypatch)
        assert beside.copy() == []
        assert (beside.buffer.numpy() == 7).all()
        assert beside.sends > TRANSFERS if again else beside.looks > LATE


def test_the_engine_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    with enclosed() as box, opened(box) as device:
        beside = Beside(device, monkeypatch)
        beside.core.limit_s = 0.2
        monkeypatch.setattr(beside, "read_fence", lambda: 0)
        assert [type(error) for error in beside.copy()] == [DeviceHang]


def test_the_engine_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its failure is what the copy raises."""
    with enclosed() as box, opened(box) as device:
        beside = Beside(device, monkeypatch)
        beside.core.limit_s = 0.2
        fault = PageFault("planted", address=0x1000)
        monkeypatch.setattr(beside, "read_fence", lambda: 0)
        monkeypatch.setattr(beside.core.driver, "poll", lambda: fault if beside.looks else None)
        assert beside.copy() == [fault]


def test_nothing_looks_at_failures_in_a_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes the device's lock, and reads registers under a window's."""
    with enclosed() as box, opened(box) as device:
        beside = Beside(device, monkeypatch)
        poll, inside = beside.core.driver.poll, []

        def seen() -> object:
            if beside.sending and threading.current_thread() is not beside.other:
                inside.append(True)
            return poll()

        monkeypatch.setattr(beside.core.driver, "poll", seen)
        assert beside.copy() == []
        assert not inside
