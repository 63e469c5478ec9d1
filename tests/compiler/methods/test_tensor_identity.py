"""Methods that change nothing return another tensor, and methods of the class do not ignore one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor, dtypes
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, UsageError

X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
Making = Callable[[Tensor], Any]

# Arguments with which each public method returns its tensor's own elements, or may.
IDENTITIES: dict[str, Making] = {
    "T": lambda x: x[0, 0].T,
    "abs": lambda x: x.abs(),
    "add": lambda x: x.add(0),
    "add zero": lambda x: x + 0.0,
    "bfloat16": lambda x: x.bfloat16().bfloat16(),
    "bitcast": lambda x: x.bitcast("float32"),
    "broadcast_to": lambda x: x.broadcast_to(2, 3),
    "cast": lambda x: x.cast(dtypes.float32),
    "cat": lambda x: Tensor.cat([x]),
    "cat of nothing": lambda x: x.cat([]),
    "ceil": lambda x: x.ceil(),
    "chunk": lambda x: x.chunk(1)[0],
    "clamp": lambda x: x.clamp(),
    "clip": lambda x: x.clip(None, None),
    "contiguous": lambda x: x.contiguous(),
    "copysign": lambda x: x.copysign(1.0),
    "cummax": lambda x: x[:, :1].cummax(1),
    "cummin": lambda x: x[:, :1].cummin(1),
    "cumprod": lambda x: x[:, :1].cumprod(1),
    "cumsum": lambda x: x[:1].cumsum(0),
    "cumsum of nothing": lambda x: x[:0].cumsum(0),
    "div": lambda x: x / 1,
    "dropout": lambda x: x.dropout(0.5, training=False),
    "dropout of none": lambda x: x.dropout(0, training=True),
    "einsum": lambda x: Tensor.einsum("ij->ij", x),
    "expand": lambda x: x.expand(2, 3),
    "flatten": lambda x: x.flatten(0, 0),
    "flip": lambda x: x.flip(()),
    "float": lambda x: x.float(),
    "floor": lambda x: x.floor(),
    "floor_divide": lambda x: x // 1,
    "fmod": lambda x: x.fmod(float("inf")),
    "getitem": lambda x: x[:],
    "getitem of all": lambda x: x[...],
    "half": lambda x: x.half().half(),
    "int": lambda x: x.int().int(),
    "interpolate": lambda x: x.reshape(1, 1, 2, 3).interpolate(size=(2, 3)),
    "leaky_relu": lambda x: x.leaky_relu(1.0),
    "lerp": lambda x: x.lerp(x, 0.0),
    "bits": lambda x: x.int() | 0,
    "long": lambda x: x.long().long(),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0),
    "max": lambda x: x[:1].max(0, keepdims=True),
    "max_pool2d": lambda x: x.reshape(1, 1, 2, 3).max_pool2d(1),
    "avg_pool2d": lambda x: x.reshape(1, 1, 2, 3).avg_pool2d(1),
    "maximum": lambda x: x.maximum(x),
    "mean": lambda x: x[:1].mean(0, keepdims=True),
    "median": lambda x: x[:1].median(0)[0],
    "min": lambda x: x[:1].min(0, keepdims=True),
    "minimum": lambda x: x.minimum(float("inf")),
    "mT": lambda x: x[:1, :1].mT,
    "mul": lambda x: x * 1,
    "pad": lambda x: x.pad([(0, 0), (0, 0)]),
    "permute": lambda x: x.permute(0, 1),
    "pow": lambda x: x.pow(1),
    "power": lambda x: x**1.0,
    "power of ints": lambda x: x.int() ** 1,
    "prod": lambda x: x[:1].prod(0, keepdims=True),
    "relu": lambda x: x.relu(),
    "repeat": lambda x: x.repeat(1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(1, 0),
    "reshape": lambda x: x.reshape(2, 3),
    "roll": lambda x: x.roll(3, 1),
    "roll of none": lambda x: x.roll(()  , ()),
    "roll of all": lambda x: x.roll(6),
    "round": lambda x: x.round(),
    "round of ints": lambda x: x.int().round(),
    "shift": lambda x: x.int() << 0,
    "shrink": lambda x: x.shrink([(0, 2), (0, 3)]),
    "sort": lambda x: x[:, :1].sort(1)[0],
    "split": lambda x: x.split(2)[0],
    "squeeze": lambda x: x.squeeze(),
    "squeeze of one": lambda x: x.squeeze(0),
    "sub": lambda x: x - 0,
    "sum": lambda x: x[:1].sum(0, keepdims=True),
    "take": lambda x: x.take(Tensor.arange(2, device=x.device), 0),
    "tf32": lambda x: x.tf32().tf32(),
    "to": lambda x: x.to(x.device),
    "to_device": lambda x: x.to_device(x.device),
    "to a type": lambda x: x.to("float32"),
    "topk": lambda x: x[:, :1].topk(1)[0],
    "transpose": lambda x: x[0, 0].transpose(0, 0),
    "transpose of one": lambda x: x.transpose(0, 0),
    "tril": lambda x: x.tril(5),
    "triu": lambda x: x.triu(-5),
    "trunc": lambda x: x.trunc(),
    "unflatten": lambda x: x.unflatten(0, (2,)),
    "view": lambda x: x.view(-1, 3),
    "where": lambda x: (x > 0).where(x, x),
    "index_add": lambda x: x.index_add(0, np.zeros(0, np.int64), np.zeros((0, 3), np.float32)),
    "logsumexp": lambda x: x[:, :1].logsumexp(1, keepdims=True),
    "full_like": lambda x: x.full_like(1),
}  # fmt: skip


@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.parametrize("is_stored", [True, False])
def test_an_assignment_to_the_result_leaves_the_tensor(
    cpu: Device, name: str, is_stored: bool
) -> None:
    x = Tensor(X, device=cpu) if is_stored else Tensor(X, device=cpu) * 1
    other = IDENTITIES[name](x)
    assert isinstance(other, Tensor) and other is not x
    before = other.numpy()
    if other.numel():
        other[...] = -7
        assert (other.numpy() == -7).all()
        assert np.array_equal(x.numpy(), X)
    again = IDENTITIES[name](x)
    x[...] = -9
    assert np.array_equal(again.numpy(), before), "an assignment to the tensor changes the result"


# These return self, as their docstrings say.
RETURN_SELF = ("assign", "realize", "requires_grad_")
PARAMETERS = {  # methods of no effect by one argument alone
    "axis": 0, "shifts": 0, "dtype": "float32", "start": 0, "other": 0, "count": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in dir(Tensor) if not n.startswith("_")])
def test_no_method_returns_its_tensor(cpu: Device, name: str) -> None:
    """All public methods, without arguments and with one that may change nothing."""
    if name in RETURN_SELF:
        return
    for shape in ((), (1,), (1, 1), (0,)):
        x = Tensor(np.ones(shape, np.float32), device=cpu)
        for given in ((), (0,), (1,), (x,), (shape,), ("float32",), (None,), (-1,)):
            try:
                found = getattr(x, name)
                result = found(*given) if callable(found) else found
            except (UsageError, TypeError, ValueError):
                continue
            listed = result if isinstance(result, tuple) else (result,)
            assert not any(each is x for each in listed), (name, shape, given)


# ---- methods of the class ------------------------------------------------------------------------


def test_joining_on_a_tensor(cpu: Device) -> None:
    x, y, z = (Tensor([[number]], device=cpu) for number in (1, 2, 3))
    assert x.cat([y]).tolist() == [[1], [2]]  # type checkers see the static method
    assert x.cat(y, z, axis=1).tolist() == x.cat([y, z], 1).tolist() == [[1, 2, 3]]
    assert x.cat(y, z, dim=-1).tolist() == x.cat((y, z), dim=1).tolist() == [[1, 2, 3]]
    assert x.stack([y]).shape == (2, 1, 1) and x.stack(y, 2).tolist() == [[[1, 2]]]
    assert Tensor.cat([x, y]).tolist() == [[1], [2]] and Tensor.stack([x, y], dim=1).ndim == 3
    with pytest.raises(BadArgument, match="expected a sequence of Tensors"):
        x.cat([1.0])


@pytest.mark.parametrize("name", [
    "arange", "einsum", "eye", "from_buffer", "full", "manual_seed", "normal", "ones", "rand",
    "randint", "randn", "randperm", "uniform", "zeros",
])  # fmt: skip
def test_a_method_of_the_class_refuses_a_tensor(cpu: Device, name: str) -> None:
    with pytest.raises(BadArgument, match=rf"Tensor.{name} is called on the class"):
        getattr(Tensor([1.0], device=cpu), name)(3)
    assert callable(getattr(Tensor, name))
