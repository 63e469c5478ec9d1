"""Threads at random on one device: `python -m lab.threads DEVICE --minutes M --seed N`.

Eight threads allocate, free, copy, launch, replay graphs, read sensors and provoke faults, while
another resets the device; the interpreter changes threads every microsecond. Fails if a call
returns without having done its work, if a thread makes no progress for a minute, or if memory,
descriptors or threads grow from round to round.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from lab.stress import LIMIT_S, Ledger, Worker
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError

ROUND_S = 20.0
SWITCH_S = 1e-6
RESET_S = (0.05, 1.0)  # between two resets of a device that has not failed
STUCK_S = 2 * LIMIT_S  # one operation may wait several times
GROWTH_MB = 100.0  # from the second round to the last; the allocator of the C library keeps some


def footprint() -> tuple[int, int, float]:
    """Return this process's descriptors, threads and megabytes."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), megabytes


def memory_used(device: Device) -> float:
    """Return the bytes of the device's memory in use, without those of staging buffers."""
    device.driver.core.copies.close()
    return next(each.read() for each in device.sensors() if each.name == "memory_used_bytes")


class Resetter(threading.Thread):
    """Resets the device: soon after a failure, and at random."""

    def __init__(self, device: Device, seed: int, ledger: Ledger, stop: threading.Event) -> None:
        super().__init__(name="resetter", daemon=True)
        self.device, self.ledger, self.stopping = device, ledger, stop
        self.random = random.Random(seed)

    def run(self) -> None:
        while not self.stopping.is_set():
            due = time.monotonic() + self.random.uniform(*RESET_S)
            while time.monotonic() < due and self.device.failure is None:
                if self.stopping.wait(1e-3):
                    break
            self.reset()

    def reset(self) -> None:
        try:
            recovery = self.device.reset()
        except UgpuError as error:
            self.ledger.find(f"reset: {type(error).__name__}: {error}")
            return
        with self.ledger.lock:
            self.ledger.done["reset"] += 1
            self.ledger.memory_lost += recovery.memory_lost


def check_works(device: Device, image: bytes, ledger: Ledger) -> None:
    """The device works after the round, and has all memory back."""
    with suppress(UgpuError):
        device.synchronize(LIMIT_S)  # raises what this thread was not told of
    try:
        if device.failure is not None:
            device.reset()
        data = np.arange(64, dtype=np.uint32)
        with device.load(image) as program, device.alloc(256) as out, device.alloc(256) as source:
            source.copy_from(data)
            with device.queue() as queue:
                args = (out, source, np.uint32(64), np.uint32(3))
                queue.launch(program["scale"], grid=(1,), block=(64,), args=args)
            if not np.array_equal(out.numpy(np.uint32), 3 * data):
                ledger.find("after the round a launch has a wrong result")
    except UgpuError as error:
        ledger.find(f"after the round: {type(error).__name__}: {error}")


def run_round(name: str, seed: int, seconds: float, count: int, ledger: Ledger) -> bool:
    """Open, work and close; False if threads make no progress."""
    device = hcq.open(name)
    image = contract_object(device.target)
    check_works(device, image, ledger)
    before, stop = memory_used(device), threading.Event()
    workers = [Worker(device, image, 1000 * seed + n, ledger, stop) for n in range(count)]
    resetter = Resetter(device, seed, ledger, stop)
    for thread in (*workers, resetter):
        thread.start()
    end = time.monotonic() + seconds
    while any(thread.is_alive() for thread in (*workers, resetter)):
        if time.monotonic() > end:
            stop.set()
        stuck = [w.doing for w in workers if w.is_alive() and time.monotonic() - w.since > STUCK_S]
        if stuck:
            ledger.find(f"no progress for {STUCK_S:g} s: {stuck}")
            faulthandler.dump_traceback()
            return False
        time.sleep(0.05)
    check_works(device, image, ledger)
    grown = memory_used(device) - before
    if grown:
        ledger.find(f"{grown:.0f} bytes of device memory are not freed")
    device.close()
    return True


def check_growth(rounds: Sequence[tuple[int, int, float]], ledger: Ledger) -> None:
    """Compare the second round, when all is loaded, with the last."""
    if len(rounds) < 3:
        return
    first, last = rounds[1], rounds[-1]
    for what, old, new, most in zip(
        ("descriptors", "threads", "megabytes"), first, last, (1, 1, GROWTH_MB), strict=True
    ):
        if new > old + most:
            ledger.find(f"{what} grow: {old:g} after round 2, {new:g} after round {len(rounds)}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.threads", description=__doc__)
    parser.add_argument("device", metavar="DEVICE")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # resets log, hundreds of times
    ledger = Ledger()
    rounds: list[tuple[int, int, float]] = []
    end = time.monotonic() + 60 * options.minutes
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        while (left := end - time.monotonic()) > 0:
            seed = 100 * options.seed + len(rounds)
            if not run_round(options.device, seed, min(ROUND_S, left), options.threads, ledger):
                break
            rounds.append(footprint())
    finally:
        sys.setswitchinterval(interval)
    check_growth(rounds, ledger)
    report(options.device, ledger, rounds)
    return 1 if ledger.findings else 0


def report(name: str, ledger: Ledger, rounds: Sequence[tuple[int, int, float]]) -> None:
    """Write what was done, which errors were raised, and the findings."""
    lines = [f"{name}: {len(rounds)} rounds, {sum(ledger.done.values())} operations"]
    lines += [f"  {count:7} {what}" for what, count in sorted(ledger.done.items())]
    lines += [
        f"  {count:7} {what}: {error}" for (what, error), count in sorted(ledger.errors.items())
    ]
    if rounds:
        files, threads, megabytes = rounds[-1]
        lines.append(f"  at the end {files} descriptors, {threads} threads, {megabytes:.0f} MB")
    lines += [f"FINDING {text}" for text in ledger.findings[:20]]
    lines.append(f"{len(ledger.findings)} findings")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # also where a thread makes no progress
