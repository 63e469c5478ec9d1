"""The verdict on a test, from one or two runs: whether the test or the device failed.

A failure never becomes a pass by a run that proves nothing: a second run clears the first one only
if it ran the same assertions and passed.
"""

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
    afterwards, and how. bundle: the evidence of the device's first failure, a path or empty. void:
    why a run without an error proves nothing; empty if it does. before: the test did not run, since
    the device failed before; then `error` is the device's. retried: whether a further run can tell
    more."""

    devices: tuple[str, ...]
    error: str = ""
    device_error: bool = False
    trouble: str = ""
    bundle: str = ""
    hang: bool = False
    void: str = ""
    before: bool = False
    retried: bool = True

    @property
    def passed(self) -> bool:
        return not self.error and not self.void

    @property
    def sick(self) -> bool:
        """Return whether the device is known to have failed, regardless of the test."""
        return self.device_error or bool(self.trouble)


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reasons."""

    verdict: Verdict
    reason: str


def runs(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts in which the test ran."""
    return [attempt for attempt in attempts if not attempt.before]


def is_over(attempts: Sequence[Attempt]) -> bool:
    """Return whether no further run follows: the last one did not fail, cannot be repeated, or was
    the second one."""
    counted = runs(attempts)
    return bool(counted) and (
        not counted[-1].error or not counted[-1].retried or len(counted) == MOST_RUNS
    )


def judge(attempts: Sequence[Attempt]) -> Judgement:
    """Return the verdict on a test's runs, in order; the second is on another device if there is
    one. A test that did not run, since its devices failed before, is theirs."""
    counted = runs(attempts)
    if not counted:
        before = "; ".join(f"{_names(excluded)}: {excluded.error}" for excluded in attempts)
        return Judgement(Verdict.DEVICE, f"{before}; the test did not run")
    first, last = counted[0], counted[-1]
    if not first.error:
        return Judgement(Verdict.PASSED, first.void)
    where = _names(first)
    why = first.trouble or f"{where}: {first.error}"
    if len(counted) == 1:
        return _judge_alone(first, "it was run once")
    other = "again" if last.devices == first.devices else f"on {_names(last)}"
    if last.void:
        return _judge_alone(first, f"run {other}, {last.void}: this proves nothing")
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


def _judge_alone(first: Attempt, note: str) -> Judgement:
    """Return the verdict on a failed run if no other run proves anything."""
    if first.sick:
        why = first.trouble or f"{_names(first)}: {first.error}"
        return Judgement(Verdict.DEVICE, f"{why} ({note})")
    return Judgement(Verdict.TEST, f"{first.error} ({note})")


def _names(attempt: Attempt) -> str:
    return ", ".join(attempt.devices)
