"""Guest measurements: what each transport costs on the edu device, each beside its floor in the
same guest: the raw mapping of resource0, a raw eventfd, the kernel's own calls.

Emulation makes every figure larger, the floor's as well: the ratio is what counts. Figures are
properties of the cases, in seconds; `make bench` reads them (bench_transport_guest.py).
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.kernel.guest.edu import edu
from lab.kernel.guest.edu.edu import Edu
from lab.kernel.guest.host import within
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.sysfs import SysfsTransport
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.iommufd import available
from ugpu.hcq.transport.vfio.transport import VfioTransport

Record = Callable[[str, object], None]
COUNT, ROUNDS = 500, 5
SIZES = (4 << 10, 16 << 20)
HUGE_PAGES = 12


def best(work: Callable[[], object], count: int = 1) -> float:
    """Seconds of the fastest round, divided by `count`."""
    found = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        found = min(found, time.perf_counter() - start)
    return found / count


@contextmanager
def opened(way: str) -> Iterator[Transport]:
    function = PciFunction.find(System(), edu.address())
    if way == "sysfs":
        with SysfsTransport(function.address) as transport:
            yield transport
        return
    with Binding.bind(function):
        if way == "iommufd" and not available(function):
            pytest.skip("this kernel has no iommufd")
        options = {"reach_bits": 28, "iommufd": way == "iommufd"}
        with VfioTransport(function.address, **options) as transport:
            yield transport


@pytest.mark.parametrize("way", ["vfio", "iommufd", "sysfs"])
def test_registers(way: str, record_property: Record) -> None:
    with opened(way) as transport:
        window = transport.window(0)
        read, write = window.read32, window.write32

        def reads() -> None:
            for _ in range(COUNT):
                read(edu.LIVENESS)

        def writes() -> None:
            for _ in range(COUNT):
                write(edu.LIVENESS, 1)

        size = window.size
        ours = best(reads, COUNT), best(writes, COUNT)
    for name, mine, floor in zip(("read", "write"), ours, raw_registers(size), strict=True):
        record_property(f"{way}: register {name}", mine)
        record_property(f"{way}: register {name} floor", floor)


def raw_registers(size: int) -> tuple[float, float]:
    """Seconds of a read and of a write through a bare mapping of resource0. The kernel gives none
    while vfio-pci has the device, so that it is taken after."""
    folder = Path(f"/sys/bus/pci/devices/{edu.address()}")
    (folder / "enable").write_text("1")
    try:
        with (
            (folder / "resource0").open("r+b", buffering=0) as file,
            mmap.mmap(file.fileno(), size) as raw,
            memoryview(raw) as view,
            view.cast("I") as words,
        ):

            def reads() -> None:
                for _ in range(COUNT):
                    words[edu.LIVENESS >> 2]

            def writes() -> None:
                for _ in range(COUNT):
                    words[edu.LIVENESS >> 2] = 1

            return best(reads, COUNT), best(writes, COUNT)
    finally:
        (folder / "enable").write_text("0")


@pytest.mark.parametrize("way", ["vfio", "iommufd"])
def test_interrupts(way: str, record_property: Record) -> None:
    """The device's MSI, from the write that raises it, against an eventfd that another thread of
    ours writes."""
    limit_s = within(10)
    with opened(way) as transport:
        device = Edu(transport)
        device.master()
        interrupts = transport.interrupts
        assert interrupts is not None
        assert not interrupts.wait(0)
        found = float("inf")
        for number in range(1, 40):
            start = time.perf_counter()
            device.window.write32(edu.IRQ_RAISE, number)
            assert interrupts.wait(limit_s)
            found = min(found, time.perf_counter() - start)
            assert device.acknowledge() == number
    record_property(f"{way}: interrupt", found)
    record_property(f"{way}: interrupt floor", raw_wake())


def raw_wake() -> float:
    """From one thread's write of an eventfd to another's read of it, and back: half of that."""
    there, back = os.eventfd(0), os.eventfd(0)
    turns = 40

    def answer() -> None:
        for _ in range(turns):
            os.eventfd_read(there)
            os.eventfd_write(back, 1)

    thread = threading.Thread(target=answer)
    thread.start()
    found = float("inf")
    for _ in range(turns):
        start = time.perf_counter()
        os.eventfd_write(there, 1)
        os.eventfd_read(back)
        found = min(found, time.perf_counter() - start)
    thread.join()
    os.close(there)
    os.close(back)
    return found / 2


@pytest.mark.parametrize("huge", [False, True], ids=["small", "huge"])
@pytest.mark.parametrize("way", ["vfio", "iommufd"])
def test_memory(way: str, huge: bool, record_property: Record) -> None:
    """Allocating, mapping, unmapping and freeing; the floor is getting such memory and touching
    its pages, which every way must."""
    pool = Path("/proc/sys/vm/nr_hugepages")
    pool.write_text(str(HUGE_PAGES if huge else 0))
    never = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    never.write_text("madvise" if huge else "never")
    try:
        with opened(way) as transport:
            for size in SIZES[1:] if huge else SIZES:
                pages = "huge pages" if huge else "small pages"
                label = f"{way}: map and unmap {size >> 10} KiB, {pages}"
                record_property(label, best(lambda size=size: transport.allocate_dma(size).close()))
                floor = best(lambda size=size: touched(size, huge=huge))
                record_property(f"{label} floor", floor)
    finally:
        never.write_text("madvise")
        pool.write_text("0")


def touched(size: int, *, huge: bool) -> None:
    memory = System().anonymous(size, huge=huge)
    for at in range(0, size, (2 << 20) if huge else 4096):
        memory[at] = 0
    memory.close()
