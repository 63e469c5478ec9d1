"""Products of bytes in int32 on the host: exact for all of them, at sizes that fill no tile."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import DType, int8, int32, uint8
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.hcq.device.device import Device

FEATURES = "+avx512f,+avx512bw,+avx512vl,+avx512vnni,+fma,+f16c,+sse4.1,+avx2"
VNNI = dataclasses.replace(HOST, cpu="znver4", features=FEATURES, vector_bytes=64)


def _product(rows: int, depth: int, columns: int, left_type: DType, right_type: DType) -> Node:
    shape = (rows, columns, depth)
    left = graph.cast(buffer(rows, depth, dtype=left_type), int32)
    right = graph.cast(buffer(columns, depth, dtype=right_type), int32)
    left = graph.expand(graph.reshape(left, (rows, 1, depth)), shape)
    right = graph.expand(graph.reshape(right, (1, columns, depth)), shape)
    return graph.reduce("sum", graph.elementwise("mul", int32, left, right), (2,))


@pytest.mark.parametrize(
    ("left", "right", "four"),
    [(int8, int8, True), (uint8, int8, True), (uint8, uint8, False), (int8, uint8, False)],
)
def test_processors_with_vnni_multiply_four_bytes(left: DType, right: DType, four: bool) -> None:
    (kernel,) = kernels_of(_product(40, 50, 60, left, right), VNNI)
    text = emit(kernel, VNNI)
    assert ("llvm.x86.avx512.vpdpbusd.512" in text) == four
    compile_text(text, VNNI)
    (kernel,) = kernels_of(_product(40, 50, 60, left, right), HOST)
    assert "vpdpbusd" not in emit(kernel, HOST)


@given(
    st.integers(0, 1 << 30), st.integers(8, 70), st.integers(4, 3000), st.integers(8, 130),
    st.sampled_from(["int8", "uint8"]), st.sampled_from(["int8", "uint8"]),
    st.booleans(), st.booleans(), st.sampled_from(["any", "lowest", "highest"]),
)  # fmt: skip
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_products_of_bytes_are_exact(
    cpu: Device, seed: int, rows: int, depth: int, columns: int, one: str, other: str,
    turn_left: bool, turn_right: bool, values: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)

    def factor(name: str, shape: tuple[int, int]) -> np.ndarray:
        limits = np.iinfo(name)
        if values == "any":
            return rng.integers(limits.min, limits.max + 1, shape).astype(name)
        return np.full(shape, limits.min if values == "lowest" else limits.max, name)

    left = factor(one, (depth, rows) if turn_left else (rows, depth))
    right = factor(other, (columns, depth) if turn_right else (depth, columns))
    x, y = Tensor(left, device=cpu), Tensor(right, device=cpu)
    if turn_left:
        x, left = x.permute(1, 0), left.T
    if turn_right:
        y, right = y.permute(1, 0), right.T
    result = (x.cast("int32") @ y.cast("int32")).numpy()
    assert (result == left.astype(np.int32) @ right.astype(np.int32)).all()


def test_batches_of_products_of_bytes_with_an_epilogue(cpu: Device) -> None:
    rng = np.random.default_rng(1)
    left = rng.integers(-128, 128, (3, 33, 301)).astype(np.int8)
    right = rng.integers(-128, 128, (3, 301, 47)).astype(np.int8)
    x, y = (Tensor(each, device=cpu).cast("int32") for each in (left, right))
    result = ((x @ y) * 3 + 1).numpy()
    assert (result == (left.astype(np.int32) @ right.astype(np.int32)) * 3 + 1).all()
