"""Rows on GPUs: any length, shared by any number of threads; lanes that exchange totals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import GFX1100, buffer, disassembly
from tests.support.compiler.compiler_devices import device_fixture
from tests.support.compiler.kernel_interpreter import interpret
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import DType, bool_, float16, float32, int64, uint8
from ugpu.compiler.expression.algebra import at_least_zero, constant
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import Memory, load
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.choices import Rows, Sharing, Tiles
from ugpu.compiler.kernel.gpu.join import exchange, join
from ugpu.compiler.kernel.ir import If, Kernel, Store, thread_range
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.kernel.verify import BrokenKernel, verify
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import ptx_target

Array = NDArray[Any]
GFX942 = replace(GFX1100, name="gfx942", cpu="gfx942", wave_size=64, matrix="gfx942")


device = device_fixture("virtual:navi31", "virtual:gh100")


def layer_norm(x: Tensor) -> Tensor:
    apart = x - x.mean(-1, keepdims=True)
    return apart / ((apart * apart).mean(-1, keepdims=True) + 1e-5).sqrt()


def softmax_of(x: Array) -> Array:
    raised = np.exp(x - x.max(-1, keepdims=True))
    shares: Array = raised / raised.sum(-1, keepdims=True)
    return shares


def layer_norm_of(x: Array) -> Array:
    apart = x - x.mean(-1, keepdims=True)
    scaled: Array = apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + 1e-5)
    return scaled


ROWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "softmax": (lambda x: x.softmax(), softmax_of),
    "layer norm": (layer_norm, layer_norm_of),
    "sum": (lambda x: x.sum(-1), lambda x: x.sum(-1)),
    "argmax": (lambda x: x.argmax(-1), lambda x: x.argmax(-1)),
}


def check(device: Device, name: str, rows: int, length: int) -> None:
    array = np.random.default_rng(rows * length).normal(0, 3, (rows, length)).astype(np.float32)
    ours, theirs = ROWS[name]
    found = ours(Tensor(array, device=device)).numpy()
    np.testing.assert_allclose(found, theirs(array.astype(np.float64)), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("name", sorted(ROWS))
@pytest.mark.parametrize(
    "shape", [(1, 1), (300, 2), (37, 31), (9, 33), (5, 64), (3, 255), (2, 1025), (2, 4097)]
)
def test_lengths_around_waves_and_groups(device: Device, name: str, shape: tuple[int, int]) -> None:
    check(device, name, *shape)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(ROWS)), rows=st.integers(1, 70), length=st.integers(1, 4097))
def test_rows_of_any_length(device: Device, name: str, rows: int, length: int) -> None:
    check(device, name, rows, length)


# ---- choices -----------------------------------------------------------------------------------


def computation(root: Node) -> Computation:
    (group,) = schedule([root])
    return express(group)


def shares(rows: int, length: int, dtype: DType = float32) -> Node:
    """Each element beside the largest of its row."""
    table = buffer(rows, length, dtype=dtype)
    largest = graph.expand(graph.reduce("max", table, (1,)), (rows, length))
    return graph.elementwise("sub", dtype, table, largest)


def none(*_: object) -> Array:
    raise AssertionError("no matrix units here")


@pytest.mark.parametrize("target", [GFX1100, ptx_target("sm_80"), GFX942], ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(5, 48), (70, 20), (3, 300), (7, 131), (5, 1027)])
def test_every_choice_computes_the_same(target: Any, shape: tuple[int, int]) -> None:
    table = np.random.default_rng(1).integers(-50, 50, shape).astype(np.float32)
    computed = computation(shares(*shape))
    (space,) = spaces(computed, target)
    assert isinstance(space.start, Rows) and space.fits(space.start)
    others = [space.start, *space.neighbours(space.start)]
    assert len({record.lanes for record in others if isinstance(record, Rows)}) >= 4
    for record in others:
        found = interpret(lower(computed, target, record), [table], none).reshape(shape)
        expected = table - table.max(1, keepdims=True)
        np.testing.assert_array_equal(found, expected, err_msg=str(record))


@pytest.mark.parametrize("shape", [(5, 48), (200, 20), (2, 700), (5, 301)])
def test_every_way_to_add_up(shape: tuple[int, int]) -> None:
    table = np.random.default_rng(1).integers(-50, 50, shape).astype(np.float32)
    computed = computation(graph.reduce("sum", buffer(*shape, dtype=float32), (1,)))
    (space,) = spaces(computed, GFX1100)
    for record in [space.start, *space.neighbours(space.start)]:
        found = interpret(lower(computed, GFX1100, record), [table], none)
        np.testing.assert_array_equal(found, table.sum(1), err_msg=str(record))


def test_defaults_follow_the_shape() -> None:
    def start(rows: int, length: int) -> Rows:
        (space,) = spaces(computation(shares(rows, length)), GFX1100)
        assert isinstance(space.start, Rows)
        return space.start

    assert start(16, 64).lanes == 16  # a lane for each vector
    assert start(1 << 16, 64).lanes < 16  # rows enough for the machine: fewer joins
    assert start(16, 4096).lanes == start(16, 4096).block == 256
    assert start(3, 64).block < start(3000, 64).block
    down = graph.permute(buffer(300, 500, dtype=float32), (1, 0))
    largest = graph.expand(graph.reduce("max", down, (1,)), (500, 300))
    (space,) = spaces(computation(graph.elementwise("sub", float32, down, largest)), GFX1100)
    assert isinstance(space.start, Rows) and space.start.lanes == 1  # memory runs across


def test_another_kind_of_choices_is_not_taken() -> None:
    (space,) = spaces(computation(graph.reduce("sum", buffer(9, 90, dtype=float32), (1,))), GFX1100)
    assert isinstance(space.start, Sharing) and not isinstance(space.start, Tiles | Rows)


# ---- lanes -------------------------------------------------------------------------------------


def joined(block: int, mask: int, dtype: DType = float32) -> Kernel:
    """Each thread's element beside another lane's."""
    source, out = Memory("in0", dtype, block), Memory("out", dtype, block)
    thread = thread_range(block).index()
    body = (Store(out, thread, exchange(load(source, thread), mask)),)
    return Kernel("kernel", (out, source), (), (1, 1, 1), block, body)


@pytest.mark.parametrize(
    ("target", "mask", "instruction"),
    [
        (GFX1100, 1, "row_xmask:1"),
        (GFX1100, 8, "row_xmask:8"),
        (GFX1100, 16, "v_permlanex16_b32"),
        (GFX942, 4, "ds_swizzle_b32"),
        (GFX942, 16, "ds_swizzle_b32"),
        (GFX942, 32, "ds_bpermute_b32"),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_instructions_that_move_between_lanes(target: Any, mask: int, instruction: str) -> None:
    text = disassembly(verify(joined(64, mask)), target)
    assert text.count(instruction) == 1


@pytest.mark.parametrize("dtype", [float16, bool_, uint8, int64], ids=lambda d: d.name)
def test_values_of_every_width_are_exchanged(dtype: DType) -> None:
    words = 2 if dtype is int64 else 1
    text = disassembly(verify(joined(32, 2, dtype)))
    assert text.count("row_xmask:2") == words


def test_exchanges_are_for_whole_waves() -> None:
    kernel = joined(64, 2)
    inside = at_least_zero(constant(9) - thread_range(64).index())
    with pytest.raises(BrokenKernel, match="whole waves"):
        verify(replace(kernel, body=(If(inside, kernel.body),)))
    for mask in (0, 3, 64):
        with pytest.raises(BrokenKernel):
            verify(joined(64, mask))


@pytest.mark.parametrize("lanes", [2, 16, 32, 64, 256])
def test_totals_are_joined_for_all(lanes: int) -> None:
    block = max(64, lanes)
    source, out = Memory("in0", float32, block), Memory("out", float32, block)
    total = Memory("total", float32, 1, "register")
    shared = Memory("shared", float32, lanes // 32, "local") if lanes > 32 else None
    thread = thread_range(block).index()
    body = (
        Store(total, constant(0), load(source, thread)),
        *join("max", total, lanes, block, 32, shared),
        Store(out, thread, load(total, constant(0))),
    )
    memories = (total, shared) if shared is not None else (total,)
    kernel = verify(Kernel("kernel", (out, source), memories, (1, 1, 1), block, body))
    numbers = np.random.default_rng(0).normal(size=block).astype(np.float32)
    expected = np.repeat(numbers.reshape(-1, lanes).max(1), lanes)
    np.testing.assert_array_equal(interpret(kernel, [numbers], none), expected)
