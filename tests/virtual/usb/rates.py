"""Rates of copies over the virtual bridge, and of the same link without a copy, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ugpu.hcq.copies.bulk_transfer import BulkTransfer
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.queue import Queue, QueueKind
from ugpu.virtual.usb.enclosure import Enclosure

RAW_TRANSFERS = 64


def rates(box: Enclosure, device: Device, size: int) -> dict[str, float]:
    """Bytes/s of copies of `size` bytes ("copy in", "copy out") and of transfers of the whole SRAM,
    one after the other, each with the requests that the firmware needs for it ("raw in", "raw
    out"); and the ratios of both ("in", "out"). The second copy of each kind counts."""

    def rate(work: Callable[[], object], count: int) -> float:
        start = box.clock.now()
        work()
        return count / (box.clock.now() - start)

    data = np.random.default_rng(7).integers(0, 1 << 32, size // 4, dtype=np.uint32)
    found: dict[str, float] = {}
    with device.alloc(data.nbytes) as buffer:
        back = np.zeros_like(data)
        for _ in range(2):
            found["copy in"] = rate(lambda: buffer.copy_from(data), data.nbytes)
            back[:] = 0
            found["copy out"] = rate(lambda: buffer.copy_to(back), data.nbytes)
            assert np.array_equal(back, data)
    transfer = device.driver.core.copies
    assert isinstance(transfer, BulkTransfer)
    raw = RAW_TRANSFERS * transfer.bulk.size
    found["raw in"] = rate(lambda: _raw_in(transfer), raw)
    found["raw out"] = rate(lambda: _raw_out(device, transfer), raw)
    for way in ("in", "out"):
        found[way] = found[f"copy {way}"] / found[f"raw {way}"]
    return found


def _raw_in(transfer: BulkTransfer) -> None:
    """Into the SRAM: a request and its data."""
    for _ in range(RAW_TRANSFERS):
        transfer.bulk.send(0, transfer.bulk.size, [bytes(transfer.bulk.size)])


def _raw_out(device: Device, transfer: BulkTransfer) -> None:
    """Out of the SRAM: a request, a byte that lets the card release the data, and the data."""
    bulk = transfer.bulk
    queue = Queue(device.driver.hardware_queues(QueueKind.COPY)[0])
    for number in range(1, RAW_TRANSFERS + 1):
        queue.wait(transfer.started, number)
        queue.fill(transfer.release, 0)
    bulk.write_start(0)
    value = queue.submit()
    for number in range(1, RAW_TRANSFERS + 1):
        bulk.receive(0, [bulk.size], lambda number=number: bulk.write_start(number), _drop)
    queue.timeline.wait(value)


def _drop(_position: int, _data: bytes) -> None:
    """Only the time counts."""
