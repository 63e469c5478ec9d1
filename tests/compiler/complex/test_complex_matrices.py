"""Linear algebra of complex matrices, beside NumPy in complex128."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu import ComplexTensor, Tensor, linalg, xp
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

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
                    lambda: linalg.qr(z), lambda: linalg.det(z)):  # fmt: skip
        with pytest.raises(BadArgument, match="expected a"):
            refused()
    with pytest.raises(BadArgument, match="do not match"):
        linalg.solve(ComplexTensor(SQUARE, device=cpu), z)
