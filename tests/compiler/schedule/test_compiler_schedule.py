"""What is fused: the number and kind of kernels for expressions that people write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.schedule.group import describe
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.command import Command
from ugpu.hcq.work.queue import HardwareQueue


def plan(tensor: Tensor) -> list[str]:
    return [describe(group) for group in schedule([tensor.node])]


@pytest.fixture
def square(cpu: Device) -> Tensor:
    return Tensor(np.ones((16, 16), np.float32), device=cpu)


@pytest.mark.parametrize(
    ("build", "kernels"),
    [
        (lambda x: x * 2 + 1, ["mul add"]),
        (lambda x: x, []),
        (lambda x: (x + 1).permute(1, 0).reshape(4, 64)[1:, ::2].flip(0) * 2, ["add mul"]),
        (lambda x: (x * 2).sum(1) * 0.5 + 1, ["mul sum mul add"]),
        (lambda x: (x @ x + x[0]).relu(), ["mul sum add max"]),
        (lambda x: x.softmax(), ["max sub exp sum div"]),
        (lambda x: x.softmax(0), ["max sub exp sum div"]),
        (lambda x: x.log_softmax(), ["max sub exp sum log sub"]),
        (lambda x: (x - x.mean(1, keepdims=True)) * 2, ["sum div sub mul"]),
        (lambda x: x.var(1), ["sum div sub mul sum div"]),
        (lambda x: x / x.sum(), ["sum div"]),
        (lambda x: x - x.sum(0) - x.sum(1, keepdims=True), ["sum", "sub sum sub"]),
        (lambda x: x.exp() @ x, ["exp", "mul sum"]),
        (lambda x: (x * 2) @ x, ["mul mul sum"]),
        (lambda x: x.sum(0) + x.sum(1), ["sum", "sum add"]),
        (lambda x: (x + 1).contiguous() * 2, ["add", "mul"]),
        (lambda x: (x.sin().sin() + 1) * x.sin().sin(), ["sin sin add sin sin mul"]),
        (lambda x: (y := x.sin().sin()) + y.flip(0), ["sin sin", "add"]),
        (lambda x: x.mean(0), ["sum div"]),
        (lambda x: x.argmax(1), ["max eq ne or iota cast where min cast"]),
        (lambda x: Tensor.cat([x, x + 1, x * 2]), ["add mul cat"]),
    ],
)
def test_kernels(square: Tensor, build: Callable[[Tensor], Tensor], kernels: list[str]) -> None:
    assert plan(build(square)) == kernels


def test_layers_of_16_bits_are_stored_in_16_bits(square: Tensor) -> None:
    """The next product widens, and moves, what the epilogue of the one before gives."""
    half = square.half().realize()
    hidden = (half @ half).relu()
    groups = schedule([(hidden @ half).node])
    assert [group.root.dtype.name for group in groups] == ["float16"] * 2


def test_long_chains_are_cut_and_right(square: Tensor) -> None:
    result = square
    for _ in range(1000):
        result = result + 1
    groups = schedule([result.node])
    assert 2 <= len(groups) <= 40
    assert np.all(result.numpy() == 1001)


def test_shared_values_do_not_explode(square: Tensor) -> None:
    result = square
    for _ in range(40):  # 2^40 paths through the graph
        result = (result + result.flip(0)) * 0.5
    assert np.all(result.numpy() == 1)


def test_results_are_kept_and_sources_forgotten(square: Tensor) -> None:
    middle = (square + 1).realize()
    assert middle.node.sources == () and plan(middle) == []
    assert plan(middle * 2) == ["mul"]
    reshaped = middle.reshape(256).realize()
    assert reshaped.node.storage is middle.node.storage


def test_equal_structure_shares_a_kernel(square: Tensor, cpu: Device) -> None:
    other = Tensor(np.full((16, 16), 3, np.float32), device=cpu)
    one, two = schedule([(square * other + 5).node]), schedule([(other * square + 5).node])
    assert one[0].key == two[0].key
    assert schedule([(square * other + 6).node])[0].key != one[0].key
    assert schedule([(square * square + 5).node])[0].key != one[0].key
    zero, minus_zero = (schedule([(square * number).node])[0].key for number in (0.0, -0.0))
    assert zero != minus_zero


def test_kernels_of_one_submission_are_ordered(
    square: Tensor, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Command] = []
    submit = cpu.driver.core.submit

    def watch(hardware: HardwareQueue, commands: Sequence[Command]) -> int:
        sent.extend(commands)
        return submit(hardware, commands)

    monkeypatch.setattr(cpu.driver.core, "submit", watch)
    (square @ (square @ (square @ square))).realize()
    kinds = [type(command).__name__ for command in sent]
    assert kinds == ["Launch", "Barrier", "Launch", "Barrier", "Launch"]


def test_threads_may_realize_at_once(cpu: Device) -> None:
    results: dict[int, float] = {}

    def work(number: int) -> None:
        total = Tensor(np.full(100, number, np.float32), device=cpu)
        for _ in range(20):
            total = (total + number).realize()
        results[number] = total.sum().item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: 2100.0 * number for number in range(6)}


def test_several_roots_at_once(square: Tensor) -> None:
    total, doubled = square.sum(), square * 2
    assert total.realize(doubled) is total
    assert doubled.node.storage is not None and total.item() == 256
