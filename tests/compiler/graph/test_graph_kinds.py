"""A kind of graph node is one record: a new one needs no change of any pass."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.compiler.compiler_cases import GFX1100, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.expression.value import interning
from ugpu.compiler.graph.along import expressed
from ugpu.compiler.graph.movement import moving
from ugpu.compiler.graph.node import KINDS, Kind, Node
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import NotSupported

X = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture(autouse=True)
def own_kinds() -> Iterator[None]:
    """Two more kinds: rows turned by one element, and rows backwards by a kernel of their own."""
    Kind(
        "rolled",
        moving(lambda node, at: (*at[:-1], (at[-1] + 1) % node.shape[-1])),
        moves=True,
        once=True,
    )
    Kind(
        "backwards", expressed, lowerings={"host": "tests.support.compiler.backwards"}, stored=True
    )
    yield
    del KINDS["rolled"], KINDS["backwards"]


def made(op: str, tensor: Tensor) -> Tensor:
    arg = ("", tensor.ndim - 1) if op == "backwards" else None
    return tensor._new(Node(op, tensor.dtype, tensor.shape, (tensor.node,), arg))


def test_a_kind_that_is_expressed_stands_anywhere_in_a_kernel(cpu: Device) -> None:
    total = (made("rolled", Tensor(X, device=cpu).exp()) * 2).sum(0)
    assert total.memory_plan().kernels == 1
    expected = (np.roll(np.exp(X), -1, 1) * 2).sum(0)
    np.testing.assert_allclose(total.numpy(), expected, rtol=1e-6)
    with interning:
        kernels_of(made("rolled", Tensor(X, device=cpu)).node, GFX1100)


def test_a_kind_with_a_lowering_is_the_root_of_its_kernel(cpu: Device) -> None:
    shown = made("backwards", Tensor(X, device=cpu) + 1)
    result = (shown * 2).sum(1)
    assert result.memory_plan().kernels == 2
    np.testing.assert_array_equal(result.numpy(), ((X + 1)[:, ::-1] * 2).sum(1))
    np.testing.assert_array_equal(shown.numpy(), (X + 1)[:, ::-1])


def test_a_target_without_the_lowering_refuses_the_kind_by_name(cpu: Device) -> None:
    with interning, pytest.raises(NotSupported, match="backwards"):
        kernels_of(made("backwards", Tensor(X, device=cpu)).node, GFX1100)
