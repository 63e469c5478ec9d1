"""What the transport's layers cost on this machine, without a device: a mapped BAR is a memfd.

The floor is measured in the same run: a raw memoryview, a raw mmap. A real BAR adds the bus' own
time (about 1 us a read) to both. Figures under a real kernel's VFIO are in `make test-kernel`.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.pci.fake_vfio import VfioMachine
from ugpu.hcq.transport.vfio.transport import VfioTransport
from ugpu.hcq.transport.window import MappedWindow

SIZE = 16 << 20
COUNT = 100_000
ROUNDS = 7
GPU = "0000:03:00.0"


def measure() -> list[dict[str, object]]:
    """Register accesses, block copies, and what allocating DMA memory costs on our side."""
    descriptor = os.memfd_create("bar")
    os.ftruncate(descriptor, SIZE)
    raw = mmap.mmap(descriptor, SIZE)
    words = memoryview(raw).cast("I")
    window = MappedWindow(0, mmap.mmap(descriptor, SIZE), SIZE)
    results = [
        *registers(window, words),
        *blocks(window, memoryview(raw)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        results += through_made_up_kernel(Path(folder))
    window.close()
    words.release()
    os.close(descriptor)
    return results


def registers(window: MappedWindow, words: memoryview) -> list[dict[str, object]]:
    """One 32-bit access, against the same access to a memoryview at the same byte offset."""
    read, write = window.read32, window.write32

    def raw_read(count: int, offset: int = 256) -> None:
        for _ in range(count):
            words[offset >> 2]

    def our_read(count: int, offset: int = 256) -> None:
        for _ in range(count):
            read(offset)

    def raw_write(count: int, offset: int = 256) -> None:
        for _ in range(count):
            words[offset >> 2] = 1

    def our_write(count: int, offset: int = 256) -> None:
        for _ in range(count):
            write(offset, 1)

    return [
        compared("register read, mapped BAR", each(our_read), each(raw_read)),
        compared("register write, mapped BAR", each(our_write), each(raw_write)),
    ]


def blocks(window: MappedWindow, raw: memoryview) -> list[dict[str, object]]:
    """Copies of 16 MiB, in bytes per second."""
    data = os.urandom(SIZE)

    def raw_write() -> None:
        raw[:] = data

    pairs: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("block write, mapped BAR", lambda: window.write(0, data), raw_write),
        ("block read, mapped BAR", lambda: window.read(0, SIZE), lambda: bytes(raw)),
    ]
    results = []
    for name, ours, floor in pairs:
        our_rate, raw_rate = SIZE / once(ours) / 1e9, SIZE / once(floor) / 1e9
        results.append(
            {"name": name, "value": our_rate, "unit": "GB/s", "peer": "raw mmap",
             "peer_value": raw_rate, "ratio": our_rate / raw_rate}
        )  # fmt: skip
    return results


def through_made_up_kernel(folder: Path) -> list[dict[str, object]]:
    """Our share of opening and of DMA memory: the kernel's calls answer at once."""
    machine = VfioMachine(folder)
    machine.load("vfio-pci")
    machine.add(GPU, driver="vfio-pci")
    opening = once(lambda: VfioTransport(GPU, system=machine).close())
    results: list[dict[str, object]] = [
        {"name": "open and close, without the kernel's share", "value": opening * 1e3, "unit": "ms"}
    ]
    with VfioTransport(GPU, system=machine) as transport:
        for size in (4096, 16 << 20):
            results.append(
                {
                    "name": f"DMA memory of {size >> 10} KiB, without the kernel's mapping",
                    "value": once(partial(allocate, transport, size)) * 1e6,
                    "unit": "us",
                }
            )
    machine.free()
    return results


def allocate(transport: VfioTransport, size: int) -> None:
    transport.allocate_dma(size).close()


def each(work: Callable[[int], None]) -> float:
    """Seconds of one turn of `work`, the best of several rounds."""
    return once(lambda: work(COUNT)) / COUNT


def once(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def compared(name: str, ours: float, floor: float) -> dict[str, object]:
    return {
        "name": name,
        "value": ours * 1e9,
        "unit": "ns",
        "peer": "raw memoryview",
        "peer_value": floor * 1e9,
        "ratio": ours / floor,
    }
