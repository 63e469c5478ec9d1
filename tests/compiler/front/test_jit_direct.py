"""Recorded calls that native code makes on `cpu`, and that leave everything as it should be."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.front import direct
from ugpu.compiler.front.jit import Jit
from ugpu.compiler.front.ready import Ready
from ugpu.compiler.runtime.memory_pool import MemoryPool, Reused
from ugpu.compiler.runtime.runtime import runtime_of, use_cache
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.objects.builtin import TRIED, slot_offsets
from ugpu.hcq.state.clock import Clock

WARM = (
    200  # calls after which a kernel that is short has been seen to be short, also on a busy host
)


@pytest.fixture
def device() -> Iterator[Device]:
    with hcq.open("cpu", threads=1) as opened:
        use_cache(opened, None)
        yield opened


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An item for each call that Python makes: also of a kernel that a busy host interrupted, which
    counts as long then."""
    calls: list[Any] = []
    usual = Ready.run

    def run(ready: Ready, args: Any) -> Any:
        calls.append(0)
        return usual(ready, args)

    monkeypatch.setattr(Ready, "run", run)
    return calls


def vector(device: Device, *values: float) -> Tensor:
    return Tensor(np.array(values, np.float32), device=device).realize()


def recorded(function: Callable[..., Any], python: list[Any], *args: Any) -> Jit[..., Any]:
    """Return a function that native code calls: its kernel is known to be short."""
    made = jit(function)

    def called() -> bool:
        made(*args)
        args[0].device.synchronize()
        python.clear()
        is_recorded = made.direct is not None
        made(*args)
        return is_recorded and not python

    Clock().wait_until(called, unit="the call", waiting_for="native code", limit_s=60)
    return made


def counts(device: Device, x: Tensor) -> list[int]:
    """References that a call must leave as they are."""
    gc.collect()
    kept: list[object] = [x, x.node, x.node.storage, x.dtype, x.shape, device, Tensor]
    kept += [type(x.node), Reused, None, True, False]
    limit = 1 << 30  # immortal objects
    return [min(sys.getrefcount(each), limit) for each in kept]


def close_to(before: list[int], after: list[int]) -> bool:
    """Whether no count changed by as much as a reference in each of many calls."""
    return all(abs(one - two) < WARM // 2 for one, two in zip(before, after, strict=True))


def test_results_are_new_tensors_with_memory_of_their_own(
    device: Device, python: list[Any]
) -> None:
    x, y = vector(device, 1, 2), vector(device, 3, 4)
    made = recorded(lambda x, y: x * 2 + y, python, x, y)
    before, launches = counts(device, x), core_of(device).launches
    for _ in range(WARM):
        made(x, y)
    assert len(python) < WARM
    python.clear()
    assert core_of(device).launches == launches + WARM
    assert close_to(before, counts(device, x))
    kept = [(number, made(x, vector(device, number, 1))) for number in range(WARM)]
    assert len(python) < WARM
    assert all(result.tolist() == [2 + number, 5] for number, result in kept)
    last = kept[-1][1]
    assert (last.dtype, last.shape, last.device) == (x.dtype, (2,), device)
    assert (last.node.op, last.node.sources, last.node.tracked) == ("buffer", (), False)
    gone = weakref.ref(last)
    kept.clear()
    del last
    assert gone() is None
    assert "test_jit_direct.py" in made(x, y)._shown


def test_weights_from_outside_and_what_is_left_to_python(device: Device, python: list[Any]) -> None:
    weight, x = vector(device, 1, 1), vector(device, 1, 2)
    made = recorded(lambda x: x * weight, python, x)
    weight[...] = vector(device, 5, 6)
    assert made(x).tolist() == [5, 12]
    python.clear()
    assert all(made(x).tolist() == [5, 12] for _ in range(WARM))
    assert len(python) < WARM
    python.clear()
    node = weight.node  # a second owner: the next assignment moves the weight
    weight[...] = vector(device, 10, 20)
    before = counts(device, x)
    for _ in range(WARM):
        assert made(x).tolist() == [10, 40]
    assert python, "its memory is elsewhere"
    assert made(x + 1).tolist() == [20, 60]
    for wrong in ((), (x, x), (vector(device, 1),), (None,), (1.5,)):
        with pytest.raises((BadArgument, TypeError)):
            made(*wrong)
    with pytest.raises(BadArgument):
        made(*[x] * 100)
    with pytest.raises((BadArgument, TypeError)):
        made(x=x)
    python.clear()
    assert close_to(before, counts(device, x))
    del node
    made.reset()
    assert made.direct is None
    assert made(x).tolist() == [10, 40]


def test_results_are_copied_before_they_are_assigned(device: Device, python: list[Any]) -> None:
    x = vector(device, 1, 2)
    made = recorded(lambda x: x + 1, python, x)
    result = made(x)
    device.synchronize()
    shared = np.from_dlpack(result)
    result[0] = 7.0
    assert result.tolist() == [7, 3]
    assert shared.tolist() == [2, 3]
    others = [made(x) for _ in range(10)]
    assert shared.tolist() == [2, 3], "the array keeps the memory"
    assert all(other.tolist() == [2, 3] for other in others)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("step", ["memory", "origin", "use"])
def test_an_exception_at_each_step_leaves_everything_as_it_was(
    step: str, error: type[BaseException], device: Device, python: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    x = vector(device, 1, 2)
    made = recorded(lambda x: x + 1, python, x)
    ready = made._ready
    assert ready is not None
    # All the memory that it has, also if a busy host let Python make some of the calls.
    kept = [made(x) for _ in range(2 * direct.RING)]
    python.clear()
    before = counts(device, x)
    state = device.queue().timeline.last, core_of(device).launches

    def fails(*_: object) -> Any:
        raise error

    with monkeypatch.context() as patched:
        if step == "memory":
            patched.setattr(MemoryPool, "take", fails)
        elif step == "origin":
            patched.setattr(direct, "here", fails)
        else:
            kind = type(ready.repetition.prepared.uses[0])
            patched.setattr(kind, "closed", property(fails), raising=False)
        for _ in range(WARM):
            with pytest.raises(error):
                made(x)
    assert (device.queue().timeline.last, core_of(device).launches) == state
    assert not python
    assert close_to(before, counts(device, x))
    kept.clear()
    assert made(x).tolist() == [2, 3]


def test_out_of_memory_at_each_allocation(device: Device, python: list[Any]) -> None:
    hooks = pytest.importorskip("_testcapi", reason="this Python was built without its own tests")
    x = vector(device, 1, 2)
    made = recorded(lambda x: x + 1, python, x)
    before = counts(device, x)
    failures = 0
    for _ in range(WARM // 10):
        for start in range(10):
            hooks.set_nomemory(start, start + 1)
            try:
                made(x)
            except MemoryError:
                failures += 1
            finally:
                hooks.remove_mem_hooks()
    assert failures >= WARM // 10
    assert close_to(before, counts(device, x))
    assert made(x).tolist() == [2, 3]


def test_a_lock_that_another_thread_holds(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code leaves the call to Python, which waits for it."""
    python: list[Any] = []
    x = vector(device, 1, 2)
    core, held, waiting = core_of(device), threading.Event(), threading.Event()
    usual = Ready.run

    def run(ready: Ready, args: Any) -> Any:
        python.append(0)
        waiting.set()
        return usual(ready, args)

    monkeypatch.setattr(Ready, "run", run)
    made = recorded(lambda x: x + 1, python, x)
    waiting.clear()

    def hold() -> None:
        with core.lock:
            held.set()
            waiting.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    assert made(x).tolist() == [2, 3]
    thread.join()
    assert python


def test_threads_with_a_function_each(device: Device, python: list[Any]) -> None:
    functions = [recorded(lambda x, n=n: x * 2 + n, python, vector(device, 0)) for n in range(4)]
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(WARM):
            results = functions[number](vector(device, turn)).tolist()
            if results != [2 * turn + number]:
                wrong.append(results)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_reset_or_closed_device_and_other_recordings(device: Device, python: list[Any]) -> None:
    x = vector(device, 1, 2)
    made = recorded(lambda x: x + 1, python, x)
    outer = jit(lambda x: made(x) * 2)
    assert [outer(x).tolist() for _ in range(4)] == [[4, 6]] * 4
    with device.capture() as graph:
        inside = made(x).realize()
    graph.replay()
    graph.wait()
    assert inside.tolist() == [2, 3]
    graph.close()
    device.reset()
    assert [made(x).tolist() for _ in range(4)] == [[2, 3]] * 4
    device.close()
    with pytest.raises(Closed):
        made(x)


def test_an_unknown_interpreter_or_poisoned_memory_leaves_all_to_python(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = vector(device, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(direct, "_native", [None])
        made = jit(lambda x: x + 1)
        assert [made(x).tolist() for _ in range(4)] == [[2, 3]] * 4
        assert made.direct is None
    runtime_of(device).pool.poison = 0x7FC0_0000
    made = jit(lambda x: x + 1)
    assert [made(x).tolist() for _ in range(4)] == [[2, 3]] * 4
    assert made.direct is None


@pytest.mark.skipif(sys.version_info[:2] > TRIED, reason="native code has not run on this Python")
def test_where_slots_are() -> None:
    class Base:
        __slots__ = ("a", "b")

    class Derived(Base):
        __slots__ = ("c", "d")

    base, derived = slot_offsets(Base, "a", "b"), slot_offsets(Derived, "b", "d", "a")
    assert base is not None
    assert derived is not None, "this CPython is not known: recorded calls are slower"
    assert [derived[2], derived[0]] == base
    assert len({*base, *derived}) == 3


def test_interrupts_at_any_time(device: Device, python: list[Any]) -> None:
    """A signal's handler raises KeyboardInterrupt again and again, wherever the program is."""
    x = vector(device, 1, 2)
    made = recorded(lambda x: x + 1, python, x)
    before = counts(device, x)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGALRM, interrupt)
    interrupts = results = 0
    try:
        for _ in range(WARM):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                for _ in range(1000):  # an exception in a finalizer is lost
                    made(x)
                    results += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    python.clear()
    device.synchronize()
    assert results
    assert interrupts
    # None is also in what is kept of an exception that was lost in a finalizer
    assert close_to(before[:-3], counts(device, x)[:-3]), (before, counts(device, x))
    core = core_of(device)
    assert core.lock.acquire(blocking=False)
    core.lock.release()
    assert made(x).tolist() == [2, 3]
