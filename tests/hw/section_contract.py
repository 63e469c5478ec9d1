"""The contract suite on the device: what every device must do alike."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from tests.hw.budget import Budget
from tests.hw.report import Result

TITLE = "Contract"
ROOT = Path(__file__).resolve().parents[2]
#: not about the device: transports have a suite of their own
LEFT_OUT = "tests/contract/test_contract_transport.py"


def run(device: str, budget: Budget) -> Iterator[Result]:
    """Run pytest on tests/contract with this device alone."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["tests/contract", f"--ignore={LEFT_OUT}", "--device", device]
        command += [f"--junitxml={told}", "-m", "not slow"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=max(1.0, budget.left)
            )
        except subprocess.TimeoutExpired:
            yield Result(TITLE, "suite", "failed", remark="did not end within its time")
            return
        if not told.exists():
            remark = (done.stdout + done.stderr).strip()[-300:]
            yield Result(TITLE, "suite", "failed", remark=f"did not run: {remark}")
            return
        yield from read(told.read_text(encoding="utf-8"))


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
