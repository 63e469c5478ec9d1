"""`make soak MINUTES=30`: faults at random on several devices that work from threads all the time.

Each thread has devices of its own, one after the other, works on them, plants a fault now and then,
and recovers. What the process holds must not grow (lab.campaign.growth): after a first part, in
which programs are translated and caches fill, it is counted from time to time while all threads
stand still. Repeatable by seed as far as threads allow.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from functools import partial

from lab.campaign.command import begin
from lab.campaign.growth import Sample, growth, leaks, sample
from lab.campaign.kind import Case, Kind, cases_of
from lab.campaign.run import run
from lab.campaign.stands.devices import STANDS
from lab.campaign.table import KINDS

#: shares of the whole: until the first count is taken
WARM = 0.4
#: counts after it
SAMPLES = 12
_DEVICES = ("navi31", "gh100", "tu102", "a630", "a740+msm", "vfio", "iommufd", "sysfs")
# These end by the trace function of a thread or count what the whole process holds.
_TRACED = "sys.settrace"


class Worker(threading.Thread):
    """One thread: cases drawn by its own seed, on a fixed set of devices."""

    def __init__(self, number: int, seed: int, pause: threading.Event) -> None:
        super().__init__(name=f"soak-{number}", daemon=True)
        self.random = random.Random(f"{seed} {number}")
        self.pause, self.idle = pause, threading.Event()
        self.ended = False
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self.kinds: dict[str, Kind] = {kind.name: kind for kind in KINDS}
        self.cases = [case for case in cases_of(KINDS) if self._suits(case)]

    def _suits(self, case: Case) -> bool:
        return case.device in _DEVICES and _TRACED not in self.kinds[case.kind].planted

    def run(self) -> None:
        while not self.ended:
            if self.pause.is_set():
                self.idle.set()
                time.sleep(0.01)
                continue
            self.idle.clear()
            case = self.random.choice(self.cases)
            make = partial(STANDS[case.device], self.random.randrange(1 << 16))
            result = run(case, self.kinds[case.kind], make, leaks=False)
            self.done[case.kind] += 1
            self.failed += [f"{case}: {check}: {text}" for check, text in result.failed.items()]
        self.idle.set()


def held(workers: list[Worker], pause: threading.Event) -> Sample:
    """Count while all threads stand still."""
    pause.set()
    for worker in workers:
        worker.idle.wait()
    time.sleep(0.5)  # threads of models that were closed end by themselves
    found = sample()
    pause.clear()
    for worker in workers:
        worker.idle.clear()
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.campaign.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=3)
    options = parser.parse_args(arguments)
    begin()
    pause = threading.Event()
    workers = [Worker(number, options.seed, pause) for number in range(options.threads)]
    start = time.monotonic()
    for worker in workers:
        worker.start()
    seconds = 60 * options.minutes
    samples: list[Sample] = []
    first = 0
    for number in range(SAMPLES):
        at = start + seconds * (WARM + (1 - WARM) * number / (SAMPLES - 1))
        time.sleep(max(0.0, at - time.monotonic()))
        first = first or sum(worker.done.total() for worker in workers)
        samples.append(held(workers, pause))
    for worker in workers:
        worker.ended = True
    for worker in workers:
        worker.join()
    failed = [text for worker in workers for text in worker.failed]
    for text in failed:
        print(text)
    done = sum((worker.done for worker in workers), Counter[str]())
    grown = leaks(samples, done.total() - first)
    for name, count in grown.items():
        print(f"leak: {name} {count:+d}: {', '.join(str(one[name]) for one in samples)}")
    told = " ".join(f"{name}={one + two:+d}" for name, (one, two) in growth(samples).items())
    verdict = "FAIL" if failed or grown else "PASS"
    print(
        f"soak: {verdict} minutes={options.minutes:g} cases={done.total()} kinds={len(done)} "
        f"failed={len(failed)} {told}"
    )
    return int(verdict == "FAIL")


if __name__ == "__main__":
    raise SystemExit(main())
