"""Guest tests: the card goes without a word, at work and while it boots; every waiter learns of it,
nothing is left, and what else is open works on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lab.kernel.guest.amd import navi31
from lab.kernel.guest.edu import slots
from lab.kernel.guest.host import Host, within
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.transport.late import await_closed
from ugpu.hcq.work.queue import QueueKind

Note = Callable[[str, object], None]
WAITERS = 4


@pytest.fixture
def host() -> Iterator[Host]:
    line = Host()
    yield line
    line.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> list[str]:
    """Of this process, those of devices."""
    with open("/proc/self/maps", encoding="ascii") as file:
        return [line for line in file if "vfio" in line]


def wait_in_threads(device: Device) -> tuple[list[threading.Thread], list[tuple[float, object]]]:
    """Threads that wait for work which never ends; when each was told, and what."""
    told: list[tuple[float, object]] = []

    def wait() -> None:
        timeline = device.driver.hardware_queues(QueueKind.COMPUTE)[0].timeline
        try:
            timeline.wait(timeline.last + 1, limit_s=within(60))
        except UgpuError as error:
            told.append((time.monotonic(), error))

    threads = [threading.Thread(target=wait) for _ in range(WAITERS)]
    for thread in threads:
        thread.start()
    return threads, told


def check(told: list[tuple[float, object]], begin: float, what: str, note: Note) -> None:
    assert len(told) == WAITERS
    assert all(isinstance(error, DeviceLost) for _, error in told), told
    latest = max(moment for moment, _ in told) - begin
    note(f"{what}: to the last of {WAITERS} waiters (ms)", f"{latest * 1e3:.0f}")
    assert latest < within(1.0)


def test_an_orderly_removal_is_told_to_every_waiter(host: Host, record_property: Note) -> None:
    function = slots.plugged(host, 0, 0)
    before = descriptors()
    device = hcq.open(f"pci:{function.address}", bind=True, firmware=navi31.FIRMWARE)
    threads, told = wait_in_threads(device)
    begin = time.monotonic()
    host.monitor("device_del", id="gpu0")
    for thread in threads:
        thread.join(within(60))
    check(told, begin, "slot's button", record_property)
    begin = time.monotonic()
    device.close()
    record_property("close (ms)", f"{(time.monotonic() - begin) * 1e3:.0f}")
    slots.gone()
    assert descriptors() == before and not mappings()


def test_a_removal_without_a_word(host: Host, record_property: Note) -> None:
    """All ones from everything, and no event. Last: the card does not come back."""
    function = slots.plugged(host, 1, 1)
    before = descriptors()
    other = hcq.open("cpu")
    device = hcq.open(f"pci:{function.address}", bind=True, firmware=navi31.FIRMWARE)
    threads, told = wait_in_threads(device)
    time.sleep(0.5)  # they sleep by now, which is what makes them late
    begin = time.monotonic()
    host.ask("unplug_card", index=1)
    for thread in threads:
        thread.join(within(60))
    check(told, begin, "all ones", record_property)
    begin = time.monotonic()
    device.close()
    seconds = time.monotonic() - begin
    record_property("close (ms)", f"{seconds * 1e3:.0f}")
    navi31.check_copies(other)
    other.close()
    await_closed(f"pci:{function.address}")
    assert not mappings()
    assert descriptors() <= before
    assert seconds < within(20)
