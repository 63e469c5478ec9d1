"""ugpu.xp: the array API standard, compared with NumPy, and judged by the standard's own tests."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ugpu
from ugpu.compiler import Tensor, dtypes
from ugpu.compiler import xp as functions
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

xp: Any = functions  # the same calls are made of NumPy
ROOT = Path(__file__).resolve().parents[3]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module", params=["cpu", "virtual:navi31", "virtual:gh100"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with ugpu.open(request.param) as device:
        yield device


def ours(call: Callable[[Any, Callable[..., Any]], Any], device: Device) -> list[Any]:
    return listed(call(xp, partial(xp.asarray, device=device)))


def listed(result: Any) -> list[Any]:
    results = result if isinstance(result, list | tuple) else [result]
    return [each.numpy() if isinstance(each, Tensor) else each for each in results]


NUMBERS = [[3.0, -1.0, 2.5], [0.0, 7.0, -4.0]]
CALLS: dict[str, Callable[[Any, Callable[..., Any]], Any]] = {
    "sums with the first": lambda xp, a: xp.cumulative_sum(
        a(NUMBERS), axis=1, include_initial=True
    ),
    "products with the first": lambda xp, a: xp.cumulative_prod(a([2, 3, 4]), include_initial=True),
    "repeat each": lambda xp, a: xp.repeat(a(NUMBERS), a([2, 0, 1]), axis=1),
    "repeat all": lambda xp, a: xp.repeat(a(NUMBERS), 2),
    "tile more axes": lambda xp, a: xp.tile(a([1, 2]), (2, 1, 3)),
    "tile fewer": lambda xp, a: xp.tile(a(NUMBERS), (2,)),
    "unstack": lambda xp, a: xp.unstack(a(NUMBERS), axis=1),
    "take": lambda xp, a: xp.take(a(NUMBERS), a([2, 0]), axis=1),
    "take along": lambda xp, a: xp.take_along_axis(a(NUMBERS), a([[2], [0]]), axis=1),
    "linspace": lambda xp, a: xp.linspace(0, 1, 5, endpoint=False, dtype=xp.float32),
    "eye": lambda xp, a: xp.eye(3, 4, k=1, dtype=xp.float32),
    "meshgrid": lambda xp, a: xp.meshgrid(a([1, 2]), a([3, 4, 5])),
    "sorter": lambda xp, a: xp.searchsorted(a([3, 1, 2]), a([2, 4]), sorter=a([1, 2, 0])),
    "clip": lambda xp, a: xp.clip(a(NUMBERS), a([-1.0, 0.0, 1.0]), 2),
    "roll": lambda xp, a: xp.roll(a(NUMBERS), (1, 1), axis=(0, 1)),
    "concat": lambda xp, a: xp.concat([a([1, 2]), a([[3], [4]])], axis=None),
    "moveaxis": lambda xp, a: xp.moveaxis(a([NUMBERS, NUMBERS]), 0, -1),
    "nonzero": lambda xp, a: xp.nonzero(a(NUMBERS)),
    "mask": lambda xp, a: a(NUMBERS)[a(NUMBERS) > 2],
    "var": lambda xp, a: xp.var(a(NUMBERS, dtype=xp.float32), axis=1, correction=0.5),
    "remainders of zero": lambda xp, a: xp.signbit(
        xp.remainder(a([-0.0, 0.0, -3.0]), a([1.0, -1.0, 3.0]))
    ),
    "differences": lambda xp, a: xp.diff(a(NUMBERS), prepend=a([[1.0], [2.0]]), n=2),
    "unique": lambda xp, a: [*xp.unique_all(a([3, 1, 3, 2, 1])), xp.unique_values(a([2, 1, 2]))],
    "number first": lambda xp, a: [
        xp.subtract(1, a([2, 5])), xp.pow(2, a([3, 4])), xp.less(1, a([0, 2])),
    ],
}  # fmt: skip


@pytest.mark.skipif(not hasattr(np, "unstack"), reason="NumPy 2.1 has these functions")
@pytest.mark.parametrize("name", CALLS)
def test_as_in_numpy(device: Device, name: str) -> None:
    call = CALLS[name]
    expected = listed(call(np, np.asarray))
    found = ours(call, device)
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        assert one.shape == two.shape and np.allclose(one, two)


MATRIX = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)


@pytest.mark.parametrize("ord", ["fro", "nuc", 1, -1, 2, -2, INF, -INF])
def test_norms_of_matrices(cpu: Device, ord: Any) -> None:
    found = xp.linalg.matrix_norm(Tensor(MATRIX, device=cpu), ord=ord, keepdims=True)
    expected = np.linalg.norm(MATRIX, ord, (-2, -1), keepdims=True)
    assert np.allclose(found.numpy(), expected, rtol=1e-4)


def test_whole_bases(cpu: Device) -> None:
    for matrix in (MATRIX, MATRIX.swapaxes(1, 2)):
        rows, columns = matrix.shape[1:]
        given = Tensor(matrix, device=cpu)
        left, values, right = xp.linalg.svd(given)
        base, triangle = xp.linalg.qr(given, mode="complete")
        assert left.shape == base.shape == (2, rows, rows) and right.shape == (2, columns, columns)
        middle = np.zeros((2, rows, columns), np.float32)
        middle[:, range(3), range(3)] = values.numpy()
        assert np.allclose(left.numpy() @ middle @ right.numpy(), matrix, atol=1e-5)
        assert np.allclose(base.numpy() @ triangle.numpy(), matrix, atol=1e-5)
        for whole in (left, base, right):
            product = whole.numpy() @ whole.numpy().swapaxes(1, 2)
            assert np.allclose(product, np.eye(whole.shape[1]), atol=1e-5)


def test_columns_that_complete_a_base_have_no_gradient(cpu: Device) -> None:
    given = Tensor(MATRIX, device=cpu).requires_grad_()
    with pytest.raises(NotSupported, match="columns that complete a base"):
        xp.linalg.svd(given).U.sum().backward()


def test_ranks_and_tolerances(cpu: Device) -> None:
    given = Tensor(np.array([np.diag([3.0, 2.0, 1.0]), np.diag([3.0, 1.0, 0.0])]), device=cpu)
    assert xp.linalg.matrix_rank(given).tolist() == [3, 2]
    assert xp.linalg.matrix_rank(given, rtol=Tensor([0.5, 0.1], device=cpu)).tolist() == [2, 2]
    inverse = xp.linalg.pinv(given, rtol=Tensor([0.5, 0.1], device=cpu)).numpy()
    expected = [np.diag([1 / 3, 0.5, 0]), np.diag([1 / 3, 1, 0])]
    assert np.allclose(inverse, expected, atol=1e-6)


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_squares_do_not_overflow(cpu: Device, size: float) -> None:
    matrix = (MATRIX * size).astype(np.float32)
    given = Tensor(matrix, device=cpu)
    expected = np.linalg.svd(matrix.astype(np.float64))[1]
    assert np.allclose(xp.linalg.svdvals(given).numpy(), expected, rtol=1e-5, atol=0)
    base, triangle = xp.linalg.qr(given)
    product = base.numpy().astype(np.float64) @ triangle.numpy()
    assert np.allclose(product / size, MATRIX, atol=1e-5)


def test_products_of_vectors_are_broadcast(cpu: Device) -> None:
    one, two = MATRIX[:, :1], MATRIX[0]
    found = xp.linalg.cross(Tensor(one, device=cpu), Tensor(two, device=cpu))
    assert np.allclose(found.numpy(), np.cross(one, two), atol=1e-6)
    with pytest.raises(BadArgument, match="an axis below 0"):
        xp.linalg.cross(Tensor(one, device=cpu), Tensor(two, device=cpu), axis=1)


def test_a_diagonal_outside_of_the_matrix(cpu: Device) -> None:
    for far in (3, 10**30, -(10**30)):
        assert not xp.eye(2, 3, k=far, device=cpu).numpy().any()


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3), (3, 0), (0, 2, 3)])
def test_matrices_without_elements(cpu: Device, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.float32)
    given = Tensor(array, device=cpu)
    pairs: list[tuple[Any, Any]] = [
        (xp.linalg.svd(given), np.linalg.svd(array)),
        (xp.linalg.qr(given, mode="complete"), np.linalg.qr(array, mode="complete")),
    ]
    if shape[-1] == shape[-2]:
        for name in ("inv", "det", "cholesky", "eigvalsh"):
            pairs.append(([getattr(xp.linalg, name)(given)], [getattr(np.linalg, name)(array)]))
        pairs.append((xp.linalg.slogdet(given), np.linalg.slogdet(array)))
        pairs.append(([xp.linalg.solve(given, given)], [np.linalg.solve(array, array)]))
    for found, expected in pairs:
        for one, two in zip(found, expected, strict=True):
            assert one.shape == two.shape and np.array_equal(one.numpy(), two)


# ---- types ---------------------------------------------------------------------------------------


def test_limits_of_types() -> None:
    for name in ("float16", "float32"):
        limits, expected = xp.finfo(getattr(dtypes, name)), np.finfo(name)
        for each in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(limits, each) == getattr(expected, each)
    assert xp.finfo(dtypes.bfloat16).max == 3.3895313892515355e38
    assert xp.finfo(dtypes.float8_e4m3fn).max == 448 and xp.finfo(dtypes.float8_e5m2).eps == 0.25
    assert (xp.iinfo(xp.int8).min, xp.iinfo(xp.uint64).max) == (-128, 2**64 - 1)
    with pytest.raises(BadArgument, match="finfo: expected a float type, got int8"):
        xp.finfo(xp.int8)
    with pytest.raises(BadArgument, match="iinfo: expected an integer type, got float32"):
        xp.iinfo(xp.float32)


def test_promotion() -> None:
    assert xp.result_type(xp.int8, xp.uint16) is xp.int32
    assert xp.result_type(xp.int8, 1, True) is xp.int8
    assert xp.result_type(Tensor([1], dtype="int32", device="cpu"), 1.5) is xp.float32
    assert xp.can_cast(xp.uint8, xp.int16) and not xp.can_cast(xp.int16, xp.uint8)
    assert xp.isdtype(xp.uint8, ("signed integer", "unsigned integer"))
    assert not xp.isdtype(xp.bool, "numeric") and xp.isdtype(xp.bool, xp.bool)
    with pytest.raises(BadArgument, match="kind must be one of"):
        xp.isdtype(xp.bool, "object")
    with pytest.raises(BadArgument, match="expected a Tensor or a type"):
        xp.result_type(1, 2)


def test_what_the_library_reports() -> None:
    info = xp.__array_namespace_info__()
    with ugpu.open("cpu") as device:
        assert info.default_device() is device and info.devices()[0] is device
    assert set(info.dtypes(kind="real floating")) == {"float32", "float64"}
    assert set(info.dtypes(kind=("bool", "signed integer"))) == {
        "bool", "int8", "int16", "int32", "int64",
    }  # fmt: skip
    assert info.default_dtypes()["indexing"] is xp.int64
    assert info.capabilities()["boolean indexing"] is True


# ---- arrays --------------------------------------------------------------------------------------


def test_copies_of_arrays(cpu: Device) -> None:
    tensor = Tensor([1.0, 2.0], device=cpu)
    assert xp.asarray(tensor) is tensor and xp.asarray(tensor, copy=False) is tensor
    twin = xp.asarray(tensor, copy=True)
    twin[0] = 5.0
    assert tensor.tolist() == [1, 2] and twin.tolist() == [5, 2]
    assert xp.astype(tensor, xp.float32, copy=False) is tensor
    with pytest.raises(ValueError, match="list has to be copied"):
        xp.asarray([1], copy=False)
    with pytest.raises(ValueError, match="Tensor has to be copied"):
        xp.asarray(tensor, dtype=xp.int8, copy=False)


def test_attributes_of_arrays(cpu: Device) -> None:
    tensor = Tensor(np.arange(6).reshape(1, 2, 3), device=cpu)
    assert tensor.mT.shape == (1, 3, 2) and tensor.size == 6
    assert tensor.__array_namespace__() is xp
    assert tensor.__array_namespace__(api_version="2024.12") is xp
    assert [10, 20, 30][tensor[0, 0, 2]] == 30 and complex(tensor[0, 1, 1]) == 4
    assert tensor.to_device(cpu).device is cpu
    with pytest.raises(BadArgument, match="api_version must be one of"):
        tensor.__array_namespace__(api_version="1999.1")
    with pytest.raises(TypeError, match="an index must be an integer without axes, got int64"):
        [1][tensor]
    with pytest.raises(BadArgument, match="mT: expected at least two axes"):
        _ = tensor[0, 0].mT
    with pytest.raises(BadArgument, match="streams are not supported"):
        tensor.to_device(cpu, stream=1)


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: xp.squeeze(x, 0), "squeeze: axis 0 of shape .* must have size 1"),
    (lambda x: xp.take(x, x), "take: expected an axis"),
    (lambda x: xp.cumulative_sum(x), "cumulative_sum: expected an axis"),
    (lambda x: xp.add(1, 2), "expected a Tensor and a Tensor or a number, got int and int"),
    (lambda x: xp.sin([1.0]), "sin: expected a Tensor, got list"),
    (lambda x: xp.nonzero(x.sum()), "nonzero: expected at least one axis"),
    (lambda x: xp.repeat(x, x.cast("int32"), axis=0), "expected 2 counts, ints on one axis"),
    (lambda x: xp.repeat(x, Tensor([1, -1], device=x.device), axis=0), "must not be negative"),
    (lambda x: xp.linalg.matrix_norm(x, ord=3), "matrix_norm: ord must be"),
    (lambda x: xp.linalg.qr(x, mode="raw"), "qr: mode must be"),
])  # fmt: skip
def test_bad_arguments(cpu: Device, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        call(Tensor(NUMBERS, device=cpu))


def test_a_name_that_is_missing() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = xp.nothing


def test_sizes_that_depend_on_data_are_refused_in_recorded_functions(cpu: Device) -> None:
    @ugpu.jit
    def chosen(x: Tensor) -> Tensor:
        return x[x > 0]

    with pytest.raises(BadArgument, match="cannot be read while the function is recorded"):
        for _ in range(3):
            chosen(Tensor(np.array(NUMBERS, np.float32), device=cpu))


# ---- the standard's own tests --------------------------------------------------------------------


@pytest.mark.slow
def test_the_suite_of_the_standard() -> None:
    """See tests/support/compiler/array_api.py: what fails is listed there with its reason."""
    folder = os.environ.get("ARRAY_API_TESTS", "")
    if not Path(folder, "array_api_tests").is_dir():
        pytest.skip("ARRAY_API_TESTS does not name the folder of array-api-tests")
    for package in ("ndindex", "pytest_jsonreport"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"array-api-tests needs {package}, which is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.compiler.array_api", "2"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
