"""@jit and assignments: what a function assigns has the value that it has without @jit, on every
call and every family of devices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, function, jit
from ugpu.compiler.front import touched
from ugpu.compiler.methods.core import TensorCore
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

device = device_fixture("cpu", "virtual:navi31", "virtual:gh100", "virtual:a630", poison=False)

CALLS = 10
Wrapping = Callable[[Any], Any]
Trial = Callable[[Device, Wrapping], list[Any]]


def const(device: Device, *values: float) -> Tensor:
    return Tensor(np.array(values, np.float32), device=device)


def moments(device: Device, wrap: Wrapping) -> list[Any]:
    """Batch norm: running statistics that the result does not need."""
    mean, var = const(device, 0, 0, 0), const(device, 1, 1, 1)

    @wrap
    def step(x: Tensor) -> Tensor:
        middle, spread = x.mean(0), x.var(0, correction=0)
        mean.assign(mean * 0.75 + middle * 0.25)
        var.assign(var * 0.75 + spread * 0.25)
        return (x - middle) / (spread + 1e-5).sqrt()

    rng = np.random.default_rng(0)
    found = [step(Tensor(rng.random((4, 3), np.float32), device=device)) for _ in range(CALLS)]
    return [*found, mean, var]


def descent(device: Device, wrap: Wrapping) -> list[Any]:
    """SGD with the loss returned, weights as an argument in a dict."""
    weights = {"w": const(device, 1, 2, 3), "b": const(device, 0.5)}

    @wrap
    def step(given: dict[str, Tensor], x: Tensor) -> Tensor:
        error = (given["w"] * x).sum() - given["b"].sum()
        given["w"].assign(given["w"] - error * x * 0.125)
        given["b"][0] = given["b"][0] + error * 0.125
        return error * error

    found = [step(weights, const(device, 1, turn % 3, 0.5)) for turn in range(CALLS)]
    return [*found, weights["w"], weights["b"]]


def rows(device: Device, wrap: Wrapping) -> list[Any]:
    """A row of a cache at a position in a tensor; the result does not read the cache."""
    keys = Tensor(np.zeros((CALLS, 2), np.float32), device=device)

    @wrap
    def step(x: Tensor, at: Tensor) -> Tensor:
        keys[at] = x
        return x * 2

    places = [Tensor(np.array(turn, np.int32), device=device) for turn in range(CALLS)]
    return [*[step(const(device, turn, 1), place) for turn, place in enumerate(places)], keys]


def shifted(device: Device, wrap: Wrapping) -> list[Any]:
    """A history that moves on, read before it is written."""
    history = Tensor(np.zeros(5, np.float32), device=device)

    @wrap
    def step(x: Tensor) -> Tensor:
        apart = x - history[0]
        history[1:] = history[:-1]
        history[:1] = x
        return apart

    return [*[step(const(device, turn)) for turn in range(CALLS)], history]


def exchanged(device: Device, wrap: Wrapping) -> list[Any]:
    """The old value is returned: each call gives what the one before got."""
    kept = const(device, -1, -1)

    @wrap
    def step(x: Tensor) -> Tensor:
        old = kept + 0
        kept.assign(x)
        return old

    return [*[step(const(device, turn, 1)) for turn in range(CALLS)], kept]


def argument(device: Device, wrap: Wrapping) -> list[Any]:
    """Another argument in each call, assigned and returned; all of them are kept."""

    @wrap
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[1:] = x[:-1] + y
        return x, y

    given = [const(device, turn, 5, 7) for turn in range(CALLS)]
    other = const(device, 10)
    found = [step(each, other) for each in given]
    assert all(
        pair[0] is each and pair[1] is other for pair, each in zip(found, given, strict=True)
    )
    return [*given, other]


def twice(device: Device, wrap: Wrapping) -> list[Any]:
    """One tensor as two arguments: an assignment to one is seen in the other."""

    @wrap
    def step(x: Tensor, y: Tensor) -> Tensor:
        x.assign(y + 1)
        return y * 2

    tensor = const(device, 0, 1)
    return [*[step(tensor, tensor) for _ in range(CALLS)], tensor]


def alike(device: Device, wrap: Wrapping) -> list[Any]:
    """Tensors that share their memory: a copy, a view and a lazy expression keep their values."""
    first = const(device, 1, 2, 3, 4)
    second, view = copy.copy(first), first.reshape(2, 2)

    @wrap
    def step(x: Tensor) -> Tensor:
        before = view.sum() + second.sum()
        first[1:3] = first[1:3] + x
        second.assign(second * 2)
        return before + first.sum()

    found = [step(const(device, turn)) for turn in range(3)]
    third, later = copy.copy(first), first * 10
    found += [step(const(device, turn)) for turn in range(CALLS)]
    return [*found, first, second, view, third, later]


def local(device: Device, wrap: Wrapping) -> list[Any]:
    """Assignments to copies inside the function stay there."""
    weights = const(device, 1, 2, 3)

    @wrap
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        scratch = weights.reshape(3)
        scratch[0] = 9
        same = x.clamp()
        same[:] = 0
        return scratch, x + same

    found = [step(const(device, turn, 1)) for turn in range(CALLS)]
    return [*[each for pair in found for each in pair], weights]


def outside(device: Device, wrap: Wrapping) -> list[Any]:
    """The program assigns between the calls, also to what the function only reads."""
    scale, total = const(device, 1, 1), const(device, 0, 0)

    @wrap
    def step(x: Tensor) -> Tensor:
        total.assign(total + x * scale)
        return x * scale

    found = []
    for turn in range(CALLS):
        found.append(step(const(device, 1, turn)))
        if turn % 2:
            scale.assign(scale * 2)
        if turn == 6:
            total.assign(0)
    return [*found, total, scale]


def pending(device: Device, wrap: Wrapping) -> list[Any]:
    """The program computes, between the calls, what the function has read uncomputed."""
    total = const(device, 1, 2, 3)
    first = total * 1

    @wrap
    def step(x: Tensor) -> Tensor:
        total.assign(first + x)
        return x * 2

    found = []
    for turn in range(CALLS):
        if turn == 5:
            first.realize()
        found.append(step(const(device, turn)))
        found.append(const(device, 7, 7, 7) + turn)  # takes memory that is free
    return [*found, total, first]


def divided(device: Device, wrap: Wrapping) -> list[Any]:
    """Two functions share their weights: one assigns, the other reads."""
    weights = const(device, 1, 2)

    @wrap
    def train(x: Tensor) -> None:
        weights.assign(weights + x * weights.flip(0))

    @wrap
    def infer(x: Tensor) -> Tensor:
        return x * weights

    found = []
    for turn in range(CALLS):
        train(const(device, turn, 1))
        found.append(infer(const(device, 1, -1)))
    return [*found, weights]


def nested(device: Device, wrap: Wrapping) -> list[Any]:
    """A jit in a jit, and a function in it, with a cache each."""
    caches = [const(device, 0, 0) for _ in range(3)]

    @function
    def layer(x: Tensor, cache: Tensor) -> Tensor:
        cache[0] = x[1]
        return x + cache.sum()

    @jit
    def inner(x: Tensor) -> Tensor:
        for cache in caches:
            x = layer(x, cache)
        return x

    step = wrap(lambda x: inner(x) * 0.5)
    return [*[step(const(device, turn, 1)) for turn in range(CALLS)], *caches]


def seen(device: Device, wrap: Wrapping) -> list[Any]:
    """Results that are views of tensors from outside, which no kernel of the function reads."""
    first, second = const(device, 1, 2, 3, 4), const(device, 5, 6) * 1

    @wrap
    def step(x: Tensor) -> list[Tensor]:
        return [first.reshape(2, 2), second.unsqueeze(0), copy.copy(first), x * 2]

    found = []
    for turn in range(CALLS):
        if turn > 3:
            first[1:3] = turn
        if turn in (5, 7):
            second.assign(second * turn)
        found += step(const(device, turn))
    return [*found, first, second]


def idle(device: Device, wrap: Wrapping) -> list[Any]:
    """A function without a kernel."""
    kept = const(device, 1, 2)
    step = wrap(lambda x: (kept.reshape(2, 1), x.reshape(1, 2), kept))

    found: list[Tensor] = []
    for turn in range(CALLS):
        found += step(const(device, turn, 3))
        if turn > 6:
            kept[turn % 2] = turn
    return [*found, kept]


def prepared(device: Device, wrap: Wrapping) -> list[Any]:
    """The program assigns a number before each call, each time another."""
    at, rows = const(device, 1, 2), const(device, 3, 4)
    step = wrap(lambda x: (x * at, rows.reshape(2, 1)))

    found: list[Tensor] = []
    for turn in range(CALLS):
        at[turn % 2], rows[0] = turn, turn
        found += step(const(device, turn, 3))
    return [*found, at, rows]


def watched(device: Device, wrap: Wrapping) -> list[Any]:
    """Before every other call, the program begins a value that needs an assigned tensor."""
    first, second = const(device, 1, 2), const(device, 3, 4)

    @wrap
    def step(x: Tensor) -> None:
        first[::-1] = second + x
        second[1:] = first[:1]

    later = []
    for turn in range(CALLS):
        if turn % 2:
            later.append((first, second)[turn % 4 // 2] + turn)
        step(const(device, turn, 1))
    return [*later, first, second]


TRIALS: list[Trial] = [
    moments, descent, rows, shifted, exchanged, argument, twice, alike, local, outside, pending,
    divided, nested, seen, idle, prepared, watched,
]  # fmt: skip


def computed(trial: Trial, device: Device, wrap: Wrapping) -> list[Any]:
    """The tensors of a trial, read when all calls are done."""
    found: list[Any] = []
    for each in trial(device, wrap):
        found.append(None if each is None else each.numpy())
    return found


@pytest.mark.parametrize("wrap", [jit, function])
@pytest.mark.parametrize("trial", TRIALS)
def test_as_without(device: Device, trial: Trial, wrap: Wrapping) -> None:
    expected = computed(trial, device, lambda each: each)
    found = computed(trial, device, wrap)
    for place, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=f"value {place}")


@pytest.mark.parametrize("trial", [each for each in TRIALS if each not in (alike, pending, idle)])
def test_they_are_replayed(cpu: Device, trial: Trial) -> None:
    """The functions run at most three times: what is right here is right in a replay."""
    runs: dict[Any, int] = {}

    def wrap(each: Callable[..., Any]) -> Any:
        def counted(*args: Any) -> Any:
            runs[each] = runs.get(each, 0) + 1
            return each(*args)

        return jit(counted)

    computed(trial, cpu, wrap)
    assert max(runs.values()) <= 3


# ---- what cannot be kept ------------------------------------------------------------------------


def test_a_replaced_entry_of_an_argument_is_refused(cpu: Device) -> None:
    @jit
    def step(state: dict[str, list[Tensor]], x: Tensor) -> Tensor:
        state["h"][1] = state["h"][1] + x
        return x

    state = {"h": [const(cpu, 0), const(cpu, 1)]}
    with pytest.raises(BadArgument, match=r"changes args\[0\]\['h'\]\[1\] in a list"):
        step(state, const(cpu, 1))
    grown = jit(lambda tensors, x: tensors.append(x))
    with pytest.raises(BadArgument, match=r"changes args\[0\] in a list"):
        grown([const(cpu, 1)], const(cpu, 1))


@pytest.mark.parametrize("computes", [True, False])
def test_a_stored_tensor_is_refused(cpu: Device, computes: bool) -> None:
    """Also one that is not computed: it names memory that the next replay changes."""
    log: dict[str, Tensor] = {"last": const(cpu, 0)}

    @jit
    def step(x: Tensor) -> Tensor:
        log["last"] = log["last"] + x
        if computes:
            log["last"].realize()
        return x * 2

    with pytest.raises(BadArgument, match=r"stores a tensor that it computed, \[1\] \(built at"):
        for turn in range(1, 9):
            assert step(const(cpu, 1)).tolist() == [2] and log["last"].tolist() == [turn]


def test_a_stored_argument_is_refused(cpu: Device) -> None:
    seen: list[Tensor] = []

    @jit
    def step(x: Tensor) -> Tensor:
        seen.append(x)
        return x * 2

    with pytest.raises(BadArgument, match="stores a tensor"):
        for turn in range(9):
            step(const(cpu, turn))
    assert [each.item() for each in seen] == list(range(len(seen)))


def test_one_tensor_as_argument_and_from_outside(cpu: Device) -> None:
    state, other = const(cpu, 1), const(cpu, 5)

    @jit
    def step(x: Tensor) -> Tensor:
        state.assign(state + 1)
        return x * 2

    for _ in range(3):
        step(other)
    with pytest.raises(BadArgument, match="is also used by the function from outside"):
        step(state)
    assert step(other).tolist() == [10] and state.tolist() == [5]


def test_an_assigned_argument_that_is_read_from_outside(cpu: Device) -> None:
    state, other = const(cpu, 1), const(cpu, 5)

    @jit
    def step(x: Tensor) -> Tensor:
        x.assign(x + state)
        return x * 2

    for _ in range(3):
        step(other)
    with pytest.raises(BadArgument, match="is also used by the function from outside"):
        step(state)
    assert step(other).tolist() == [18] and state.tolist() == [1]


def test_a_captured_tensor_is_exchanged(cpu: Device) -> None:
    """Where the program drops a tensor, the function is recorded again with the one it finds."""
    weights = [const(cpu, 1)]
    step = jit(lambda x: x * weights[0])
    for turn in range(12):
        if turn % 4 == 0:
            weights[0] = const(cpu, turn)
        assert step(const(cpu, 2)).tolist() == [2 * (turn - turn % 4)]


def test_an_error_in_a_recorded_call_leaves_the_assignments_made(cpu: Device) -> None:
    state, fail = const(cpu, 0), [False, True, True, False, False, False]

    @jit
    def step(w: Tensor, x: Tensor) -> Tensor:
        w.assign(w + x)
        state.assign(state + x)
        if fail[len(turns)]:
            raise ValueError("on purpose")
        w.assign(w * 1)
        return x

    turns: list[int] = []
    w = const(cpu, 0)
    for _ in range(6):
        try:
            step(w, const(cpu, 1))
        except ValueError:
            assert fail[len(turns)]
        turns.append(0)
        assert w.tolist() == state.tolist() == [len(turns)]


def test_memory_of_assigned_tensors_is_not_used_again(cpu: Device) -> None:
    """What the pool gives to others after a call is not written by the next replay."""
    total = Tensor(np.zeros(1000, np.float32), device=cpu)
    step = jit(lambda x: total.assign(total.flip(0) + x) * 2)
    kept: list[Tensor] = []
    for turn in range(1, 9):
        step(Tensor(np.ones(1000, np.float32), device=cpu))
        kept.append(Tensor(np.full(1000, turn, np.float32), device=cpu) * 1)
        kept[-1].realize()
        assert (total.numpy() == turn).all()
    assert all((each.numpy() == turn).all() for turn, each in enumerate(kept, 1))


@pytest.mark.parametrize("limit", [0, 3, 4])
def test_more_recordings_than_a_class_may_change(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The property that sees assignments stays in place from then on."""
    monkeypatch.setattr(touched, "_changes", 0)
    monkeypatch.setattr(touched, "CHANGES", limit)
    for _ in range(4):
        total = const(cpu, 0)
        step = jit(lambda x, total=total: total.assign(total + x) * 2)
        for turn in range(1, 5):
            assert step(const(cpu, 1)).tolist() == [2 * turn] and total.tolist() == [turn]
    assert isinstance(TensorCore.__dict__["node"], property)
    monkeypatch.setattr(touched, "CHANGES", 1000)
    step(const(cpu, 1))
    jit(lambda x: x * 2)(const(cpu, 1))
    assert not isinstance(TensorCore.__dict__["node"], property)
