"""A search survives what candidates do: they hang, end their process, compute something else. Each
is provoked by a kernel that really does it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hcq
from compiler import Tensor
from compiler.codegen.emit import emit
from compiler.codegen.objects import compile_text
from compiler.dtype import float32
from compiler.graph import node as graph
from compiler.index.ranges import Computation, express
from compiler.kernel.choices import Choices, Chunk
from compiler.kernel.lower import lower
from compiler.runtime import use_cache
from compiler.schedule.grouping import schedule
from compiler.search import measurer as measuring
from compiler.search import tune
from compiler.search.measure import Candidate, Outcome, Parameter, Problem
from compiler.search.store import Store, key_of
from compiler.search.tune import KernelTuning, Tuner
from hcq.device import Device
from tests.support.compiler_cases import buffer

# put at the start of a kernel's function
HANG = """
  br label %spin
spin:
  %seen = load volatile i64, ptr %launch
  br label %spin
unreached:
"""
COUNT = 600_000  # elements: several chunks of every size
TRAP = "  call void @llvm.trap()\n"


@pytest.fixture
def device() -> Iterator[Device]:
    with hcq.open("cpu", threads=1) as opened:
        yield opened


def computation() -> Computation:
    tensor = buffer(COUNT, dtype=float32)
    root = graph.elementwise("mul", float32, tensor, graph.full(2.0, float32, (COUNT,)))
    (group,) = schedule([root])
    return express(group)


class Compiling(tune._Compiling):
    """Compiles the kernel of one record, and of every other one what it does instead."""

    instead = ""

    def result(self, choices: Choices, best_s: float, left_s: float) -> Candidate | Outcome:
        target = self.device.target
        kernel = lower(self.computation, target, choices)
        text = emit(kernel, target)
        start = lower(self.computation, target)
        if kernel.name != start.name:
            text = broken(text, kernel.name, self.instead)
        image = compile_text(text, target)
        return Candidate(image, kernel.name, kernel.grid, kernel.block, best_s)


def broken(text: str, name: str, instead: str) -> str:
    """A kernel's LLVM text with something at its start."""
    at = text.index("{\n", text.index(f"define void @{name}(")) + 2
    return "declare void @llvm.trap()\n" + text[:at] + instead + text[at:]


def tuned(
    device: Device, monkeypatch: pytest.MonkeyPatch, instead: str, budget_s: float
) -> tuple[KernelTuning, float, Store]:
    """What a search reports whose candidates do `instead`, and how long it took."""
    monkeypatch.setattr(Compiling, "instead", instead)
    monkeypatch.setattr(tune, "_Compiling", Compiling)
    store = Store(None)
    tuner = Tuner(2, budget_s, time.monotonic)
    measures = tuner._measurer(device)
    measures.prepare(Problem((Parameter("float32", COUNT),) * 2))
    first = Compiling(computation(), device).result(Chunk(16384), 0.0, budget_s)
    assert isinstance(first, Candidate) and measures.run(first).seconds  # its process has begun
    start = time.monotonic()
    tuner.end = start + budget_s
    try:
        tuner.tune(computation(), device, store)
    finally:
        tuner.close()
    elapsed = time.monotonic() - start
    (kernel,) = tuner.report.kernels
    return kernel, elapsed, store


def test_candidates_that_hang_are_ended_and_the_time_is_kept(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "SHARE", 1.0)
    kernel, elapsed, _ = tuned(device, monkeypatch, HANG, 5.0)
    assert elapsed < 60, "it would never end"
    assert kernel.found is not None and kernel.found.best is None and not kernel.found.finished
    assert "the default stays" in kernel.summary() and "the time was used up" in kernel.summary()
    assert kernel.details()[1].endswith("the time was used up")


def test_a_hanging_candidate_leaves_time_for_others(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring.Apart.__init__, "__defaults__", (0.3,))
    monkeypatch.setattr(measuring, "PATIENCE", 1.0)
    kernel, elapsed, _ = tuned(device, monkeypatch, HANG, 24.0)
    hung = [line for line in kernel.details() if "did not end" in line]
    assert len(hung) >= 2 and elapsed < 120.0


def test_candidates_that_end_their_process_are_named(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, _, _ = tuned(device, monkeypatch, TRAP, 24.0)
    assert kernel.found is not None and kernel.found.best is None
    lines = kernel.details()
    assert "ms" in lines[0] and any("ended its process (SIGILL" in line for line in lines[1:])
    assert "the default stays" in kernel.summary()


def test_candidates_that_compute_something_else_are_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, _, _ = tuned(device, monkeypatch, "  ret void\n", 120.0)
    assert kernel.found is not None and kernel.found.best is None
    outs = [line for line in kernel.details()[1:] if "the same kernel" not in line]
    assert len(outs) > 3 and all("another result" in line for line in outs)


def test_a_compiler_that_does_not_answer_keeps_the_time(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Never:
        def submit(self, *_: object) -> Never:
            return self

        def result(self, timeout_s: float) -> None:
            waits.append(timeout_s)
            raise TimeoutError

    waits: list[float] = []
    monkeypatch.setattr(tune, "shared", Never)
    tuner = Tuner(2, 3.0, time.monotonic)
    tuner.tune(computation(), device, Store(None))
    tuner.close()
    (kernel,) = tuner.report.kernels
    assert "the default stays: the time was used up" in kernel.summary()
    assert waits and max(waits) <= 3.0


def test_a_device_that_one_process_has_is_not_asked_too_late(device: Device) -> None:
    here = measuring.Here(device)
    kernel = lower(computation(), device.target)
    here.prepare(Problem((Parameter("float32", COUNT),) * 2))
    image = compile_text(emit(kernel, device.target), device.target)
    candidate = Candidate(image, kernel.name, kernel.grid, kernel.block)
    assert here.run(candidate, 0.0) == Outcome(None, "the time was used up")
    assert here.run(candidate, 5.0).seconds is not None
    here.close()


DAMAGED = (
    b'{"kind": "Chunk", "size": ',
    b'{"kind": "Chunk", "size": "many"}',
    b'{"kind": "Chunk", "size": -3}',
    b'{"kind": "Chunk", "size": [1, 2]}',
    b'{"kind": "Chunk", "size": 1024.5}',
    b"\xff\xfe",
)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_record_is_not_trusted(device: Device, tmp_path: Path, content: bytes) -> None:
    """And the next search writes it anew."""
    use_cache(device, tmp_path / "kernels")
    tensor = Tensor(np.ones(1000, np.float32), device=device).realize()
    (group,) = schedule([(tensor * 5).node])
    key = key_of(express(group), device)
    store = Store(tmp_path / "tuned")
    store.disk.put(key, content)
    assert np.array_equal((tensor * 5).numpy(), np.full(1000, 5, np.float32))
    if content in (DAMAGED[0], DAMAGED[-1]):
        assert store.disk.get(key) is None
    store.put(key, Chunk(512))
    assert store.get(key) == Chunk(512)
