"""Floats to integers on the host: in vector code, and saturating as on GPUs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.instructions.conversion import bounds
from ugpu.compiler.dtype import float32, from_numpy
from ugpu.compiler.expression import functions
from ugpu.compiler.expression.algebra import constant
from ugpu.compiler.expression.value import Memory, Value, binary, const, load, value, walk
from ugpu.compiler.graph import operations as graph
from ugpu.hcq.device.device import Device

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
EDGES = [
    sign * number
    for sign in (1.0, -1.0)
    for bits in (0, 7, 8, 15, 16, 31, 32, 63, 64)
    for exact in (2.0**bits,)
    for number in (
        exact,
        float(np.nextafter(np.float32(exact), np.float32(0))),
        float(np.nextafter(np.float32(exact), np.float32(math.inf))),
        exact + 0.5,
    )
] + [0.0, -0.0, 0.999, -0.999, -1.5, math.inf, -math.inf, math.nan, 1e-45, 3e38, -3e38]


def _saturated(number: float, name: str) -> int:
    """Towards zero, in Python's integers."""
    limits = np.iinfo(name)
    if math.isnan(number):
        return 0
    if math.isinf(number):
        return int(limits.max if number > 0 else limits.min)
    return int(min(max(math.trunc(number), limits.min), limits.max))


@pytest.mark.parametrize("name", INTEGERS)
def test_conversions_saturate(cpu: Device, name: str) -> None:
    """Once in vectors, once each alone."""
    array = np.array(EDGES * 3, np.float32)
    wanted = np.array([_saturated(float(each), name) for each in array], name)
    assert (Tensor(array, device=cpu).cast(name).numpy() == wanted).all()
    for number, exact in zip(array[: len(EDGES)].reshape(-1, 1), wanted, strict=False):
        assert Tensor(number, device=cpu).cast(name).numpy()[0] == exact, number


@given(st.lists(st.floats(width=32), min_size=1, max_size=70), st.sampled_from(INTEGERS),
       st.sampled_from(["float32", "float16"]))  # fmt: skip
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_floats_saturate(cpu: Device, numbers: list[float], name: str, source: str) -> None:
    with np.errstate(over="ignore"):
        array = np.array(numbers, np.float32).astype(source)
    wanted = np.array([_saturated(float(each), name) for each in array], name)
    assert (Tensor(array, device=cpu).cast(name).numpy() == wanted).all()


@given(st.floats(-4e9, 4e9, width=32), st.floats(-300, 300, width=32), st.sampled_from(INTEGERS))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_bounded_floats_saturate(cpu: Device, high: float, low: float, name: str) -> None:
    """What is clamped first needs fewer comparisons; the result is the same."""
    low, high = min(low, high), max(low, high)
    array = np.array(EDGES, np.float32)
    bounded = Tensor(array, device=cpu).maximum(low).minimum(high)
    exact = np.minimum(np.maximum(array, np.float32(low)), np.float32(high))
    wanted = np.array([_saturated(float(each), name) for each in exact], name)
    assert (bounded.cast(name).numpy() == wanted).all()


@pytest.mark.parametrize("name", INTEGERS)
def test_no_conversion_is_scalar_code(name: str) -> None:
    target = from_numpy(np.dtype(name))
    (kernel,) = kernels_of(graph.cast(buffer(1000, dtype=float32), target), HOST)
    assert ".sat." not in emit(kernel, HOST)


def _unknown() -> Value:
    return load(Memory("in0", float32, 1), constant(0))


def test_bounds_of_floats() -> None:
    x = _unknown()
    assert bounds(x) == (-math.inf, math.inf)
    clamped = binary("min", binary("max", x, const(-105.0, float32)), const(89.0, float32))
    assert bounds(clamped) == (-105.0, 89.0)
    assert bounds(value("round", float32, (clamped,))) == (-106.0, 90.0)
    assert bounds(binary("mul", clamped, const(-2.0, float32))) == (-178.0, 210.0)
    assert bounds(binary("mul", x, const(0.0, float32))) == (-math.inf, math.inf)
    assert bounds(const(math.nan, float32)) == (math.inf, -math.inf)


def test_an_exponential_has_no_conversion() -> None:
    """Its exponent is taken from the bits of a sum: nothing has to saturate."""
    operations = {node.op for node in walk(functions.exp(_unknown()))}
    assert "bitcast" in operations and "cast" not in operations
