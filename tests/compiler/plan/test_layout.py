"""Places of intermediate values in one piece of memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.plan.layout import ALIGN, layout
from ugpu.compiler.plan.plan import Plan, Step, last_uses

SOURCE = 0  # place of the array that the first steps read


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, set[int]]:
    """Plans whose steps read earlier results, make one to three, and may write into one."""
    steps: list[Step] = []
    there = [SOURCE]
    for _ in range(draw(st.integers(1, 20))):
        inputs = tuple(draw(st.lists(st.sampled_from(there), max_size=3, unique=True)))
        made = [len(there) + n for n in range(draw(st.integers(1, 3)))]
        sizes = [draw(st.integers(1, 5000)) for _ in made]
        target = draw(st.sampled_from([None] * 4 + there[1:][-1:]))
        others = () if target is not None else tuple(zip(made[1:], sizes[1:], strict=True))
        steps.append(Step((), made[0], inputs, sizes[0], target, others))
        there += made[: 1 + len(others)]
    wanted = set(draw(st.lists(st.sampled_from(there), max_size=3))) | {there[-1]}
    return Plan(tuple(steps), (), last_uses(steps)), wanted


@given(plans())
def test_values_that_are_there_at_once_do_not_overlap(given: tuple[Plan, set[int]]) -> None:
    plan, wanted = given
    found = layout(plan, wanted)
    sizes = {step.root: step.size for step in plan.steps if step.target is None}
    sizes |= {place: size for step in plan.steps for place, size in step.others}
    alive: set[int] = set()
    for number, step in enumerate(plan.steps):
        for place in step.results:
            alive |= {place} & found.offsets.keys()
        ends = 0
        for place in sorted(alive, key=found.offsets.__getitem__):
            start = found.offsets[place]
            assert start % ALIGN == 0 and start >= ends, (number, place)
            ends = start + sizes[place]
        assert ends <= found.size
        alive = {place for place in alive if plan.last_use[place] > number}
    assert found.offsets.keys().isdisjoint(wanted)
    assert found.offsets.keys().isdisjoint(step.target for step in plan.steps)


def test_a_chain_takes_two_places() -> None:
    sizes = [3000, 100, 5000, 256, 4000, 1]
    steps = [Step((), n + 1, (n,), size) for n, size in enumerate(sizes)]
    found = layout(Plan(tuple(steps), (), last_uses(steps)), {len(sizes)})
    assert found.offsets == {1: 0, 2: 3072, 3: 3328, 4: 0, 5: 256}  # 6 is the result's own
    assert found.size == 8448


@pytest.mark.parametrize("lengths", [(3, 3), (5, 1)])
def test_a_recording_takes_less_than_a_run(lengths: tuple[int, int]) -> None:
    """Sizes that share no class: in a run, each value has memory of its own."""
    a, b = np.random.default_rng(0).random((2, 900), np.float32)

    def double(x: Tensor, times: int) -> Tensor:
        for _ in range(times):
            x = Tensor.cat([x, x * 2]).contiguous()
        return x

    def both(x: Tensor, y: Tensor) -> Tensor:
        return double(x, lengths[0]).sum() + double(y, lengths[1]).sum()

    with hcq.open("cpu") as device:
        x, y = Tensor(a, device=device), Tensor(b, device=device)
        usual = both(x, y).numpy()
        recorded = jit(both)
        recorded(x, y).realize()
        for _ in range(3):
            assert recorded(x, y).numpy() == usual
        assert recorded._replay is not None
        pools = [lane.pool for lane in recorded._replay.stages.lanes.values()]
        kept = sum(pool.kept for pool in pools)
        assert 0 < kept < sum(900 * 4 << n for length in lengths for n in range(1, length + 1))
