"""Operations with a number that is new each time: planned once, and right bit for bit."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.service.daemon import DaemonProcess
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.graph.series import HELD_FROM, Series, known
from ugpu.compiler.methods import core
from ugpu.compiler.runtime.runtime import Runtime, use_cache
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.config import config

COUNT = 4 * HELD_FROM
MANY = 8 * HELD_FROM


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device of the test's own, with series and recipes of its own: these are forgotten when
    there are many, which the tests before would decide."""
    known.clear()
    monkeypatch.setattr(core, "_recipes", {})
    with hcq.open("cpu", threads=1) as opened:
        use_cache(opened, None)
        yield opened


def special(count: int = COUNT) -> list[float]:
    """Numbers of all kinds: the identities of operations, those that are not normal, others."""
    listed = [1.0, 0.0, -0.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, 1e-40, 0.1, 1e30, 2.0]
    rng = np.random.default_rng(0)
    return [float(each) for each in rng.standard_normal(count)] + listed


def bits(array: Any) -> bytes:
    """The bytes of an array, whose NaNs are equal."""
    array = np.asarray(array)
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.dtype.str.encode() + array.tobytes()


WORKS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, n: x + n,
    "sub": lambda x, n: x - n,
    "from": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "div": lambda x, n: x / n,
    "over": lambda x, n: n / x,
    "less": lambda x, n: x < n,
    "equal": lambda x, n: x == n,
    "chain": lambda x, n: ((x * n) + n) - (x + n),
}
EDGES = (0.0, -0.0, 1.0, -1.0, 0.1, 3.5, 1e-39, -1e-45, 3e38, np.inf, -np.inf, np.nan)


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64"])
def test_results_are_numpys(device: Device, work: str, kind: str) -> None:
    of, is_float = WORKS[work], kind.startswith("float")
    edges = np.array(EDGES if is_float else [0, 1, -1, 7, 100, -32768], "f8").astype(kind)
    x = Tensor(edges, device=device, dtype=kind).realize()
    numbers: list[Any] = special() if is_float else list(range(-COUNT // 2, COUNT // 2))
    wrong = []
    with np.errstate(all="ignore"):
        for number in numbers:
            if not is_float and work in ("div", "over"):
                wanted = of(edges.astype("f4"), np.float32(number))
            else:
                wanted = of(edges, edges.dtype.type(number))
            found = of(x, number).numpy()
            if bits(found) != bits(wanted):
                wrong.append((number, found, wanted))
    assert not wrong


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What has been planned."""
    made: list[object] = []
    usual = Runtime._planned

    def plan(runtime: Runtime, *args: Any) -> Any:
        made.append(args)
        return usual(runtime, *args)

    monkeypatch.setattr(Runtime, "_planned", plan)
    return made


REALS: dict[str, Callable[[Any, float], Any]] = {
    "sum": lambda x, n: x * n + (1 - n),
    "quotient": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
    "power": lambda x, n: x**n,
    "power of a number": lambda x, n: n**x,
    "choice": lambda x, n: (x > 3).where(x, n),
    "other choice": lambda x, n: (x > 3).where(n, x),
    "limits": lambda x, n: x.clamp(n, n + 1),
    "choice of two": lambda x, n: (x > 3).where(n, -n) + x,
    "choice of two kinds": lambda x, n: (x > 3).where(n, int(n * 100)) + x,
}


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("work", REALS)
def test_one_plan_serves_all_numbers(
    device: Device, planned: list[object], work: str, kind: str
) -> None:
    of = REALS[work]
    x = Tensor(np.arange(16, dtype=np.float32), device=device, dtype=kind).realize()
    numbers = (np.random.default_rng(1).random(COUNT) + 0.01).tolist()
    found = [of(x, number).realize() for number in numbers]
    wanted = jit(of)  # with numbers in kernels
    for number, result in zip(numbers[-3:], found[-3:], strict=True):
        assert bits(result.numpy()) == bits(wanted(x, number).numpy()), number
    planned.clear()
    for number in np.random.default_rng(2).random(COUNT).tolist():
        of(x, number + 0.01).realize()
    assert not planned


WHOLE: dict[str, Callable[[Any, int], Any]] = {
    "and": lambda x, n: x & n,
    "or": lambda x, n: n | x,
    "xor": lambda x, n: x ^ n,
    "left": lambda x, n: x << n,
    "right": lambda x, n: x >> n,
    "quotient": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
    "choice": lambda x, n: (x > 3).where(x, n),
    "choice of two": lambda x, n: (x > 3).where(n, -n),
    "power": lambda x, n: x**n,
    "power of a number": lambda x, n: n**x,
}


WANTED: dict[str, Callable[[Any, int], Any]] = {
    "choice": lambda x, n: np.where(x > 3, x, n),
    "choice of two": lambda x, n: np.where(x > 3, n, -n),
    "power of a number": lambda x, n: np.where(x < 0, 0, np.int32(n) ** np.maximum(x, 0)),
}


@pytest.mark.parametrize("work", WHOLE)
def test_one_plan_serves_all_integers(device: Device, planned: list[object], work: str) -> None:
    of, array = WHOLE[work], np.arange(-8, 24, dtype=np.int32)
    x = Tensor(array, device=device).realize()
    for number in (*range(1, COUNT), 40, 41):  # a shift by the width or more gives zero
        of(x, number).realize()
    planned.clear()
    for number in range(11, 30):
        found = of(x, number).numpy()
        np.testing.assert_array_equal(found, WANTED.get(work, of)(array, number))
    assert not planned


def test_a_chain_of_fixed_numbers_is_planned_once_after_others_came(
    device: Device, planned: list[object]
) -> None:
    """Other numbers have its structure have them by value, where its own then stay."""
    x = Tensor(np.arange(16, dtype=np.float32), device=device).realize()
    for number in (3.0, 5.0, 7.0):
        (x * number + number).realize()
    found = [(x * 2.0 + 1.0).tolist() for _ in range(3)]
    planned.clear()
    found += [(x * 2.0 + 1.0).tolist() for _ in range(MANY)]
    assert not planned
    assert found == [(np.arange(16.0) * 2 + 1).tolist()] * len(found)


@pytest.mark.parametrize("name", ["virtual:navi31", "virtual:gh100", "virtual:a740"])
def test_one_plan_serves_all_numbers_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, planned: list[object], name: str
) -> None:
    """Each launch carries them, whatever the device's work before."""
    monkeypatch.setattr(core, "_recipes", {})
    with hcq.open(name) as gpu:
        check_numbers(gpu, planned)


@pytest.fixture
def leased() -> Iterator[Device]:
    with DaemonProcess(["virtual:navi31"]) as daemon, pytest.MonkeyPatch.context() as changed:
        changed.setenv("UGPU_DAEMON", daemon.socket)
        config.cache_clear()
        with hcq.open("ugpud:virtual:navi31") as opened:
            yield opened
    config.cache_clear()


def test_one_plan_serves_all_numbers_of_a_lease(
    leased: Device, monkeypatch: pytest.MonkeyPatch, planned: list[object]
) -> None:
    """Launches over a socket carry them too."""
    monkeypatch.setattr(core, "_recipes", {})
    check_numbers(leased, planned)


def check_numbers(device: Device, planned: list[object]) -> None:
    """Run an operation with numbers that are new each time; of the last, several are in flight."""
    known.clear()
    use_cache(device, None)
    for kind in ("float32", "float16"):
        x = Tensor(np.ones(4, np.float32), device=device, dtype=kind).realize()
        for number in range(HELD_FROM + 2):
            (x * float(number)).realize()
        planned.clear()
        results = [(x * float(number)).realize() for number in range(20, 50)]
        assert not planned
        assert [result.tolist()[0] for result in results] == list(range(20, 50))
    choice = [(x > 0).where(number + 0.5, -1.0) for number in range(2 * HELD_FROM)]
    assert [each.tolist() for each in choice] == [[n + 0.5] * 4 for n in range(2 * HELD_FROM)]
    doubled = jit(lambda x: x * 2)
    for number in (0.5, 0.25, 8.0, 3.5):  # a result of these as the argument of a recording
        assert doubled(x * number).tolist() == [2 * number] * 4


def test_numbers_stay_what_they_are_while_anything_reads_them(device: Device) -> None:
    """Results that are pending, some of them computed much later."""
    x = Tensor(np.ones(4, np.float32), device=device).realize()
    numbers = [float(number) for number in range(1, 3 * MANY)]
    pending = [x * number for number in numbers]
    for number in range(5000, 5000 + MANY):  # others come and go
        assert (x * float(number)).tolist() == [number] * 4
    assert [result.tolist()[0] for result in reversed(pending)] == numbers[::-1]


def test_a_device_at_work_reads_the_right_number(device: Device) -> None:
    """Numbers are given while kernels with others have not run yet."""
    big = Tensor(np.ones((512, 512), np.float32), device=device).realize()
    x = Tensor(np.ones(4, np.float32), device=device).realize()
    results = []
    for number in range(1, 4 * MANY):
        if number % 16 == 0:
            (big @ big).realize()
        results.append((x * float(number)).realize())
    assert [result.tolist()[0] for result in results] == list(range(1, 4 * MANY))


def test_recordings_gradients_and_errors(device: Device) -> None:
    x = Tensor(np.arange(4, dtype=np.float32), device=device).realize()
    for number in range(COUNT):
        (x * (number + 0.5)).realize()
    made = jit(lambda x: x * 0.123)
    wanted = (np.arange(4, dtype=np.float32) * np.float32(0.123)).tolist()
    assert [made(x).tolist() for _ in range(4)] == [wanted] * 4
    leaf = Tensor(np.arange(4, dtype=np.float32), device=device).requires_grad_()
    for number in range(COUNT):
        leaf.grad = None
        (leaf * (number + 0.25) + (number + 0.75)).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [number + 0.25] * 4
    whole = Tensor(np.arange(4, dtype=np.int8), device=device).realize()
    for number in range(COUNT):
        assert (whole + number).tolist() == [number, number + 1, number + 2, number + 3]
    with pytest.raises(BadArgument, match="out of range"):
        whole + 1000
    assert (whole < 1000).tolist() == [True] * 4
    with pytest.raises((BadArgument, OverflowError)):
        x * 10**400
    assert (x * 1e300).tolist()[1] == math.inf
    assert struct.pack("f", (x * -0.0).tolist()[0]) == struct.pack("f", -0.0)


def test_a_method_whose_own_number_comes_by_value(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean divides by a number: the recipe of its division is not that of the mean."""
    monkeypatch.setattr(core, "_recipes", {})
    monkeypatch.setattr(Series, "begins", lambda self, numbers: False)
    x = Tensor(np.arange(6, dtype=np.int64), device=device).realize()
    for _ in range(3):
        assert x.mean().tolist() == 2.5
        assert x.mean(-1).clamp(-4, 2).tolist() == 2


def test_they_take_no_memory(device: Device) -> None:
    x = Tensor(np.arange(4, dtype=np.float32), device=device).realize()
    for number in range(COUNT):
        (x * (number + 0.5)).realize()
    used = core_of(device).memory_use.bytes
    for number in range(10 * MANY):
        (x * (number + 0.125)).realize()
    assert core_of(device).memory_use.bytes == used
