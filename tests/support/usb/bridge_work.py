"""Work for a card behind a USB bridge, and the warnings that a closed device leaves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tests.support.kernels import contract_object
from ugpu.hcq.device.device import Device


def work(device: Device) -> None:
    """Copy in, launch, copy out."""
    data = np.arange(4096, dtype=np.uint32)
    with device.load(contract_object(device.target)) as program, device.alloc(data.nbytes) as a:
        a.copy_from(data)
        assert np.array_equal(a.numpy(np.uint32), data)
        with device.alloc(data.nbytes) as out, device.queue() as queue:
            count = np.uint32(len(data))
            queue.launch(program["add"], grid=(64,), block=(64,), args=(out, a, a, count))
            queue.submit()
            device.synchronize()
            assert np.array_equal(out.numpy(np.uint32), data + data)


class Warnings(logging.Handler):
    """Keeps the text of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def warnings() -> Iterator[list[str]]:
    """The warnings that are logged inside."""
    handler, root = Warnings(), logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler.texts
    finally:
        root.removeHandler(handler)
