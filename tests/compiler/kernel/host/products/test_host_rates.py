"""Blocking of products by what a processor is: tables of five, none of them the host."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.compiler.compiler_cases import HOST
from ugpu.compiler.expression.algebra import Range
from ugpu.compiler.kernel.choices import Tile
from ugpu.compiler.kernel.host.nest import Axis
from ugpu.compiler.kernel.host.products.rates import DEFAULT, rates_of, row_cost
from ugpu.compiler.kernel.host.products.tiles import Problem, slice_steps, vector_registers
from ugpu.hcq.state.target import Caches, TargetSpec

INTEL, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


def _target(cpu: str, vector_bytes: int, first: int, second: int, triple: str) -> TargetSpec:
    return TargetSpec(
        name="host", abi="host", triple=triple, cpu=cpu, vector_bytes=vector_bytes,
        compute_units=2, caches=Caches(first << 10, second << 10),
    )  # fmt: skip


TARGETS = {
    "Zen 4": _target("znver4", 64, 32, 1024, INTEL),
    "Sapphire Rapids": _target("sapphirerapids", 64, 48, 2048, INTEL),
    "Granite Rapids": _target("graniterapids", 64, 48, 2048, INTEL),
    "Skylake": _target("skylake", 32, 32, 256, INTEL),
    "Neoverse N1": _target("neoverse-n1", 16, 64, 1024, ARM),
}


def _square(target: TargetSpec, size: int) -> Problem:
    """size^3 of float32; the left factor's rows may be read six at a time where they lie."""
    steps = -(-size // -(-size // slice_steps(target)))
    rows, columns = Axis(Range("r", size)), Axis(Range("c", size))
    return Problem(
        rows, columns, 1, size, steps, 4, target.vector_bytes // 4, vector_registers(target),
        target.compute_units, rates_of(target), direct_height=6,
    )  # fmt: skip


@pytest.mark.parametrize("size", [512, 1024, 2048, 4096])
@pytest.mark.parametrize("name", TARGETS)
def test_blocking_follows_registers_and_caches(name: str, size: int) -> None:
    target = TARGETS[name]
    problem = _square(target, size)
    tile = problem.best()
    registers = vector_registers(target)
    assert tile.height * tile.vectors + tile.vectors + 2 <= registers
    assert tile.height * tile.vectors >= registers // 2 + registers // 4  # mostly totals
    slice_bytes = 4 * problem.slice_steps
    left, right = tile.rows * slice_bytes, tile.columns * slice_bytes
    assert left <= target.caches.second * 11 // 32
    assert left + right <= target.caches.second
    # a panel's vectors stay in the first level, or multiplications hide that they do not
    panel = tile.vectors * target.vector_bytes * problem.slice_steps
    assert panel <= target.caches.first or not problem.rates.spill
    if size >= 2048:  # a thread's whole work, packing and edges included, beside the best there is
        ideal = size**3 / problem.lanes / target.compute_units
        assert ideal / problem.cost(tile) > 0.84


def test_zen_4_is_blocked_as_measured() -> None:
    """lab/bench/compiler/bench_compiler_tiles.py found these the best, within its noise."""
    assert _square(TARGETS["Zen 4"], 1024).best() == Tile(6, 4, 258, 64)
    assert _square(TARGETS["Zen 4"], 2048).best() == Tile(6, 4, 342, 128)
    assert rates_of(TARGETS["Zen 4"]) == DEFAULT


def test_larger_caches_make_larger_slices() -> None:
    """Granite Rapids: slices half as large again, packed half as often, by a core that multiplies
    twice as fast beside a slow third level."""
    zen, rapids = TARGETS["Zen 4"], TARGETS["Granite Rapids"]
    assert slice_steps(zen) == 256
    assert slice_steps(rapids) == 384
    problem = _square(rapids, 2048)
    tile, other = problem.best(), _square(zen, 2048).best()
    assert tile.rows * tile.columns > other.rows * other.columns
    assert problem.cost(tile) < 0.95 * problem.cost(other)


def _far(rows: int, depth: int, columns: int) -> tuple[Problem, Problem]:
    """Weights that come from the second-level cache, and from beyond it."""
    target = TARGETS["Sapphire Rapids"]
    steps = -(-depth // -(-depth // slice_steps(target)))
    near = Problem(
        Axis(Range("r", rows)), Axis(Range("c", columns)), 1, depth, steps, 4, 16, 32, 1,
        rates_of(target), direct_height=rows, in_lines=True,
    )  # fmt: skip
    return near, dataclasses.replace(near, row=row_cost(target, depth * columns * 4))


@pytest.mark.parametrize(("rows", "depth", "columns"), [(32, 384, 1536), (32, 1536, 384)])
def test_far_factors_are_read_in_place(rows: int, depth: int, columns: int) -> None:
    """Weights from beyond the second-level cache are not packed for up to 12 panels of rows, which
    read them in lines that are prefetched."""
    near, far = _far(rows, depth, columns)
    assert near.row == 0 < far.row
    tile = far.best()
    assert far.in_place(tile)
    assert tile.vectors > 1  # some lines of each row
    assert not near.in_place(Tile(tile.height, tile.vectors, rows, columns))


@pytest.mark.parametrize(("rows", "depth", "columns"), [(128, 384, 1536), (32, 384, 1500)])
def test_far_factors_are_packed_in_long_rows(rows: int, depth: int, columns: int) -> None:
    """Where many rows read them, or panels are incomplete, they are read once, and not a few lines
    of each row at a time."""
    target = TARGETS["Sapphire Rapids"]
    _, far = _far(rows, depth, columns)
    tile = far.best()
    assert not far.in_place(tile)
    assert tile.columns * 4 >= 8 * target.vector_bytes
    assert row_cost(target, 128 << 10) == row_cost(TARGETS["Zen 4"], depth * columns * 4) == 0


def test_masked_vectors_have_ports_of_their_own() -> None:
    """Zen 4 without AVX-512: two multiplications of 32 bytes a cycle, so that all else costs twice
    as much beside one."""
    narrow = rates_of(dataclasses.replace(TARGETS["Zen 4"], vector_bytes=32))
    assert narrow.pack == pytest.approx(2 * DEFAULT.pack)
    assert narrow.load == pytest.approx(1.0)


def test_measured_processors_have_the_default() -> None:
    """On Sapphire Rapids panels of a Zen 4 are the faster ones, unless loads are as many."""
    assert rates_of(TARGETS["Sapphire Rapids"]) == dataclasses.replace(
        DEFAULT, load=1.0, first=48 << 10, second=2048 << 10
    )


def test_unknown_processors_have_the_default() -> None:
    assert rates_of(HOST) == DEFAULT


@pytest.mark.parametrize("first", [4 << 10, 32 << 10, 128 << 10, 1 << 20])
def test_slices_of_any_cache_are_some_vectors(first: int) -> None:
    steps = slice_steps(dataclasses.replace(HOST, caches=Caches(first, 4 << 20)))
    assert 128 <= steps <= 512
    assert steps % 64 == 0
