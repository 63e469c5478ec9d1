"""Guest tests: the unmodified driver boots the virtual AD102 through VFIO, computes on it and hands
it back, with the kernel's own interrupts and IOMMU in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lab.kernel.guest.host import Host
from lab.kernel.guest.vfio_card import GuestCard, check_copies, kill, suspended
from lab.kernel.lab import CACHE
from tests.support.nvidia import ptx_kernels
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceLost, PageFault, UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.nv.device import driver as driver_module
from ugpu.nv.device.bare import BareDevice

CARD = GuestCard(("0x10de", "0x2684"), CACHE / "nvidia-bare/firmware")
COUNT = 256
NOWHERE = 0x12_3456_7000
LIMIT_S = 60
Note = Callable[[str, object], None]
WORK = """
import numpy as np
from ugpu import hcq
data = np.arange(1 << 16, dtype=np.uint32)
with hcq.open({name!r}, on_stage=lambda stage, seconds: print(stage, flush=True)) as device:
    with device.alloc(data.nbytes) as buffer:
        print("working", flush=True)
        while True:
            buffer.copy_from(data)
            assert np.array_equal(buffer.numpy(np.uint32), data)
"""


def opened(name: str, **options: object) -> BareDevice:
    device = CARD.open(name, **options)
    assert isinstance(device, BareDevice)
    return device


def compute(device: Device) -> None:
    """A kernel reads memory of the host and writes the card's; the answer is checked."""
    values = np.arange(COUNT, dtype=np.uint32)
    with (
        device.load(ptx_kernels.text(ptx_kernels.CONTRACT, device.target.cpu)) as program,
        device.alloc(4 * COUNT, placement=Placement.HOST) as source,
        device.alloc(4 * COUNT) as result,
    ):
        source.copy_from(values)
        with device.queue() as queue:
            arguments = (result, source, np.uint32(COUNT), np.uint32(3))
            queue.launch(program["scale"], grid=(COUNT // 64,), block=(64,), args=arguments)
        device.synchronize()
        assert np.array_equal(result.numpy(np.uint32), 3 * values)


def messages(address: str) -> int:
    """Interrupts of the card that the guest's kernel has counted and passed to VFIO."""
    lines = Path("/proc/interrupts").read_text().splitlines()
    mine = [line.split() for line in lines if "vfio-msi" in line and f"({address})" in line]
    return sum(int(words[1]) for words in mine)


def test_boot_copies_and_kernels(record_property: Note) -> None:
    with CARD.bound() as name:
        begin = time.monotonic()
        with opened(name) as device:
            record_property("open (s)", f"{time.monotonic() - begin:.1f}")
            stages = dict(device.boot_stages)
            assert {"frts", "booter", "init-done", "static-info"} <= set(stages)
            assert device.info()["start"] == "cold: as after power-on"
            check_copies(device)
            compute(device)


def test_work_ends_a_wait_by_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    monkeypatch.setattr(driver_module, "_SPINS", 0)  # each wait sleeps
    with CARD.bound() as name, opened(name) as device:
        before = messages(name.removeprefix("pci:"))
        for _ in range(4):
            compute(device)
        count = messages(name.removeprefix("pci:")) - before
        record_property("interrupts of 4 kernels", count)
        assert count


def test_a_fault_has_its_address_and_the_device_recovers() -> None:
    with CARD.bound() as name, opened(name) as device:
        with (
            device.load(ptx_kernels.text(ptx_kernels.FAULTY, device.target.cpu)) as program,
            device.alloc(4) as memory,
        ):
            with device.queue() as queue:
                arguments = (memory, np.uint64(NOWHERE))
                queue.launch(program["write_at"], grid=(1,), block=(64,), args=arguments)
            with pytest.raises(PageFault) as caught:
                device.synchronize()
            assert caught.value.facts["address"] == NOWHERE
            assert caught.value.facts["xid"] == 31
            device.reset()
        compute(device)


@pytest.mark.parametrize("line", ["booter", "working"])
def test_the_next_process_works_after_one_that_was_killed(line: str) -> None:
    with CARD.bound() as name:
        kill(CARD.run_until(WORK.format(name=name), line))
        with opened(name) as device:
            compute(device)


def test_a_suspended_host_is_named_and_a_reset_boots_the_card(record_property: Note) -> None:
    with CARD.bound() as name:
        with opened(name) as device:
            with suspended():
                compute(device)
            with pytest.raises(DeviceLost) as caught:
                compute(device)
            record_property("after a suspend", str(caught.value))
            assert "the host was suspended" in str(caught.value)
            device.reset()
            compute(device)
        with opened(name) as device:
            compute(device)


def test_surprise_removal_is_device_lost() -> None:
    """Runs last: the card falls off the bus, and every read gives all ones from there on."""
    host = Host()
    with CARD.bound() as name:
        device = opened(name)
        device.limit_s = LIMIT_S
        host.ask("unplug_card")
        with pytest.raises(UgpuError) as caught:
            compute(device)
        assert isinstance(caught.value, DeviceLost), repr(caught.value)
        # The kernel resets the function when VFIO closes it, and waits a minute for one that does
        # not answer (Linux drivers/pci/pci.c, pci_dev_wait).
        host.ask("plug_card")
        device.close()
    host.close()
