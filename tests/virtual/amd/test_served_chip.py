"""The virtual Navi31 behind a server, looked at from both sides in one process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.amd.am_navi31 import build_chip
from tests.support.amd.inflight import drop
from tests.support.forked import in_child
from tests.support.pci.vfio_user_served import served
from ugpu import hcq
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, DeviceBusy, DeviceLost
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import QueueKind
from ugpu.tools.control.serve import write_firmware
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.serve.server import Server


@pytest.fixture(params=[False, True], ids=["VRAM by messages", "VRAM mapped"])
def chip(request: pytest.FixtureRequest) -> Iterator[Chip]:
    made = build_chip(ChipOptions(vram=256 << 20, shared_vram=request.param))
    yield made
    made.close()


@pytest.fixture
def server(chip: Chip) -> Iterator[Server]:
    with served(ServedChip(chip, map_vram=chip.options.shared_vram)) as one:
        yield one


@pytest.fixture
def device(server: Server) -> Iterator[Device]:
    with tempfile.TemporaryDirectory() as folder:
        write_firmware(NAVI31, Path(folder))
        opened = hcq.open(f"vfio-user:{server.path}", firmware=folder)
        yield opened
        opened.close()


def copy_back(device: Device, data: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
    with device.alloc(data.nbytes) as buffer:
        buffer.copy_from(data)
        assert np.array_equal(buffer.numpy(np.uint32), data)


def test_the_driver_makes_no_mistake(device: Device, chip: Chip) -> None:
    copy_back(device, np.arange(1 << 18, dtype=np.uint32))
    assert not chip.violations


def test_an_unmapped_bus_address_is_refused_and_named(device: Device, chip: Chip) -> None:
    size = 1 << 14
    with device.alloc(size, placement=Placement.HOST) as source, device.alloc(size) as target:
        assert source.view is not None
        source.view[:] = bytes(size)
        memory = source.handle.dma
        address = memory.segments[0].address
        source.view = None
        memory.close()  # behind the driver's back: the chip's page tables still have it
        device.queue(QueueKind.COPY).copy(target, source).submit()
        device.synchronize()
        assert np.all(target.numpy(np.uint32) == 0xFFFF_FFFF), "what nobody answers is all ones"
    assert f"DMA to {address:#x}: the IOMMU refuses" in chip.violations


def test_a_card_that_falls_off_the_bus_is_lost(device: Device, chip: Chip) -> None:
    copy_back(device, np.zeros(1 << 12, np.uint32))
    chip.unplug()
    assert not device.transport.present()
    with pytest.raises(DeviceLost):
        copy_back(device, np.zeros(1 << 12, np.uint32))


def test_who_has_the_card_is_named(device: Device, server: Server) -> None:
    with pytest.raises(DeviceBusy) as caught:
        hcq.open(f"vfio-user:{server.path}")
    name = Path("/proc/self/comm").read_text("utf-8").strip()
    assert caught.value.facts["holder"] == f"{name} (pid {os.getpid()})"
    copy_back(device, np.zeros(1 << 12, np.uint32))


def test_vram_is_mapped_only_where_it_can_be() -> None:
    chip = build_chip(ChipOptions(vram=256 << 20))
    with pytest.raises(BadArgument, match="shared memory"):
        ServedChip(chip, map_vram=True)
    chip.close()


def test_memory_that_is_dropped_while_work_uses_it(device: Device, chip: Chip) -> None:
    drop(device)
    assert not chip.violations


def test_a_forked_child_leaves_the_server_alone(device: Device, chip: Chip) -> None:
    with device.alloc(1 << 16) as buffer, device.alloc(64, placement=Placement.HOST) as host:
        uses = {
            "copy": lambda: buffer.copy_from(bytes(1 << 16)),
            "submit": lambda: device.queue().fill(buffer, 1).submit(),
            "host": lambda: host.numpy(),
            "reset": device.reset,
            "sensors": lambda: [sensor.read() for sensor in device.sensors()],
        }
        found = in_child({**uses, "close": device.close, "free": buffer.close})
        assert found == {**dict.fromkeys(uses, "Closed"), "close": "accepted", "free": "accepted"}
        buffer.fill(3)
        assert buffer.numpy(np.uint32)[-1] == 3
    assert not chip.violations
