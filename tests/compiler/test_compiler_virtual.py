"""The same answers from gfx1100 machine code on the virtual Navi31 as from the host and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import NUMPY_TYPES, arrays
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.codegen import emit
from ugpu.compiler.dtype import DType, bfloat16, float16, float32
from ugpu.compiler.runtime.runtime import kernel_log, use_cache
from ugpu.hcq.device.device import Device

Array = NDArray[Any]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    with hcq.open("virtual:navi31") as device:
        use_cache(device, tmp_path_factory.mktemp("kernels"))
        yield device


def numbers(name: str, count: int, seed: int) -> Array:
    """Random values of a type with its extremes."""
    random, kind = np.random.default_rng(seed), np.dtype(name)
    if kind.kind == "b":
        return random.integers(0, 2, count).astype(bool)
    if kind.kind == "f":
        special = [0, -0.0, np.inf, -np.inf, np.nan, 1e-5, -7, 300]
        return np.concatenate([random.normal(0, 3, count - 8), special]).astype(kind)
    limits = np.iinfo(kind)
    wide = random.integers(limits.min, limits.max, count // 2, dtype=kind, endpoint=True)
    narrow = random.integers(max(limits.min, -9), 9, count - count // 2).astype(kind)
    return np.concatenate([wide, narrow])


def alike(
    gpu: Device, cpu: Device, work: Callable[..., Tensor], *given: Array, tolerance: float = 0
) -> None:
    """Both devices compute the same, bit for bit unless a tolerance is given."""
    found = work(*(Tensor(array, device=gpu) for array in given)).numpy()
    expected = work(*(Tensor(array, device=cpu) for array in given)).numpy()
    if tolerance:
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, expected)


def all_binary(one: Tensor, two: Tensor) -> list[Tensor]:
    results = [one + two, one * two, one.maximum(two), one.minimum(two), one / two]
    results += [one < two, one <= two, one == two, one != two, (one < two).where(one, two)]
    if one.dtype.name != "bool":
        results += [one - two, one // two, one % two, -one, one.abs()]
    if not one.dtype.is_float:
        results += [one & two, one | two, one ^ two, ~one]
        if one.dtype.name != "bool":
            results += [one << two, one >> two]
    return results


@pytest.mark.parametrize("number", [0.3, -1.7, 0.5])
def test_a_rounded_product_keeps_the_sign_of_zero(gpu: Device, number: float) -> None:
    """Of one half alone LLVM made v_fma_mixlo_f16, which adds a zero without a sign."""
    array = np.array([0.0, -0.0, 1.0, -0.0], np.float16)
    found = (Tensor(array, device=gpu) * number).numpy()
    assert found.tobytes() == (array.astype(np.float32) * number).astype(np.float16).tobytes()


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_every_operation_on_every_type(gpu: Device, cpu: Device, name: str) -> None:
    one, two = numbers(name, 200, 1), numbers(name, 200, 2)
    found = all_binary(Tensor(one, device=gpu), Tensor(two, device=gpu))
    expected = all_binary(Tensor(one, device=cpu), Tensor(two, device=cpu))
    found[0].realize(*found[1:])
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=repr(theirs.node))


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_casts(gpu: Device, cpu: Device, name: str) -> None:
    values = numbers(name, 200, 3)
    for target in (*NUMPY_TYPES, "bfloat16"):
        alike(gpu, cpu, lambda t, target=target: t.cast(target), values)


@pytest.mark.slow
def test_functions_are_the_same_to_the_last_bit(gpu: Device, cpu: Device) -> None:
    values = np.concatenate(
        [numbers("float32", 500, 4), numbers("float32", 100, 5) * 1e8]
    ).astype(np.float32)  # fmt: skip
    for name in ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "sqrt", "rsqrt", "round"):
        alike(gpu, cpu, lambda t, name=name: getattr(t, name)(), values)
    alike(gpu, cpu, lambda a, b: a**b, np.abs(values), values[::-1].copy())


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_shapes(gpu: Device, data: st.DataObject) -> None:
    array = data.draw(arrays(dtype="float32", longest=40, most_axes=3))
    tensor = Tensor(array, device=gpu)
    moved = (tensor.T.flip(0) if array.ndim else tensor) * 2 + 1
    expected = (np.flip(array.T, 0) if array.ndim else array) * 2 + 1
    np.testing.assert_array_equal(moved.numpy(), expected)
    for axis in (None, *range(array.ndim)):
        total = array.astype(np.float64).sum(axis)
        np.testing.assert_allclose(tensor.sum(axis).numpy(), total, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(3, 5), (1000,), (7, 1030), (1030, 7), (4100, 3), (2, 3, 4, 5)])
def test_reductions(gpu: Device, cpu: Device, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(6).normal(size=shape).astype(np.float32)
    for axis in (None, 0, -1):
        for name in ("sum", "max", "argmin"):
            alike(gpu, cpu, lambda t, n=name, a=axis: getattr(t, n)(axis=a), array, tolerance=1e-4)
    alike(gpu, cpu, lambda t: t.softmax(), array, tolerance=1e-5)


@pytest.mark.parametrize(
    "shape", [(64, 64, 64), (65, 33, 130), (8, 4, 8), (9, 300, 20), (130, 17, 64)]
)
@pytest.mark.parametrize("turned", [False, True])
def test_matmul(gpu: Device, shape: tuple[int, int, int], turned: bool) -> None:
    rows, depth, columns = shape
    random = np.random.default_rng(7)
    left = random.normal(size=(rows, depth)).astype(np.float32)
    right = random.normal(size=(depth, columns)).astype(np.float32)
    ours = Tensor(left.T.copy(), device=gpu).T if turned else Tensor(left, device=gpu)
    theirs = Tensor(right.T.copy(), device=gpu).T if turned else Tensor(right, device=gpu)
    found = ((ours @ theirs) * 2 + theirs[0]).numpy()
    np.testing.assert_allclose(found, left @ right * 2 + right[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", [50, 64])
def test_matmul_tiles_are_zero_outside(gpu: Device, depth: int) -> None:
    """Adding one to the factors would make the padding one as well."""
    random = np.random.default_rng(11)
    left, right = (
        random.normal(size=shape).astype(np.float32) for shape in ((70, depth), (depth, 90))
    )
    found = ((Tensor(left, device=gpu) + 1) @ (Tensor(right, device=gpu) + 1)).numpy()
    np.testing.assert_allclose(found, (left + 1) @ (right + 1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
def test_padding_inside_a_vector(gpu: Device, before: int) -> None:
    """Threads move several elements at once; the border runs through the middle of them."""
    array = np.random.default_rng(12).normal(size=(30, 50)).astype(np.float32)
    pairs = ((before, 2), (before, 64 - 50 - before))
    padded = Tensor(array, device=gpu).pad(pairs, 3) * 2
    np.testing.assert_array_equal(padded.numpy(), np.pad(array, pairs, constant_values=3) * 2)
    parts = [Tensor(array, device=gpu), Tensor(array[:, :14], device=gpu)]
    joined = np.concatenate([array, array[:, :14]], 1)
    np.testing.assert_array_equal(Tensor.cat(parts, 1).numpy(), joined)


@pytest.mark.parametrize("name", ["float16", "int8", "int64", "bool"])
def test_matmul_of_other_types_and_batches(gpu: Device, cpu: Device, name: str) -> None:
    left, right = (numbers(name, 2 * 33 * 33, seed).reshape(2, 33, 33) for seed in (8, 9))
    if name == "float16":
        left, right = (np.where(np.isfinite(a), a, 1).astype(a.dtype) for a in (left, right))
    alike(gpu, cpu, lambda a, b: a @ b, left, right[0], tolerance=2e-3 if name == "float16" else 0)


@pytest.mark.parametrize("shape", [(200, 33), (64, 8), (3, 130, 40)])
def test_reductions_across_rows(gpu: Device, cpu: Device, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(13).normal(size=shape).astype(np.float32)
    alike(gpu, cpu, lambda t: t.sum(-2) * 2 + 1, array, tolerance=1e-4)
    alike(gpu, cpu, lambda t: t.argmax(-2), array)


def test_indices_of_64_bits(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tensors beyond 2^31 bytes use, on small ones."""
    monkeypatch.setattr(emit, "LIMIT_32", -1)
    random = np.random.default_rng(14)
    left, right = (random.normal(size=s).astype(np.float32) for s in ((70, 50), (50, 90)))
    ours, theirs = Tensor(left, device=gpu), Tensor(right, device=gpu)
    with kernel_log() as kernels:
        found = (ours.pad(((1, 2), (0, 0))) @ theirs.flip(0)).abs().sum(0).numpy()
    assert len(kernels) == 2
    padded = np.pad(left, ((1, 2), (0, 0)))
    np.testing.assert_allclose(found, np.abs(padded @ right[::-1]).sum(0), rtol=1e-4)
    turned = (ours.T * 3)[::-1, 1:].numpy()
    np.testing.assert_array_equal(turned, (left.T * 3)[::-1, 1:])


def test_tensors_survive_a_reset(gpu: Device) -> None:
    tensor = Tensor(np.arange(1000, dtype=np.float32), device=gpu)
    doubled = (tensor * 2).realize()
    gpu.synchronize()
    gpu.reset()
    assert (tensor * 2).numpy().sum() == 999000  # the program is still loaded
    fresh = Tensor(np.ones(10, np.float32), device=gpu)
    assert (fresh * 2).sum().item() == 20
    del doubled


def test_a_chain_of_kernels_reuses_memory(gpu: Device) -> None:
    result = Tensor(np.ones((64, 64), np.float32), device=gpu)
    for _ in range(20):
        result = ((result @ result) / 64).realize()
    np.testing.assert_array_equal(result.numpy(), np.ones((64, 64), np.float32))


def test_gathers(gpu: Device, cpu: Device) -> None:
    random = np.random.default_rng(5)
    table = random.random((70, 40), np.float32)
    rows, columns = random.integers(-80, 80, 33).astype(np.int32), random.integers(0, 40, 33)

    def pick(tensor: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return Tensor.cat([tensor[row], tensor[row, column].unsqueeze(1) * 2], 1)

    alike(gpu, cpu, pick, table, rows, columns)
    alike(gpu, cpu, lambda t, r, c: t[r] @ t[:40, c], table, rows, columns, tolerance=1e-5)


def test_long_reductions_in_pieces(gpu: Device, cpu: Device) -> None:
    array = np.random.default_rng(6).integers(-9, 9, (3, 70001)).astype(np.int32)
    alike(gpu, cpu, lambda t: t.sum(), array)
    alike(gpu, cpu, lambda t: t.max(1) - t.min(1), array)


@pytest.mark.parametrize("kind", [float16, bfloat16])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(8, 4, 8), (16, 16, 16), (33, 50, 70), (64, 64, 129)]
)
def test_matrix_units(gpu: Device, kind: DType, rows: int, depth: int, columns: int) -> None:
    random = np.random.default_rng(rows)
    left = random.integers(-3, 4, (2, rows, depth)).astype(np.float32)
    right = random.integers(-3, 4, (depth, columns)).astype(np.float32)
    ours, theirs = (Tensor(array, device=gpu).cast(kind).realize() for array in (left, right))
    turned = ours.cast(float32).transpose(1, 2).contiguous().cast(kind).realize().transpose(1, 2)
    expected = np.minimum((left * 2) @ right, 250) + 1  # small integers: exact in either type
    for one in (ours, turned):
        with kernel_log() as kernels:
            product = ((one * 2).cast(float32) @ theirs.cast(float32)).minimum(250) + 1
            found = product.numpy()
        np.testing.assert_array_equal(found, expected)
        assert len(kernels) <= 1


def test_matrix_units_sum_in_float32(gpu: Device) -> None:
    ones = Tensor(np.ones((16, 4096), np.float16), device=gpu)
    found = (ones.cast(float32) @ ones.transpose().cast(float32)).numpy()
    np.testing.assert_array_equal(found, np.full((16, 16), 4096, np.float32))


@pytest.mark.parametrize(("rows", "depth", "columns"), [(16, 16, 16), (33, 150, 70)])
def test_matrix_units_of_bytes(gpu: Device, rows: int, depth: int, columns: int) -> None:
    random = np.random.default_rng(rows)
    left = random.integers(-128, 128, (rows, depth)).astype(np.int8)
    right = random.integers(-128, 128, (columns, depth)).astype(np.int8)
    ours, theirs = Tensor(left, device=gpu), Tensor(right, device=gpu).T
    found = (ours.cast("int32") @ theirs.cast("int32") + 1).numpy()
    np.testing.assert_array_equal(found, left.astype(np.int32) @ right.T.astype(np.int32) + 1)
