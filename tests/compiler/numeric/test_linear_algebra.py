"""ugpu.linalg against NumPy's LAPACK, and its gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ugpu.compiler import Tensor
from ugpu.compiler.numeric import linalg
from ugpu.hcq.errors import BadArgument

Array = NDArray[Any]
random = np.random.default_rng(7)


def given(*shape: int) -> Array:
    return random.uniform(-1, 1, shape).astype(np.float32)


def positive(*shape: int) -> Array:
    matrix = given(*shape)
    return matrix @ np.swapaxes(matrix, -1, -2) + np.eye(shape[-1], dtype=np.float32)


@pytest.mark.parametrize("shapes", [((1, 1), (1, 2)), ((5, 5), (5,)), ((2, 1, 7, 7), (3, 7, 4))])
def test_solve(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    left, right = given(*shapes[0]), given(*shapes[1])
    x = linalg.solve(Tensor(left), Tensor(right)).numpy()
    wanted = np.linalg.solve(left, right if right.ndim > 1 else right[:, None])
    np.testing.assert_allclose(x, wanted.reshape(x.shape), rtol=1e-3, atol=1e-4)


def test_a_first_pivot_of_zero_is_exchanged() -> None:
    matrix = np.array([[0, 2, 1], [1, 0, 0], [3, 0, 1]], np.float32)
    inverse = linalg.inv(Tensor(matrix)).numpy()
    np.testing.assert_allclose(matrix @ inverse, np.eye(3), atol=1e-6)
    assert linalg.det(Tensor(matrix)).item() == pytest.approx(np.linalg.det(matrix))


def test_a_singular_matrix_gives_no_numbers() -> None:
    singular = Tensor([[1.0, 2.0], [2.0, 4.0]])
    assert not np.isfinite(linalg.inv(singular).numpy()).any()
    assert linalg.det(singular).item() == 0
    sign, logarithm = linalg.slogdet(singular)
    assert sign.item() == 0 and logarithm.item() == -np.inf


@pytest.mark.parametrize("shape", [(1, 1), (6, 6), (2, 3, 5, 5)])
def test_determinants(shape: tuple[int, ...]) -> None:
    matrix = given(*shape)
    np.testing.assert_allclose(
        linalg.det(Tensor(matrix)).numpy(), np.linalg.det(matrix), rtol=1e-3, atol=1e-6
    )
    sign, logarithm = linalg.slogdet(Tensor(matrix))
    wanted = np.linalg.slogdet(matrix)
    np.testing.assert_array_equal(sign.numpy(), wanted[0])
    np.testing.assert_allclose(logarithm.numpy(), wanted[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (2, 7, 7)])
def test_cholesky(shape: tuple[int, ...]) -> None:
    matrix = positive(*shape)
    lower = linalg.cholesky(Tensor(matrix)).numpy()
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrix), rtol=1e-4, atol=1e-5)
    upper = linalg.cholesky(Tensor(matrix), upper=True).numpy()
    np.testing.assert_array_equal(upper, np.swapaxes(lower, -1, -2))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 7, 4), (2, 4, 7), (5, 1)])
def test_qr_and_svd(shape: tuple[int, ...]) -> None:
    matrix = given(*shape)
    size = min(shape[-2:])
    q, r = (each.numpy() for each in linalg.qr(Tensor(matrix)))
    np.testing.assert_allclose(q @ r, matrix, atol=2e-6)
    np.testing.assert_allclose(
        np.swapaxes(q, -1, -2) @ q,
        np.broadcast_to(np.eye(size), (*shape[:-2], size, size)),
        atol=2e-6,
    )
    np.testing.assert_array_equal(r, np.triu(r))
    u, values, v = (each.numpy() for each in linalg.svd(Tensor(matrix)))
    np.testing.assert_allclose((u * values[..., None, :]) @ v, matrix, atol=3e-6)
    np.testing.assert_allclose(
        values, np.linalg.svd(matrix, compute_uv=False), rtol=1e-4, atol=1e-6
    )


def test_singular_values_of_zero_have_vectors() -> None:
    matrix = np.outer(given(5), given(4)).astype(np.float32)
    u, values, v = (each.numpy() for each in linalg.svd(Tensor(matrix)))
    assert values[1:].max() < 1e-6
    np.testing.assert_allclose(u.T @ u, np.eye(4), atol=1e-5)
    np.testing.assert_allclose(v @ v.T, np.eye(4), atol=1e-5)
    inverse = linalg.pinv(Tensor(matrix)).numpy()
    np.testing.assert_allclose(inverse, np.linalg.pinv(matrix, 1e-5), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (6, 6), (2, 7, 7)])
def test_eigh(shape: tuple[int, ...]) -> None:
    matrix = positive(*shape) - 1
    values, vectors = (each.numpy() for each in linalg.eigh(Tensor(matrix)))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(matrix @ vectors, vectors * values[..., None, :], atol=2e-5)


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "solve": lambda a: linalg.solve(a, Tensor(np.arange(8.0).reshape(4, 2))),
    "det": linalg.det,
    "slogdet": lambda a: linalg.slogdet(a)[1],
    "cholesky": lambda a: linalg.cholesky((a + a.transpose(0, 1)) / 2),
    "qr": lambda a: linalg.qr(a)[0].square() + linalg.qr(a)[1].square(),
    "eigh": lambda a: (lambda w, v: w + v.square())(*linalg.eigh((a + a.transpose(0, 1)) / 2)),
    "svd": lambda a: (lambda u, s, v: s + u.square() + v.square())(*linalg.svd(a)),
    "power": lambda a: linalg.matrix_power(a, -2),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("values", [
    (1, 1, 2, 2), *[pytest.param(each, marks=pytest.mark.slow) for each in (
        (1,) * 4 + (2,) * 5, (0, 0, 0, 3), (-1, 2) * 6)]])  # fmt: skip
def test_eigenvalues_that_occur_several_times(values: tuple[int, ...], kind: str) -> None:
    """Where two are equal, the elements that give an angle are rounding errors."""
    size, random = len(values), np.random.default_rng(3)
    base = np.linalg.qr(random.normal(size=(size, size)))[0]
    matrix = (base * values) @ base.T
    found, vectors = (
        each.numpy().astype(float) for each in linalg.eigh(Tensor(matrix, dtype=kind))
    )
    bound = 2e-5 if kind == "float32" else 1e-13
    assert np.abs(found - np.sort(values)).max() < bound
    assert np.abs(vectors.T @ vectors - np.eye(size)).max() < bound
    assert np.abs(matrix @ vectors - vectors * found).max() < bound


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    """By central differences along one direction."""
    function, start = GRADIENTS[name], positive(4, 4) + np.diag([0.0, 1.0, 2.5, 4.0])
    direction, step = given(4, 4), 2e-2
    x = Tensor(start).requires_grad_()
    result = function(x)
    weight = Tensor(given(*result.shape) if result.shape else np.float32(1))
    (result * weight).sum().backward()

    def value(part: float) -> float:
        moved = Tensor((start + part * step * direction).astype(np.float32))
        return float((function(moved) * weight).sum().item())

    slope = (8 * (value(1) - value(-1)) - (value(2) - value(-2))) / (12 * step)
    assert float((x.grad.numpy() * direction).sum()) == pytest.approx(slope, rel=2e-2, abs=5e-3)


def test_derivatives_of_higher_order() -> None:
    """Of log det x: the derivative of the inverse."""
    start, direction = positive(3, 3), given(3, 3)
    x = Tensor(start).requires_grad_()
    linalg.slogdet(x)[1].backward(create_graph=True)
    first = x.grad
    x.grad = None
    (first * Tensor(direction)).sum().backward()
    inverse = np.linalg.inv(start)
    np.testing.assert_allclose(
        x.grad.numpy(), -(inverse @ direction @ inverse).T, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: linalg.inv(Tensor([[1.0, 2.0]])), r"inv: expected a square matrix, got shape"),
        (lambda: linalg.qr(Tensor([1.0])), r"qr: expected a matrix \[..., rows, columns\]"),
        (lambda: linalg.svd(3), r"svd: expected a matrix"),
        (lambda: linalg.solve(Tensor.eye(2), Tensor.eye(3)), r"solve: shapes .* do not match"),
    ],
)
def test_bad_arguments(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        call()


ROWS = np.random.default_rng(8).standard_normal((2, 4, 4)).astype(np.float32)
SHORT_FORMS: dict[str, tuple[Any, Any]] = {
    "vector_norm": (lambda x: linalg.vector_norm(x, 3, dim=1), lambda a: np.linalg.norm(a, 3, 1)),
    "norm": (linalg.norm, lambda a: np.sqrt((a * a).sum())),
    "norm of matrices": (lambda x: linalg.norm(x, "nuc", (0, 2), True),
                         lambda a: np.linalg.norm(a, "nuc", (0, 2), True)),
    "norm of columns": (lambda x: linalg.norm(x, 1, dim=(2, 1)),
                        lambda a: np.linalg.norm(a, 1, (2, 1))),
    "cond": (linalg.cond, np.linalg.cond),
    "cond 1": (lambda x: linalg.cond(x, 1), lambda a: np.linalg.cond(a, 1)),
    "multi_dot": (lambda x: linalg.multi_dot([x[0, 0], x[0, :, :2], x[1, :2], x[1, 0]]),
                  lambda a: np.linalg.multi_dot([a[0, 0], a[0, :, :2], a[1, :2], a[1, 0]])),
    "solve_triangular": (lambda x: linalg.solve_triangular(x, x[:, :, :2], upper=True),
                         lambda a: np.linalg.solve(np.triu(a), a[:, :, :2])),
    "from the right": (
        lambda x: linalg.solve_triangular(x, x, upper=False, left=False, unitriangular=True),
        lambda a: a @ np.linalg.inv(np.tril(a, -1) + np.eye(4))),
    "cross": (lambda x: linalg.cross(x[0, :, :3], x[1, :, :3]),
              lambda a: np.cross(a[0, :, :3], a[1, :, :3])),
    "vecdot": (lambda x: linalg.vecdot(x, x, dim=1), lambda a: (a * a).sum(1)),
    "diagonal": (lambda x: linalg.diagonal(linalg.matmul(x, x), offset=1),
                 lambda a: np.diagonal(a @ a, 1, 1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT_FORMS)
def test_short_forms(name: str) -> None:
    mine, theirs = SHORT_FORMS[name]
    wanted = theirs(ROWS.astype(np.float64))
    found = mine(Tensor(ROWS)).numpy()
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)
