"""The operation corpus on the device, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator

from lab.hw.budget import Budget
from lab.hw.report import Result
from tests.support.corpus.operation_corpus import corpus
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import NotSupported, UgpuError

TITLE = "Operations against NumPy"


def run(device: str, budget: Budget) -> Iterator[Result]:
    """Every case; those for which there was no time are counted as not run, never as passed."""
    cases = list(corpus().values())
    passed = lacking = done = 0
    with hcq.open(device) as opened:
        for case in cases:
            if budget.left <= 0:
                break
            done += 1
            try:
                case.check(opened)
                passed += 1
            except NotSupported as error:
                lacking += 1
                yield Result(TITLE, case.name, "skipped", remark=str(error)[:200])
            except (UgpuError, AssertionError) as error:
                yield Result(TITLE, case.name, "failed", remark=_first_words(error))
                if not _usable(opened):
                    break
    whole = passed == len(cases)
    remark = f"{passed} of {len(cases)}; {lacking} not supported, {len(cases) - done} not run"
    outcome = "passed" if whole else "failed" if passed + lacking < done else "skipped"
    yield Result(TITLE, "corpus", outcome, float(passed), "cases", remark)


def _usable(device: Device) -> bool:
    """Bring the device back after a failure; False where it stays down."""
    if device.failure is None:
        return True
    try:
        device.reset()
    except UgpuError:
        return False
    return True


def _first_words(error: BaseException) -> str:
    words = f"{type(error).__name__}: {error}".strip().splitlines()
    return " ".join(words)[:200]
