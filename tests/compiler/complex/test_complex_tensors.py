"""Complex tensors beside NumPy in complex128."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ugpu import ComplexTensor, Tensor, hcq, jit, xp
from ugpu.compiler.numeric import fft
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

RANDOM = np.random.default_rng(5)
A, B = (
    (RANDOM.normal(size=(5, 7)) + 1j * RANDOM.normal(size=(5, 7))).astype(np.complex64) * 2
    for _ in range(2)
)
NUMPY = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
    "atanh": "arctanh", "pow": "power", "sub": "subtract", "mul": "multiply", "div": "divide",
}  # fmt: skip
UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "sinh"),
    *("cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "abs", "angle", "conj"),
    *("square", "reciprocal", "sign", "isnan", "isinf", "isfinite", "neg"),
)


@pytest.fixture(scope="module", params=["cpu", pytest.param("virtual:navi31", marks=[
    pytest.mark.slow])])  # fmt: skip
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open(request.param) as opened:
        yield opened


def check(found: Any, wanted: Any, bound: float = 2e-6) -> None:
    """bound: of the difference, relative to the largest magnitude."""
    mine = found.numpy()
    assert mine.shape == np.shape(wanted) and mine.dtype.kind == np.asarray(wanted).dtype.kind
    if mine.dtype.kind == "b":
        assert np.array_equal(mine, wanted)
    elif mine.size:
        assert np.abs(mine - wanted).max() <= bound * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("name", UNARY)
def test_functions(name: str, device: Device) -> None:
    wanted = getattr(np, {**NUMPY, "neg": "negative"}.get(name, name))(A.astype(complex))
    check(getattr(ComplexTensor(A, device=device), name)(), wanted)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow"])
@pytest.mark.parametrize("other", ["complex", "real", "number", "array", "complex number"])
def test_arithmetic(name: str, other: str, cpu: Device) -> None:
    right: Any = {
        "complex": B[0], "real": np.abs(B[0]), "number": 1.5, "array": B, "complex number": 1 - 2j,
    }[other]  # fmt: skip
    operand = {
        "complex": lambda: ComplexTensor(right, device=cpu),
        "real": lambda: Tensor(right, device=cpu),
    }.get(other, lambda: right)()
    function = getattr(np, NUMPY.get(name, name))
    check(getattr(ComplexTensor(A, device=cpu), name)(operand), function(A.astype(complex), right))


def test_real_tensors_beside_complex_operands(cpu: Device) -> None:
    real, x = A.real.copy(), Tensor(A.real.copy(), device=cpu)
    z = ComplexTensor(A, device=cpu)
    for mine, wanted in (
        (x * 1j, real * 1j), (1j - x, 1j - real), (x / z, real / A), (z / x, A / real),
        (x + A, real + A), (A + x, A + real), (2j / x, 2j / real),
        (x * np.complex64(1j), real * 1j),
    ):  # fmt: skip
        check(mine, wanted)
    assert (x == 1j).numpy().any() == np.False_ and (z != x).numpy().all()
    with pytest.raises(BadArgument, match="has no such operation"):
        x.maximum(1j)
    with pytest.raises(BadArgument, match="ComplexTensor"):
        Tensor(A, device=cpu)


MOVES: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda z: z.reshape(7, 5), "T": lambda z: z.T, "slice": lambda z: z[1:, ::2],
    "row": lambda z: z[-1], "new axis": lambda z: z[:, None], "mask": lambda z: z[[3, 0]],
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str, cpu: Device) -> None:
    check(MOVES[name](ComplexTensor(A, device=cpu)), MOVES[name](A))


TOTALS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum": (lambda z: z.sum(1), lambda a: a.sum(1)),
    "mean": (lambda z: z.mean(), lambda a: a.mean()),
    "prod": (lambda z: z.prod(0), lambda a: a.prod(0)),
    "prod of all": (lambda z: z.prod(), lambda a: a.prod()),
    "cumprod": (lambda z: z.cumprod(1), lambda a: a.cumprod(1)),
    "cumsum": (lambda z: z.cumsum(0), lambda a: a.cumsum(0)),
    "var": (lambda z: z.var(0, correction=0), lambda a: a.var(0)),
    "norm": (lambda z: z.norm(2), lambda a: np.linalg.norm(a)),
    "matmul": (lambda z: z @ z.mH, lambda a: a @ a.conj().T),
    "by reals": (lambda z: z.real @ z.T, lambda a: a.real @ a.T),
    "vecdot": (lambda z: z.vecdot(z * 1j), lambda a: (a.conj() * a * 1j).sum(-1)),
    "outer": (lambda z: z[0].outer(z[1]), lambda a: np.outer(a[0], a[1])),
    "powers": (lambda z: z**-3, lambda a: a**-3.0),
    "stack": (lambda z: type(z).stack([z, z.real]), lambda a: np.stack([a, a.real])),
    "where": (lambda z: z.masked_fill(z.abs() > 2, 1j), lambda a: np.where(abs(a) > 2, 1j, a)),
    "transform": (lambda z: xp.fft.fft(z), np.fft.fft),
    "transforms": (lambda z: xp.fft.ifftn(z, s=(4, 9)), lambda a: np.fft.ifftn(a, (4, 9), (0, 1))),
    "of reals": (lambda z: xp.fft.rfft(z.real), lambda a: np.fft.rfft(a.real)),
}  # fmt: skip


@pytest.mark.parametrize("name", TOTALS)
def test_totals_and_products(name: str, cpu: Device) -> None:
    mine, theirs = TOTALS[name]
    check(mine(ComplexTensor(A, device=cpu)), theirs(A.astype(complex)))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_wide_ranges(cpu: Device, data: st.DataObject) -> None:
    """Quotients, roots and logarithms of numbers whose squares leave the type's range."""
    size = st.floats(2.0**-100, 2.0**100, width=32)
    part = st.one_of(st.just(0.0), size, size.map(lambda x: -x))
    numbers = data.draw(st.lists(st.tuples(part, part), min_size=4, max_size=4))
    a = np.array([complex(*each) for each in numbers], np.complex64)
    z, exact = ComplexTensor(a, device=cpu), a.astype(complex)
    keep = a != 0
    with np.errstate(all="ignore"):
        for mine, wanted in (
            (z.sqrt(), np.sqrt(exact)), (z.abs(), np.abs(exact)), (z.log(), np.log(exact)),
            ((z * 0.5) / z, np.where(keep, 0.5, np.nan)),
        ):  # fmt: skip
            found = mine.numpy()[keep]
            np.testing.assert_allclose(found, np.asarray(wanted)[keep], rtol=4e-6, atol=1e-37)


def test_zeros_and_signs(cpu: Device) -> None:
    z = ComplexTensor([0, 0j, -4 + 0j, complex(-4, -0.0)], device=cpu)
    roots = z.sqrt().numpy()
    assert roots.tolist() == [0, 0, 2j, -2j]  # both sides of the cut
    assert (z[:2] ** 0).tolist() == [1, 1] and (z[:2] ** 2.5).tolist() == [0, 0]
    assert z.sign().tolist() == [0, 0, -1, -1]
    infinite = ComplexTensor([complex(np.inf, 0), complex(-np.inf, 0)], device=cpu)
    assert infinite.exp().tolist() == [np.inf, 0]


def test_gradients_are_those_of_pytorch(cpu: Device) -> None:
    """Of |z^2| the gradient is 2 |z| z / |z|: of the real part plus i times of the imaginary."""
    z = ComplexTensor(A, device=cpu).requires_grad_()
    (z * z).abs().sum().backward()
    assert z.grad is not None
    check(z.grad, 2 * A)
    z.grad = None
    z.exp().backward(ComplexTensor(B, device=cpu))
    assert z.grad is not None
    check(z.grad, B * np.exp(A.astype(complex)).conj(), 1e-5)


@pytest.mark.parametrize("name", ["exp", "expm1", "sinh", "cosh", "sqrt", "log", "tanh", "asin"])
def test_gradients_on_the_real_line(name: str, cpu: Device) -> None:
    """A derivative is the same in every direction: beside the quotient along the imaginary one."""
    at, step = np.array([0.3, 0.7]), 1e-6
    z = ComplexTensor(at.astype(np.complex64), device=cpu).requires_grad_()
    getattr(z, name)().backward(1.0)
    function = getattr(np, NUMPY.get(name, name))
    slope = (function(at + 1j * step) - function(at - 1j * step)) / (2j * step)
    assert z.grad is not None
    check(z.grad, slope.conj(), 1e-4)


def test_recorded(cpu: Device) -> None:
    @jit
    def product(z: ComplexTensor, scale: Tensor) -> dict[str, Any]:
        return {"product": z @ z.mT * scale, "size": z.abs().sum()}

    for turn in range(4):
        found = product(ComplexTensor(A + turn, device=cpu), Tensor(2.0, device=cpu))
        check(found["product"], 2 * (A + turn) @ (A + turn).T)
        check(found["size"], np.abs(A + turn).sum())


def test_what_has_no_meaning(cpu: Device) -> None:
    """Methods of order are missing; none sees real and imaginary parts as one more axis."""
    z = ComplexTensor(A, device=cpu)
    for name in ("max", "sort", "floor", "clip", "argmax", "__lt__", "relu", "softmax"):
        assert not hasattr(z, name) or name == "__lt__"
    with pytest.raises(AttributeError, match=r"has no 'max': expected a method.*\.abs\(\)"):
        z.max()
    with pytest.raises(TypeError):
        _ = z < z
    with pytest.raises(BadArgument, match=r"ugpu\.xp\.fft"):
        fft.fft(z)
    with pytest.raises(BadArgument, match="complex64 or complex128"):
        ComplexTensor(A, dtype="float32")
    with pytest.raises(BadArgument, match="last axis of two"):
        ComplexTensor.from_pairs(Tensor(A.real.copy(), device=cpu))


# Methods of the class, of gradients, and of both parts as NumPy has them.
SKIPPED = ("to", "backward", "grad", "cat", "stack", "where", "imag", "of", "polar", "from_pairs")


def test_assignment_leaves_others_alone(cpu: Device) -> None:
    """Results share no part with what they are computed of, as Tensor's: z + 1 has z's imaginary
    elements, and conj() the real ones."""
    ways: dict[str, Callable[[Any], Any]] = {
        name: lambda z, name=name: getattr(z, name)()
        for name in ("conj", "positive", "clone", "detach", "contiguous", "ravel", "resolve_conj")
    }
    ways |= {"add": lambda z: z + 1.0, "sub": lambda z: z - 1.0, "pow": lambda z: z**1}
    ways |= {"copy": ComplexTensor, "cast": lambda z: z.cast("complex64")}
    ways |= {"prod": lambda z: z.reshape(7, 1).prod(1), "no prod": lambda z: z.prod(())}
    ways |= {"cumprod": lambda z: z.reshape(7, 1).cumprod(1).reshape(7), "[]": lambda z: z[...]}
    ways |= {"of": lambda z: ComplexTensor.of(z.real, z.imag), "+": lambda z: +z}
    for name, way in ways.items():
        z = ComplexTensor(A[0], device=cpu)
        result = way(z)
        before = way(ComplexTensor(A[0], device=cpu)).numpy()
        result[0] = 9 - 9j
        assert np.array_equal(z.numpy(), A[0]), name
        z[1] = 8 - 8j
        assert np.array_equal(result.numpy()[1:], before[1:]), name


def test_real_operands_of_the_standard(cpu: Device) -> None:
    """Functions of ugpu.xp take a real and a complex array in both orders; parts that they return
    are not z's, and an order of complex numbers is an error."""
    x, z = Tensor(A.real.copy(), device=cpu), ComplexTensor(B, device=cpu)
    pairs = (x, z, A.real, B), (z, x, B, A.real), (x, 1j, A.real, 1j), (1j, x, 1j, A.real)
    for one, two, first, second in pairs:
        check(xp.where(x > 0, one, two), np.where(A.real > 0, first, second))
        if isinstance(one, complex) or isinstance(two, complex):
            continue
        check(xp.vecdot(one, two), np.vecdot(first, second))
        check(xp.tensordot(one, two), np.tensordot(first, second))
        check(xp.linalg.outer(one[0], two[0]), np.outer(first[0], second[0]))
    for order in (xp.less, xp.less_equal, xp.greater, xp.greater_equal):
        for one, two in ((z, z), (x, z), (z, x), (x, 1j), (1.0, z)):
            with pytest.raises(BadArgument, match="operands must be real"):
                order(one, two)
    check(xp.count_nonzero(z, axis=0, keepdims=True), np.count_nonzero(B, axis=0, keepdims=True))
    for found, wanted in zip(xp.nonzero(z), np.nonzero(B), strict=True):
        check(found, wanted)
    for part in (xp.real(z), xp.imag(z)):
        part[0] = 9
    assert np.array_equal(z.numpy(), B)


def test_comparisons_of_what_does_not_fit(cpu: Device) -> None:
    """Shapes that do not broadcast are an error, as of Tensor; a text is unequal."""
    z = ComplexTensor(A, device=cpu)
    pair = Tensor([1.0, 2.0], device=cpu)
    for compared in (lambda: z == B[:, :3], lambda: z != z.T, lambda: z == pair):
        with pytest.raises(BadArgument, match="shape"):
            compared()
    assert (z == "text") is False and (z != object()) is True


def test_every_method_keeps_the_axes(cpu: Device) -> None:
    """Each method of a complex tensor that Tensor has too gives, of numbers that are real, what
    Tensor's gives."""
    real = Tensor(A.real.copy() * 0.2, device=cpu)
    whole = ComplexTensor(real)
    for name in sorted(set(dir(ComplexTensor)) & set(dir(Tensor))):
        if name.startswith("_") or name in SKIPPED:
            continue
        try:
            wanted = getattr(real, name)
            wanted = wanted() if callable(wanted) else wanted
        except (TypeError, BadArgument):
            continue  # it needs arguments
        found = getattr(whole, name)
        found = found() if callable(found) else found
        if isinstance(found, ComplexTensor):
            assert found.shape == wanted.shape, name
            negative = name.startswith(("log", "sqrt", "acos", "rsqrt"))
            assert negative or np.allclose(found.imag.numpy(), 0), name
        elif isinstance(found, Tensor):
            assert found.shape == wanted.shape, name
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, err_msg=name)
