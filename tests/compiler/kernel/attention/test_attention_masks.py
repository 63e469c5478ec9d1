"""Masks made of comparisons of ranges: what they hide is not computed, and nothing else changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import GFX1100
from tests.support.compiler.compiler_devices import device_fixture
from tests.support.compiler.kernel_interpreter import interpret
from tests.support.compiler.matrix_hardware import hardware
from ugpu.compiler import Tensor
from ugpu.compiler.expression.algebra import Range, constant
from ugpu.compiler.kernel.attention.visible import most, needed
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.pattern.online import find_online
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import TargetSpec, ptx_target

Array = NDArray[Any]
Mask = Callable[[Any, Any], Any]  # of rows and keys, as arrays or tensors: what is visible
SM_80 = ptx_target("sm_80", 64)


def masked(query: Tensor, key: Tensor, value: Tensor, *, mask: Mask | None) -> Tensor:
    """With a mask of ranges."""
    scores = (query @ key.transpose(-1, -2)) * 0.25
    if mask is not None:
        rows = Tensor.arange(query.shape[-2], device=query.device).reshape(-1, 1)
        keys = Tensor.arange(key.shape[-2], device=query.device).reshape(1, -1)
        scores = mask(rows, keys).where(scores, -float("inf"))
    result: Tensor = scores.softmax() @ value
    return result


def from_memory(query: Tensor, key: Tensor, value: Tensor, *, mask: Mask) -> Tensor:
    """With the same mask in memory, of which nothing is known."""
    rows, keys = np.arange(query.shape[-2])[:, None], np.arange(key.shape[-2])[None]
    seen = Tensor(np.broadcast_to(mask(rows, keys), (rows.size, keys.size)), device=query.device)
    scores = seen.where((query @ key.transpose(-1, -2)) * 0.25, -float("inf"))
    result: Tensor = scores.softmax() @ value
    return result


def inputs(rows: int, keys: int, kind: str = "float32", batch: int = 2) -> list[Array]:
    random = np.random.default_rng(rows * 1000 + keys)
    shapes = [(batch, rows, 16), (batch, keys, 16), (batch, keys, 24)]
    return [random.normal(0, 1.5, shape).astype(kind) for shape in shapes]


def causal(offset: int) -> Mask:
    return lambda rows, keys: keys <= rows + offset


def late(offset: int) -> Mask:
    return lambda rows, keys: keys > rows - offset


def whole_blocks(rows: Any, keys: Any) -> Any:
    return keys // 16 <= rows // 16


device = device_fixture("cpu", "virtual:navi31", "virtual:gh100")


def check(device: Device, mask: Mask, rows: int, keys: int, kind: str = "float32") -> None:
    """The very bits of a mask in memory, rows that see nothing included."""
    tensors = [Tensor(array, device=device) for array in inputs(rows, keys, kind)]
    found, wanted = masked(*tensors, mask=mask), from_memory(*tensors, mask=mask)
    assert len(schedule([found.node])) == 1
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_offsets(device: Device, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["float32", "float16"]))
    rows, keys = data.draw(st.integers(1, 150)), data.draw(st.integers(2, 300))
    make = data.draw(st.sampled_from([causal, late]))
    check(device, make(data.draw(st.integers(-200, 300))), rows, keys, kind)


@pytest.mark.parametrize("rows", [1, 40])
def test_other_masks(device: Device, rows: int) -> None:
    check(device, whole_blocks, rows, 90)
    check(device, lambda rows, keys: keys * 3 < rows * 2 + 7, rows, 90)
    check(device, lambda rows, keys: keys < 17 + 0 * rows, rows, 90)


def test_what_is_hidden_has_no_part(device: Device) -> None:
    """Keys past the last that a row sees may hold anything, as a cache's free places do."""
    arrays = inputs(3, 700)
    arrays[1][:, 300:], arrays[2][:, 300:] = np.nan, np.inf
    tensors = [Tensor(array, device=device) for array in arrays]
    found = masked(*tensors, mask=causal(17)).numpy()
    short = [tensors[0], tensors[1][:, :40], tensors[2][:, :40]]
    np.testing.assert_allclose(found, masked(*short, mask=causal(17)).numpy(), rtol=1e-5, atol=1e-6)


# ---- what runs ---------------------------------------------------------------------------------


def lowered(arrays: Sequence[Array], mask: Mask | None, target: TargetSpec, form: str) -> Kernel:
    tensors = [Tensor(array, device="cpu") for array in arrays]
    (group,) = schedule([masked(*tensors, mask=mask).node])
    computed = express(group)
    for space in spaces(computed, target):
        if getattr(space.start, "form", None) == form:
            return lower(computed, target, space.start)
    raise AssertionError(form)


def work(kernel: Kernel) -> int:
    """Statements that are run, in all groups."""

    def count(body: Sequence[Statement], at: dict[str, int]) -> int:
        total = 0
        for statement in body:
            if isinstance(statement, If):
                known = [c for c in statement.conditions if {r.name for r in c.ranges()} <= {*at}]
                if all(condition.evaluate(at) >= 0 for condition in known):
                    total += count(statement.body, at)
            elif isinstance(statement, Loop):
                size = statement.range.size
                if statement.bound is not None:
                    size = min(size, statement.bound.evaluate(at))
                for number in range(size):
                    total += count(statement.body, {**at, statement.range.name: number})
            else:
                total += 1
        return total

    names = ["group_x", "group_y", "group_z"]
    groups = itertools.product(*(range(size) for size in kernel.grid))
    return sum(count(kernel.body, dict(zip(names, group, strict=True))) for group in groups)


@pytest.mark.parametrize(
    ("form", "kind"), [("thread", "float32"), ("matrix", "float16"), ("group", "float32")]
)
@pytest.mark.parametrize("target", [GFX1100, SM_80], ids=lambda target: target.name)
def test_half_of_the_keys_are_left_out(target: TargetSpec, form: str, kind: str) -> None:
    """512 rows see half of 512 keys; of 3,584 keys, a window of 128 is a small part."""
    arrays = inputs(512, 512, kind, 1)
    every = work(lowered(arrays, None, target, form))
    assert work(lowered(arrays, causal(0), target, form)) < 0.66 * every
    assert work(lowered(arrays, late(0), target, form)) < 0.66 * every
    if form != "matrix":
        return
    arrays = inputs(512, 3584, kind, 1)

    def window(rows: Any, keys: Any) -> Any:
        return (keys <= rows + 128) & (keys > rows)

    every = work(lowered(arrays, None, target, form))
    assert work(lowered(arrays, window, target, form)) < 0.15 * every


@pytest.mark.parametrize("form", ["thread", "matrix", "group"])
def test_kernels_that_skip_compute_the_same(form: str) -> None:
    arrays = inputs(33, 70, "float16" if form == "matrix" else "float32", 1)
    rows, keys = np.arange(33)[:, None], np.arange(70)[None]
    for mask in (causal(5), causal(-9), late(3), whole_blocks):
        kernel = lowered(arrays, mask, GFX1100, form)
        with np.errstate(invalid="ignore"):
            scores = arrays[0][0].astype(np.float64) @ arrays[1][0].T * 0.25
            scores = np.where(mask(rows, keys), scores, -np.inf)
            raised = np.exp(scores - scores.max(-1, keepdims=True))
            wanted = raised / raised.sum(-1, keepdims=True) @ arrays[2][0]
        found = interpret(kernel, arrays, hardware).reshape(33, 24)
        close = 5e-3 if form == "matrix" else 3e-5
        np.testing.assert_allclose(found, wanted, rtol=close, atol=close)


# ---- what a mask says --------------------------------------------------------------------------

MASKS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "where": lambda s, rows, keys: (keys <= rows).where(s, -float("inf")),
    "otherwise": lambda s, rows, keys: (keys > rows).where(-float("inf"), s),
    "added": lambda s, rows, keys: s + (keys <= rows).where(0.0, -float("inf")),
    "scaled": lambda s, rows, keys: (rows >= keys).where(s, -float("inf")) * 0.5,
}


@pytest.mark.parametrize("name", list(MASKS))
def test_masks_are_seen_in_many_forms(name: str) -> None:
    query, key = (Tensor(np.ones((20, 8), np.float32), device="cpu") for _ in range(2))
    rows = Tensor.arange(20, device="cpu").reshape(20, 1)
    scores = MASKS[name](query @ key.transpose(-1, -2), rows, rows.reshape(1, 20))
    (group,) = schedule([(scores.softmax() @ key).node])
    parts = find_online(express(group))
    assert parts is not None
    assert needed(parts.score) == (parts.rows.index() - parts.keys.index(),)


def test_a_finite_mask_hides_nothing() -> None:
    """A row all of whose scores are -1e9 has equal weights: its keys count."""
    query = Tensor(np.ones((20, 8), np.float32), device="cpu")
    rows = Tensor.arange(20, device="cpu").reshape(20, 1)
    scores = (rows.reshape(1, 20) <= rows).where(query @ query.transpose(-1, -2), -1e9)
    (group,) = schedule([(scores.softmax() @ query).node])
    parts = find_online(express(group))
    assert parts is not None and needed(parts.score) == ()


@given(st.data())
def test_the_most_of_an_index(data: st.DataObject) -> None:
    """Never below any value, whatever the free ranges are."""
    ranges = [Range(name, data.draw(st.integers(1, 6))) for name in "abcd"]
    free = frozenset(r for r in ranges if data.draw(st.booleans()))
    numbers = st.integers(-7, 7)

    def drawn(depth: int) -> Any:
        index = constant(data.draw(numbers))
        for r in ranges:
            index = index + r.index() * data.draw(numbers)
        if depth and data.draw(st.booleans()):
            inner, divisor = drawn(depth - 1), data.draw(st.integers(2, 9))
            part = inner // divisor if data.draw(st.booleans()) else inner % divisor
            index = index + part * data.draw(numbers)
        return index

    index = drawn(2)
    bound = most(index, free)
    assert bound.ranges().isdisjoint(free)
    for values in itertools.product(*(range(r.size) for r in ranges)):
        at = dict(zip("abcd", values, strict=True))
        assert index.evaluate(at) <= bound.evaluate(at)
