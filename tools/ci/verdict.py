"""Was it the test or was it the device: a verdict from one or two runs of a test."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

MOST_RUNS = 2


class Verdict(enum.Enum):
    """PASSED needs none. FLAKY: failed once for no reason that shows, and then passed."""

    PASSED = "passed"
    TEST = "test"
    DEVICE = "device"
    FLAKY = "flaky"


@dataclass(frozen=True)
class Attempt:
    """One run of a test. error: its class and message; empty where it passed. device_error: the
    error is of a kind that no program causes. trouble: the device that failed its self-test
    afterwards, and how. bundle: the evidence of the device's first failure, a path or empty."""

    devices: tuple[str, ...]
    error: str = ""
    device_error: bool = False
    trouble: str = ""
    bundle: str = ""
    hang: bool = False

    @property
    def passed(self) -> bool:
        return not self.error

    @property
    def sick(self) -> bool:
        """Return whether the device is known to have failed, whatever the test did."""
        return self.device_error or bool(self.trouble)


@dataclass(frozen=True)
class Judgement:
    """A verdict, and what it rests on."""

    verdict: Verdict
    reason: str


def is_over(attempts: Sequence[Attempt]) -> bool:
    """Return whether the last run passed, or was the second one: no other follows."""
    return attempts[-1].passed or len(attempts) == MOST_RUNS


def judge(attempts: Sequence[Attempt]) -> Judgement:
    """Return the verdict of a test's runs, in their order; the second is on another device where
    there is one."""
    first, last = attempts[0], attempts[-1]
    if first.passed:
        return Judgement(Verdict.PASSED, "")
    where = ", ".join(first.devices)
    why = first.trouble or f"{where}: {first.error}"
    if len(attempts) == 1:
        if first.sick:
            return Judgement(Verdict.DEVICE, why)
        return Judgement(Verdict.TEST, f"{first.error} (it was run once)")
    other = "again" if last.devices == first.devices else f"on {', '.join(last.devices)}"
    if last.passed:
        if first.sick:
            return Judgement(Verdict.DEVICE, f"{why}; run {other}, the test passed")
        if first.hang and last.devices != first.devices:
            return Judgement(Verdict.DEVICE, f"{why}; {other}, the same work ended")
        return Judgement(Verdict.FLAKY, f"{first.error}; run {other}, it passed")
    if not last.sick:
        return Judgement(Verdict.TEST, f"{last.error}; it failed on {where} too: {first.error}")
    if not first.sick:
        return Judgement(Verdict.TEST, f"{first.error} on {where}, which is healthy")
    return Judgement(Verdict.DEVICE, f"{why}; {other}: {last.trouble or last.error}")
