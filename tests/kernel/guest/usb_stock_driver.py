"""Guest tests: the driver on a card behind the vendor's firmware, by the system's libusb.

Memory and registers go by commands of a dword there, 57,000 of them for a boot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import pytest

import hcq
from tests.kernel.guest.navi31 import environment
from tests.kernel.guest.usb_stack import hand

Note = Callable[[str, object], None]


@pytest.mark.timeout(0)  # the boot of the guest has a limit
def test_a_card_boots_and_copies(record_property: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    data = np.arange(4096, dtype=np.uint32)
    with hand() as host:
        before, begin = host.ask("count"), time.monotonic()
        with hcq.open("usb:0") as device:
            record_property("boot of the card (s)", f"{time.monotonic() - begin:.0f}")
            after = host.ask("count")
            sent = {kind: after[kind] - before.get(kind, 0) for kind in after}
            record_property("transfers of the boot", json.dumps(sent))
            with device.alloc(data.nbytes) as buffer, device.queue() as queue:
                buffer.copy_from(data)
                assert np.array_equal(buffer.numpy(np.uint32), data)
                queue.fill(buffer, 7)
                queue.submit()
                device.synchronize()
                assert (buffer.numpy(np.uint32) == 7).all()
        assert host.ask("objections") == []
