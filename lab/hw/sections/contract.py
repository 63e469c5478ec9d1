"""The contract suite on the device: what every device must do alike."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from lab.hw import calls, process
from lab.hw.budget import Budget
from lab.hw.report import Result

TITLE = "Contract"
#: seconds for one test: one that hangs leaves the others their results
EACH_S = 15 if importlib.util.find_spec("pytest_timeout") else 0
ROOT = Path(__file__).resolve().parents[3]


def run(device: str, budget: Budget) -> Iterator[Result]:
    """Run pytest on tests/contract with this device alone."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["tests/contract", "--device", device]
        command += [f"--junitxml={told}", "-m", "not slow"]
        each = Path(folder) / "each"
        command += ["-p", "lab.hw.calls", f"--hw-tests={each}"]
        if budget.calls is not None:
            command += [f"--hw-calls={budget.calls}"]
        if EACH_S:
            command += [f"--timeout={EACH_S}"]
        done = process.run(command, max(1.0, budget.left), folder=ROOT, leader=False)
        if told.exists():
            yield from read(told.read_text(encoding="utf-8"))
            return
        lines = calls.lines_of(each)
        if not lines:
            remark = f"{done.trouble}; {(done.output + done.errors).strip()[-300:]}"
            yield Result(TITLE, "suite", "failed", remark=f"did not run: {remark}")
            return
        yield from unfinished(lines, done.trouble)


def unfinished(lines: Sequence[Mapping[str, str]], trouble: str) -> Iterator[Result]:
    """What a run that was cut off had told: one line for all, failures, and where it was."""
    ended = {line["test"]: line for line in lines if line["outcome"] != "begun"}
    counts = Counter(line["outcome"] for line in ended.values())
    remark = ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "none ended"
    yield Result(
        TITLE, "suite", "failed", float(counts["passed"]), "tests", f"{remark}; then it {trouble}"
    )
    for name, line in ended.items():
        if line["outcome"] == "failed":
            yield Result(TITLE, name.rpartition("::")[2], "failed", remark=line.get("words", ""))
    for line in lines:
        if line["test"] not in ended:
            name = line["test"].rpartition("::")[2]
            yield Result(TITLE, name, "failed", remark="had not ended when the time was over")


def read(text: str) -> Iterator[Result]:
    """What a file of pytest's results says: one line for all, one for each failure."""
    cases = list(ElementTree.fromstring(text).iter("testcase"))
    failed = [(case, bad) for case in cases for bad in case if bad.tag in ("failure", "error")]
    skipped = sum(any(part.tag == "skipped" for part in case) for case in cases)
    passed = len(cases) - len({id(case) for case, _ in failed}) - skipped
    outcome = "passed" if passed and not failed else "failed"
    remark = f"{passed} passed, {len(failed)} failed, {skipped} skipped"
    yield Result(TITLE, "suite", outcome, float(passed), "tests", remark)
    for case, bad in failed:
        words = (bad.get("message") or bad.text or "").strip().splitlines()
        yield Result(TITLE, case.get("name") or "?", "failed", remark=(words or [""])[0][:200])
