"""Tensors on several devices: every operation gives what it gives on one, whatever the placement.

Judged by NumPy, and by the same program on one device. Sizes do not divide: 7 rows on two devices
are 4 and 3, on four 2, 2, 2 and 1; 3 rows on four leave one device without any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler.sharding import collectives
from ugpu.compiler.sharding.methods import create
from ugpu.compiler.sharding.sharded import Sharded
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Program = Callable[..., Any]
X = np.random.default_rng(1).integers(-8, 9, (7, 6, 4)).astype(np.float32)
W = np.random.default_rng(2).integers(-8, 9, (4, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def four() -> Iterator[list[Device]]:
    devices = [hcq.open("cpu") for _ in range(4)]
    yield devices
    for each in devices:
        each.close()


@pytest.fixture(scope="module", params=[2, 4])
def devices(request: pytest.FixtureRequest, four: list[Device]) -> list[Device]:
    return four[: request.param]


# a program of one tensor [7, 6, 4], and the placement of its result if that is split on axis 0
PROGRAMS: dict[str, tuple[Program, int | str | None]] = {
    "arithmetic": (lambda x: (x * 2 + 1) / 4 - x**2, 0),
    "comparison": (lambda x: (x > 0).where(x, -x), 0),
    "array": (lambda x: x + np.array([1, 2, 3, 4], np.float32), 0),
    "reversed": (lambda x: 1 - x, 0),
    "sum of all": (lambda x: x.sum(), "partial"),
    "sum of rows": (lambda x: x.sum(0), "partial"),
    "sum of others": (lambda x: x.sum((1, 2)), 0),
    "mean": (lambda x: x.mean(0, keepdims=True), "partial"),
    "mean dim": (lambda x: x.mean(dim=1), 0),
    "var": (lambda x: x.var(0), "partial"),
    "std": (lambda x: x.std(dim=(0, 2)), None),
    "max": (lambda x: x.max(0), None),
    "min of all": (lambda x: x.min(), None),
    "any": (lambda x: (x > 7).any(0), None),
    "prod": (lambda x: x.clamp(-1, 2).prod(0), None),
    "argmax": (lambda x: x.argmax(0), None),
    "argmax of others": (lambda x: x.argmax(1), 0),
    "cumsum": (lambda x: x.cumsum(0), None),
    "softmax": (lambda x: x.softmax(-1), 0),
    "softmax of rows": (lambda x: x.softmax(0), None),
    "layernorm": (lambda x: x.layernorm(-1), 0),
    "sort": (lambda x: x.sort(1)[0], 0),
    "joined axes": (lambda x: x.reshape(42, 4), 0),
    "flatten": (lambda x: x.flatten(1), 0),
    "mixed reshape": (lambda x: x.reshape(8, 21), None),
    "unsqueeze": (lambda x: x.unsqueeze(0), 1),
    "transpose": (lambda x: x.transpose(0, 2), 2),
    "permute": (lambda x: x.permute(1, 0, 2), 1),
    "expand": (lambda x: x.unsqueeze(1).expand(3, 7, 2, 6, 4), 1),
    "pad others": (lambda x: x.pad([(0, 0), (1, 2), (0, 0)]), 0),
    "pad rows": (lambda x: x.pad([(1, 0), (0, 0), (0, 0)]), None),
    "slice others": (lambda x: x[:, 1:3, None, -1], 0),
    "slice rows": (lambda x: x[2:5], None),
    "one row": (lambda x: x[-1], None),
    "flip": (lambda x: x.flip(0), None),
    "rows by columns": (lambda x: x @ W, 0),
    "batches": (lambda x: x @ x.transpose(1, 2), 0),
    "depth": (lambda x: x.transpose(0, 2) @ x.transpose(0, 1).transpose(1, 2)[0].T[:, :3], None),
    "cat": (lambda x: x.cat(x, axis=1), 0),
    "cat of rows": (lambda x: x.cat(x, axis=0), None),
    "unlisted": (lambda x: x.roll(2, 0), None),
    "attention": (lambda x: x.scaled_dot_product_attention(x, x, is_causal=True), 0),
    "partial times partial": (lambda x: x.sum(0) * x.sum(0), None),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_it_gives_on_one_device(devices: list[Device], name: str) -> None:
    program, placement = PROGRAMS[name]
    whole = Tensor(X, device=devices[0])
    result = program(whole.shard(devices, 0))
    expected = program(whole).numpy()
    np.testing.assert_allclose(result.numpy(), expected, rtol=2e-6, atol=1e-6)
    assert result.shape == expected.shape
    if name != "depth":
        assert ("partial" if result.partial else result.axis) == placement
    for axis in (1, 2, None):  # however the operand is placed
        other = program(whole.shard(devices, axis)).numpy()
        np.testing.assert_allclose(other, expected, rtol=2e-6, atol=1e-6)


def test_an_axis_of_one_element_is_repeated_whole(devices: list[Device]) -> None:
    column = Tensor(X[:, :1, 0], device=devices[0])
    repeated = column.shard(devices, 1).expand(7, 3)
    assert repeated.shape == (7, 3)
    assert (repeated.numpy() == np.repeat(X[:, :1, 0], 3, 1)).all()


SPLITS = [(None, None), (0, None), (None, 1), (1, 0), (None, 0), (1, None), (0, 1), (1, 1), (0, 0)]


@pytest.mark.parametrize(("left", "right"), SPLITS)
def test_a_product_of_any_placements(
    devices: list[Device], left: int | None, right: int | None
) -> None:
    one, two = Tensor(X[:, :, 0], device=devices[0]), Tensor(X[:6, :5, 1].copy(), device=devices[0])
    result = one.shard(devices, left) @ two.shard(devices, right)
    assert (result.numpy() == X[:, :, 0] @ X[:6, :5, 1]).all()  # small integers: exact
    assert result.partial == (left == 1 or (left is None and right == 0))


@pytest.mark.parametrize("count", [6, 3, 5000])
@pytest.mark.parametrize("op", ["sum", "max", "mean"])
def test_collectives_give_the_same_on_every_device(
    devices: list[Device], count: int, op: str
) -> None:
    rng = np.random.default_rng(3)
    given = [rng.integers(-99, 99, (count, 2)).astype(np.float32) for _ in devices]
    parts = [Tensor(each, device=device) for each, device in zip(given, devices, strict=True)]
    reduce: Any = {"sum": np.sum, "max": np.max, "mean": np.mean}[op]
    total = reduce(np.stack(given), axis=0)
    for each, device in zip(collectives.all_reduce(parts, op), devices, strict=True):
        assert each.device is device
        assert (each.numpy() == total).all()
    if op != "mean":
        pieces = collectives.reduce_scatter(parts, 0, op)
        assert (np.concatenate([each.numpy() for each in pieces]) == total).all()
    joined = np.concatenate(given, 1)
    assert all((each.numpy() == joined).all() for each in collectives.all_gather(parts, 1))
    turned = collectives.all_to_all(parts, 0, 1)
    assert (np.concatenate([each.numpy() for each in turned]) == joined).all()


def test_placements_of_one_value(devices: list[Device]) -> None:
    rows = Tensor(X, device=devices[0]).shard(devices, 0)
    columns, whole = rows.shard(axis=1), rows.shard(axis=None)
    assert (columns.axis, whole.axis) == (1, None)
    for each in (columns, whole, whole.shard(axis=2), columns.shard(axis=0)):
        assert (each.numpy() == X).all()
    assert (rows.to(devices[1]).numpy() == X).all()
    assert rows.to("int32").axis == 0
    scattered = rows.sum(0).split_along(0)
    assert scattered.axis == 0
    assert (scattered.numpy() == X.sum(0)).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_split_is_a_tensors(devices: list[Device], axis: int) -> None:
    """Along the split axis and along another one."""
    rows = Tensor(X, device=devices[0]).shard(devices, 0)
    last = X.shape[axis] - 1
    one, other = rows.split([1, last], axis)
    assert (one.numpy() == np.split(X, [1], axis)[0]).all()
    assert (other.numpy() == np.split(X, [1], axis)[1]).all()
    if axis:
        assert one.axis == 0  # each device has split its own part


@pytest.mark.parametrize("name", ["rand", "randn", "arange", "zeros", "eye"])
def test_made_values_are_those_of_one_device(devices: list[Device], name: str) -> None:
    args = (7,) if name in ("arange", "eye") else (7, 3)
    Tensor.manual_seed(4)
    made = create(name, *args, devices=devices, axis=0)
    dropped = made.cast("float32").dropout(0.5, training=True).numpy()
    Tensor.manual_seed(4)
    alone = getattr(Tensor, name)(*args, device=devices[0])
    assert made.axis == 0
    assert (made.numpy() == alone.numpy()).all()
    assert (dropped == alone.cast("float32").dropout(0.5, training=True).numpy()).all()


def test_16_bit_sums_are_rounded_once(devices: list[Device]) -> None:
    x = Tensor(np.full((300, 2), 0.1, np.float16), device=devices[0])
    sharded = x.shard(devices, 0)
    assert (sharded.sum(0).numpy() == x.sum(0).numpy()).all()
    assert ((sharded.T @ sharded).numpy() == (x.T @ x).numpy()).all()


def test_a_copy_between_devices_of_one_process_does_not_pass_through_arrays(
    four: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Tensor(X, device=four[0])
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "numpy", None)
        moved = [(x[2:] * 2).to(four[1]), x.to(four[1])[1]]
    assert (moved[0].numpy() == X[2:] * 2).all()
    assert (moved[1].numpy() == X[1]).all()


def test_rows_of_a_table(devices: list[Device]) -> None:
    index = np.array([[3, 1], [0, 3], [2, 2]])
    places = Tensor(index, device=devices[0])
    for table_axis in (None, 0, 1):
        for index_axis in (0, None):
            table = Tensor(W, device=devices[0]).shard(devices, table_axis)
            rows = table[places.shard(devices, index_axis)]
            assert (rows.numpy() == W[index]).all()


GRADIENTS: dict[str, Program] = {
    "product": lambda x, w: (x @ w).square().sum(),
    "mean": lambda x, w: ((x @ w) - 1).square().mean(),
    "reduced in the middle": lambda x, w: ((x @ w).mean((0, 1)) * 3).exp().sum().log(),
    "softmax of rows": lambda x, w: ((x @ w) * 0.1).softmax(0).square().sum(),
    "max": lambda x, w: (x @ w).max(0).sum(),
    "standard deviation": lambda x, w: (x @ w).std(0).sum(),
    "broadcast": lambda x, w: (x * w[:, 0]).sum(0).square().sum(),
}


@pytest.mark.parametrize("placed", [(0, None), (None, None), (2, 0), (None, 1), (1, 0)])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_one_device(
    devices: list[Device], name: str, placed: tuple[int | None, int | None]
) -> None:
    program = GRADIENTS[name]
    leaves = [Tensor(each, device=devices[0]).requires_grad_() for each in (X / 8, W / 8)]
    program(*leaves).backward()
    sharded = [
        each.detach().shard(devices, axis).requires_grad_()
        for each, axis in zip(leaves, placed, strict=True)
    ]
    program(*sharded).backward()
    for leaf, other in zip(leaves, sharded, strict=True):
        gradient = other.grad
        assert gradient is not None
        assert gradient.axis == other.axis
        np.testing.assert_allclose(gradient.numpy(), leaf.grad.numpy(), rtol=3e-5, atol=1e-6)
        if other.axis is None:
            first, *rest = [each.numpy() for each in gradient.parts]
            assert all((each == first).all() for each in rest)


def test_a_gradient_flows_back_to_the_tensor_that_was_sharded(devices: list[Device]) -> None:
    for axis in (None, 0, 1):
        leaf = Tensor(W, device=devices[0]).requires_grad_()
        (leaf.shard(devices, axis) * 3).square().sum().backward()
        assert (leaf.grad.numpy() == 18 * W).all()
        leaf = Tensor(W, device=devices[0]).requires_grad_()
        (leaf.shard(devices, axis) * 3).square().to(devices[1]).sum().backward()
        assert (leaf.grad.numpy() == 18 * W).all()


def test_a_mean_of_labels_counts_all_devices(devices: list[Device]) -> None:
    labels = np.array([0, 3, -100, 1, 2, 2, -100])
    x, y = Tensor(X[:, 0], device=devices[0]), Tensor(labels, device=devices[0])
    sharded = x.shard(devices, 0), y.shard(devices, 0)
    for options in ({}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.1}):
        given: dict[str, Any] = options
        loss = sharded[0].cross_entropy(sharded[1], **given)
        expected = x.cross_entropy(y, **given).numpy()
        np.testing.assert_allclose(loss.numpy(), expected, rtol=2e-6)
    loss = sharded[0].mse_loss(sharded[0] * 2)
    np.testing.assert_allclose(loss.item(), (X[:, 0] ** 2).mean(), rtol=1e-6)


def test_what_does_not_fit_is_refused(four: list[Device]) -> None:
    one = Tensor(W, device=four[0])
    rows = one.shard(four[:2], 0)
    with pytest.raises(BadArgument, match=r"place it with \.shard"):
        rows + one
    with pytest.raises(BadArgument, match=r"place it with \.shard"):
        one + rows
    with pytest.raises(BadArgument, match="the devices must be the same"):
        rows + one.shard(four[2:], 0)
    with pytest.raises(BadArgument, match="the devices must differ"):
        one.shard(["cpu", "cpu"], 0)
    with pytest.raises(BadArgument, match="list of devices"):
        one.shard("cpu", 0)
    with pytest.raises(BadArgument, match="cannot be broadcast"):
        rows + Tensor(W[:3], device=four[0]).shard(four[:2])
    with pytest.raises(BadArgument, match="do not match"):
        rows.shard(axis=1) @ Tensor(W[:3].copy(), device=four[0]).shard(four[:2])
    with pytest.raises(BadArgument, match="one element"):
        (rows.requires_grad_() * 2).backward()
    with pytest.raises(AttributeError, match="parts"):
        _ = rows.node
    assert isinstance(rows, Sharded)
