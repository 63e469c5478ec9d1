"""ugpu.fft against NumPy's, for lengths that are split in every way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float64
from ugpu.compiler.numeric import fft
from ugpu.hcq.errors import BadArgument

SLOW = pytest.mark.slow
# one product; split once, split twice, a long factor, a prime as a product, a convolution
LENGTHS = [1, 3, *(pytest.param(n, marks=SLOW) for n in (2, 64, 65, 127, 134, 360, 521, 1042))]
random = np.random.default_rng(3)


def parts(numbers: NDArray[Any]) -> NDArray[Any]:
    return np.stack([numbers.real, numbers.imag], -1).astype(np.float32)


def complex_of(tensor: Tensor) -> NDArray[Any]:
    array = tensor.numpy()
    return np.asarray(array[..., 0] + 1j * array[..., 1])


def near(mine: NDArray[Any], wanted: NDArray[Any]) -> None:
    np.testing.assert_allclose(mine, wanted, atol=3e-6 * max(1e-3, np.abs(wanted).max()))


@pytest.mark.parametrize("n", LENGTHS)
def test_one_axis(n: int) -> None:
    numbers = random.standard_normal((2, n)) + 1j * random.standard_normal((2, n))
    given = Tensor(parts(numbers))
    near(complex_of(fft.fft(given)), np.fft.fft(numbers))
    near(complex_of(fft.ifft(given, norm="ortho")), np.fft.ifft(numbers, norm="ortho"))
    real = Tensor(numbers.real.astype(np.float32))
    near(complex_of(fft.rfft(real, norm="forward")), np.fft.rfft(numbers.real, norm="forward"))
    near(fft.irfft(fft.rfft(real), n).numpy(), numbers.real)


@SLOW
@pytest.mark.parametrize(("n", "axis"), [(5, 0), (12, 1), (9, -2)])
def test_other_axes_and_lengths(n: int, axis: int) -> None:
    numbers = random.standard_normal((7, 9, 2)) + 1j * random.standard_normal((7, 9, 2))
    near(complex_of(fft.fft(Tensor(parts(numbers)), n, axis)), np.fft.fft(numbers, n, axis))
    half = numbers[:, :5]
    near(fft.irfft(Tensor(parts(half)), n, axis).numpy(), np.fft.irfft(half, n, axis))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((17, 12), 1), ((2, 30, 19), 1), ((3, 22, 5), 1),
     *(pytest.param(*case, marks=SLOW) for case in (
         ((33, 400), 1), ((16, 78), 1), ((128, 17), 0), ((5, 1001), 1), ((2, 2310), 1),
         ((4098, 2), 0), ((1, 8192), 1), ((701, 96), 1)))],
)  # fmt: skip
def test_signals_side_by_side(shape: tuple[int, ...], axis: int) -> None:
    """Vectors of signals, complete and not, along memory and across it; long ones split."""
    numbers = random.standard_normal(shape) + 1j * random.standard_normal(shape)
    given, n = Tensor(parts(numbers)), shape[axis]
    near(complex_of(fft.fft(given, axis=axis)), np.fft.fft(numbers, axis=axis))
    near(complex_of(fft.ifft(given, axis=axis)), np.fft.ifft(numbers, axis=axis))
    real = Tensor(numbers.real.astype(np.float32))
    near(complex_of(fft.rfft(real, axis=axis)), np.fft.rfft(numbers.real, axis=axis))
    near(fft.irfft(given, n, axis).numpy(), np.fft.irfft(numbers, n, axis))


@SLOW
@pytest.mark.parametrize("shape", [(3, 256), (2, 2, 512), (1, 1152), (17, 2304), (2, 8192)])
def test_split_signals(shape: tuple[int, ...]) -> None:
    """Over two factors that are whole vectors of 16 or less, of equal size or not; of float64 too,
    and where gradients are recorded."""
    numbers = random.standard_normal(shape) + 1j * random.standard_normal(shape)
    given = Tensor(parts(numbers))
    near(complex_of(fft.fft(given)), np.fft.fft(numbers))
    near(complex_of(fft.ifft(given, norm="ortho")), np.fft.ifft(numbers, norm="ortho"))
    near(complex_of(fft.fft(given * 2.0 + 1.0)), np.fft.fft(numbers * 2 + (1 + 1j)))
    wide = fft.fft(Tensor(np.stack([numbers.real, numbers.imag], -1), dtype=float64))
    np.testing.assert_allclose(complex_of(wide), np.fft.fft(numbers), atol=1e-10)
    given.requires_grad_()
    (fft.fft(given) * Tensor(parts(numbers))).sum().backward()
    assert given.grad is not None
    near(complex_of(given.grad), np.fft.ifft(numbers) * shape[-1])


def test_float64_signals_are_computed_in_float64() -> None:
    numbers = random.standard_normal((9, 120))
    found = fft.rfft(Tensor(numbers, dtype=float64))
    np.testing.assert_allclose(complex_of(found), np.fft.rfft(numbers), atol=1e-13)


@pytest.mark.parametrize("n", [12, pytest.param(15, marks=SLOW)])
def test_gradients_are_transposes(n: int) -> None:
    """Of a linear function y = A x, the gradient of y w is A' w: columns of A are its results for
    the unit vectors."""
    unit, weights = np.eye(n, dtype=np.float32), random.standard_normal((n // 2 + 1, 2))
    x = Tensor(random.standard_normal((1, n)).astype(np.float32)).requires_grad_()
    (fft.rfft(x) * Tensor(weights.astype(np.float32))).sum().backward()
    near(x.grad.numpy()[0], (fft.rfft(Tensor(unit)).numpy() * weights).sum((1, 2)))
    half, back = np.eye(2 * (n // 2 + 1), dtype=np.float32), random.standard_normal(n)
    y = Tensor(weights[None].astype(np.float32)).requires_grad_()
    (fft.irfft(y, n) * Tensor(back.astype(np.float32))).sum().backward()
    each = fft.irfft(Tensor(half.reshape((len(half), n // 2 + 1, 2))), n).numpy()
    near(y.grad.numpy().ravel(), each @ back)


@SLOW
def test_two_axes() -> None:
    numbers = random.standard_normal((3, 8, 15))
    found = fft.rfft2(Tensor(numbers.astype(np.float32)))
    near(complex_of(found), np.fft.rfft2(numbers))
    near(fft.irfft2(found, (-1, 15)).numpy(), numbers)
    both = numbers + 1j * numbers[::-1]
    near(complex_of(fft.ifft2(fft.fft2(Tensor(parts(both))))), both)
    np.testing.assert_allclose(fft.fftfreq(7, 0.5).numpy(), np.fft.fftfreq(7, 0.5), rtol=1e-6)


def test_the_gradient_is_the_transform_backwards() -> None:
    x = Tensor(random.standard_normal((2, 6, 2)).astype(np.float32)).requires_grad_()
    fft.fft(x).square().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 12 * x.numpy(), rtol=1e-5, atol=1e-5)  # Parseval


@pytest.mark.parametrize(
    "words", [r"fft: expected real and imaginary parts", r"length of at least 1"]
)
def test_bad_arguments(words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        fft.fft(Tensor([1.0, 2.0, 3.0])) if "parts" in words else fft.fft(Tensor([[1.0, 2.0]]), 0)


SIGNAL = random.standard_normal((3, 4, 6)) + 1j * random.standard_normal((3, 4, 6))


@pytest.mark.parametrize(("name", "options"), [
    ("fftn", {}), ("ifftn", {"axes": (0, 2)}), ("fftn", {"s": (5, 2), "axes": (1, 0)}),
    ("ifft2", {"norm": "ortho"}), ("rfftn", {"axes": (2, 0)}), ("rfft2", {"s": (4, 7)}),
    ("irfftn", {"s": (3, 9), "axes": (0, 2)}), ("irfft2", {}), ("hfft", {"n": 9}),
    ("ihfft", {"norm": "forward"}), ("fftshift", {"axes": (0, 2)}), ("ifftshift", {}),
])  # fmt: skip
def test_several_axes(name: str, options: dict[str, Any]) -> None:
    real = name in ("rfftn", "rfft2", "ihfft", "fftshift", "ifftshift")
    given = SIGNAL.real if real else SIGNAL
    wanted = getattr(np.fft, name)(given, **options)
    # a complex array is its real and imaginary parts
    result = getattr(fft, name)(Tensor(given.astype(np.float32)) if real else given, **options)
    near(complex_of(result) if np.iscomplexobj(wanted) else result.numpy(), wanted)
    if not real:
        again = getattr(fft, name)(Tensor(parts(given)), **{
            "dim" if key == "axes" else key: value for key, value in options.items()
        })  # fmt: skip
        np.testing.assert_array_equal(again.numpy(), result.numpy())


def test_frequencies_and_refusals() -> None:
    near(fft.rfftfreq(9, 0.5).numpy(), np.fft.rfftfreq(9, 0.5))
    with pytest.raises(BadArgument, match="expected a length for each axis"):
        fft.fftn(Tensor(parts(SIGNAL)), (2,), (0, 1))
    for operation in (lambda: Tensor(SIGNAL), lambda: Tensor([1j]),
                      lambda: Tensor([1.0]).cast("complex64")):  # fmt: skip
        with pytest.raises(BadArgument, match=r"complex numbers are in a ugpu\.ComplexTensor"):
            operation()
