"""The driver behind the virtual USB bridge: transfers, and times from a pull and from a plug.

Transfers are counted on the virtual cable. The link's time is virtual: what transfers cost by
virtual.usb.meter.Costs; the host's time is this machine's, without the link's.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from tests.support.kernels import contract_object
from tests.support.waiting import until
from tests.virtual.usb.pulls import enclosed, opened
from tests.virtual.usb.rates import rates
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceLost
from ugpu.virtual.usb.enclosure import Enclosure

KERNELS, REPLAYS, WAITERS, TURNS = 100, 64, 8, 5
COPIED = 56 << 20  # bytes
_SIGNALS = 0xA900  # XDATA: the compute queue's timeline comes first


def measure() -> list[dict[str, object]]:
    with enclosed() as box:
        with opened(box) as device:
            boot = _count(box)
            link_s = box.clock.now()
            results = [
                _figure("cold boot: transfers", boot, "transfers"),
                _figure("cold boot: what its transfers cost the link", link_s, "s"),
                *_replays(box, device),
                *_copies(box, device),
            ]
        return results + _pulls(box)


def _figure(name: str, value: float, unit: str) -> dict[str, object]:
    return {"name": f"virtual USB bridge, {name}", "value": value, "unit": unit}


def _copies(box: Enclosure, device: Device) -> list[dict[str, object]]:
    found = rates(box, device, COPIED)
    return [
        {
            **_figure(
                f"copy {way}, {COPIED >> 20} MiB, by link time", found[f"copy {way}"] / 1e6, "MB/s"
            ),
            "peer": f"the SRAM, {way}",
            "peer_value": found[f"raw {way}"] / 1e6,
            "ratio": found[way],
        }
        for way in ("in", "out")
    ]


def _count(box: Enclosure) -> int:
    return box.meter.transfers


class _Model:
    """Takes the time that the calling thread spends in the model of bridge and card."""

    def __init__(self, device: Device) -> None:
        self.seconds = 0.0
        usb = device.driver.transport.bridge.usb  # type: ignore[attr-defined]
        for name in ("control_out", "control_in", "submit_out", "submit_in"):
            setattr(usb, name, self._timed(getattr(usb, name)))

    def _timed(self, call: Callable[..., object]) -> Callable[..., object]:
        def timed(*given: object, **named: object) -> object:
            start = time.thread_time()
            try:
                return call(*given, **named)
            finally:
                self.seconds += time.thread_time() - start

        return timed


def _replays(box: Enclosure, device: Device) -> list[dict[str, object]]:
    count = 64
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(4 * count) as source,
        device.alloc(4 * count) as out,
        device.alloc(4 * count) as other,
    ):
        source.copy_from(np.arange(count, dtype=np.uint32))
        with device.capture() as graph, device.queue() as queue:
            for _ in range(KERNELS):
                args = (out, source, source, np.uint32(count))
                queue.launch(program["add"], grid=(1,), block=(count,), args=args)
        timeline = device.queue().timeline
        usb = _Model(device)

        def ended() -> bool:
            seen = box.hardware.memory.read(_SIGNALS, 4, 0)  # no transfer
            return int.from_bytes(seen, "little") == timeline.last & 0xFFFF_FFFF

        def replay(again: Callable[[], object]) -> tuple[int, int, float]:
            """Transfers of a replay and of a wait, and the driver's processor time in seconds."""
            before, inside, start = _count(box), usb.seconds, time.thread_time()
            again()
            seconds, sent = time.thread_time() - start, _count(box) - before
            seconds -= usb.seconds - inside
            until(ended, "the replay to end")
            before = _count(box)
            graph.wait()
            return sent, _count(box) - before, seconds

        plain = [replay(graph.replay) for _ in range(REPLAYS)]
        inputs = ({source: other}, {})
        bound = [replay(lambda given=given: graph.replay(given)) for given in inputs * 4]  # type: ignore[misc]
        graph.close()
    seconds = statistics.median(one[2] for one in plain)
    sent = [one[0] for one in plain]
    return [
        _figure("a replay like the one before: transfers, median", statistics.median(sent), ""),
        _figure(f"the same, mean of {REPLAYS}", statistics.fmean(sent), ""),
        _figure(
            "a replay with another input: transfers", statistics.median(o[0] for o in bound), ""
        ),
        _figure("a wait for what has ended: transfers", max(one[1] for one in plain), ""),
        _figure("processor time of a replay, each kernel", seconds / KERNELS * 1e6, "us"),
        _figure("link time of it, each kernel", 150.0 / KERNELS, "us"),
    ]


def _pulls(box: Enclosure) -> list[dict[str, object]]:
    told, closed, back = [], [], []
    for _ in range(TURNS):
        device = opened(box)
        ends: list[float] = []
        queue = device.queue()
        timeline = device.timeline("never")

        def wait(timeline=timeline, ends=ends) -> None:  # type: ignore[no-untyped-def]
            with suppress(DeviceLost):
                timeline.wait(1)
            ends.append(time.perf_counter())

        threads = [threading.Thread(target=wait) for _ in range(WAITERS)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        start = time.perf_counter()
        box.unplug()
        for thread in threads:
            thread.join()
        told.append(max(ends) - start)
        start = time.perf_counter()
        device.close()
        closed.append(time.perf_counter() - start)
        del queue
        box.plug()
        start = time.perf_counter()
        with opened(box) as again, again.alloc(64) as buffer:
            buffer.fill(7)
            assert buffer.numpy(np.uint32)[0] == 7
            back.append(time.perf_counter() - start)
    return [
        _figure(f"a pull to the error of {WAITERS} threads, slowest", 1e3 * max(told), "ms"),
        _figure("close of a device that was pulled, slowest", 1e3 * max(closed), "ms"),
        _figure("plugged in to the first result, median", statistics.median(back), "s"),
    ]
