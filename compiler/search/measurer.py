"""Measuring candidates: in a separate process if the device can be opened twice."""

from __future__ import annotations

import json
import math
import pickle
import time

from ugpu.compiler.search import runner
from ugpu.compiler.search.measure import Bench, Candidate, Outcome, Problem
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.objects.child import Ended, Process

OPEN_S = 60.0  # TIMEOUT: to open a device and fill its arrays, and for the default, without which
# there is no search: seconds, of which a busy machine needs many
LEAST_S = 5.0  # TIMEOUT: minimum for another candidate: a virtual GPU translates it first
OUT_OF_TIME = "the time was used up"
PATIENCE = 50.0  # TIMEOUT: of a candidate, times the time of the default


def measurer(device: Device) -> Apart | Here:
    """Return the object that measures for a device. A device that only a single process can open is
    measured in this process, and its driver's own limits end candidates that hang."""
    if device.name == "cpu":
        return Apart("cpu", {"threads": device.target.compute_units})
    if device.name.startswith("virtual:"):
        return Apart(device.name, {})
    return Here(device)


class Apart:
    """Measures in a child process, which is replaced when a candidate ends it."""

    def __init__(self, device: str, options: dict[str, object], least_s: float = LEAST_S) -> None:
        self.process = Process(runner.__name__, (device, json.dumps(options)))
        self.least_s = least_s
        self.problem: Problem | None = None
        self.first: Candidate | None = None
        self.ready = False

    def prepare(self, problem: Problem) -> None:
        """Set the computation whose candidates come next."""
        self.problem, self.first, self.ready = problem, None, False

    def run(self, candidate: Candidate, left_s: float = math.inf) -> Outcome:
        """Measure a candidate; the first one is the reference for the others. left_s: upper limit
        of the time in any case."""
        end = time.monotonic() + left_s
        patient = max(self.least_s, PATIENCE * candidate.best_s)
        limit = OPEN_S if self.first is None else patient

        def ask(message: object, most_s: float) -> Outcome:
            given_s = min(most_s, end - time.monotonic())
            if given_s <= 0:
                raise TimeoutError
            answer: Outcome = pickle.loads(self.process.ask(pickle.dumps(message), given_s))
            return answer

        try:
            if not self.ready:
                filled = ask(self.problem, OPEN_S)
                if filled.reason:
                    return filled
                if self.first is not None:
                    ask(self.first, OPEN_S)
                self.ready = True
            outcome = ask(candidate, limit)
        except TimeoutError:
            self.ready = False
            if time.monotonic() >= end:
                return Outcome(None, OUT_OF_TIME)
            return Outcome(None, f"did not end in {limit:.0f} s")
        except Ended as ended:
            self.ready = False
            return Outcome(None, f"ended its process ({ended})")
        if self.first is None and outcome.seconds is not None:
            self.first = candidate
        return outcome

    def close(self) -> None:
        self.process.close()


class Here:
    """Measures on the device itself."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.bench: Bench | None = None

    def prepare(self, problem: Problem) -> None:
        self.close()
        self.bench = Bench(self.device, problem)

    def run(self, candidate: Candidate, left_s: float = math.inf) -> Outcome:
        """Measure a candidate, if there is time: the driver's limits end one that hangs."""
        assert self.bench is not None
        if left_s <= 0:
            return Outcome(None, OUT_OF_TIME)
        try:
            return self.bench.run(candidate)
        except UgpuError as error:
            return Outcome(None, f"{type(error).__name__}: {error.message}")

    def close(self) -> None:
        if self.bench is not None:
            self.bench.close()
        self.bench = None
