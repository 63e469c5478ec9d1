"""A Ctrl-C while a device or its model starts a thread: the device works on, with one thread where
one belongs, and closing it ends all of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.support.interrupts import Interrupted
from tests.support.kernels import contract_object
from tests.support.waiting import LIMIT_S
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.queue import QueueKind

DEVICES = ("cpu", "virtual:gh100", "virtual:a630")
SLOW = pytest.param("virtual:navi31", marks=pytest.mark.slow)


class Starts:
    """Cuts off one start of a thread: `after` the system has started it, or before. threads: all
    that were started. left: the number of starts before that one; negative for none."""

    def __init__(self, *, after: bool) -> None:
        self.after = after
        self.left = -1
        self.threads: list[threading.Thread] = []
        self._start = threading.Thread.start

    def __call__(self, thread: threading.Thread) -> None:
        self.threads.append(thread)
        if threading.current_thread() is not threading.main_thread():
            self._start(thread)  # no Ctrl-C arrives there
            return
        self.left -= 1
        if self.left != -1:
            self._start(thread)
            return
        if self.after:
            self._start(thread)
        raise Interrupted

    def check_ended(self) -> None:
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(LIMIT_S)
                assert not thread.is_alive(), thread.name
        self.threads.clear()


def work(device: Device) -> None:
    """Work of each kind of queue."""
    with device.load(contract_object(device.target)) as program, device.alloc(4096) as buffer:
        for kind in QueueKind:
            device.queue(kind).fill(buffer, 3).submit()
            device.synchronize()
        args = (buffer, buffer, np.uint32(64), np.uint32(5))
        device.queue().launch(program["scale"], grid=(1,), block=(64,), args=args).submit()
        assert (buffer.numpy(np.uint32)[:64] == 15).all()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", [*DEVICES, SLOW])
def test_each_start(name: str, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(after=after)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: starts(thread))
    number, cut_off = 0, True
    while cut_off:
        device, cut_off = None, False
        starts.left = number
        try:
            device = hcq.open(name)
            work(device)
        except Interrupted:
            cut_off = True
        starts.left = -1
        if device is not None:
            work(device)
            device.close()
        starts.check_ended()
        number += 1
    assert number > 1
