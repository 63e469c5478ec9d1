"""Linear algebra of complex matrices, beside NumPy in complex128."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu import ComplexTensor, Tensor, linalg, xp
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

RANDOM = np.random.default_rng(9)


def drawn(*shape: int) -> Any:
    return RANDOM.normal(size=shape) + 1j * RANDOM.normal(size=shape)


SQUARE, RIGHT, WIDE = drawn(2, 5, 5), drawn(2, 5, 3), drawn(3, 5)
HERMITIAN = SQUARE + SQUARE.conj().swapaxes(-1, -2)
FLAT = drawn(4, 2) @ drawn(2, 5)  # of rank 2
Way = Callable[[Any, Callable[[Any], Any]], Any]
WAYS: dict[str, Way] = {
    "solve": lambda of, made: of.solve(made(SQUARE), made(RIGHT)),
    "solve of a vector": lambda of, made: of.solve(made(SQUARE[0]), made(RIGHT[0, :, 0])),
    "real right side": lambda of, made: of.solve(made(SQUARE), made(RIGHT.real.copy())),
    "real left side": lambda of, made: of.solve(made(SQUARE.real.copy()), made(RIGHT)),
    "inv": lambda of, made: of.inv(made(SQUARE)),
    "pinv": lambda of, made: of.pinv(made(WIDE)),
    "pinv of a lower rank": lambda of, made: of.pinv(made(FLAT)),
    "pinv, hermitian": lambda of, made: of.pinv(made(HERMITIAN), hermitian=True),
    "svdvals": lambda of, made: of.svdvals(made(WIDE)),
    "eigvalsh": lambda of, made: of.eigvalsh(made(HERMITIAN)),
    "eigvalsh of a triangle": lambda of, made: of.eigvalsh(made(SQUARE), "U"),
    "det": lambda of, made: of.det(made(SQUARE)),
    "det of a lower rank": lambda of, made: of.det(made(FLAT[:, :4])),
    "slogdet, direction": lambda of, made: of.slogdet(made(SQUARE))[0],
    "slogdet, magnitude": lambda of, made: of.slogdet(made(SQUARE))[1],
    "eigh, values": lambda of, made: of.eigh(made(HERMITIAN))[0],
    "eigh, values of a triangle": lambda of, made: of.eigh(made(SQUARE), "U")[0],
    "svd, values": lambda of, made: of.svd(made(WIDE))[1],
    "matrix_rank": lambda of, made: of.matrix_rank(made(FLAT)),
    "matrix_power": lambda of, made: of.matrix_power(made(SQUARE), 3),
    "power of an inverse": lambda of, made: of.matrix_power(made(SQUARE), -2),
}


@pytest.mark.parametrize("kind", ["complex64", "complex128"])
@pytest.mark.parametrize("name", WAYS)
def test_as_in_numpy(name: str, kind: str, cpu: Device) -> None:
    def made(array: Any) -> Any:
        if array.dtype.kind == "c":
            return ComplexTensor(array, device=cpu, dtype=kind)
        return Tensor(array, device=cpu, dtype="float32" if kind == "complex64" else "float64")

    found, wanted = WAYS[name](linalg, made), WAYS[name](np.linalg, lambda array: array)
    assert found.shape == wanted.shape
    if wanted.dtype.kind == "c":
        assert found.dtype.name == kind
    bound = 2e-4 if kind == "complex64" else 1e-11
    assert np.abs(found.numpy() - wanted).max() <= bound * max(1, np.abs(wanted).max())


EQUAL = np.eye(6) + 0j  # of equal eigenvalues
NULL = np.zeros((4, 3), complex)
DEGENERATE = np.linalg.qr(drawn(6, 6))[0]
DEGENERATE = DEGENERATE @ np.diag([2.0, 2.0, 2.0, -1.0, -1.0, 5.0]) @ DEGENERATE.conj().T
SHAPES = {
    "square": SQUARE, "tall": drawn(7, 4), "wide": WIDE, "batch": drawn(2, 3, 4, 2),
    "one": drawn(1, 1), "lower rank": FLAT, "tall, lower rank": FLAT.T.copy(),
    "zeros": NULL, "equal": EQUAL, "degenerate": DEGENERATE, "column": drawn(5, 1),
    "large": drawn(3, 3) * 1e15,
    "real": drawn(4, 4).real + 0j, "imaginary": 1j * drawn(4, 4).real, "empty": drawn(0, 3),
}  # fmt: skip


def up(array: Any) -> Any:
    return array.conj().swapaxes(-1, -2)


def check_base(base: Any, bound: float) -> None:
    assert np.abs(up(base) @ base - np.eye(base.shape[-1])).max(initial=0.0) <= bound


@pytest.mark.parametrize("kind", ["complex64", "complex128"])
@pytest.mark.parametrize("name", SHAPES)
def test_factors_have_their_product(name: str, kind: str, cpu: Device) -> None:
    """NumPy multiplies them; factors themselves are determined up to directions."""
    given = SHAPES[name].astype(kind)
    z, exact = ComplexTensor(given, device=cpu, dtype=kind), given.astype(complex)
    bound = 1e-5 if kind == "complex64" else 1e-13
    near = 4 * bound * max(1.0, float(np.abs(exact).max(initial=0.0)))
    for mode in ("reduced", "complete"):
        left, right = (each.numpy() for each in linalg.qr(z, mode))
        wanted = np.linalg.qr(exact, mode)
        assert (left.shape, right.shape) == (wanted[0].shape, wanted[1].shape)
        assert left.dtype.name == right.dtype.name == kind
        assert np.abs(left @ right - exact).max(initial=0.0) <= near
        assert not np.tril(right, -1).any()
        check_base(left, 4 * bound)
    for full in (False, True):
        left, values, right = (each.numpy() for each in linalg.svd(z, full))
        wanted = np.linalg.svd(exact, full)
        assert (left.shape, right.shape) == (wanted[0].shape, wanted[2].shape)
        size = values.shape[-1]
        whole = (left[..., :size] * values[..., None, :]) @ right[..., :size, :]
        assert np.abs(whole - exact).max(initial=0.0) <= near
        assert np.abs(values - wanted[1]).max(initial=0.0) <= near
        assert values.dtype.kind == "f"
        check_base(left, 4 * bound)
        check_base(up(right), 4 * bound)
    if given.shape[-1] == given.shape[-2]:
        hermitian = exact + up(exact)
        found = linalg.eigh(ComplexTensor(hermitian, device=cpu, dtype=kind))
        values, vectors = (each.numpy() for each in found)
        assert np.abs((vectors * values[..., None, :]) @ up(vectors) - hermitian).max() <= 2 * near
        assert np.abs(values - np.linalg.eigvalsh(hermitian)).max() <= 2 * near
        check_base(vectors, 4 * bound)


def test_no_gradient_is_refused(cpu: Device) -> None:
    z = ComplexTensor(SQUARE, device=cpu).requires_grad_()
    for refused in (linalg.det, linalg.slogdet, linalg.qr, linalg.eigh, linalg.svd):
        with pytest.raises(NotSupported, match="gradient for real matrices alone"):
            refused(z)
    assert linalg.det(z.detach()).shape == (2,)


def test_in_the_standard(cpu: Device) -> None:
    z = ComplexTensor(SQUARE, device=cpu, dtype="complex128")
    eye = xp.matmul(xp.linalg.inv(z), z).numpy()
    assert np.abs(eye - np.eye(5)).max() < 1e-12
    assert np.abs(xp.linalg.solve(z, z).numpy() - np.eye(5)).max() < 1e-12


def test_gradients(cpu: Device) -> None:
    """Of the real function sum(|inv(z)|^2): by differences along each part."""
    z = ComplexTensor(SQUARE[0], device=cpu, dtype="complex128").requires_grad_()
    inverse: Any = linalg.inv(z)
    (inverse.real.square() + inverse.imag.square()).sum().backward()

    def loss(array: Any) -> float:
        return float((np.abs(np.linalg.inv(array)) ** 2).sum())

    for place in ((0, 0), (3, 1)):
        for unit in (1.0, 1j):
            step = np.zeros((5, 5), complex)
            step[place] = unit * 1e-6
            slope = (loss(SQUARE[0] + step) - loss(SQUARE[0] - step)) / 2e-6
            found = z.grad.numpy()[place]
            part = found.real if unit == 1.0 else found.imag
            assert abs(part - slope) < 1e-4 * max(1, abs(slope))


def test_what_is_refused(cpu: Device) -> None:
    z = ComplexTensor(WIDE, device=cpu)
    for refused in (lambda: linalg.inv(z), lambda: linalg.solve(z, z),
                    lambda: linalg.matrix_power(z, 2), lambda: linalg.eigvalsh(z),
                    lambda: linalg.eigh(z), lambda: linalg.det(z),
                    lambda: linalg.cholesky(z), lambda: linalg.qr(z[0])):  # fmt: skip
        with pytest.raises(BadArgument, match="expected a"):
            refused()
    with pytest.raises(BadArgument, match="do not match"):
        linalg.solve(ComplexTensor(SQUARE, device=cpu), z)
