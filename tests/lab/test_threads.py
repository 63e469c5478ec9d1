"""The stress program finds what it is for: calls that return without their work, and leaks."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from lab import threads
from lab.stress import Ledger, Worker
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.core import Core


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu", "virtual:navi31", "virtual:gh100", "virtual:a630"])
def test_a_short_run_finds_nothing(name: str) -> None:
    ledger = Ledger()
    assert threads.run_round(name, seed=3, seconds=2.0, count=8, ledger=ledger)
    assert ledger.findings == [] and ledger.done["reset"] and ledger.done["launch"]


@pytest.fixture
def worker() -> Worker:
    device = hcq.open("cpu", threads=1)
    return Worker(device, contract_object(device.target), 1, Ledger(), threading.Event())


def test_work_that_is_lost_in_silence_is_found(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a device dropped what is submitted to it: a launch, and a fault."""
    with worker.device:
        worker.kernels()
        monkeypatch.setattr(Core, "submit", lambda *_: 0)
        monkeypatch.setattr(Core, "submit_prepared", lambda *_: 0)
        worker._do("launch")
        worker._do("fault")
        monkeypatch.undo()
    launch, fault = worker.ledger.findings
    assert launch == "a launch returned, but its work was not done"
    assert fault.startswith("a wait for a fault on a ") and fault.endswith(" queue returned")


def test_growth_is_found() -> None:
    ledger = Ledger()
    threads.check_growth([(5, 2, 100.0), (6, 2, 150.0), (9, 2, 180.0)], ledger)
    assert ledger.findings == ["descriptors grow: 6 after round 2, 9 after round 3"]
    threads.check_growth([(5, 2, 100.0), (6, 2, 150.0), (6, 3, 260.0)], ledger)
    assert ledger.findings[1:] == ["megabytes grow: 150 after round 2, 260 after round 3"]


def test_other_exceptions_are_found(worker: Worker) -> None:
    def broken() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    with worker.device:
        worker.operations["sensors"] = broken
        worker._do("sensors")
    assert "RuntimeError is not an error of ours" in worker.ledger.findings[0]


def test_memory_that_a_reset_lost_is_no_finding(worker: Worker) -> None:
    with worker.device:
        worker.ledger.memory_lost += 1
        worker.expect("a launch", right=False, lost=0)
        assert worker.ledger.findings == []
        worker.expect("a launch", right=bool(np.array([0]).any()), lost=1)
    assert worker.ledger.findings == ["a launch returned, but its work was not done"]
