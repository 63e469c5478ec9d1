"""Errors of elementary functions against docs/accuracy.md: float32 over its whole range, every
float16 number, special values; on the host and on virtual GPUs.

The references are NumPy's in double precision, themselves checked against mpmath.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device

Array = NDArray[Any]
GPUS = ["virtual:navi31", "virtual:gh100"]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "accuracy.md"
ROW = re.compile(r"^\| (?P<name>[^|]+) \| (?P<bound>[0-9.]+) \|", re.MULTILINE)
BOUNDS = {row["name"]: float(row["bound"]) for row in ROW.finditer(PAGE.read_text("utf-8"))}
NARROW = 0.51  # of float16 and bfloat16
# Both sides of where a function changes its form or leaves its range, and numbers around them.
CORNERS = [
    0.0, 2.0**-149, 2.0**-126, 2.0**-30, 2.0**-12, 0.25, 0.34657359, 0.5, 0.55, 0.70710678, 1.0,
    1.41421356, math.pi / 4, math.pi / 2, math.pi, 2.0, 3.92, 4.0, 9.01, 10.0, 17.3, 18.0, 31.0,
    87.3, 88.72, 88.73, 89.4, 103.97, 104.0, 126.0, 127.99, 128.0, 149.0, 150.0, 1000.0, 1e4,
    131072.0, 2.0**24, 1e10, 1.8446743e19, 3.4028235e38, math.inf,
]  # fmt: skip


def _sigmoid(x: Array) -> Array:
    falling = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, falling, 1) / (1 + falling))


def _erf(x: Array) -> Array:
    return np.array([math.erf(number) for number in x.tolist()])


def _elu(x: Array) -> Array:
    return np.asarray(np.where(x > 0, x, np.expm1(np.where(x > 0, 0, x))))


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _power(exponent: float, x: Any) -> Any:  # an array, or a number of mpmath
    return x**exponent


NUMPY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "sqrt",
)  # fmt: skip
POWERS = {f"x ** {exponent}": exponent for exponent in (-2, 3, 5, 8)}
# In double precision
REFERENCES: dict[str, Callable[[Array], Array]] = {
    **{name: getattr(np, name) for name in NUMPY},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sinh", "cosh", "tanh")},
    "erf": _erf,
    "sigmoid": _sigmoid,
    "rsqrt": lambda x: np.asarray(1 / np.sqrt(x)),
    "reciprocal": lambda x: np.asarray(1 / x),
    "elu, celu, selu": _elu,
    "softplus": _softplus,
    **{name: partial(_power, float(by)) for name, by in POWERS.items()},
}
# Where mpmath has no function of the name
EXACT: dict[str, Callable[[Any], Any]] = {
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x, 2),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "elu, celu, selu": lambda x: x if x > 0 else mpmath.expm1(x),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    **{name: partial(_power, by) for name, by in POWERS.items()},
}


def bound_of(name: str) -> float:
    return BOUNDS.get(name, BOUNDS["x ** 3 to x ** 8"])


def apply(name: str, tensor: Tensor) -> Tensor:
    if name in POWERS:
        return tensor ** POWERS[name]
    method: Callable[[], Tensor] = getattr(tensor, "elu" if "elu" in name else name)
    return method()


def compute(device: Device, name: str, values: Array) -> Array:
    return apply(name, Tensor(values, device=device)).numpy()


def numbers(count: int) -> Array:
    """float32 numbers all over the range, by their bits, and all corners."""
    spread = np.linspace(0, 2**32 - 1, count).astype(np.uint32).view(np.float32)
    corners = np.array(CORNERS, np.float32)
    with np.errstate(all="ignore"):
        around = [
            corners,
            np.nextafter(corners, np.float32(0)),
            np.nextafter(corners, np.float32(np.inf)),
        ]
    near = np.concatenate(around)
    return np.concatenate([near, -near, [np.float32(np.nan)], spread])


def ulps(found: Array, exact: Array) -> Array:
    """Errors in units of the last place. Infinity counts as the power of two where the type's range
    ends, so that a number beside it is an ulp away. A NaN where there is none, or the other sign of
    a zero or of an infinity, counts as infinitely far."""
    info = np.finfo(found.dtype)
    end = 2.0 ** int(info.maxexp)
    with np.errstate(all="ignore"):
        rounded = exact.astype(found.dtype)
        spacing = np.spacing(np.minimum(np.abs(rounded), info.max)).astype(np.float64)
        apart = np.abs(np.clip(found, -end, end, dtype=np.float64) - np.clip(exact, -end, end))
        errors = np.asarray(apart / spacing)
    alike = np.isnan(found) & np.isnan(exact)
    signs = (np.signbit(found) == np.signbit(exact)) | ((found != 0) & (rounded != 0))
    wrong = (np.isnan(found) != np.isnan(exact)) | ~signs
    return np.where(alike, 0.0, np.where(wrong, np.inf, errors))


def check(name: str, bound: float, found: Array, exact: Array, *given: Array) -> None:
    errors = ulps(found, exact)
    worst = int(np.argmax(errors))
    at = ", ".join(repr(each[worst]) for each in given)
    result = f"{found[worst]!r}, exactly {exact[worst]!r}: {errors[worst]:.3f} ulp"
    assert errors[worst] <= bound, f"{name} of {at}: {result}, bound {bound}"


def reference(name: str, values: Array) -> Array:
    with np.errstate(all="ignore"):
        return REFERENCES[name](values.astype(np.float64))


@pytest.fixture(scope="module", params=GPUS)
def gpu(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open(request.param) as device:
        use_cache(device, None)
        yield device


def test_every_bound_of_the_page_is_tested() -> None:
    pairs = {"x ** y", "fmod", "x % y", "x // y", "x ** 3 to x ** 8"}
    single = {name for name in REFERENCES if not re.fullmatch(r"x \*\* \d", name)}
    assert set(BOUNDS) == pairs | single | {"erfinv"}


@pytest.mark.parametrize("name", REFERENCES)
def test_references_are_right(name: str) -> None:
    """NumPy's double-precision functions at a few numbers, against mpmath."""
    exact = EXACT[name] if name in EXACT else getattr(mpmath, name)
    picked = np.exp2(np.linspace(-140, 120, 41)).astype(np.float32)
    picked = np.concatenate([picked, -picked, numbers(23)])
    expected = reference(name, picked)
    with mpmath.workprec(300):
        for number, found in zip(picked.tolist(), expected.tolist(), strict=True):
            if math.isfinite(number) and 1e-300 < abs(found) < math.inf:
                wanted = exact(mpmath.mpf(number))
                assert abs(wanted - found) <= abs(wanted) * 2.0**-50, number


@pytest.mark.parametrize("name", REFERENCES)
def test_float32_over_its_whole_range(cpu: Device, name: str) -> None:
    values = numbers(40001)
    found = compute(cpu, name, values)
    check(name, bound_of(name), found, reference(name, values), values)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_near_multiples_of_half_pi(cpu: Device, name: str) -> None:
    """Where the result, or what is subtracted, nearly vanishes; up to 131072 and far beyond."""
    small = np.arange(1, 83000) * (math.pi / 2)
    large = np.concatenate([np.exp2(np.linspace(17, 127, 20000)), np.array([5.3e29, 1.2e15])])
    large = np.round(large / (math.pi / 2)) * (math.pi / 2)
    # nearest of all to a multiple of pi/2 (J.-M. Muller, "Elementary Functions", worst cases)
    nearest = np.array([16367173.0 * 2.0**72])
    large = np.concatenate([large, nearest])
    for chosen, bound in ((small, 4.0 if name == "tan" else 1.5), (large, bound_of(name))):
        values = chosen.astype(np.float32)
        check(name, bound, compute(cpu, name, values), reference(name, values), values)


@pytest.mark.parametrize("name", REFERENCES)
def test_every_float16_number(cpu: Device, name: str) -> None:
    values = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)
    bound = 2.0 if name == "x ** -2" else NARROW  # two operations, rounded each
    check(name, bound, compute(cpu, name, values), reference(name, values), values)


def test_gpus_compute_the_same_bits(cpu: Device, gpu: Device) -> None:
    """All functions at once, since each kernel takes its time on a virtual GPU."""
    values = numbers(700)

    def all_of(device: Device) -> Array:
        tensor = Tensor(values, device=device)
        return Tensor.stack([apply(name, tensor) for name in REFERENCES]).numpy()

    ours, theirs = all_of(cpu), all_of(gpu)
    for name, one, two in zip(REFERENCES, ours, theirs, strict=True):
        check(name, bound_of(name), two, reference(name, values), values)
        assert np.array_equal(
            one[~np.isnan(one)].view(np.uint32), two[~np.isnan(one)].view(np.uint32)
        ), name


def test_gelu_keeps_its_digits_below_zero(cpu: Device) -> None:
    values = np.linspace(-6, 6, 1001).astype(np.float32)
    exact = values.astype(np.float64)
    bent = (exact + 0.044715 * exact**3) * math.sqrt(8 / math.pi)
    found = Tensor(values, device=cpu).gelu("tanh").numpy()
    np.testing.assert_allclose(found, exact / (1 + np.exp(-bent)), rtol=4e-6)


def _gelu(values: Array) -> Array:
    """x times the cumulative probability at x, by mpmath."""
    with mpmath.workprec(100):
        exact = [x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2 for x in map(mpmath.mpf, values.tolist())]
    return np.array(exact, np.float64)


def test_gelu(cpu: Device) -> None:
    values = np.random.default_rng(2).uniform(-1, 6, 3000).astype(np.float32)
    values = np.concatenate([values, values / 1e30])
    check("gelu", 3.5, Tensor(values, device=cpu).gelu().numpy(), _gelu(values), values)
    below = np.linspace(-6, -1, 1001).astype(np.float32)
    found = Tensor(below, device=cpu).gelu().numpy()
    np.testing.assert_allclose(found, _gelu(below), rtol=2e-5)
    far = np.linspace(-40, -6, 1001).astype(np.float32)
    np.testing.assert_allclose(Tensor(far, device=cpu).gelu().numpy(), _gelu(far), atol=2e-10)
    ends = np.array([0, 40, 3e38, np.inf, -0.0, -40, -3e38], np.float32)
    found = Tensor(ends, device=cpu).gelu().numpy()
    np.testing.assert_array_equal(found, [*ends[:4], 0, 0, 0])
    assert np.signbit(found).tolist() == np.signbit(ends).tolist()
    undefined = Tensor(np.array([np.nan, -np.inf], np.float32), device=cpu).gelu().numpy()
    assert np.isnan(undefined).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_gelu_of_narrow_numbers(cpu: Device, name: str) -> None:
    """Rounded once: as near as float32 numbers are, from -6 on."""
    ends = (0x7C00, 0xC600) if name == "float16" else (0x7F80, 0xC0C0)  # infinity, -6
    bits = np.concatenate([np.arange(0, ends[0], 7), np.arange(0x8000, ends[1] + 1, 7)])
    if name == "float16":
        tensor = Tensor(bits.astype(np.uint16).view(np.float16), device=cpu)
    else:
        wide = (bits.astype(np.uint32) << 16).view(np.float32)
        tensor = Tensor(wide, device=cpu).cast(name).realize()
    exact = _gelu(tensor.cast("float32").numpy())
    found = tensor.gelu().cast("float32").numpy().astype(np.float64)
    digits, least = (11, -24) if name == "float16" else (8, -133)
    spacing = np.exp2(np.maximum(np.frexp(exact)[1] - digits, least))
    assert (np.abs(found - exact) <= 0.53 * spacing).all()


def test_gpus_compute_the_same_gelu(cpu: Device, gpu: Device) -> None:
    values = np.linspace(-14, 6, 500).astype(np.float32)
    ours, theirs = (Tensor(values, device=device).gelu().numpy() for device in (cpu, gpu))
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def test_inverse_of_the_error_function(cpu: Device) -> None:
    random = np.random.default_rng(7)
    near_one = 1 - np.exp(-random.uniform(0, 16.6, 1000))
    size = np.concatenate(
        [random.uniform(0, 1, 1000), near_one, np.exp(-random.uniform(0, 80, 200))]
    )
    values = np.concatenate([size, -size]).astype(np.float32)
    values = values[np.abs(values) < 1]
    found, exact = Tensor(values, device=cpu).erfinv().numpy(), values.astype(np.float64)
    root = found.astype(np.float64)
    for _ in range(3):  # Newton's method
        root -= (_erf(root) - exact) * (math.sqrt(math.pi) / 2) * np.exp(root * root)
    tiny = np.abs(exact) < 1e-6  # where erf in double precision would lose digits
    check("erfinv", BOUNDS["erfinv"], found, np.where(tiny, exact * math.sqrt(math.pi) / 2, root))
    special = np.array([0.0, -0.0, 1, -1, 1.0000001, -2, np.inf, -np.inf, np.nan], np.float32)
    ends = Tensor(special, device=cpu).erfinv().numpy()
    np.testing.assert_array_equal(ends[:4], [0, 0, np.inf, -np.inf])
    assert np.signbit(ends[1]) and not np.signbit(ends[0]) and np.isnan(ends[4:]).all()


# ---- functions of two numbers --------------------------------------------------------------------


def pairs(count: int, seed: int = 3) -> tuple[Array, Array]:
    """Any two numbers, numbers of like size, small fractions, and all pairs of special values."""
    random = np.random.default_rng(seed)
    special = np.array(
        [0, -0.0, 1, -1, 2, 3, -3, 0.5, 2.5, 7, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 5e-39,
         1.17549435e-38, -1e-30, 1e38, -1e38, 3.4028235e38, 16777215, 16777217, 0.1, 0.99999994,
         1.0000001], np.float32,
    )  # fmt: skip
    left, right = (part.reshape(-1) for part in np.meshgrid(special, special))
    any_two = random.integers(0, 2**32, (2, count), np.uint32).view(np.float32)
    alike = (random.normal(size=(2, count)) * [[100], [1]]).astype(np.float32)
    quarters = (random.integers(-50, 50, (2, count)) / 4).astype(np.float32)
    joined = [
        np.concatenate(parts) for parts in zip((left, right), any_two, alike, quarters, strict=True)
    ]
    return joined[0], joined[1]


def check_division(device: Device, count: int, seed: int = 3) -> None:
    left, right = pairs(count, seed)
    one, two = Tensor(left, device=device), Tensor(right, device=device)
    rest, positive, quotient = one.fmod(two).numpy(), (one % two).numpy(), (one // two).numpy()
    with np.errstate(all="ignore"):
        exact = np.fmod(left.astype(np.float64), right.astype(np.float64))
        other = (exact != 0) & (np.signbit(exact) != np.signbit(right))
        raised = np.where(other, exact + right, exact)
        floors = np.floor_divide(left, right)  # NumPy's of float32 are exact, or rounded
    check("fmod", BOUNDS["fmod"], rest, exact, left, right)
    check("x % y", BOUNDS["x % y"], positive, raised, left, right)
    check("x // y", BOUNDS["x // y"], quotient, floors.astype(np.float64), left, right)


def power_pairs(count: int, seed: int = 4) -> tuple[Array, Array]:
    """Bases everywhere and close to 1, and exponents whose results fill the range."""
    random = np.random.default_rng(seed)
    anywhere = random.integers(1, 0x7F800000, count, np.uint32).view(np.float32)
    near_one = np.float32(1) + (
        random.uniform(-0.9, 1, count) * np.exp2(-random.uniform(0, 23, count))
    ).astype(np.float32)
    base = np.concatenate([anywhere, near_one])
    with np.errstate(all="ignore"):
        exponent = random.uniform(-150, 129, 2 * count) / np.log2(base.astype(np.float64))
    special_base, special_exponent = pairs(0)
    return (
        np.concatenate([base, special_base]),
        np.concatenate(
            [np.where(np.isfinite(exponent), exponent, 3).astype(np.float32), special_exponent]
        ),
    )


def check_powers(device: Device, count: int, seed: int = 4) -> None:
    base, exponent = power_pairs(count, seed)
    found = (Tensor(base, device=device) ** Tensor(exponent, device=device)).numpy()
    with np.errstate(all="ignore"):
        exact = np.power(base.astype(np.float64), exponent.astype(np.float64))
    check("x ** y", BOUNDS["x ** y"], found, exact, base, exponent)


def test_division_is_exact_for_quotients_of_any_size(cpu: Device) -> None:
    check_division(cpu, 20000)


@pytest.mark.parametrize("divisor", [3.0, 0.1, -7e20, 1e-40, 0.0, math.inf])
def test_remainders_by_a_constant(cpu: Device, divisor: float) -> None:
    values = numbers(5001)
    with np.errstate(all="ignore"):
        exact = np.fmod(values.astype(np.float64), float(np.float32(divisor)))
    check("fmod", 0, Tensor(values, device=cpu).fmod(divisor).numpy(), exact, values)


def test_remainders_of_every_kind_of_source(cpu: Device) -> None:
    """Fewer steps are enough where the sources' types bound the quotient."""
    random = np.random.default_rng(6)
    left, right = random.integers(0, 65536, (2, 20000)).astype(np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        exact = np.fmod(left.astype(np.float64), right.astype(np.float64))
    found = Tensor(left, device=cpu).fmod(Tensor(right, device=cpu)).numpy()
    check("fmod", 0, found, exact, left, right)
    whole = random.integers(-(2**62), 2**62, 5000)
    rest = Tensor(whole, device=cpu).fmod(0.3).numpy()
    single = whole.astype(np.float32).astype(np.float64)
    check("fmod", 0, rest, np.fmod(single, float(np.float32(0.3))), whole)


def test_powers(cpu: Device) -> None:
    check_powers(cpu, 20000)


def whole_powers() -> tuple[Array, Array]:
    """Every odd base with a power below 2^24, at several scales."""
    found = [
        (base * 2.0**scale, exponent)
        for base in range(1, 4096, 2)
        for exponent in range(2, 24)
        if base**exponent < 1 << 24
        for scale in (-3, 0, 5)
    ]
    bases, exponents = zip(*found, strict=True)
    return np.array(bases, np.float32), np.array(exponents, np.float32)


def test_whole_powers_are_exact(cpu: Device) -> None:
    base, exponent = whole_powers()
    exact = base.astype(np.float64) ** exponent.astype(np.float64)
    found = (Tensor(base, device=cpu) ** Tensor(exponent, device=cpu)).numpy()
    fits = exact < 3.4e38
    assert np.array_equal(found[fits], exact[fits])
    for number in (2, 3, 4, 5.0, 6, 7, 8.0):
        chosen = base[exponent == number]
        assert np.array_equal(
            (Tensor(chosen, device=cpu) ** number).numpy(), chosen.astype(np.float64) ** number
        )


def test_powers_of_two_are_exact(cpu: Device) -> None:
    exponents = np.arange(-149, 128).astype(np.float32)
    powers = Tensor(exponents, device=cpu).exp2()
    assert np.array_equal(powers.numpy(), np.exp2(exponents.astype(np.float64)))
    assert np.array_equal(powers.log2().numpy(), exponents)


def test_logarithms_of_powers_of_ten_are_exact(cpu: Device) -> None:
    exponents = np.arange(-37, 39)
    values = np.array([f"1e{exponent}" for exponent in exponents], np.float32)
    found = Tensor(values, device=cpu).log10().numpy()
    assert np.array_equal(found[exponents >= 0], exponents[exponents >= 0])
    check("log10", 0.51, found, np.log10(values.astype(np.float64)), values)


def test_division_and_powers_on_gpus(gpu: Device) -> None:
    check_division(gpu, 600)
    check_powers(gpu, 600)


# ---- more of the same ----------------------------------------------------------------------------


def new_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_many_float32_numbers(cpu: Device, name: str) -> None:
    seed = new_seed()
    random = np.random.default_rng(seed)
    for _ in range(8):
        values = random.integers(0, 2**32, 1 << 19, np.uint32).view(np.float32)
        found, exact = compute(cpu, name, values), reference(name, values)
        check(f"seed {seed}: {name}", bound_of(name), found, exact, values)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_every_bfloat16_number(cpu: Device, name: str) -> None:
    values = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    found = apply(name, Tensor(values, device=cpu).bfloat16()).numpy()
    exact = reference(name, values)
    errors = ulps(found, exact) * 2.0**-16  # of bfloat16, whose mantissa is 16 bits shorter
    assert errors.max() <= (2.0 if name == "x ** -2" else NARROW), values[errors.argmax()]


@pytest.mark.slow
def test_many_pairs(cpu: Device) -> None:
    seed = new_seed()
    check_division(cpu, 1 << 20, seed)
    check_powers(cpu, 1 << 20, seed)
