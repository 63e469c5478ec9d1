"""Floats of 64 bits: arithmetic, conversions, elementary functions within 2 ulp, reductions,
products, orders, random numbers, gradients, files; the devices that have the type and those that do
not. Judged by NumPy, mpmath and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

import ugpu
from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, dtypes
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

Array = NDArray[Any]
ULPS = 2.0
gpu = device_fixture("virtual:navi31", "virtual:gh100")
SPECIAL = np.array([
    0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e-310,
    1.7976931348623157e308, -1.7976931348623157e308, 2.0**53, 2.0**53 + 2, 1e22, 710.0, -745.2,
    -746.0, 1e300,
])  # fmt: skip


def tensor(array: Any, device: Device) -> Tensor:
    return Tensor(array, dtype="float64", device=device)


def ulps(found: Array, exact: list[Any]) -> float:
    """Return the largest distance from exact results, in distances of neighbouring numbers."""
    worst = 0.0
    for number, wanted in zip(found.tolist(), exact, strict=True):
        near = float(wanted)
        if math.isinf(near) or math.isinf(number):
            worst = max(worst, 0.0 if number == near else math.inf)
        else:
            apart = abs(mpmath.mpf(number) - wanted) / mpmath.mpf(math.ulp(near))
            worst = max(worst, float(apart))
    return worst


# ---- elementary functions ------------------------------------------------------------------------


def _any(rng: np.random.Generator) -> Array:
    sizes = np.exp(rng.uniform(-700, 700, 60))
    near = rng.standard_normal(120) * 10.0 ** rng.uniform(-3, 3, 120)
    return np.concatenate([near, sizes * rng.choice([-1, 1], 60), rng.uniform(-2, 2, 60)])


def _exponents(rng: np.random.Generator) -> Array:
    return np.concatenate([rng.uniform(-708, 708, 100), rng.uniform(-2, 2, 100)])


def _positive(rng: np.random.Generator) -> Array:
    near = 1 + rng.standard_normal(60) * 1e-3
    return np.concatenate([np.exp(rng.uniform(-700, 700, 80)), near, [5e-324, 1e-310, 1e300]])


def _unit(rng: np.random.Generator) -> Array:
    end = 1 - np.exp(-rng.uniform(0, 36, 80))
    tiny = np.exp(-rng.uniform(0, 40, 60))
    return np.concatenate([rng.uniform(-1, 1, 80), end * rng.choice([-1, 1], 80), -tiny])


def _power_of(x: Any, y: float) -> Any:
    return mpmath.mpf(x) ** mpmath.mpf(y)


FUNCTIONS: dict[str, tuple[Callable[[np.random.Generator], Array], Callable[[Any], Any]]] = {
    "exp": (_exponents, mpmath.exp),
    "exp2": (_exponents, lambda x: mpmath.mpf(2) ** x),
    "expm1": (_exponents, mpmath.expm1),
    "log": (_positive, mpmath.log),
    "log2": (_positive, lambda x: mpmath.log(x) / mpmath.log(2)),
    "log10": (_positive, mpmath.log10),
    "log1p": (lambda rng: np.concatenate([_positive(rng), _unit(rng) * 0.999]), mpmath.log1p),
    "sin": (_any, mpmath.sin), "cos": (_any, mpmath.cos), "tan": (_any, mpmath.tan),
    "sinh": (_exponents, mpmath.sinh), "cosh": (_exponents, mpmath.cosh),
    "tanh": (_exponents, mpmath.tanh),
    "sigmoid": (_exponents, lambda x: 1 / (1 + mpmath.exp(-x))),
    "asin": (_unit, mpmath.asin), "acos": (_unit, mpmath.acos), "atan": (_any, mpmath.atan),
    "asinh": (_any, mpmath.asinh), "acosh": (lambda rng: 1 + abs(_any(rng)), mpmath.acosh),
    "atanh": (_unit, mpmath.atanh), "erf": (_any, mpmath.erf),
    "sqrt": (_positive, mpmath.sqrt), "rsqrt": (_positive, lambda x: 1 / mpmath.sqrt(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_two_ulp(name: str, cpu: Device) -> None:
    numbers, exact = FUNCTIONS[name]
    values = numbers(np.random.default_rng(7))
    found = getattr(tensor(values, cpu), name)().numpy()
    assert found.dtype == np.float64
    with mpmath.workdps(400 if name in ("sin", "cos", "tan") else 60):
        assert ulps(found, [exact(mpmath.mpf(x)) for x in values.tolist()]) <= ULPS


def test_powers_are_within_two_ulp(cpu: Device) -> None:
    rng = np.random.default_rng(8)
    x = np.concatenate([np.exp(rng.uniform(-300, 300, 150)), rng.uniform(0.5, 2, 150)])
    y = np.concatenate([rng.uniform(-2, 2, 150), rng.uniform(-900, 900, 150)])
    with mpmath.workdps(60):
        exact = [_power_of(*pair) for pair in zip(x.tolist(), y.tolist(), strict=True)]
        assert ulps((tensor(x, cpu) ** tensor(y, cpu)).numpy(), exact) <= ULPS
        cubes = [_power_of(number, 3) for number in x[150:].tolist()]
        assert ulps((tensor(x[150:], cpu) ** 3).numpy(), cubes) <= ULPS


OF_NUMPY: dict[str, Callable[[Array], Array]] = {
    **{name: getattr(np, name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh",
        "cosh", "tanh", "sqrt", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "sign",
    )},
    **{f"a{name}": getattr(np, f"arc{name}")
       for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "round": np.rint, "abs": np.abs, "neg": np.negative, "erf": np.vectorize(math.erf),
    "reciprocal": lambda x: np.asarray(1 / x), "signbit": np.signbit,
}  # fmt: skip


def alike(found: Array, wanted: Array, steps: float = ULPS) -> bool:
    """Return whether numbers are equal to a few steps, and the signs of zeros and NaN as well."""
    with np.errstate(all="ignore"):
        if found.dtype.kind != "f":
            return np.array_equal(found, wanted)
        near = np.abs(found - wanted) <= steps * np.spacing(np.abs(wanted))
        same = near | (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        signs = (np.signbit(found) == np.signbit(wanted)) | np.isnan(wanted)
        return bool((same & signs).all())


@pytest.mark.parametrize("name", OF_NUMPY)
def test_special_values(name: str, cpu: Device) -> None:
    with np.errstate(all="ignore"):
        wanted = OF_NUMPY[name](SPECIAL)
    assert alike(getattr(tensor(SPECIAL, cpu), name)().numpy(), wanted)


PAIRS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Array, Array], Array]]] = {
    "add": (lambda x, y: x + y, np.add), "sub": (lambda x, y: x - y, np.subtract),
    "mul": (lambda x, y: x * y, np.multiply), "div": (lambda x, y: x / y, np.divide),
    "floordiv": (lambda x, y: x // y, np.floor_divide), "fmod": (Tensor.fmod, np.fmod),
    "pow": (lambda x, y: x**y, np.power), "atan2": (Tensor.atan2, np.arctan2),
    "hypot": (Tensor.hypot, np.hypot), "copysign": (Tensor.copysign, np.copysign),
    "nextafter": (Tensor.nextafter, np.nextafter), "lt": (lambda x, y: x < y, np.less),
    "le": (lambda x, y: x <= y, np.less_equal), "eq": (lambda x, y: x == y, np.equal),
    "ne": (lambda x, y: x != y, np.not_equal),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_special_and_of_distant_numbers(name: str, cpu: Device) -> None:
    ours, theirs = PAIRS[name]
    rng = np.random.default_rng(3)
    far = rng.standard_normal((2, 400)) * 10.0 ** rng.uniform(-300, 300, (2, 400))
    grid = np.stack([each.reshape(-1) for each in np.meshgrid(SPECIAL, SPECIAL)])
    x, y = np.concatenate([grid, far, rng.standard_normal((2, 400))], 1)
    with np.errstate(all="ignore"):
        wanted = theirs(x, y)
    assert alike(ours(tensor(x, cpu), tensor(y, cpu)).numpy(), wanted)


# ---- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [each for each in dtypes.ALL if not each.is_float8], ids=repr)
def test_conversions_to_and_from_every_type(kind: Any, cpu: Device) -> None:
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.uniform(-300, 300, 500), SPECIAL])
    found = tensor(values, cpu).cast(kind)
    back = found.cast("float64")
    assert found.dtype is kind and back.numpy().dtype == np.float64
    if kind.is_float:  # through float32, as in PyTorch
        with np.errstate(all="ignore"):
            through = values if kind.itemsize == 8 else values.astype(np.float32)
            wanted = dtypes.decode(dtypes.encode(through, kind), kind).astype(np.float64)
    elif kind is dtypes.bool_:
        wanted = (values != 0).astype(np.float64)
    else:
        low, high = int(dtypes.lowest(kind)), int(dtypes.highest(kind))
        whole = [0 if math.isnan(x) else low if x < low else high if x > high else int(x)
                 for x in values.tolist()]  # fmt: skip
        wanted = np.array([float(x) for x in whole])
        assert found.tolist() == whole
    assert np.array_equal(back.numpy(), wanted, equal_nan=True)


def test_which_operations_give_it(cpu: Device) -> None:
    array = np.array([0.1, 1 / 3, 1e300])
    x, single = tensor(array, cpu), Tensor([0.5], device=cpu)
    assert Tensor(array, device=cpu).dtype is dtypes.float32  # as it was: only on request
    assert Tensor([0.1], device=cpu).dtype is Tensor(0.1, device=cpu).dtype is dtypes.float32
    assert np.array_equal(x.numpy(), array) and x[0].item() == 0.1
    for each in (x + 1, x * 0.1, x + single, single + x, x + array, x.cat(x), x.mean(), x.exp()):
        assert each.dtype is dtypes.float64
    assert np.array_equal((x + array).numpy(), array + array)  # the array is not rounded first
    assert np.array_equal((x * 0.1).numpy(), array * 0.1)
    assert single.double().dtype is single.cast("float64").dtype is dtypes.float64
    assert dtypes.promote(dtypes.float64, dtypes.bfloat16) is dtypes.float64
    assert dtypes.promote(dtypes.int64, dtypes.float64) is dtypes.float64
    assert (single + 0.1).dtype is dtypes.float32
    assert Tensor.full((2,), 0.1, dtype="float64", device=cpu).numpy()[1] == 0.1
    assert Tensor.linspace(0, 1, 4, dtype="float64", device=cpu).numpy()[1] == 1 / 3
    with pytest.raises(BadArgument, match="float8 types are not converted implicitly"):
        x + single.cast("float8_e5m2")


# ---- arrays --------------------------------------------------------------------------------------

ARRAYS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Array, Array], Any]]] = {
    "sum": (lambda x, y: x.sum(1), lambda x, y: x.sum(1)),
    "sum of all": (lambda x, y: x.sum(), lambda x, y: x.sum()),
    "prod": (lambda x, y: x.prod(0), lambda x, y: x.prod(0)),
    "mean, var": (lambda x, y: x.var(0, correction=0) + x.mean(0),
                  lambda x, y: x.var(0) + x.mean(0)),
    "max, argmax": (lambda x, y: x.max(1) + x.argmax(1), lambda x, y: x.max(1) + x.argmax(1)),
    "min, argmin": (lambda x, y: x.min() + x.argmin(), lambda x, y: x.min() + x.argmin()),
    "cumsum": (lambda x, y: x.cumsum(1), lambda x, y: x.cumsum(1)),
    "matmul": (lambda x, y: x @ y, lambda x, y: x @ y),
    "matrix, vector": (lambda x, y: x @ y[:, 0], lambda x, y: x @ y[:, 0]),
    "einsum": (lambda x, y: Tensor.einsum("ij,jk->ki", x, y), lambda x, y: (x @ y).T),
    "softmax": (lambda x, y: x.softmax(1),
                lambda x, y: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    "sort": (lambda x, y: x.sort(1)[0], lambda x, y: np.sort(x, 1)),
    "argsort": (lambda x, y: x.argsort(0).cast("float64"), lambda x, y: np.argsort(x, 0)),
    "topk": (lambda x, y: x.topk(3, 1)[0], lambda x, y: -np.sort(-x, 1)[:, :3]),
    "gather": (lambda x, y: x[[3, 0, 5]], lambda x, y: x[[3, 0, 5]]),
    "where": (lambda x, y: (x > 0).where(x, -1.0), lambda x, y: np.where(x > 0, x, -1.0)),
    "conv1d": (lambda x, y: x.reshape((1, 1, -1)).conv1d(y[:5, 0].reshape((1, 1, 5))).flatten(),
               lambda x, y: np.correlate(x.reshape(-1), y[:5, 0])),
    "solve": (lambda x, y: ugpu.linalg.solve(x[:9, :9], y[:9]),
              lambda x, y: np.linalg.solve(x[:9, :9], y[:9])),
    "singular values": (lambda x, y: ugpu.linalg.svdvals(x[:4, :4]),
                        lambda x, y: np.linalg.svd(x[:4, :4])[1]),
    "rfft": (lambda x, y: ugpu.fft.rfft(x)[..., 1], lambda x, y: np.fft.rfft(x).imag),
}  # fmt: skip


def check_arrays(name: str, device: Device, rows: int = 33) -> None:
    rng = np.random.default_rng(11)
    x, y = rng.standard_normal((rows, 47)), rng.standard_normal((47, 21))
    ours, theirs = ARRAYS[name]
    found = ours(tensor(x, device), tensor(y, device))
    wanted = theirs(x, y)
    assert found.dtype is dtypes.float64
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name: str, cpu: Device) -> None:
    check_arrays(name, cpu)


def test_order_of_special_values_in_long_rows(cpu: Device) -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.standard_normal(3000), 1 + rng.integers(0, 9, 99) * 2.0**-52])
    values = rng.permutation(np.concatenate([values, SPECIAL]))
    found, places = tensor(values, cpu).sort()
    order = np.argsort(values, kind="stable")
    assert np.array_equal(found.numpy(), values[order], equal_nan=True)
    assert np.array_equal(places.numpy(), order)


def test_random_numbers_have_all_bits(cpu: Device) -> None:
    Tensor.manual_seed(4)
    numbers = Tensor.rand(20_000, dtype="float64", device=cpu).numpy()
    steps = numbers * 2.0**53
    assert np.array_equal(steps, np.floor(steps)) and (steps % 2 == 1).mean() > 0.4
    assert numbers.min() >= 0 and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.01
    bell = Tensor.randn(20_000, dtype="float64", device=cpu).numpy()
    assert abs(bell.std() - 1) < 0.03 and (bell != bell.astype(np.float32)).mean() > 0.9


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "functions": lambda x: (x.exp() * x.sin() + x.tanh() * x.erf() + (x * x + 1).log()).sum(),
    "product": lambda x: (x @ x.transpose(0, 1)).square().sum(),
    "softmax": lambda x: (x.softmax(1) * x.log_softmax(1)).sum(),
    "norm": lambda x: x.layernorm().cumsum(0).max(1).sum() + x.norm(),
    "attention": lambda x: (
        x.expand((4, 4, 5)).scaled_dot_product_attention(x.expand((4, 4, 5)), x).square().sum()
    ),
    "power": lambda x: (x.abs() ** 2.5 + x.pow(3)).mean() + x.sigmoid().prod(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_against_finite_differences(name: str, cpu: Device) -> None:
    """Central differences of doubles are right to some 1e-9, of singles to 1e-3."""
    function, step = GRADIENTS[name], 1e-5
    start = np.random.default_rng(2).standard_normal((4, 5))
    gradient = ugpu.grad(function)(tensor(start, cpu))
    assert gradient.dtype is dtypes.float64
    for place in ((0, 0), (1, 3), (3, 4)):
        ends = []
        for moved in (start[place] + step, start[place] - step):
            array = start.copy()
            array[place] = moved
            ends.append(function(tensor(array, cpu)).item())
        slope = (ends[0] - ends[1]) / (2 * step)
        assert gradient.numpy()[place] == pytest.approx(slope, rel=1e-7, abs=1e-8)


# ---- outside -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["safetensors", "npy", "npz"])
def test_files(ending: str, cpu: Device, tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((5, 7))
    path = tmp_path / f"weights.{ending}"
    single = ending == "npy"
    ugpu.save(path, tensor(array, cpu) if single else {"w": tensor(array, cpu)})
    loaded = ugpu.load(path, device=cpu)
    found = loaded if single else loaded["w"]
    assert found.dtype is dtypes.float64 and np.array_equal(found.numpy(), array)
    if ending != "safetensors":
        theirs = np.load(path)
        assert np.array_equal(theirs if single else theirs["w"], array)


def test_dlpack(cpu: Device) -> None:
    array = np.random.default_rng(0).standard_normal(100)
    x = tensor(array, cpu)
    shared = np.from_dlpack(x.realize())
    assert shared.dtype == np.float64 and np.array_equal(shared, array)
    back = Tensor.from_dlpack(array, device=cpu)
    assert back.dtype is dtypes.float64 and np.array_equal(back.numpy(), array)


# ---- devices -------------------------------------------------------------------------------------


def test_functions_on_virtual_gpus_equal_the_hosts(gpu: Device, cpu: Device) -> None:
    rng = np.random.default_rng(6)
    array = np.concatenate([rng.standard_normal(20), rng.standard_normal(10) * 1e12, SPECIAL])

    def computed(device: Device) -> list[Array]:
        x = tensor(array, device)
        size = x.abs()
        functions = (x.exp(), x.sin(), size.log(), size.pow(x), x.erf(), x.fmod(0.7), x.sqrt())
        casts = (x.cast("float16").cast("float64"), x.cast("int64").cast("float64"))
        return [each.numpy() for each in (*functions, x / 3 + x, x.round(), *casts)]

    for found, wanted in zip(computed(gpu), computed(cpu), strict=True):
        assert alike(found, wanted, 0)


@pytest.mark.parametrize("name", ["sum", "matmul", "max, argmax", "sort", "cumsum"])
def test_arrays_on_virtual_gpus(name: str, gpu: Device) -> None:
    check_arrays(name, gpu, rows=9)


adreno = device_fixture("virtual:a750")


def test_a_device_without_it(adreno: Device) -> None:
    missing = "has no float64; expected another type, such as float32"
    with pytest.raises(NotSupported, match=missing):
        Tensor([1.0], dtype="float64", device=adreno)
    single = Tensor([1.5], device=adreno)
    with pytest.raises(NotSupported, match=missing):
        single.double()
    with pytest.raises(NotSupported, match=missing):
        Tensor.full((2,), 1.0, dtype="float64", device=adreno).realize()
    assert Tensor(np.array([1.5]), device=adreno).tolist() == [1.5]


@pytest.mark.parametrize("name", ["erfc", "erfinv"])
def test_functions_that_are_only_single(name: str, cpu: Device) -> None:
    with pytest.raises(NotSupported, match=f"{name}: computed in float32 only, got float64"):
        getattr(tensor([0.5], cpu), name)()
