"""Lines whose elements are two apart in memory, copied by vectors: each element once or twice, from
its place, and nothing before or behind the line."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.compiler.kernel.host.test_compiler_convolution import convolve
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import Range
from ugpu.compiler.expression.value import Memory, load
from ugpu.compiler.kernel.host.lines import every_second
from ugpu.compiler.kernel.ir import Loop, Statement, Store
from ugpu.hcq.device.device import Device

BEFORE, BESIDE = 3, 7  # elements before the line, in its memory and in that of the copy


def _moved(statement: Statement, places: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Yield where each copied element comes from, and where it goes."""
    if isinstance(statement, Loop):
        for place in range(statement.range.size):
            for inner in statement.body:
                yield from _moved(inner, places | {statement.range.name: place})
        return
    assert isinstance(statement, Store)
    moved = statement.value
    firsts = [(part.arg.index.evaluate(places), part.lanes) for part in moved.sources]
    read = [first + n for first, lanes in firsts for n in range(lanes)]
    to = statement.index.evaluate(places)
    yield from ((read[lane], to + n) for n, lane in enumerate(moved.arg))
    yield from ((place, -1) for place in read)  # what is read, but not copied


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_vectors_of_a_line(lanes: int) -> None:
    for size in range(2, 70):
        column = Range("column", size)
        count = BEFORE + 2 * size - 1
        image, stage = (Memory(name, float32, count + BESIDE) for name in ("image", "stage"))
        line = load(image, column.index() * 2 + BEFORE)
        copy = every_second(Store(stage, column.index() + BESIDE, line), column, lanes)
        moved = [each for part in copy for each in _moved(part, {})]
        assert {(place, to) for place, to in moved if to >= 0} == {
            (BEFORE + 2 * n, BESIDE + n) for n in range(size)
        }
        assert all(BEFORE <= place < count for place, _ in moved), size


def test_other_lines_are_left_alone() -> None:
    column = Range("column", 20)
    image, stage = Memory("image", float32, 100), Memory("stage", float32, 100)
    for step in (0, 1, 3, -2):  # and a line with padding, below
        line = load(image, column.index() * step + 50)
        assert not every_second(Store(stage, column.index(), line), column, 16), step
    line = load(image, column.index() * 2, (column.index() - 1,))
    assert not every_second(Store(stage, column.index(), line), column, 16)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("width", [7, 13, 14, 33, 57, 64, 66])
def test_convolutions_with_a_stride_of_two(cpu: Device, width: int, size: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.integers(-4, 5, (1, 24, 15, width)).astype(np.float32)
    weight = rng.integers(-4, 5, (20, 24, size, size)).astype(np.float32)
    a, w = (Tensor(each, device=cpu) for each in (x, weight))
    found = a.conv2d(w, stride=2, padding=size // 2).numpy()
    around = (size // 2, size // 2)
    assert (found == convolve(x, weight, (2, 2), around, (1, 1), 1)).all()
