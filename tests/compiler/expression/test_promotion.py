"""Every method of several tensors has one rule of types, for all pairs of types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.dtype import ALL as TYPES
from ugpu.compiler.dtype import DType, bool_, float_dtype, promote
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

Method = Callable[[Tensor, Tensor], Tensor]
ALL = [each for each in TYPES if not each.is_float8]  # refused: test_float8
LABELS = np.zeros(2, np.int64)

# The result has the promoted type.
PLAIN: dict[str, Method] = {
    "add": lambda a, b: a + b,
    "add scaled": lambda a, b: a.add(b, alpha=1),
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floor_divide": lambda a, b: a // b,
    "div down": lambda a, b: a.div(b, rounding_mode="floor"),
    "div to zero": lambda a, b: a.div(b, rounding_mode="trunc"),
    "remainder": lambda a, b: a % b,
    "fmod": lambda a, b: a.fmod(b),
    "pow": lambda a, b: a**b,
    "maximum": lambda a, b: a.maximum(b),
    "minimum": lambda a, b: a.minimum(b),
    "clamp": lambda a, b: a.clamp(b, b),
    "where": lambda a, b: (a > 0).where(a, b),
    "cat": lambda a, b: Tensor.cat([a, a, b]),
    "stack": lambda a, b: Tensor.stack([a, b]),
    "matmul": lambda a, b: a @ b,
    "dot": lambda a, b: a.dot(b),
    "linear": lambda a, b: a.linear(b),
    "linear, bias": lambda a, b: a.linear(a, b[0]),
    "einsum": lambda a, b: Tensor.einsum("ij,jk", a, b),
    "conv2d": lambda a, b: image(a).conv2d(image(b)),
    "conv2d, bias": lambda a, b: image(a).conv2d(image(a), b[0, :1]),
    "conv_transpose2d": lambda a, b: image(a).conv_transpose2d(image(b)),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "left": lambda a, b: a << b,
    "right": lambda a, b: a >> b,
}  # fmt: skip
# The result is real: integers and bools give float32.
REAL: dict[str, Method] = {
    "div": lambda a, b: a / b,
    "copysign": lambda a, b: a.copysign(b),
    "logaddexp": lambda a, b: a.logaddexp(b),
    "mse_loss": lambda a, b: a.mse_loss(b),
    "l1_loss": lambda a, b: a.l1_loss(b, "none"),
    "binary_cross_entropy": lambda a, b: a.binary_cross_entropy(b),
    "binary_cross_entropy, weight": lambda a, b: a.binary_cross_entropy(a, b, "sum"),
    "with_logits": lambda a, b: a.binary_cross_entropy_with_logits(b),
    "with_logits, weight": lambda a, b: a.binary_cross_entropy_with_logits(a, b),
    "with_logits, positive": lambda a, b: a.binary_cross_entropy_with_logits(a, None, b),
    "cross_entropy": lambda a, b: a.cross_entropy(b),
    "cross_entropy, weight": lambda a, b: a.cross_entropy(LABELS, b[0]),
    "cross_entropy, none": lambda a, b: a.cross_entropy(LABELS, b[0], reduction="none"),
    "nll_loss": lambda a, b: a.nll_loss(LABELS, b[0]),
    "attention": lambda a, b: a.scaled_dot_product_attention(b, b),
    "attention, value": lambda a, b: a.scaled_dot_product_attention(a, b),
}  # fmt: skip
# The result keeps the type of the tensor that is written into.
KEEPING: dict[str, Method] = {
    "masked_fill": lambda a, b: a.masked_fill(a == a, b[0, 0]),
    "scatter": lambda a, b: a.scatter(0, np.array([[0, 0]]), b),
    "scatter_add": lambda a, b: a.scatter_add(0, np.array([[0, 0]]), b),
    "index_add": lambda a, b: a.index_add(0, np.array([0, 1]), b),
    "index_copy": lambda a, b: a.index_copy(0, np.array([0, 1]), b),
}  # fmt: skip
LOGICAL: dict[str, Method] = {
    "logical_and": lambda a, b: a.logical_and(b),
    "logical_or": lambda a, b: a.logical_or(b),
    "logical_xor": lambda a, b: a.logical_xor(b),
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
}  # fmt: skip


def image(matrix: Tensor) -> Tensor:
    return matrix.reshape(1, 1, 2, 2)


def tensors(device: Device) -> Iterator[tuple[Tensor, Tensor]]:
    made = [Tensor.ones(2, 2, device=device, dtype=kind) for kind in ALL]
    return iter(product(made, made))


def check(device: Device, method: Method, rule: Callable[[DType, DType], DType]) -> None:
    """Refusals depend on the promoted type only: a pair is accepted in both orders."""
    refused = set()
    for a, b in tensors(device):
        try:
            found = method(a, b).dtype
        except (BadArgument, NotSupported):
            refused.add((a.dtype.name, b.dtype.name))
            continue
        assert found is rule(a.dtype, b.dtype), (a.dtype, b.dtype)
    assert len(refused) <= len(ALL) ** 2 * 0.6  # of floats and of shifts of bools


@pytest.mark.parametrize("name", PLAIN)
def test_the_promoted_type(cpu: Device, name: str) -> None:
    check(cpu, PLAIN[name], promote)


@pytest.mark.parametrize("name", [each for each in REAL if each != "cross_entropy"])
def test_the_promoted_float(cpu: Device, name: str) -> None:
    check(cpu, REAL[name], lambda a, b: float_dtype(promote(a, b)))


def test_probabilities(cpu: Device) -> None:
    """The target is labels unless it is of floats."""
    for a, b in tensors(cpu):
        if b.dtype.is_float:
            assert REAL["cross_entropy"](a, b).dtype is float_dtype(promote(a.dtype, b.dtype))


@pytest.mark.parametrize("name", KEEPING)
def test_the_own_type(cpu: Device, name: str) -> None:
    check(cpu, KEEPING[name], lambda a, _: a)


@pytest.mark.parametrize("name", LOGICAL)
def test_bool(cpu: Device, name: str) -> None:
    check(cpu, LOGICAL[name], lambda *_: bool_)


def test_three_types(cpu: Device) -> None:
    half, wide, number = (Tensor.ones(2, 2, device=cpu, dtype=kind) for kind in
                          ("float16", "float32", "int32"))  # fmt: skip
    assert half.lerp(half, wide).dtype.name == half.lerp(wide, half).dtype.name == "float32"
    assert number.lerp(half, 0.5).dtype.name == "float16"
    assert Tensor.cat([number, half, wide]).dtype.name == "float32"
    assert half.scaled_dot_product_attention(half, half, wide).dtype.name == "float32"
    assert half.scaled_dot_product_attention(half, half, wide > 0).dtype.name == "float16"


def test_values_are_those_of_the_promoted_type(cpu: Device) -> None:
    """float16 with float32 is not rounded to float16 on the way."""
    low = Tensor(np.array([1.0, 2.0], np.float16), device=cpu)
    high = Tensor(np.array([1.0001, 2.0001], np.float32), device=cpu)
    assert low.mse_loss(high).item() == pytest.approx(1e-8, rel=1e-2)
    assert low.logaddexp(high).numpy() == pytest.approx(np.logaddexp(low.numpy(), high.numpy()))
