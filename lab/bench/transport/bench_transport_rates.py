"""What mapping DMA memory and an interrupt cost without a kernel's VFIO: in this process, and over
vfio-user to a server in another.

Floors of the same run: a memfd made and mapped (nobody touches a page in either); a round between
two threads by eventfds. A replay has neither row: it hands memory out as recorded, and waits for
nothing.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lab.bench.transport.bench_vfio_user import SERVE, _process
from tests.support.amd.am_navi31 import build_chip
from tests.support.pci.vfio_user_device import COMMAND
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.virtual.amd.bus.pci import VirtualTransport

ROUNDS, TURNS = 7, 200
SIZES = (4 << 10, 16 << 20)
LIMIT_S = 10.0
INTERRUPT = 3  # the device of the vfio-user rows raises one and does nothing else


def measure() -> list[dict[str, object]]:
    """Both transports, each row beside its floor."""
    results = []
    floor = rounds(lambda there: os.eventfd_write(there, 1), os.eventfd_read)
    chip = build_chip()
    with VirtualTransport(chip, "bench") as transport:
        results += memory("in-process", transport)
        interrupts = transport.interrupts
        ours = rounds(lambda _: interrupts.signal(), lambda _: interrupts.wait(LIMIT_S))
        results.append(row("in-process: interrupt to another thread, and back", ours, floor))
    chip.close()
    with tempfile.TemporaryDirectory(prefix="vu-") as folder:
        path = str(Path(folder) / "s")
        with _process(SERVE, path), VfioUserTransport(path) as client:
            results += memory("vfio-user", client)
            ours = best(partial(interrupt, client))
            results.append(row("vfio-user: register write to interrupt", ours, floor))
    return results


def memory(name: str, transport: Transport) -> list[dict[str, object]]:
    return [
        row(
            f"{name}: map and unmap {size >> 10} KiB",
            best(lambda size=size: transport.allocate_dma(size).close()),
            best(partial(mapped, size)),
        )
        for size in SIZES
    ]


def mapped(size: int) -> None:
    descriptor = os.memfd_create("floor")
    os.ftruncate(descriptor, size)
    mmap.mmap(descriptor, size).close()
    os.close(descriptor)


def interrupt(transport: VfioUserTransport) -> None:
    interrupts = transport.interrupts
    assert interrupts is not None
    transport.window(5).write32(COMMAND, INTERRUPT)
    if not interrupts.wait(LIMIT_S):
        raise SystemExit("the interrupt did not come")


def rounds(signal: Callable[[int], object], wait: Callable[[int], object]) -> float:
    """Seconds from `signal` here to `wait` in another thread, and its answer by an eventfd."""
    there, back = os.eventfd(0), os.eventfd(0)
    turns = ROUNDS * TURNS

    def answer() -> None:
        for _ in range(turns):
            wait(there)
            os.eventfd_write(back, 1)

    thread = threading.Thread(target=answer)
    thread.start()
    found = float("inf")
    for _ in range(turns):
        start = time.perf_counter()
        signal(there)
        os.eventfd_read(back)
        found = min(found, time.perf_counter() - start)
    thread.join()
    os.close(there)
    os.close(back)
    return found


def best(work: Callable[[], object]) -> float:
    found = float("inf")
    for _ in range(ROUNDS * 5):
        start = time.perf_counter()
        work()
        found = min(found, time.perf_counter() - start)
    return found


def row(name: str, ours: float, floor: float) -> dict[str, object]:
    return {
        "name": name, "value": ours * 1e6, "unit": "us", "peer": "floor",
        "peer_value": floor * 1e6, "ratio": ours / floor,
    }  # fmt: skip
