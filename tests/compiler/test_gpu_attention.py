"""Forms of attention on GPUs: which one is taken, and that every choice computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hcq
from compiler import Tensor
from compiler.index.ranges import Computation, express
from compiler.kernel.choices import Attention
from compiler.kernel.lower import lower, spaces
from compiler.runtime import use_cache
from compiler.schedule.grouping import schedule
from hcq.device import Device
from hcq.target import TargetSpec, ptx_target
from tests.support.compiler_cases import GFX1100
from tests.support.kernel_interpreter import interpret

Array = NDArray[Any]
SM_90 = ptx_target("sm_90", compute_units=132)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
    result: Tensor = scores.softmax() @ value
    return result


def expected(query: Array, key: Array, value: Array) -> Array:
    scores = (query.astype(np.float64) @ np.swapaxes(key, -1, -2)) * query.shape[-1] ** -0.5
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = raised / raised.sum(-1, keepdims=True) @ value
    return result


def inputs(rows: int, keys: int, depth: int, columns: int, kind: str = "float32") -> list[Array]:
    random = np.random.default_rng(rows + keys)
    shapes = [(rows, depth), (keys, depth), (keys, columns)]
    return [random.normal(0, 1.5, shape).astype(kind) for shape in shapes]


def computation(arrays: list[Array]) -> Computation:
    (group,) = schedule([attention(*(Tensor(array, device="cpu") for array in arrays)).node])
    return express(group)


def none(*_: object) -> Array:
    raise AssertionError("no matrix units here")


@pytest.mark.parametrize(
    "sizes", [(1, 37, 12, 20), (3, 40, 9, 7), (20, 9, 8, 8), (2, 11, 150, 140)]
)
@pytest.mark.parametrize("target", [GFX1100, SM_90], ids=lambda target: target.name)
def test_every_choice_computes_the_same(
    target: TargetSpec, sizes: tuple[int, int, int, int]
) -> None:
    arrays = inputs(*sizes)
    computed = computation(arrays)
    found = spaces(computed, target)
    forms = {space.start.form for space in found if isinstance(space.start, Attention)}
    assert forms >= {"thread", "group"}
    for space in found:
        others = [space.start, *space.neighbours(space.start)]
        for record in others if sizes[0] < 20 else others[::3]:
            kernel = lower(computed, target, record)
            result = interpret(kernel, arrays, none).reshape(sizes[0], sizes[3])
            np.testing.assert_allclose(
                result, expected(*arrays), rtol=3e-5, atol=1e-5, err_msg=str(record)
            )


def default(rows: int, keys: int, depth: int, columns: int) -> Attention:
    start = spaces(computation(inputs(rows, keys, depth, columns)), GFX1100)[0].start
    assert isinstance(start, Attention)
    return start


def test_few_rows_have_a_group_each() -> None:
    assert default(1, 4096, 64, 64).form == "group"
    assert default(1, 4096, 64, 64).lanes == 8  # that read a key's row side by side
    assert default(1, 4, 64, 64).block < default(1, 4096, 64, 64).block
    assert default(100, 64, 64, 64).form == "thread"


def test_every_default_fits() -> None:
    for rows in (1, 2, 15, 16, 300):
        for depth in (3, 64, 128, 129, 2000):
            for columns in (5, 128, 130, 3000):
                for target in (GFX1100, SM_90):
                    computed = computation(inputs(rows, 30, depth, columns))
                    space = spaces(computed, target)[0]
                    assert space.fits(space.start), (rows, depth, columns)
                    kernel = lower(computed, target)
                    local = sum(4 * m.count for m in kernel.locals if m.space == "local")
                    assert local <= target.local_memory


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    with hcq.open("virtual:gh100") as opened:
        use_cache(opened, tmp_path_factory.mktemp("kernels"))
        yield opened


@pytest.mark.parametrize("sizes", [(1, 131, 64, 64), (5, 70, 20, 9), (33, 40, 150, 140)])
def test_on_a_virtual_nvidia_gpu(gpu: Device, sizes: tuple[int, int, int, int]) -> None:
    arrays = inputs(*sizes)
    found = attention(*(Tensor(array, device=gpu) for array in arrays)).numpy()
    np.testing.assert_allclose(found, expected(*arrays), rtol=3e-5, atol=1e-5)
