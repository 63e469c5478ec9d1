"""What sampling costs the process that owns a busy device: throughput while another process reads
its telemetry as often as it can, and without."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, opened
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.device.observe import Observer, Sampler

ROUNDS, SECONDS = 41, 0.25
# Ten times a second, as `ugpu top` does at its quickest; "idle" wakes as often and asks nothing.
READER = """
import sys, time
from pathlib import Path
from ugpu.hcq.device.observe import Reader
with Reader(Path(sys.argv[1]), 5.0) as reader:
    reader.read()
    asks = False
    print("there", flush=True)
    import threading
    def listen():
        global asks
        for line in sys.stdin:
            asks = line == "ask\\n"
    threading.Thread(target=listen, daemon=True).start()
    while True:
        if asks:
            reader.read()
        time.sleep(0.1)
"""


class Counted(Sampler):
    """A sampler that adds up what its answers take: the device's lock, or processor time."""

    spent = 0.0

    def answer(self) -> bytes:
        self._held, begin = 0.0, time.thread_time()
        line = super().answer()
        self.spent += max(self._held, time.thread_time() - begin)
        return line


def _rate(device: Device, launch: Callable[[], None]) -> float:
    """Launches a second of processor time of this process."""
    count, begin, end = 0, time.process_time(), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        launch()
        device.synchronize()
        count += 1
    return count / (time.process_time() - begin)


def measure() -> list[dict[str, object]]:
    chip = build_chip()
    rates: dict[str, list[float]] = {"idle": [], "ask": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(chip) as device,
        device.load(faulty_object()) as program,
    ):
        out = device.alloc(64)

        def launch() -> None:
            with device.queue() as queue:
                queue.launch(program["good"], grid=(1,), block=(32,), args=(out, np.uint32(1)))

        spent, asked = 0.0, 0.0
        observer = Observer(core_of(device), Path(folder), sampler := Counted(core_of(device)))
        _rate(device, launch)
        command = [sys.executable, "-c", READER, str(observer.path)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as reader:
            assert reader.stdout is not None and reader.stdin is not None
            reader.stdout.readline()
            for each in range(ROUNDS):
                for does in ("idle", "ask")[:: -1 if each % 2 else 1]:
                    reader.stdin.write(f"{does}\n")
                    before_s, begin = sampler.spent, time.perf_counter()
                    rates[does].append(_rate(device, launch))
                    if does == "ask":
                        asked += time.perf_counter() - begin
                        spent += sampler.spent - before_s
            reader.kill()
        observer.stop()
    chip.close()
    before, under = (statistics.median(rates[does]) for does in ("idle", "ask"))
    return [
        {
            "name": "share of the owner's time that answering takes, read 10 times a second",
            "value": 100 * spent / asked, "unit": "%",
        },
        {
            "name": "launches per second of processor time, read 10 times a second",
            "value": under, "unit": "/s", "peer": "not read", "peer_value": before,
            "ratio": under / before,
        }
    ]  # fmt: skip
