"""Transposed copies on the host, alone and with other operations, at sizes that fill no tile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.compiler.compiler_cases import HOST, NUMPY_TYPES, buffer, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.value import walk
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.kernel.ir import Store
from ugpu.compiler.kernel.verify import verify
from ugpu.hcq.device.device import Device


def _values(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    return rng.integers(0, 2 if name == "bool" else 100, shape).astype(name)


@given(
    st.integers(0, 1 << 30), st.integers(1, 3), st.integers(1, 150), st.integers(1, 300),
    st.sampled_from(NUMPY_TYPES), st.permutations(range(3)), st.sampled_from(["", "add", "wide"]),
)  # fmt: skip
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_order_of_axes(
    cpu: Device, seed: int, outer: int, rows: int, columns: int, name: str, order: list[int],
    how: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    x = _values(rng, (outer, rows, columns), name)
    result, wanted = Tensor(x, device=cpu).permute(order), x.transpose(order)
    if how == "add":  # one read along the output's rows, one across them
        y = _values(rng, wanted.shape, name)
        result, wanted = result + Tensor(y, device=cpu), wanted + y
    elif how == "wide":
        result, wanted = result.cast("float32") * 2.0, wanted.astype(np.float32) * 2
    assert (result.contiguous().numpy() == wanted).all()


# output columns: one tile of 256 and a ragged one, whole tiles, ragged below a vector
LARGE = [(300, 256), (257, 65), (511, 40), (512, 33), (521, 37), (768, 24), (1000, 1000)]


@pytest.mark.parametrize("shape", LARGE)
def test_rows_longer_than_a_tile(cpu: Device, shape: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    assert (Tensor(x, device=cpu).permute(1, 0).contiguous().numpy() == x.T).all()


@pytest.mark.parametrize("shape", [(512, 48), (129, 257), (16, 1024), (1000, 17), *LARGE])
def test_each_vector_is_read_along_memory(shape: tuple[int, int]) -> None:
    """Whole tiles are read by vectors; single elements only at ragged edges."""
    turned = graph.permute(buffer(*shape, dtype=float32), (1, 0))
    one = graph.full(1, float32, turned.shape)
    (kernel,) = kernels_of(graph.elementwise("add", float32, turned, one), HOST)
    verify(kernel)
    lanes = {
        node.lanes
        for statement in _stores(kernel.body)
        for node in walk(statement.value)
        if node.op == "load" and node.arg.memory.space == "global"
    }
    ragged = any(size % 8 for size in shape)
    assert lanes == ({1, 8} if ragged else {8})


def _stores(body: object) -> list[Store]:
    assert isinstance(body, tuple)
    found: list[Store] = []
    for statement in body:
        found += [statement] if isinstance(statement, Store) else _stores(statement.body)
    return found
