"""A search survives what candidates do: they hang, end their process, compute something else. Each
is provoked by a kernel that really does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.clocks import Jumping
from tests.support.compiler.compiler_cases import buffer
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.kernel.choices import Choices, Chunk, Space
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.runtime.kernels.store import Store, key_of
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.compiler.search import measurer as measuring
from ugpu.compiler.search import tune
from ugpu.compiler.search.measure import Candidate, Outcome, Parameter, Problem
from ugpu.compiler.search.tune import KernelTuning, Tuner
from ugpu.hcq.device.device import Device

# put at the start of a kernel's function
HANG = """
  br label %spin
spin:
  %seen = load volatile i64, ptr %launch
  br label %spin
unreached:
"""
COUNT = 600_000  # elements: several chunks of every size
SIZES = Space(Chunk(16384), {"size": (4096, 65536)}, lambda _: True)
TRAP = "  call void @llvm.trap()\n"
AMPLE_S = 1e4  # a budget that no search here uses up


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
    """Compiles the kernel of one record, and of every other one what it does instead. met: told
    before each of those is run."""

    instead = ""
    met: Callable[[], None] = staticmethod(lambda: None)

    def result(self, choices: Choices, best_s: float, left_s: float) -> Candidate | Outcome:
        target = self.device.target
        kernel = lower(self.computation, target, choices)
        text = emit(kernel, target)
        start = lower(self.computation, target)
        if kernel.name != start.name:
            text = broken(text, kernel.name, self.instead)
            self.met()
        image = compile_text(text, target)
        return Candidate(image, kernel.name, kernel.grid, kernel.block, best_s)


def broken(text: str, name: str, instead: str) -> str:
    """A kernel's LLVM text with something at its start."""
    at = text.index("{\n", text.index(f"define void @{name}(")) + 2
    return "declare void @llvm.trap()\n" + text[:at] + instead + text[at:]


def tuned(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    instead: str,
    clock: Callable[[], float] = time.monotonic,
    met: Callable[[Tuner], None] = lambda _: None,
) -> KernelTuning:
    """What a search reports whose candidates do `instead`. met: told before each of them is run."""
    monkeypatch.setattr(Compiling, "instead", instead)
    monkeypatch.setattr(tune, "_Compiling", Compiling)
    monkeypatch.setattr(tune, "spaces", lambda *_: [SIZES])
    tuner = Tuner(2, AMPLE_S, clock)
    monkeypatch.setattr(Compiling, "met", staticmethod(lambda: met(tuner)))
    try:
        tuner.tune(computation(), device, Store(None))
    finally:
        tuner.close()
    (kernel,) = tuner.report.kernels
    return kernel


def test_candidates_that_hang_are_ended_and_the_time_is_kept(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second is left when the first of them is run, which is less than a candidate may take."""
    monkeypatch.setattr(tune, "SHARE", 1.0)
    assert measuring.LEAST_S > 1.0
    clock = Jumping()
    kernel = tuned(device, monkeypatch, HANG, clock, lambda tuner: clock.jump(tuner.end - 1.0))
    assert kernel.found is not None and kernel.found.best is None and not kernel.found.finished
    assert "the default stays" in kernel.summary() and "the time was used up" in kernel.summary()
    assert kernel.details()[1].endswith("the time was used up")


def test_a_hanging_candidate_leaves_time_for_others(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is ended by its own limit, which is not the default's."""
    monkeypatch.setattr(measuring.Apart.__init__, "__defaults__", (1e-3,))
    monkeypatch.setattr(measuring, "PATIENCE", 1.0)
    kernel = tuned(device, monkeypatch, HANG)
    assert kernel.found is not None and kernel.found.finished
    assert len([line for line in kernel.details() if "did not end" in line]) == 2


def test_candidates_that_end_their_process_are_named(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuned(device, monkeypatch, TRAP)
    assert kernel.found is not None and kernel.found.best is None
    lines = kernel.details()
    assert "ms" in lines[0] and len(lines) == 3
    assert all("ended its process (SIGILL" in line for line in lines[1:])
    assert "the default stays" in kernel.summary()


def test_candidates_that_compute_something_else_are_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuned(device, monkeypatch, "  ret void\n")
    assert kernel.found is not None and kernel.found.best is None
    outs = kernel.details()[1:]
    assert len(outs) == 2 and all("another result" in line for line in outs)


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
    tuner = Tuner(2, 3.0, lambda: 0.0)
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
