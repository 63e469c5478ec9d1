"""Tiles of products without matrix units: what the cost model prefers, and that all of it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.compiler.compiler_cases import GFX1100
from ugpu.compiler.kernel.gpu.tiles import LAUNCH, Product, best_tiles, cost, tiles_fit
from ugpu.hcq.state.target import ptx_target

SM_90 = ptx_target("sm_90", compute_units=132)


def product(rows: int, columns: int, depth: int, batch: int = 1) -> Product:
    return Product(rows, columns, depth, batch, 4)


@given(
    rows=st.integers(8, 5000),
    columns=st.integers(8, 5000),
    depth=st.integers(4, 5000),
    batch=st.integers(1, 300),
    width=st.sampled_from([1, 4, 8]),
)
def test_there_are_always_tiles(
    rows: int, columns: int, depth: int, batch: int, width: int
) -> None:
    quick = (replace(GFX1100, quick=True), replace(SM_90, quick=True))
    for target in (GFX1100, SM_90, replace(GFX1100, wave_size=64), *quick):
        problem = Product(rows, columns, depth, batch, width)
        assert tiles_fit(best_tiles(problem, target), width, target)


def test_large_products_have_large_blocks() -> None:
    """They read least from local memory and from far."""
    assert best_tiles(product(4096, 4096, 4096), GFX1100).block == (8, 8)
    assert best_tiles(product(4096, 4096, 4096), GFX1100).size == (128, 128)


def test_sums_of_eight_bytes_take_two_registers_each() -> None:
    rows, columns = best_tiles(Product(4096, 4096, 4096, 1, 8), GFX1100).block
    assert rows * columns == 32


def test_tiles_do_not_reach_far_beyond_the_output() -> None:
    tiles = best_tiles(product(5000, 20, 512), GFX1100)
    assert tiles.size[1] == 32
    assert best_tiles(product(20, 5000, 512), GFX1100).size[0] == 32


def test_what_takes_less_than_a_launch_has_the_least_code() -> None:
    small = product(96, 1024, 16)
    tiles = best_tiles(small, GFX1100)
    assert tiles.block == (4, 4)
    larger = replace(tiles, block=(8, 8))
    assert cost(tiles, small, GFX1100)[0] < cost(larger, small, GFX1100)[0] < LAUNCH


def test_a_long_depth_on_a_small_output_is_shared_by_more_groups() -> None:
    """Longer than a launch: the machine's units count, and there is one for each small tile."""
    tall, wide = best_tiles(product(256, 256, 8192), GFX1100).size
    tallest, widest = best_tiles(product(256, 256, 64), GFX1100).size
    assert tall * wide < tallest * widest


@pytest.mark.parametrize("factor", [2, 4])
def test_costs_grow_with_the_work(factor: int) -> None:
    tiles = best_tiles(product(512, 512, 512), GFX1100)
    once = cost(tiles, product(512, 512, 512), GFX1100)
    deeper = cost(tiles, product(512, 512, 512 * factor), GFX1100)
    assert deeper == (factor * once[0], factor * once[1])
    assert cost(tiles, product(512, 512, 512, factor), GFX1100)[1] == factor * once[1]


def test_products_of_models_have_little_text() -> None:
    """They are translated once more, in a time that grows with the text."""
    large = product(4096, 4096, 4096)
    for target in (GFX1100, SM_90):
        quick = replace(target, quick=True)
        assert best_tiles(large, quick).unroll == 1 < best_tiles(large, target).unroll
    assert best_tiles(large, replace(SM_90, quick=True)).block == (4, 4)
