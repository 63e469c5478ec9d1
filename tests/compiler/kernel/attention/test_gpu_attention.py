"""Forms of attention on GPUs: which one is taken, and that every choice computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import GFX1100, disassembly
from tests.support.compiler.kernel_interpreter import interpret
from tests.support.compiler.matrix_hardware import hardware
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import bfloat16, float16, float32
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.functions import exp_below
from ugpu.compiler.expression.value import Memory, load
from ugpu.compiler.kernel.choices import Attention
from ugpu.compiler.kernel.ir import Kernel, Store, group_range, thread_range
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.kernel.verify import verify
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import TargetSpec, matrix_family, ptx_target

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
    "sizes",
    [
        (1, 37, 12, 20), (3, 40, 9, 7), pytest.param((20, 9, 8, 8), marks=pytest.mark.slow),
        pytest.param((2, 11, 150, 140), marks=pytest.mark.slow),
    ],
)  # fmt: skip
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
    assert default(1, 4096, 64, 64).block == GFX1100.wave_size  # which waits for no other
    assert default(100, 64, 64, 64).form == "thread"


def test_every_default_fits() -> None:
    for rows in (1, 16, 300):
        for depth in (3, 128, 129, 2000):
            for columns in (5, 130, 3000):
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


@pytest.fixture(scope="module")
def navi31(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    with hcq.open("virtual:navi31") as opened:
        use_cache(opened, tmp_path_factory.mktemp("kernels"))
        yield opened


@pytest.mark.parametrize("sizes", [(1, 131, 64, 64), (5, 70, 20, 9), (33, 40, 150, 140)])
def test_on_a_virtual_nvidia_gpu(gpu: Device, sizes: tuple[int, int, int, int]) -> None:
    arrays = inputs(*sizes)
    found = attention(*(Tensor(array, device=gpu) for array in arrays)).numpy()
    np.testing.assert_allclose(found, expected(*arrays), rtol=3e-5, atol=1e-5)


def test_exponentials_of_weights() -> None:
    """As exact as the others; nothing below the normal numbers; what is no number stays so."""
    numbers = np.linspace(-86.9, 0, 4096, dtype=np.float32)
    numbers[:4] = (-np.inf, np.nan, -88, -3.4e38)
    source, out = Memory("in0", float32, 4096), Memory("out", float32, 4096)
    place = group_range(0, 64).index() * 64 + thread_range(64).index()
    body = (Store(out, place, exp_below(load(source, place))),)
    kernel = verify(Kernel("kernel", (out, source), (), (64, 1, 1), 64, body))
    found = interpret(kernel, [numbers], none)
    np.testing.assert_allclose(found[4:], np.exp(numbers[4:].astype(np.float64)), rtol=3e-7)
    np.testing.assert_array_equal(found[:4], np.array([0, np.nan, 0, 0], np.float32))


# ---- matrix units ------------------------------------------------------------------------------


def amd(cpu: str, wave: int) -> TargetSpec:
    return replace(GFX1100, name=cpu, cpu=cpu, wave_size=wave, matrix=matrix_family(cpu))


UNITS = [
    GFX1100, amd("gfx1201", 32), amd("gfx942", 64), amd("gfx950", 64), ptx_target("sm_80", 64),
]  # fmt: skip


def halves(sizes: tuple[int, int, int, int], spread: float = 0.5) -> list[Array]:
    return [(array * spread).astype(np.float16) for array in inputs(*sizes)]


@pytest.mark.parametrize("target", UNITS, ids=lambda target: target.name)
@pytest.mark.parametrize(
    "sizes",
    [(16, 32, 16, 16), (21, 37, 40, 24), pytest.param((17, 70, 33, 13), marks=pytest.mark.slow)],
)
def test_matrix_units_compute_both_products(
    target: TargetSpec, sizes: tuple[int, int, int, int]
) -> None:
    arrays = halves(sizes)
    computed = computation(arrays)
    space = spaces(computed, target)[0]
    assert isinstance(space.start, Attention) and space.start.form == "matrix"
    for record in [space.start, *list(space.neighbours(space.start))[::2]]:
        kernel = lower(computed, target, record)
        assert format_kernel(kernel).count("matrix.") > 1
        result = interpret(kernel, arrays, hardware).reshape(sizes[0], sizes[3])
        np.testing.assert_allclose(
            result, expected(*arrays), rtol=5e-3, atol=5e-3, err_msg=str(record)
        )


@pytest.mark.parametrize("target", UNITS, ids=lambda target: target.name)
@pytest.mark.parametrize("keys", [30, 64, 150])
def test_two_tiles_in_turns(target: TargetSpec, keys: int) -> None:
    """One tile, tiles that divide the keys, and more of them."""
    arrays = halves((21, keys, 40, 24))
    computed = computation(arrays)
    space = spaces(computed, target)[0]
    for size in (16, 32):
        assert isinstance(space.start, Attention) and space.start.form == "matrix"
        record = replace(space.start, keys=size, buffers=2)
        if not space.fits(record):
            continue
        kernel = lower(computed, target, record)
        result = interpret(kernel, arrays, hardware).reshape(21, 24)
        np.testing.assert_allclose(result, expected(*arrays), rtol=5e-3, atol=5e-3)
        single = lower(computed, target, replace(record, buffers=1))
        local = [sum(m.count for m in k.locals if m.space == "local") for k in (kernel, single)]
        assert local[0] == 2 * local[1]


def test_two_tiles_are_the_default_where_both_fit() -> None:
    for sizes, buffers in (
        ((6400, 512, 64, 64), 2),
        ((6400, 64, 64, 64), 1),
        ((40, 70, 200, 200), 1),
    ):
        start = spaces(computation(halves(sizes)), GFX1100)[0].start
        assert isinstance(start, Attention) and start.buffers == buffers, sizes


def test_rows_with_masks_and_sums_on_matrix_units() -> None:
    """A mask read for each score, a row that sees nothing, an epilogue."""
    arrays = halves((20, 40, 16, 24))
    mask = np.where(np.arange(40) <= np.arange(20)[:, None] + 3, 0, -np.inf).astype(np.float16)
    mask[7] = -np.inf
    query, key, value = (Tensor(array, device="cpu") for array in arrays)
    scores = (query @ key.transpose(-1, -2)) * 0.25 + Tensor(mask, device="cpu")
    (group,) = schedule([(scores.softmax() @ value * 2 + 1).node])
    computed = express(group)
    kernel = lower(computed, GFX1100)
    assert "matrix." in format_kernel(kernel)
    tensors = (query, key, value)
    order = {id(tensor.node): array for tensor, array in zip(tensors, arrays, strict=True)}
    given = [order.get(id(node), mask) for node in group.inputs]
    result = interpret(kernel, given, hardware).reshape(20, 24)
    with np.errstate(invalid="ignore"):
        wide = arrays[0].astype(np.float64) @ arrays[1].T.astype(np.float64) * 0.25 + mask
        raised = np.exp(wide - wide.max(-1, keepdims=True))
        wanted = raised / raised.sum(-1, keepdims=True) @ arrays[2] * 2 + 1
    assert np.isnan(result[7]).all()
    np.testing.assert_allclose(result, wanted, rtol=5e-3, atol=5e-3)


def test_weights_that_stay_wide_stay_off_the_units() -> None:
    arrays = halves((32, 32, 16, 16))
    query, key, value = (Tensor(array, device="cpu").cast(float32) for array in arrays)
    (group,) = schedule([attention(query, key, value).node])
    for space in spaces(express(group), GFX1100):
        assert isinstance(space.start, Attention) and space.start.form != "matrix"


@pytest.mark.parametrize(
    ("target", "word"),
    [(GFX1100, "v_wmma_f32_16x16x16_f16"), (UNITS[2], "v_mfma_f32_16x16x16_f16")],
    ids=["gfx1100", "gfx942"],
)
def test_the_code_of_matrix_units(target: TargetSpec, word: str) -> None:
    text = disassembly(lower(computation(halves((256, 256, 64, 64))), target), target)
    assert text.count(word) >= 8 and "scratch_" not in text


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_matrix_units_of_virtual_gpus(gpu: Device, navi31: Device, kind: str) -> None:
    dtype = {"float16": float16, "bfloat16": bfloat16}[kind]
    for device, sizes in ((gpu, (40, 70, 64, 64)), (navi31, (17, 33, 20, 150))):
        wide = inputs(*sizes)
        tensors = [Tensor(array * 0.5, device=device).cast(dtype).realize() for array in wide]
        arrays = [tensor.cast(float32).numpy() for tensor in tensors]
        found = attention(*tensors).cast(float32).numpy()
        close = 5e-3 if kind == "float16" else 3e-2
        np.testing.assert_allclose(found, expected(*arrays), rtol=close, atol=close)
