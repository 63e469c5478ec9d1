"""Element-wise operations against NumPy: random shapes, types, layouts; broadcasting; casts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import NUMPY_TYPES, arrays
from ugpu.compiler import Tensor, dtypes
from ugpu.compiler.dtype import promote
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Array = NDArray[Any]
check = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
INTEGERS = [name for name in NUMPY_TYPES if "int" in name]
FLOATS = ("float16", "float32")


def close(found: Array, expected: Array) -> None:
    """Equal, but for the last bit or two of float results."""
    assert found.shape == expected.shape
    if found.dtype.kind == "f":
        rtol = 2e-3 if found.dtype == np.float16 else 3e-7
        with np.errstate(over="ignore"):
            wanted = expected.astype(found.dtype)
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=1e-7)
    else:
        np.testing.assert_array_equal(found, expected)


@st.composite
def pairs(draw: st.DrawFn, dtype: str | None = None, nonzero: bool = False) -> tuple[Array, Array]:
    """Two arrays of one type whose shapes broadcast."""
    name = dtype or draw(st.sampled_from(NUMPY_TYPES))
    left = draw(arrays(dtype=name))
    cut = draw(st.integers(0, left.ndim))
    shape = tuple(1 if draw(st.booleans()) else size for size in left.shape[cut:])
    right = draw(arrays(dtype=name, shape=shape, nonzero=nonzero))
    return (right, left) if draw(st.booleans()) and not nonzero else (left, right)


ARITHMETIC: list[tuple[str, Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = [
    ("add", operator.add, np.add),
    ("mul", operator.mul, np.multiply),
    ("maximum", lambda a, b: a.maximum(b), np.maximum),
    ("minimum", lambda a, b: a.minimum(b), np.minimum),
    ("lt", operator.lt, np.less),
    ("le", operator.le, np.less_equal),
    ("gt", operator.gt, np.greater),
    ("ge", operator.ge, np.greater_equal),
    ("eq", operator.eq, np.equal),
    ("ne", operator.ne, np.not_equal),
]


@pytest.mark.parametrize(("name", "ours", "theirs"), ARITHMETIC, ids=[a[0] for a in ARITHMETIC])
@check
@given(data=st.data())
def test_binary(
    cpu: Device, name: str, ours: Callable[[Any, Any], Any], theirs: Any, data: st.DataObject
) -> None:
    left, right = data.draw(pairs())
    result = ours(Tensor(left, device=cpu), Tensor(right, device=cpu))
    with np.errstate(all="ignore"):
        close(result.numpy(), theirs(left, right))


@check
@given(data=st.data())
def test_subtract_and_divide(cpu: Device, data: st.DataObject) -> None:
    left, right = data.draw(pairs(dtype=data.draw(st.sampled_from(NUMPY_TYPES[1:]))))
    ours, theirs = Tensor(left, device=cpu), Tensor(right, device=cpu)
    with np.errstate(all="ignore"):
        close((ours - theirs).numpy(), left - right)
        if left.dtype.kind == "f":
            close((ours / theirs).numpy(), left / right)
        else:
            exact = left.astype(np.float32) / right.astype(np.float32)
            close((ours / theirs).numpy(), exact)


@check
@given(data=st.data())
def test_floor_division_and_remainder(cpu: Device, data: st.DataObject) -> None:
    left, right = data.draw(pairs(dtype=data.draw(st.sampled_from([*INTEGERS, "float32"]))))
    ours, theirs = Tensor(left, device=cpu), Tensor(right, device=cpu)
    quotient, rest = (ours // theirs).numpy(), (ours % theirs).numpy()
    with np.errstate(all="ignore"):
        if left.dtype.kind == "f":  # exact where NumPy's single-precision result is
            np.testing.assert_allclose(quotient, left // right, rtol=1e-6)
            np.testing.assert_allclose(rest, left % right, atol=2e-6)
        else:
            close(quotient, left // right)
            close(rest, left % right)


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64"])
def test_integer_division_never_traps(cpu: Device, name: str) -> None:
    lowest = np.iinfo(name).min
    left = np.array([lowest, lowest, 7, -7, 0, lowest], name)
    right = np.array([-1, 0, 0, -1, 0, 1], name)
    quotient = Tensor(left, device=cpu) // Tensor(right, device=cpu)
    rest = Tensor(left, device=cpu) % Tensor(right, device=cpu)
    assert quotient.tolist() == [lowest, 0, 0, 7, 0, lowest]
    assert rest.tolist() == [0, 0, 0, 0, 0, 0]


@check
@given(data=st.data())
def test_bitwise_and_shifts(cpu: Device, data: st.DataObject) -> None:
    left, right = data.draw(pairs(dtype=data.draw(st.sampled_from([*INTEGERS, "bool"]))))
    ours, theirs = Tensor(left, device=cpu), Tensor(right, device=cpu)
    close((ours & theirs).numpy(), left & right)
    close((ours | theirs).numpy(), left | right)
    close((ours ^ theirs).numpy(), left ^ right)
    close((~ours).numpy(), ~left)
    if left.dtype.kind in "iu":
        amount = (right % left.dtype.type(min(64, 8 * left.itemsize - 1))).astype(left.dtype)
        close((ours << Tensor(amount, device=cpu)).numpy(), left << amount)
        close((ours >> Tensor(amount, device=cpu)).numpy(), left >> amount)


def test_shifts_by_the_width_or_more(cpu: Device) -> None:
    values = Tensor(np.array([-8, 8], np.int32), device=cpu)
    assert (values << 32).tolist() == [0, 0]
    assert (values >> 40).tolist() == [-1, 0]
    assert (values.cast("uint32") >> 32).tolist() == [0, 0]


UNARY = ["neg", "abs", "square", "relu", "sign"]


@pytest.mark.parametrize("name", UNARY)
@check
@given(array=arrays())
def test_unary(cpu: Device, name: str, array: Array) -> None:
    if array.dtype == bool:
        return
    references: dict[str, Callable[[Array], Array]] = {
        "neg": np.negative,
        "abs": np.abs,
        "square": np.square,
        "relu": lambda x: np.maximum(x, x.dtype.type(0)),
        "sign": np.sign,
    }
    with np.errstate(all="ignore"):
        close(getattr(Tensor(array, device=cpu), name)().numpy(), references[name](array))


@check
@given(array=arrays(dtype="float32"), number=st.sampled_from([0, 1, 2, 3, 5, 8, -1, -2, 0.5]))
def test_powers_by_numbers(cpu: Device, array: Array, number: float) -> None:
    array = np.abs(array) + np.float32(0.1)
    with np.errstate(all="ignore"):
        expected = array.astype(np.float64) ** number
    found = (Tensor(array, device=cpu) ** number).numpy()
    np.testing.assert_allclose(found, expected, rtol=3e-6)


@pytest.mark.slow
@check
@given(data=st.data())
def test_integer_powers_wrap(cpu: Device, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(INTEGERS))
    base = data.draw(arrays(dtype=name, most_axes=2))
    exponent = np.abs(data.draw(arrays(dtype=name, shape=base.shape))) % np.dtype(name).type(70)
    with np.errstate(all="ignore"):
        expected = base**exponent
    close((Tensor(base, device=cpu) ** Tensor(exponent, device=cpu)).numpy(), expected)


@check
@given(data=st.data())
def test_where(cpu: Device, data: st.DataObject) -> None:
    left, right = data.draw(pairs())
    condition = data.draw(arrays(dtype="bool", shape=left.shape))
    chosen = Tensor(condition, device=cpu).where(
        Tensor(left, device=cpu), Tensor(right, device=cpu)
    )
    close(chosen.numpy(), np.where(condition, left, right))
    mask = Tensor(condition, device=cpu)
    assert mask.where(1, 0).tolist() == np.where(condition, 1, 0).tolist()


@check
@given(data=st.data())
def test_casts(cpu: Device, data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(NUMPY_TYPES))
    array = data.draw(arrays())
    if array.dtype.kind == "f" and np.dtype(target).kind in "iu":
        array = np.abs(array).astype(array.dtype)  # NumPy leaves the rest undefined
    with np.errstate(all="ignore"):
        expected = (
            array.astype(np.float32).astype(target) if target == "float16" else array.astype(target)
        )
    close(Tensor(array, device=cpu).cast(target).numpy(), expected)


def test_float_to_integer_saturates(cpu: Device) -> None:
    values = Tensor(np.array([1e20, -1e20, np.nan, 3.9, -3.9, 300], np.float32), device=cpu)
    top, low = 2**31 - 1, -(2**31)
    assert values.cast("int32").tolist() == [top, low, 0, 3, -3, 300]
    assert values.cast("uint8").tolist() == [255, 0, 0, 3, 0, 255]
    assert values.cast("bool").tolist() == [True] * 6


def test_bfloat16_rounds_to_nearest_even_on_device_and_host(cpu: Device) -> None:
    random = np.random.default_rng(3)
    bits = random.integers(0, 2**32, 5000, np.uint32)
    values = np.concatenate(
        [bits.view(np.float32), np.array([1.00390625, 1.01171875, 3.4e38], np.float32)]
    )
    on_device = Tensor(values, device=cpu).cast(dtypes.bfloat16)
    on_host = Tensor(values, device=cpu, dtype=dtypes.bfloat16)
    np.testing.assert_array_equal(on_device.numpy(), on_host.numpy())
    finite = np.isfinite(on_host.numpy())
    np.testing.assert_allclose(on_host.numpy()[finite], values[finite], rtol=2**-8, atol=1e-38)
    total = (on_host + on_host).numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(total[finite], (on_host.numpy() * 2)[finite])


@pytest.mark.parametrize("left", NUMPY_TYPES)
@pytest.mark.parametrize("right", NUMPY_TYPES)
def test_promotion_is_numpys_where_it_has_a_say(left: str, right: str) -> None:
    ours = promote(dtypes.as_dtype(left), dtypes.as_dtype(right))
    theirs = np.promote_types(left, right)
    kinds = {np.dtype(left).kind, np.dtype(right).kind}
    if kinds <= set("biu"):
        assert ours.name == ("float32" if theirs == np.float64 else theirs.name)
    elif kinds == {"f"} or "b" in kinds:
        assert ours.name == theirs.name
    else:
        assert ours.name == (left if np.dtype(left).kind == "f" else right)
    assert promote(dtypes.as_dtype(right), dtypes.as_dtype(left)) is ours


def test_python_scalars_are_weak(cpu: Device) -> None:
    small = Tensor(np.array([1, 2], np.int8), device=cpu)
    assert (small + 1).dtype is dtypes.int8
    assert (small + 1.5).dtype is dtypes.float32
    assert (1 - small).tolist() == [0, -1]
    assert (2 / small).tolist() == [2.0, 1.0]
    assert (2**small).tolist() == [2, 4]
    assert (small.half() * 2.5).dtype is dtypes.float16
    assert (small.bool() + 1).dtype is dtypes.int64
    assert (small + np.int64(1)).dtype is dtypes.int64
    mixed: Any = np.array([1, 2], np.int16) + small  # our __radd__, not an array of objects
    assert mixed.dtype is dtypes.int16
    assert (7 // small).tolist() == [7, 3] and (7 % small).tolist() == [0, 1]
    assert (1 << small).tolist() == [2, 4] and (8 >> small).tolist() == [4, 2]
    with pytest.raises(BadArgument, match="300 is out of range for int8"):
        small + 300


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            lambda t: t + Tensor([1.0, 2.0], device=t.device),
            r"add: shapes \[3\] .*and \[2\] .*cannot be broadcast together",
        ),
        (lambda t: t & 1, "and: expected integers"),
        (lambda t: ~t, "invert: expected integers"),
        (lambda t: t.where(1, 2), "where: the condition must be bool, got float32"),
        (lambda t: t + "x", "add: operand must be a Tensor, an array or a number, got str"),
        (lambda t: (t > 0) - (t > 0), "sub: bools are not supported"),
        (lambda t: t.int() ** -1, "negative integer power"),
        (lambda t: t.bitcast("int16"), "bitcast: types must have the same width"),
        (lambda t: t.cast("float64x"), "is not an element type"),
    ],
)
def test_errors_name_the_operation(
    cpu: Device, action: Callable[[Tensor], object], message: str
) -> None:
    with pytest.raises(BadArgument, match=message):
        action(Tensor([1.0, 2.0, 3.0], device=cpu))
