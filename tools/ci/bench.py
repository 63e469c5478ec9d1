"""Run a suite of commands on lent devices: `ugpu ci run`.

A command gets the names of its devices in environment variables and opens the devices itself. They
are tested before the first lease and after each failure. A case that fails is run once more, on
another device if one fits. It gets a verdict as a test of the pytest plugin does. A second run that
skips itself leaves the first one's failure.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ugpu.hcq.disk import bundle
from ugpu.hcq.errors import DeviceBusy, DeviceNotFound, HostError, UgpuError, UsageError
from ugpu.tools.ci.command import LEASE, Ended, run
from ugpu.tools.ci.evidence import attempt, of_exit
from ugpu.tools.ci.plants import prepare
from ugpu.tools.ci.pool import Loan, Pool, Refused
from ugpu.tools.ci.report.history import History
from ugpu.tools.ci.report.page import Row
from ugpu.tools.ci.suite import Case, Suite
from ugpu.tools.ci.verdict import Attempt, Judgement, Verdict, is_over, judge

DEVICES = "UGPU_CI_DEVICES"  # all devices of a case, separated by spaces
_TAIL = 4000  # last bytes of a failing command's output, shown in reports


@dataclass(frozen=True)
class Result:
    """A case with the run that counts. judgement: None if no device was lent, and none has failed;
    `error` has the reason if none was lent. skipped: the command skipped itself. output: the end of
    its output. hooks: hooks that failed. log: the file with the whole output. excluded: devices
    that failed before the case had them, with the reasons."""

    case: Case
    attempts: tuple[Attempt, ...] = ()
    judgement: Judgement | None = None
    seconds: float = 0.0
    skipped: bool = False
    error: str = ""
    output: str = ""
    hooks: tuple[str, ...] = ()
    log: Path | None = None
    excluded: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether the case passed in the run that counts, or skipped itself."""
        done = bool(self.attempts) and (self.attempts[-1].passed or self.skipped)
        return done and not self.error

    @property
    def devices(self) -> str:
        """The names of the devices of the run that counts."""
        counted = [run for run in self.attempts if not run.void] or self.attempts
        return " ".join(counted[-1].devices) if counted else ""

    @property
    def row(self) -> Row:
        """Return the case's row of the page."""
        names = self.devices
        if self.judgement is None:
            return Row(self.case.name, names, self.seconds, "error", self.error)
        verdict = "skipped" if self.skipped else self.judgement.verdict.value
        bundles = "\n".join(run.bundle for run in self.attempts if run.bundle)
        return Row(
            self.case.name, names, self.seconds, verdict, self.judgement.reason, bundles,
            str(self.log or ""),
        )  # fmt: skip


@dataclass
class _Run:
    """One run of a case. place: its folder."""

    attempt: Attempt
    seconds: float
    place: Path

    @property
    def log(self) -> Path:
        return self.place / "output"


@dataclass
class Bench:
    """Runs cases. folder: receives output and bundles of each run. environment: of the commands.
    These variables are added to it: the variable named `variable` (the first device),
    UGPU_CI_DEVICES (all), UGPU_CI_CASE, UGPU_CI_LEASE and UGPU_CRASHES. say: receives a line for
    each step."""

    pool: Pool
    suite: Suite
    folder: Path
    environment: Mapping[str, str]
    variable: str = "UGPU_DEVICE"
    history: History | None = None
    wait_s: float = 600.0
    say: Callable[[str], None] = lambda line: None
    now: Callable[[], float] = time.monotonic
    _hooks: list[str] = field(default_factory=list)

    def run(self, case: Case) -> Result:
        """Run one case, twice if it fails."""
        self._hooks = []
        attempts: list[Attempt] = []
        runs: list[_Run] = []
        refusal: UgpuError | None = None
        while not is_over(attempts):
            avoid = runs[-1].attempt.devices if runs else ()
            try:
                runs.append(self._once(case, avoid, len(runs)))
            except (DeviceNotFound, DeviceBusy) as error:
                # No device was available for the second run; the first run's verdict stands.
                refusal = error
            attempts += [
                Attempt((name,), why, device_error=True, before=True)
                for name, why in self.pool.excluded().items()
            ]
            if refusal is not None:
                break
            attempts.append(runs[-1].attempt)
        return self._result(case, attempts, runs, refusal)

    def _once(self, case: Case, avoid: Collection[str], number: int) -> _Run:
        loan = self._lease(case, avoid, number)
        prepare(loan, self.suite.faults, case.name)
        try:
            start = self.now()
            try:
                ended, place = self._command(case, loan, number)
                seconds = self.now() - start
            finally:
                self._hook("after", self.suite.after, case, loan, number)
            evidence = of_exit(
                ended.code, expired_s=ended.expired_s, bundles=bundle.bundles(place / "crashes")
            )
            run = _Run(attempt(loan, evidence, self.pool), seconds, place)
        finally:
            loan.release()
        self._tell(case, run)
        return run

    def _result(
        self, case: Case, attempts: list[Attempt], runs: list[_Run], refusal: UgpuError | None
    ) -> Result:
        """Judge a case, write its history, and report what is not a plain pass."""
        judgement = judge(attempts) if attempts else None
        error = refusal.message if refusal is not None and not runs else ""
        if judgement is None and isinstance(refusal, Refused) and refusal.sick:
            judgement = Judgement(Verdict.DEVICE, f"excluded before: {refusal.message}")
        if judgement is not None and self.history is not None:
            self.history.add(self.pool.run, case.name, attempts, judgement, time.time())
        if judgement is not None and judgement.verdict is not Verdict.PASSED:
            self.say(f"{case.name}: verdict {judgement.verdict.value}: {judgement.reason}")
        if error:
            self.say(f"{case.name}: not run: {error}")
        excluded = tuple(f"{tried.devices[0]}: {tried.error}" for tried in attempts if tried.before)
        if not runs:
            return Result(
                case, judgement=judgement, error=error, hooks=tuple(self._hooks), excluded=excluded
            )
        # A second run that proves nothing leaves the first one's result.
        counts = runs[-1] if not runs[-1].attempt.void else runs[0]
        output = tail(counts.log) if counts.attempt.error else ""
        return Result(
            case, tuple(run.attempt for run in runs), judgement, counts.seconds,
            bool(counts.attempt.void), error, output, tuple(self._hooks), counts.log, excluded,
        )  # fmt: skip

    def _lease(self, case: Case, avoid: Collection[str], number: int) -> Loan:
        """Borrow devices, close them for the command and prepare them with the hook. Devices that
        the hook cannot prepare are quarantined, and others are borrowed."""
        while True:
            free = ", ".join(f"{device.name} {device.state}" for device in self.pool.available())
            self.say(f"{case.name}: {case.demand}; {free}")
            loan = self.pool.take(case.demand, avoid=avoid, limit_s=self.wait_s)
            try:
                loan.close()
                if not self._hook("before", self.suite.before, case, loan, number):
                    return loan
                self._hook("after", self.suite.after, case, loan, number)
            except BaseException:
                loan.release()
                raise
            loan.release()

    def _hook(self, which: str, words: tuple[str, ...], case: Case, loan: Loan, number: int) -> str:
        """Run a hook; return its fault. A hook that fails quarantines the devices."""
        if not words:
            return ""
        place = self._place(case, number)
        ended = run(
            words, self._variables(case, loan, place), self.suite.folder, place / which,
            self.suite.hook_limit_s,
        )  # fmt: skip
        trouble = ""
        if ended.expired_s is not None or ended.code:
            evidence = of_exit(ended.code, expired_s=ended.expired_s, bundles=())
            said = " ".join(tail(place / which).split()[-30:])
            trouble = f"hook {which}: {evidence.error or f'exit code {ended.code}'} {said}".rstrip()
            for name in loan.names:
                self.pool.quarantine(name, trouble)
            self._hooks.append(f"{' '.join(loan.names)}: {trouble}")
            self.say(f"{case.name}: {' '.join(loan.names)} is quarantined: {trouble}")
        return trouble

    def _command(self, case: Case, loan: Loan, number: int) -> tuple[Ended, Path]:
        place = self._place(case, number)
        lease = place / "extended"
        lease.unlink(missing_ok=True)
        names = [loan.opened_as(name) for name in loan.names]
        variables = {
            **self._variables(case, loan, place), LEASE: str(lease),
            self.variable: names[0], DEVICES: " ".join(names),
        }  # fmt: skip
        return run(
            case.command, variables, self.suite.folder, place / "output", case.limit_s, lease
        ), place

    def _variables(self, case: Case, loan: Loan, place: Path) -> dict[str, str]:
        return {
            **self.environment, self.variable: loan.names[0], DEVICES: " ".join(loan.names),
            "UGPU_CI_CASE": case.name, "UGPU_CRASHES": str(place / "crashes"),
        }  # fmt: skip

    def _place(self, case: Case, number: int) -> Path:
        """Return the folder of one run of a case; create it if it is missing."""
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in case.name)
        place = self.folder / f"{self.suite.cases.index(case) + 1:03d}-{safe}.{number + 1}"
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HostError(f"cannot create {place}: {error.strerror}") from None
        return place

    def _tell(self, case: Case, run: _Run) -> None:
        outcome = run.attempt
        word = (
            "skipped"
            if outcome.void
            else "passed"
            if outcome.passed
            else f"failed: {outcome.error}"
        )
        sick = f"; {outcome.trouble}" if outcome.trouble else ""
        self.say(f"{case.name}: {word} on {' '.join(outcome.devices)} in {run.seconds:.1f} s{sick}")


def results_folder(requested: Path | None) -> Path:
    """Return the folder for output and bundles: the requested one, or a new one. UsageError if it
    contains other files: old bundles would be evidence of a new run."""
    if requested is None:
        return Path(tempfile.mkdtemp(prefix="ugpu-ci-"))
    if requested.is_dir() and any(requested.iterdir()):
        raise UsageError(f"--out must be a new or an empty folder, got {requested}")
    return requested.resolve()


def tail(path: Path) -> str:
    """Return the end of a file, from the begin of a line if it has several."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _TAIL))
        end = file.read()
    if size > _TAIL:
        end = end.partition(b"\n")[2] or end
    return end.decode("utf-8", "replace")
