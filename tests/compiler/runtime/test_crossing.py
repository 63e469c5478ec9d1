"""Copies between devices run beside kernels of both, in the replays of recorded functions.

A copy queue is held up by a timeline that the test raises: kernels that need neither end of the
copy end meanwhile, those that need it do not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.waiting import until
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.compiler.runtime.several import stages
from ugpu.compiler.runtime.several.crossing import Crossing, Passage, Point
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.queue import QueueKind

Result = tuple[Tensor, Tensor, Tensor, Tensor]


@pytest.fixture(params=[
    "cpu cpu",
    pytest.param("virtual:navi31 virtual:navi31", marks=pytest.mark.slow),
    pytest.param("virtual:gh100 cpu", marks=pytest.mark.slow),
])  # fmt: skip
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Device, Device]]:
    with ExitStack() as stack:
        one, two = (stack.enter_context(hcq.open(name)) for name in request.param.split())
        yield one, two


def test_kernels_run_while_a_copy_is_held_up(pair: tuple[Device, Device]) -> None:
    giver, taker = pair

    @jit
    def work(x: Tensor, y: Tensor, z: Tensor) -> Result:
        beside = (z * 3).realize()  # on the taker
        moved = (x * 2).realize().to(taker)
        own = y + 1  # on the giver, after the copy
        return own, beside, moved + 1, moved.sum()

    def inputs(seed: int) -> list[Tensor]:
        sizes = zip((700, 300, 500), (giver, giver, taker), strict=True)
        return [
            Tensor(np.arange(size, dtype=np.float32) + seed + place, device=device)
            for place, (size, device) in enumerate(sizes)
        ]

    for seed in range(3):
        work(*inputs(seed))
    given = inputs(7)
    for device in pair:
        device.synchronize()
    storage = given[0].node.storage
    assert isinstance(storage, Storage)
    copying = giver if taker.driver.reach_memory(storage.buffer) is None else taker
    copies, gate = copying.queue(QueueKind.COPY), copying.timeline("gate")
    copies.wait(gate, 1).submit()
    lines = [device.queue().timeline for device in pair]
    before = [line.last for line in lines]
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(work(*given)))
    thread.start()
    try:
        # x * 2 and y + 1; z * 3
        until(lambda: lines[0].reached(before[0] + 2), "the giver's kernels")
        until(lambda: lines[1].reached(before[1] + 1), "the taker's kernel")
        assert not copies.timeline.reached(copies.timeline.last)
        assert not lines[1].reached(before[1] + 2)  # what needs the copy
    finally:
        gate.reach(1)
        thread.join()
    own, beside, total, whole = found[0]
    first = np.arange(700, dtype=np.float32) + 7
    assert (own.numpy() == np.arange(300) + 9).all()
    assert (beside.numpy() == (np.arange(500) + 9) * 3).all()
    assert (total.numpy() == first * 2 + 1).all()
    assert whole.item() == first.sum() * 2


def test_memory_that_a_copy_reads_or_writes_is_not_used_meanwhile(
    pair: tuple[Device, Device],
) -> None:
    """Arrays of one size go back and forth, so that the recording's memory is taken again and
    again; copies follow copies."""
    one, two = pair

    @jit
    def work(x: Tensor) -> Tensor:
        for number in range(4):
            there = (x + number).realize().to(two)
            x = (x * 2).realize()  # it may take the memory that the copy reads
            back = (there - 1).realize().to(one)
            again = back.to(two)  # of a copy
            x = (x + back + (again * 2).realize().to(one)).realize()
        return x

    def exact(x: np.ndarray) -> np.ndarray:
        for number in range(4):
            back = x + number - 1
            x = x * 2 + back + back * 2
        return x

    for seed in range(6):
        array = np.arange(20000, dtype=np.float32) % 50 + seed
        assert (work(Tensor(array, device=one)).numpy() == exact(array)).all(), seed


def test_an_interrupted_replay_is_followed_by_right_ones(
    pair: tuple[Device, Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while the host waits for a copy, or before the last of what waits for one."""
    one, two = pair
    monkeypatch.setattr(two.driver, "reach_memory", lambda _: None)

    @jit
    def work(x: Tensor) -> Tensor:
        there = (x * 3).realize().to(two)
        return (there + 1).realize().to(one) - x

    def check(seed: int) -> None:
        array = np.arange(3000, dtype=np.float32) + seed
        assert (work(Tensor(array, device=one)).numpy() == array * 2 + 1).all()

    for seed in range(3):
        check(seed)
    sent = Crossing._sent
    left = 0

    def interrupted(self: Crossing, copy: Passage) -> Point:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return sent(self, copy)

    for place in range(1, 4):
        left = place
        with monkeypatch.context() as patch:
            patch.setattr(Crossing, "_sent", interrupted)
            with pytest.raises(KeyboardInterrupt):
                work(Tensor(np.ones(3000, np.float32), device=one))
        check(place)


def test_host_memory_out_of_reach(
    pair: tuple[Device, Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory of the host for it, the host waits for the copy."""
    one, two = pair
    monkeypatch.setattr(stages, "staging_for", lambda *_: None)

    @jit
    def work(x: Tensor) -> Tensor:
        return (x * 3).realize().to(two) + 1

    for seed in range(4):
        array = np.arange(100, dtype=np.float32) + seed
        assert (work(Tensor(array, device=one)).numpy() == array * 3 + 1).all()
