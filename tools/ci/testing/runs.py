"""The runs of one test on lent devices, for the pytest plugin, and what each of them proves."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from ugpu.hcq.errors import UgpuError
from ugpu.tools.ci.evidence import Evidence, attempt, line, of_error
from ugpu.tools.ci.pool import Loan, Pool, Work
from ugpu.tools.ci.testing.limits import limited, session_expired
from ugpu.tools.ci.testing.reached import Check, Reached, checks_of, traced
from ugpu.tools.ci.verdict import Attempt, Judgement, Verdict, is_over, judge

CLOSED = "the test has closed {}, which the fixture gpu lends and closes"


@dataclass
class Run:
    """One run of a test. avoid: devices to borrow only if no others fit. errors: by phase, of
    reports that failed. late: a fault of the device found after the test had failed otherwise.
    before: the work of the devices at the begin of the loan; work: what the test has added, once
    its function has ended. unsettled: what went wrong when that work was awaited. sick: devices
    excluded from the run, if none was left for the test. subtests: how many of pytest's subtests
    have failed."""

    avoid: tuple[str, ...] = ()
    loan: Loan | None = None
    before: Work | None = None
    work: Work | None = None
    errors: dict[str, BaseException] = field(default_factory=dict)
    late: UgpuError | None = None
    unsettled: BaseException | None = None
    reports: list[pytest.TestReport] = field(default_factory=list)
    missing: list[Check] = field(default_factory=list)
    sick: tuple[str, ...] = ()
    subtests: int = 0

    def lend(self, loan: Loan) -> None:
        """Begin the loan."""
        self.loan, self.before = loan, loan.work()

    def settle(self) -> None:
        """Wait for the work of the test's function: what goes wrong with it, or a device that the
        test has closed, is the test's failure, and not one of the fixture's teardown."""
        if self.loan is None or self.before is None:
            return
        self.work = self.loan.work().since(self.before)
        try:
            self.synchronize()
        except BaseException as error:
            self.unsettled = error
            raise

    def synchronize(self) -> None:
        """Wait for work in flight. Fails for a device that the test has closed."""
        assert self.loan is not None
        for name, device in self.loan.lent.items():
            if device.closed:
                pytest.fail(CLOSED.format(name), pytrace=False)
            device.synchronize()

    def finish(self) -> None:
        """End the fixture: wait for work that the test's teardown has left. A test that has failed
        already does not fail a second time: what the device reports then is further evidence."""
        if not self.errors:
            self.synchronize()
            return
        assert self.loan is not None
        for device in self.loan.devices:
            if device.closed or device.failure is not None:
                continue
            try:
                device.synchronize()
            except UgpuError as error:
                self.late = error

    @property
    def failed(self) -> pytest.TestReport | None:
        """The first report that failed."""
        return next((report for report in self.reports if report.failed), None)

    @property
    def evidence(self) -> Evidence:
        """What the run shows: why it failed, or why it proves nothing."""
        report = self.failed
        if report is None and self.subtests:
            evidence = of_error(self.errors.get("call"))
            told = f"{self.subtests} of its subtests failed, {evidence.error}"
            return Evidence(told, evidence.device_error, evidence.hang, evidence.bundle)
        if report is None:
            return Evidence(void=_void(self.reports) or self._unreached())
        error = self.errors.get(report.when or "")
        if error is None:  # no exception, but for example an unexpected pass
            return Evidence(line(str(report.longrepr)))
        early, late = of_error(error), of_error(self.late)
        return Evidence(
            early.error if late.error in ("", early.error) else f"{early.error}; then {late.error}",
            early.device_error or late.device_error, early.hang or late.hang,
            early.bundle or late.bundle,
        )  # fmt: skip

    def _unreached(self) -> str:
        if not self.missing:
            return ""
        places = ", ".join(str(check) for check in self.missing)
        return f"it did not reach what failed before, {places}"


@dataclass
class Runs:
    """All runs of one test. attempts: what they have shown, and the devices that failed before."""

    item: pytest.Item
    pool: Pool
    runs: list[Run] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def current(self) -> Run:
        return self.runs[-1]

    def make(self, nextitem: pytest.Item | None) -> None:
        """Run the test once, and examine its devices if it fails."""
        first = self.runs[0] if self.runs else None
        avoid = first.loan.names if first is not None and first.loan is not None else ()
        run = Run(avoid)
        self.runs.append(run)
        try:
            watch = Reached(self._checks(first) if first is not None else [])
            with watch, limited(self.item):
                run.reports = runtestprotocol(self.item, log=False, nextitem=nextitem)
            run.reports = _without_echoes(run)
            run.missing = watch.missing
            run.subtests = _failed_subtests(self.item)
            self._examine(run, first)
        finally:
            if run.loan is not None:
                run.loan.release()

    def _examine(self, run: Run, first: Run | None) -> None:
        for name, reason in self.pool.excluded().items():
            self.attempts.append(Attempt((name,), reason, device_error=True, before=True))
        if run.loan is None:
            return
        evidence = run.evidence
        if first is not None and not evidence.error and not evidence.void:
            evidence = Evidence(void=_idle(first, run))
        outcome = attempt(run.loan, evidence, self.pool)
        # Without an exception, only the test's marks made it fail.
        retried = bool(run.errors) and not run.subtests and not traced()
        self.attempts.append(Attempt(**{**vars(outcome), "retried": retried}))

    def again(self) -> bool:
        """Return whether another run follows."""
        if self.current.loan is None or is_over(self.attempts):
            return False
        session = self.item.session
        return not (session.shouldstop or session.shouldfail or session_expired(self.item))

    def counted(self) -> Run:
        """Return the run whose result counts: a second run without devices, or one that proves
        nothing, leaves the first one's."""
        last = self.current
        if len(self.runs) > 1 and (last.loan is None or self.attempts[-1].void):
            return self.runs[0]
        return last

    def judgement(self) -> Judgement | None:
        """Return the verdict; None if the test got no device, and no device has failed."""
        if self.attempts:
            return judge(self.attempts)
        if not self.current.sick:
            return None
        error = self.current.errors.get("setup")
        reason = f"excluded before: {line(str(error))}"
        return Judgement(Verdict.DEVICE, reason)

    def _checks(self, first: Run) -> list[Check]:
        """Return what a second run has to reach. A test whose function had ended failed by its
        work alone, see `_idle`."""
        errors = [error for error in first.errors.values() if error is not first.unsettled]
        lists = [checks_of(error, Path(self.item.path)) for error in errors]
        return [check for checks in lists for check in checks]


def _idle(first: Run, run: Run) -> str:
    """Return why a second run that passed proves nothing where the first one failed by work that
    its function had left in flight; empty if it gave its device work of that kind too."""
    if first.unsettled is None or first.work is None or run.work is None:
        return ""
    if first.work.kernels and not run.work.kernels:
        return "it launched no kernel"
    if first.work.submissions and not run.work.submissions:
        return "it gave its device no work"
    return ""


def _void(reports: list[pytest.TestReport]) -> str:
    """Return why a run without a failure proves nothing; empty if it passed."""
    for report in reports:
        expected = getattr(report, "wasxfail", None)
        if expected is not None:
            word = "failed as expected" if report.skipped else "passed unexpectedly"
            return f"it {word} (xfail{': ' if expected else ''}{line(str(expected))})"
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            return f"it was skipped ({line(str(reason)).removeprefix('Skipped: ')})"
    return ""


def _failed_subtests(item: pytest.Item) -> int:
    """Return how many subtests of a test have failed. pytest has reported them already, and lets
    the test fail when its result is shown."""
    key: Any = getattr(sys.modules.get("_pytest.subtests"), "failed_subtests_key", None)
    counts: Any = item.config.stash.get(key, {}) if key is not None else {}
    # Keyed by the node's id: an object of its own since pytest 9.1, before that its text.
    return max(int(counts.get(name, 0)) for name in (getattr(item, "id", None), item.nodeid))


def _without_echoes(run: Run) -> list[pytest.TestReport]:
    """Return the reports without failures of the teardown that repeat the test's own: a failed
    device raises its failure again from every call, so one fault would count twice."""
    call, end = run.errors.get("call"), run.errors.get("teardown")
    if not isinstance(end, UgpuError) or type(call) is not type(end) or str(call) != str(end):
        return run.reports
    del run.errors["teardown"]
    for report in run.reports:
        if report.when == "teardown":
            report.sections.append(("gpu: the device's failure, raised again", report.longreprtext))
            report.outcome, report.longrepr = "passed", None
    return run.reports
