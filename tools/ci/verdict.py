"""The verdict on a test, from one or two runs: whether the test or the device failed."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

MOST_RUNS = 2


class Verdict(enum.Enum):
    """The cause of a failure; PASSED: none. FLAKY: failed once without a visible cause, then
    passed."""

    PASSED = "passed"
    TEST = "test"
    DEVICE = "device"
    FLAKY = "flaky"


@dataclass(frozen=True)
class Attempt:
    """One run of a test. error: its class and message; empty if it passed. device_error: whether
    the error is of a kind that no program causes. trouble: the device that failed its self-test
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
        """Return whether the device is known to have failed, regardless of the test."""
        return self.device_error or bool(self.trouble)


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reasons."""

    verdict: Verdict
    reason: str


def is_over(attempts: Sequence[Attempt]) -> bool:
    """Return whether no further run follows: the last one passed, or was the second one."""
    return attempts[-1].passed or len(attempts) == MOST_RUNS


def judge(attempts: Sequence[Attempt]) -> Judgement:
    """Return the verdict on a test's runs, in order; the second is on another device if there is
    one."""
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
