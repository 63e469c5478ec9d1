"""PyTorch's and NumPy's names of methods: values against NumPy on the host and a virtual GPU,
gradients against finite differences. tests/support/compiler/opinfo.py compares with PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ugpu
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadIndex

X = np.random.default_rng(4).uniform(-0.9, 0.9, (3, 4)).astype(np.float32)
NAN = np.array([1.0, np.nan, -np.inf, np.inf, -2.5], np.float32)
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "amax": (lambda x: x.amax(dim=(0, 1), keepdim=True), lambda a: a.max((0, 1), keepdims=True)),
    "aminmax": (lambda x: x.aminmax(dim=0)[0], lambda a: a.min(0)),
    "addcdiv": (lambda x: x.addcdiv(x, x + 2, value=3), lambda a: a + 3 * a / (a + 2)),
    "addmv": (lambda x: x[0, :3].addmv(x, x[1], beta=2), lambda a: 2 * a[0, :3] + a @ a[1]),
    "inner": (lambda x: x.inner(x[:2]), lambda a: np.inner(a, a[:2])),
    "ge": (lambda x: x.ge(0).short() + x.ne(x[0]).byte(), lambda a: (a >= 0) + (a != a[0]) * 1),
    "bits": (lambda x: (x * 9).int().bitwise_xor(5), lambda a: (a * 9).astype(np.int32) ^ 5),
    "erfinv": (lambda x: x.erf().erfinv() + x.erfc(),
               lambda a: a + 1 - np.vectorize(math.erf)(a)),
    "logit": (lambda x: x.abs().logit(0.2),
              lambda a: (lambda p: np.log(p / (1 - p)))(np.abs(a).clip(0.2, 0.8))),
    "sinc": (lambda x: x.sinc(), np.sinc),
    "heaviside": (lambda x: x.trunc().heaviside(Tensor(0.5, device=x.device)),
                  lambda a: np.heaviside(np.trunc(a), 0.5)),
    "glu": (lambda x: x.glu(), lambda a: a[:, :2] / (1 + np.exp(-a[:, 2:]))),
    "diag_embed": (lambda x: x.diag_embed(1), lambda a: np.stack([np.diag(r, 1) for r in a])),
    "narrow": (lambda x: x.narrow(1, -3, 2), lambda a: a[:, 1:3]),
    "tensor_split": (lambda x: x.tensor_split(3, dim=1)[0], lambda a: a[:, :2]),
    "tile": (lambda x: x.tile(2), lambda a: np.tile(a, 2)),
    "put": (lambda x: x.put(Tensor([0, 5], device=x.device), x[2, :2]),
            lambda a: np.concatenate([[a[2, 0]], a.ravel()[1:5], [a[2, 1]], a.ravel()[6:]])
            .reshape(3, 4)),
    "kthvalue": (lambda x: x.kthvalue(2, 0)[0], lambda a: np.sort(a, 0)[1]),
    "mode": (lambda x: (x * 3).round().mode(1)[0],
             lambda a: np.array([min(set(r), key=lambda v: (-list(r).count(v), v))
                                 for r in np.round(a * 3)])),
    "nanquantile": (lambda x: x.nanquantile([0.2, 0.7], dim=1),
                    lambda a: np.nanquantile(a, [0.2, 0.7], 1)),
    "renorm": (lambda x: x.renorm(2, 0, 0.5),
               lambda a: a * np.minimum(1, 0.5 / (np.linalg.norm(a, axis=1, keepdims=True)))),
    "cov": (lambda x: x.cov(fweights=Tensor([1, 2, 0, 3], device=x.device)),
            lambda a: np.cov(a, fweights=[1, 2, 0, 3])),
    "same": (lambda x: x.reshape(1, 1, 3, 4).conv2d(x[:2, :3].reshape(1, 1, 2, 3), padding="same"),
             lambda a: sum(np.pad(a, ((0, 1), (1, 1)))[i : i + 3, j : j + 4] * a[i, j]
                           for i in range(2) for j in range(3))[None, None]),
}  # fmt: skip
# Places are chosen so that no element is at an edge, where there is no derivative.
DIFFERENTIABLE = [name for name in CASES if name not in ("ge", "bits", "heaviside", "mode")]


@pytest.fixture(scope="module", params=["cpu", pytest.param("virtual:navi31", marks=[
    pytest.mark.slow])])  # fmt: skip
def device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Device]:
    with ugpu.open(request.param) as opened:
        use_cache(opened, tmp_path_factory.mktemp("kernels"))
        yield opened


@pytest.mark.parametrize("name", CASES)
def test_as_numpy(name: str, device: Device) -> None:
    mine, theirs = CASES[name]
    wanted = theirs(X.astype(np.float64))
    found = mine(Tensor(X, device=device)).numpy()
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str, cpu: Device) -> None:
    function = CASES[name][0]
    x = Tensor(X, device=cpu).requires_grad_()
    weights = np.random.default_rng(1).uniform(0.5, 1.5, function(x).shape).astype(np.float32)
    function(x).backward(Tensor(weights, device=cpu))
    assert x.grad is not None
    found, step = x.grad.numpy(), np.float32(2e-3)
    for place in np.ndindex(*X.shape):
        moved = [X.copy(), X.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        high, low = ((function(Tensor(each, device=cpu)).numpy() * weights).sum(dtype=np.float64)
                     for each in moved)  # fmt: skip
        assert abs((high - low) / (2 * step) - found[place]) < 2e-2, place


def test_not_a_number(cpu: Device) -> None:
    x = Tensor(NAN, device=cpu)
    np.testing.assert_array_equal(x.nan_to_num(7).numpy(), np.nan_to_num(NAN, nan=7))
    np.testing.assert_array_equal(x.fmax(0).numpy(), np.fmax(NAN, 0))
    np.testing.assert_array_equal(x.fmin(x.flip(0)).numpy(), np.fmin(NAN, NAN[::-1]))
    np.testing.assert_array_equal(x.isneginf().numpy(), np.isneginf(NAN))
    assert float(x.nanmedian()) == -2.5 and not x.equal(x) and x[:1].equal(x[:1])


def test_replacing(cpu: Device) -> None:
    x = Tensor(X, device=cpu)
    rows = x.select_scatter(x[0] * 0, 0, 1).slice_scatter(x[:, :1] * 0, 1, 2, 3)
    wanted = X.copy()
    wanted[1], wanted[:, 2] = 0, 0
    np.testing.assert_array_equal(rows.numpy(), wanted)
    np.testing.assert_array_equal(x.numpy(), X)
    index = Tensor([2, 2, 0], device=cpu)
    added = x.index_put((index,), x[:1], accumulate=True).numpy()
    wanted = X.copy()
    np.add.at(wanted, [2, 2, 0], X[0])
    np.testing.assert_allclose(added, wanted, rtol=1e-6)
    kept = x.masked_scatter(x > 0, Tensor.arange(12, device=cpu).float()).numpy()
    np.testing.assert_array_equal(kept[X > 0], np.arange((X > 0).sum()))


def test_moving_and_types(cpu: Device) -> None:
    x = Tensor(X, device=cpu)
    assert x.to(x.int()).dtype.name == "int32" and x.to(cpu, "int8").dtype.name == "int8"
    assert x.to(dtype=float).dtype.name == "float32" and x.cpu().device is cpu
    assert x.astype(int).dtype.name == "int64" and x.new_ones(2, 3).shape == (2, 3)
    for kind in ("float64", np.float64, np.dtype("float64")):
        assert x.to(kind).dtype.name == "float64"
    with pytest.raises(BadArgument, match="expected one device"):
        x.to(cpu, device="cpu")
    with pytest.raises(BadIndex, match="narrow: 3 parts from 2 are outside"):
        x.narrow(0, 2, 3)
