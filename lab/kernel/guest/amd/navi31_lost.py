"""Guest tests: the card reaches for memory it was not given; then it falls off the bus, and every
read gives all ones from there on. Runs last."""

from __future__ import annotations

import time

import numpy as np
import pytest

from lab.kernel.guest.amd import navi31
from lab.kernel.guest.host import Host, within
from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import QueueKind

LIMIT_S = 60


def test_an_unmapped_bus_address_is_refused_and_named() -> None:
    host, size = Host(), 1 << 14
    with (
        navi31.bound() as name,
        navi31.open_card(name) as device,
        device.alloc(size, placement=Placement.HOST) as source,
        device.alloc(size) as target,
    ):
        memory = source.handle.dma
        address = memory.segments[0].address
        source.view = None
        memory.close()  # behind the driver's back: the card's page tables still have it
        device.queue(QueueKind.COPY).copy(target, source).submit()
        device.synchronize()
        assert np.all(target.numpy(np.uint32) == 0xFFFF_FFFF), "what nobody answers is all ones"
        refused = f"DMA to {address:#x}: the IOMMU refuses"
        assert refused in host.ask("card")["violations"]
    host.close()


def test_surprise_removal_is_device_lost() -> None:
    host = Host()
    with navi31.bound() as name:
        device = navi31.open_card(name)
        navi31.check_copies(device)
        host.ask("unplug_card")
        begin = time.monotonic()
        device.limit_s = 5
        with pytest.raises(UgpuError) as caught:
            navi31.check_copies(device)
        assert isinstance(caught.value, DeviceLost), repr(caught.value)
        assert time.monotonic() - begin < within(LIMIT_S)
        device.close()
    host.close()
