"""einsum: what an equation says, on the paths of matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor
from ugpu.compiler.front.explain import watch
from ugpu.compiler.runtime.runtime import kernel_log
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Array = NDArray[Any]
device = device_fixture("cpu", "virtual:navi31")


def arrays(*shapes: tuple[int, ...]) -> list[Array]:
    random = np.random.default_rng(sum(sum(shape) for shape in shapes))
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def check(equation: str, given_: list[Array], device: Device) -> None:
    tensors = [Tensor(each, device=device) for each in given_]
    found = Tensor.einsum(equation, *tensors).numpy()
    wanted = np.einsum(equation, *[each.astype(np.float64) for each in given_])
    size = np.einsum(equation, *[np.abs(each).astype(np.float64) for each in given_])
    assert found.shape == wanted.shape
    assert np.all(np.abs(found - wanted) <= 1e-6 * (np.abs(size) + 1)), equation


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(12, 20), (20, 9)]),
        ("ij,kj", [(12, 20), (9, 20)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 10, 8), (2, 3, 11, 8)]),
        ("bqhd,bkhd->bhqk", [(2, 10, 3, 8), (2, 11, 3, 8)]),
        ("...ij,...jk->...ik", [(2, 1, 9, 4), (3, 4, 10)]),
        ("ij,jk,kl->il", [(3, 40), (40, 5), (5, 30)]),
        ("abcd,cdef->abef", [(2, 9, 3, 4), (3, 4, 2, 10)]),
        ("i,j->ij", [(5,), (7,)]),
        ("ij,ij->", [(5, 7), (5, 7)]),
        ("ii", [(6, 6)]),
        ("ii->i", [(6, 6)]),
        ("bii->bi", [(3, 6, 6)]),
        ("iji,jk->ki", [(4, 3, 4), (3, 2)]),
        ("ijk->kj", [(2, 3, 4)]),
        ("i...->...", [(2, 3, 4)]),
        ("ab,cd->da", [(2, 3), (4, 5)]),
        ("ij,ij->ij", [(4, 1), (1, 5)]),
    ],
)
def test_as_the_equation_says(device: Device, equation: str, shapes: list[tuple[int, ...]]) -> None:
    check(equation, arrays(*shapes), device)


def test_products_are_those_of_matmul(device: Device) -> None:
    """The very kernels, batched and of turned factors too."""
    a, b = (Tensor(each, device=device) for each in arrays((3, 24, 40), (3, 40, 32)))
    (a @ b).realize()
    (a @ b.transpose(1, 2).contiguous().transpose(1, 2)).realize()
    turned = b.transpose(1, 2).contiguous().realize()
    with kernel_log() as kernels:
        Tensor.einsum("bij,bjk->bik", a, b).realize()
        Tensor.einsum("bij,bkj->bik", a, turned).realize()
    assert not kernels
    with watch() as runs:
        Tensor.einsum("bqhd,bkhd->bhqk", a.reshape(3, 24, 5, 8), b.reshape(3, 32, 5, 8)).realize()
    assert len(runs[0].kernels) == 1  # nothing is moved first


def test_a_chain_is_joined_where_it_costs_least(cpu: Device) -> None:
    a, b, c = arrays((200, 2), (2, 200), (200, 3))
    check("ij,jk,kl->il", [a, b, c], cpu)
    tensors = [Tensor(each, device=cpu) for each in (a, b, c)]
    assert Tensor.einsum("ij,jk,kl->il", *tensors).memory_plan().peak < 40_000  # not 200 x 200


def test_types(cpu: Device) -> None:
    whole = np.arange(12, dtype=np.int16).reshape(3, 4)
    found = Tensor.einsum("ij,kj->ik", *[Tensor(whole, device=cpu)] * 2)
    assert found.dtype.name == "int16" and np.array_equal(found.numpy(), whole @ whole.T)
    half = Tensor(np.full((4, 4000), 0.5, np.float16), device=cpu)
    total = Tensor.einsum("ij,kj->ik", half, half)
    assert total.dtype.name == "float16" and (total.numpy() == 1000).all()
    truth = np.eye(3, dtype=bool)
    assert np.array_equal(
        Tensor.einsum("ij,jk->ik", *[Tensor(truth, device=cpu)] * 2).numpy(), truth
    )
    empty = Tensor(np.zeros((3, 0), np.float32), device=cpu)
    assert Tensor.einsum("ij,kj->ik", empty, empty).numpy().tolist() == [[0] * 3] * 3


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3), (4, 5)], "do not agree"),
        ("ij,jk->ik", [(2, 3)], "must name 1 operands"),
        ("ijk->ik", [(2, 3)], "does not match the axes of"),
        ("i->i", [(2, 3)], "does not match the axes of"),
        ("ij->iz", [(2, 3)], "only axes of the operands"),
        ("ij->ii", [(2, 3)], "each axis once"),
        ("i1->i", [(2, 3)], "must be letters"),
        ("ii->i", [(2, 3)], r"'i' has different sizes: \[2, 3\]"),
        ("ij->i->j", [(2, 3)], "must name 1 operands"),
        ("i.j->ij", [(2, 3)], "must be letters"),
    ],
)
def test_bad_equations_are_named(
    cpu: Device, equation: str, shapes: list[tuple[int, ...]], message: str
) -> None:
    tensors = [Tensor(each, device=cpu) for each in arrays(*shapes)]
    with pytest.raises(BadArgument, match=message) as raised:
        Tensor.einsum(equation, *tensors)
    assert repr(equation) in str(raised.value)


@settings(max_examples=5)
@given(data=st.data())
def test_as_numpy(cpu: Device, data: st.DataObject) -> None:
    sizes = {name: data.draw(st.sampled_from([1, 2, 3, 9])) for name in "abcd"}
    letters = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4)
    terms = data.draw(st.lists(letters, min_size=1, max_size=3))
    known = sorted({name for term in terms for name in term})
    kept = data.draw(st.permutations(known))[: data.draw(st.integers(0, len(known)))]
    equation = ",".join("".join(term) for term in terms)
    if data.draw(st.booleans()):
        equation += "->" + "".join(kept)
    check(equation, arrays(*[tuple(sizes[name] for name in term) for term in terms]), cpu)
