"""Search over choices: what it tries, what it keeps, and what it survives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.clocks import Looks
from tests.support.compiler.compiler_cases import GFX1100, HOST, buffer
from tests.support.compiler.kernel_interpreter import interpret
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import DType, float16, float32
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel import choices as records
from ugpu.compiler.kernel.choices import (
    Choices,
    Chunk,
    MatrixTiles,
    Rows,
    Sharing,
    Space,
    Threads,
    Tile,
    Tiles,
)
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.runtime.kernels.store import Store, key_of
from ugpu.compiler.runtime.runtime import kernel_log, use_cache
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.compiler.search.beam import search
from ugpu.compiler.search.measure import Bench, Candidate, Outcome, Parameter, Problem
from ugpu.compiler.search.measurer import Apart, Here, measurer
from ugpu.compiler.search.tune import tuning
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.target import TargetSpec

ALL: list[Choices] = [
    MatrixTiles("gfx11.float16", (2, 2), (4, 4), 32, 2),
    Tiles((64, 32), (4, 8), 16, 4),
    Threads(4, 256),
    Sharing("columns", 32, 64),
    Rows(16, 256, 4, 32),
    Chunk(1024),
    Tile(6, 4, 66, 128),
]


# ---- records -----------------------------------------------------------------------------------


@pytest.mark.parametrize("record", ALL, ids=lambda r: type(r).__name__)
def test_records_are_written_and_read(record: Choices) -> None:
    assert records.from_text(records.to_text(record)) == record
    assert records.shown(record).startswith(type(record).__name__.lower() + " ")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kind": "Other"}', '{"kind": "Chunk"}', '{"kind": "Chunk", "x": 1}']
)
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        records.from_text(text)


# ---- spaces ------------------------------------------------------------------------------------


def computation(root: Node) -> Computation:
    (group,) = schedule([root])
    return express(group)


def product(rows: int, depth: int, columns: int, element: DType = float32) -> Node:
    left, right = buffer(rows, depth, dtype=element), buffer(depth, columns, dtype=element)
    shape = (rows, columns, depth)
    ours = graph.expand(graph.reshape(graph.cast(left, float32), (rows, 1, depth)), shape)
    theirs = graph.reshape(graph.permute(graph.cast(right, float32), (1, 0)), (1, columns, depth))
    summed = graph.elementwise("mul", float32, ours, graph.expand(theirs, shape))
    return graph.reshape(graph.reduce("sum", summed, (2,)), (rows, columns))


def total(axis: int) -> Node:
    return graph.reduce("sum", buffer(96, 130, dtype=float32), (axis,))


def doubled() -> Node:
    tensor = graph.permute(buffer(24, 64, dtype=float32), (1, 0))
    return graph.elementwise("add", float32, tensor, tensor)


CASES = {
    "product": lambda: product(40, 24, 56),
    "half product": lambda: product(40, 24, 56, float16),
    "rows": lambda: total(1),
    "columns": lambda: total(0),
    "double": doubled,
}


@pytest.mark.parametrize("target", [HOST, GFX1100], ids=["host", "gfx1100"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_first_space_starts_at_the_default(name: str, target: TargetSpec) -> None:
    computed = computation(CASES[name]())
    found = spaces(computed, target)
    assert found and all(space.fits(space.start) for space in found)
    assert lower(computed, target, found[0].start).name == lower(computed, target).name


@pytest.mark.parametrize("target", [HOST, GFX1100], ids=["host", "gfx1100"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_neighbour_makes_a_kernel_of_its_own(name: str, target: TargetSpec) -> None:
    """All are verified; that they compute the same is tested where they run."""
    computed = computation(CASES[name]())
    for space in spaces(computed, target):
        others = list(space.neighbours(space.start))
        assert len(others) >= 3
        kernels = {lower(computed, target, other).name for other in others}
        assert len(kernels) >= len(others) // 4


def test_neighbours_of_products_compute_products() -> None:
    """By the interpreter of the IR; matrix units have their own test."""
    random = np.random.default_rng(3)
    left, right = (random.integers(-4, 5, s).astype(np.float32) for s in ((40, 24), (24, 56)))
    computed = computation(product(40, 24, 56))
    (space,) = spaces(computed, GFX1100)
    others = list(space.neighbours(space.start))
    for other in others[:: max(1, len(others) // 4)]:
        kernel = lower(computed, GFX1100, other)

        def none(*_: object) -> NDArray[Any]:
            raise AssertionError("no matrix units here")

        found = interpret(kernel, [left, right], none)
        np.testing.assert_array_equal(found.reshape(40, 56), left @ right, err_msg=str(other))


# ---- the beam ----------------------------------------------------------------------------------


class Clock:
    """A second a measurement."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def valley(clock: Clock, chunk: Choices) -> Outcome:
    """Best at 64; 32 computes something else."""
    assert isinstance(chunk, Chunk)
    clock.now += 1
    if chunk.size == 32:
        return Outcome(None, "wrong")
    return Outcome(1 + abs(chunk.size - 64) / 100)


SIZES = Space(Chunk(8), {"size": tuple(2**n for n in range(10))}, lambda c: c.size != 128)


def test_the_beam_finds_the_best_of_a_space() -> None:
    clock = Clock()
    seen: list[float] = []

    def measure(choices: Choices, best_s: float) -> Outcome:
        seen.append(best_s)
        return valley(clock, choices)

    found = search([SIZES], measure, 2, 1000, clock)
    assert found.finished and found.best is not None and found.best.choices == Chunk(64)
    tried = [trial.choices for trial in found.trials]
    assert tried[0] == Chunk(8) and len(set(tried)) == len(tried) == 9  # 128 does not fit
    assert seen[0] == 0.0 and seen[1] == pytest.approx(1.56)  # the best so far is passed on
    assert any(trial.outcome.reason == "wrong" for trial in found.trials)


def test_the_time_is_kept() -> None:
    clock = Clock()
    found = search([SIZES], lambda c, _: valley(clock, c), 1, 3.5, clock)
    assert not found.finished and len(found.trials) == 4


def test_what_is_next_is_said_ahead() -> None:
    clock = Clock()
    ahead: list[int] = []

    def told(coming: Sequence[Choices]) -> None:
        ahead.append(len(coming))

    search([SIZES], lambda c, _: valley(clock, c), 1, 1000, clock, told)
    assert ahead[0] > 1 and min(ahead) == 1


def test_noise_is_no_gain() -> None:
    """Everything takes about the same: the default stays."""

    def measure(choices: Choices, _: float) -> Outcome:
        assert isinstance(choices, Chunk)
        return Outcome(1 - choices.size / 1e5)

    found = search([SIZES], measure, 3, 1000)
    assert found.finished and found.best is None


def test_a_winner_that_does_not_win_again_is_dropped() -> None:
    calls: dict[Choices, int] = {}

    def measure(choices: Choices, _: float) -> Outcome:
        calls[choices] = calls.get(choices, 0) + 1
        if calls[choices] > 1:
            return Outcome(None, "crashed this time")
        return Outcome(0.5 if choices == Chunk(64) else 1.0)

    assert search([SIZES], measure, 2, 1000).best is None


def test_a_default_that_does_not_run_ends_the_search() -> None:
    found = search([SIZES], lambda *_: Outcome(None, "no device"), 2, 1000)
    assert found.best is None and len(found.trials) == 1


def test_other_spaces_are_entered() -> None:
    other = Space(Threads(1, 64), {"width": (1, 2, 4)}, lambda _: True)

    def measure(choices: Choices, _: float) -> Outcome:
        return Outcome(1 / choices.width if isinstance(choices, Threads) else 2.0)

    found = search([SIZES, other], measure, 1, 1000)
    assert found.best is not None and found.best.choices == Threads(4, 64)


# ---- measuring ---------------------------------------------------------------------------------


@pytest.fixture
def apart(cpu: Device) -> Iterator[Apart]:
    found = measurer(cpu)
    assert isinstance(found, Apart)
    yield found
    found.close()


def candidate(device: Device, number: float) -> tuple[Problem, Candidate]:
    """A kernel that multiplies 64 floats by a number."""
    tensor = buffer(64, dtype=float32)
    root = graph.elementwise("mul", float32, tensor, graph.full(number, float32, (64,)))
    computed = computation(root)
    kernel = lower(computed, device.target)
    image = compile_text(emit(kernel, device.target), device.target)
    parameters = Problem((Parameter("float32", 64), Parameter("float32", 64)))
    return parameters, Candidate(image, kernel.name, kernel.grid, kernel.block)


def test_results_are_compared(cpu: Device, apart: Apart) -> None:
    parameters, twice = candidate(cpu, 2.0)
    _, thrice = candidate(cpu, 3.0)
    apart.prepare(parameters)
    first = apart.run(twice)
    assert first.seconds is not None and first.seconds > 0
    assert apart.run(thrice) == Outcome(None, "another result than the default's")
    assert apart.run(twice).seconds is not None


def test_the_default_has_time_to_run(cpu: Device, apart: Apart) -> None:
    """It is what the others are compared with: only they are given up after a while."""
    apart.least_s = 0.0
    parameters, twice = candidate(cpu, 2.0)
    apart.prepare(parameters)
    assert apart.run(twice).seconds is not None
    assert "did not end" in apart.run(twice).reason


def test_a_candidate_that_crashes_takes_only_its_process(cpu: Device, apart: Apart) -> None:
    parameters, twice = candidate(cpu, 2.0)
    _, thrice = candidate(cpu, 3.0)
    apart.prepare(parameters)
    assert apart.run(twice).seconds is not None
    process = apart.process.process
    assert process is not None
    os.kill(process.pid, signal.SIGSEGV)
    process.wait(60)
    assert "SIGSEGV" in apart.run(twice).reason
    # the next process is told the reference again
    assert apart.run(thrice) == Outcome(None, "another result than the default's")


def test_a_candidate_that_never_ends_is_given_up(cpu: Device, apart: Apart) -> None:
    parameters, twice = candidate(cpu, 2.0)
    apart.prepare(parameters)
    assert apart.run(twice).seconds is not None
    process = apart.process.process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    apart.least_s = 0.1
    assert "did not end" in apart.run(twice).reason
    assert process.returncode == -signal.SIGKILL
    apart.least_s = 60
    assert apart.run(twice).seconds is not None


def test_a_candidate_that_the_device_refuses(cpu: Device, apart: Apart) -> None:
    parameters, twice = candidate(cpu, 2.0)
    apart.prepare(parameters)
    broken = Candidate(twice.image[:100], twice.kernel, twice.grid, twice.block)
    assert "BadCodeObject" in apart.run(broken).reason
    assert apart.run(twice).seconds is not None


def test_a_device_of_one_process_measures_itself(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu.driver.core, "name", "pci:0000:03:00.0")
    here = measurer(cpu)
    assert isinstance(here, Here)
    parameters, twice = candidate(cpu, 2.0)
    _, thrice = candidate(cpu, 3.0)
    here.prepare(parameters)
    assert here.run(twice).seconds is not None
    assert here.run(thrice).seconds is None
    assert "Bad" in here.run(Candidate(b"", "k", (1, 1, 1), 1)).reason
    here.close()


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "bfloat16", "float32"])
def test_arrays_of_every_type(cpu: Device, name: str) -> None:
    arrays = (Parameter(name, 10), Parameter(name, 5), Parameter(name, 1))
    with Bench(cpu, Problem(arrays, 2)) as bench:
        assert bench.agrees()
        bench.buffers[2].copy_from(np.full(bench.buffers[2].size, 0x3D, np.uint8))  # an input
        assert bench.agrees()
        bench.buffers[1].copy_from(np.full(bench.buffers[1].size, 0x3D, np.uint8))
        assert bench.agrees() is False


# ---- tuning, from the top ----------------------------------------------------------------------


def test_a_search_is_kept_on_disk_and_used(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((64, 700)).astype(np.float32)
    with hcq.open("cpu", threads=1) as device:
        use_cache(device, tmp_path / "kernels")
        tensor = Tensor(array, device=device).realize()
        with kernel_log() as plain:
            (tensor * 2 + 1).realize()
        with tuning(beam=2, budget_s=48, clock=Looks()) as report:
            found = (tensor * 2 + 1).numpy()
        np.testing.assert_array_equal(found, array * 2 + 1)
        (kernel,) = report.kernels
        assert kernel.name == plain[0].name and kernel.found is not None
        assert len(kernel.details()) == len(kernel.found.trials) >= 2
        words = "the default stays: nothing was faster" if kernel.found.best is None else " -> "
        assert words in kernel.summary()
        # whatever the search found, write another record and see that it is used
        (group,) = schedule([(tensor * 2 + 1).node])
        key = key_of(express(group), device)
    Store(tmp_path / "tuned").put(key, Chunk(1024))
    with hcq.open("cpu", threads=1) as device:
        use_cache(device, tmp_path / "kernels")
        tensor = Tensor(array, device=device).realize()
        with kernel_log() as tuned:
            np.testing.assert_array_equal((tensor * 2 + 1).numpy(), array * 2 + 1)
        assert tuned[0].name != plain[0].name


BAD_RECORDS = (
    b"damaged", b'{"kind": "Chunk"}', b'{"kind": "Threads", "width": 1, "block": 64}'
)  # fmt: skip


@pytest.mark.parametrize("content", BAD_RECORDS)
def test_a_record_that_does_not_fit_is_passed_over(tmp_path: Path, content: bytes) -> None:
    with hcq.open("cpu", threads=1) as device:
        use_cache(device, tmp_path / "kernels")
        tensor = Tensor(np.ones(1000, np.float32), device=device).realize()
        (group,) = schedule([(tensor * 5).node])
        Store(tmp_path / "tuned").disk.put(key_of(express(group), device), content)
        assert np.array_equal((tensor * 5).numpy(), np.full(1000, 5, np.float32))


def test_a_key_names_the_whole_target(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = computation(doubled())
    keys = {key_of(computed, cpu), key_of(computation(total(0)), cpu)}
    for field, value in (("cpu", "other"), ("features", ""), ("compute_units", 77)):
        with monkeypatch.context() as patched:
            target = TargetSpec(**{**cpu.target.__dict__, field: value})
            patched.setattr(cpu.driver, "target", target)
            keys.add(key_of(computed, cpu))
    for name in ("virtual:navi31", "pci:0000:03:00.0"):
        monkeypatch.setattr(cpu.driver.core, "name", name)
        keys.add(key_of(computed, cpu))
    assert len(keys) == 7


def test_kernels_of_several_results(tmp_path: Path) -> None:
    array = np.arange(6000, dtype=np.float32).reshape(60, 100)
    with hcq.open("cpu", threads=1) as device:
        use_cache(device, tmp_path / "kernels")
        tensor = Tensor(array, device=device).realize()
        one, two = tensor * 3, tensor + 5
        with tuning(beam=1, budget_s=100, clock=Looks()) as report:
            one.realize(two)
        np.testing.assert_array_equal(one.numpy(), array * 3)
        np.testing.assert_array_equal(two.numpy(), array + 5)
        assert all(kernel.found is not None for kernel in report.kernels)


def test_kernels_beyond_the_budget_are_named(tmp_path: Path) -> None:
    clock = Clock()
    with hcq.open("cpu", threads=1) as device:
        use_cache(device, tmp_path / "kernels")
        tensor = Tensor(np.ones((8, 64), np.float32), device=device).realize()
        with tuning(beam=1, budget_s=5, clock=clock) as report:
            clock.now = 6
            (tensor * 3).realize()
            (tensor * 3).realize()  # once only
            tensor.softmax().realize()
    notes = [kernel.summary() for kernel in report.kernels]
    assert "the time was used up" in notes[0] and len(notes) == 2
    assert "no choices" in notes[1]


@pytest.mark.parametrize(("beam", "budget"), [(0, 1.0), (-1, 1.0), (2, 0.0), (2, float("nan"))])
def test_senseless_limits_are_refused(beam: int, budget: float) -> None:
    with pytest.raises(BadArgument, match="tuning"), tuning(beam=beam, budget_s=budget):
        pass


@pytest.mark.slow
def test_a_product_on_the_virtual_gpu_gets_faster(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((128, 128)).astype(np.float32)
    with hcq.open("virtual:navi31") as device:
        use_cache(device, tmp_path / "kernels")
        tensor = Tensor(array, device=device).realize()
        with tuning(beam=2, budget_s=100, clock=Looks()) as report:
            found = (tensor @ tensor).numpy()
        np.testing.assert_allclose(found, array @ array, rtol=1e-5)
        assert report.kernels[0].found is not None
        assert len(report.kernels[0].found.trials) > 5
