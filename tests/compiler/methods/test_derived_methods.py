"""Methods composed of several groups, against NumPy; lab's OpInfo run compares with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.hcq.errors import BadArgument

EDGES = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e38, 1e-44, -2.5], np.float32)
ROW, COLUMN = np.meshgrid(EDGES, EDGES)
random = np.random.default_rng(5)
SMALL = random.integers(-3, 4, (5, 7))


@pytest.mark.parametrize("name", ["atan2", "hypot", "nextafter"])
def test_special_values(name: str) -> None:
    operation = {"atan2": "arctan2"}.get(name, name)
    with np.errstate(all="ignore"):
        wanted = getattr(np, operation)(ROW, COLUMN)
    found = getattr(Tensor(ROW), name)(Tensor(COLUMN)).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted), err_msg=name)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "signbit": (lambda x: x.float().signbit(), lambda a: a < 0),
    "diff": (lambda x: x.diff(2, 0, prepend=x[:1]), lambda a: np.diff(a, 2, 0, prepend=a[:1])),
    "nonzero": (lambda x: x.nonzero(), lambda a: np.argwhere(a)),
    "unique": (lambda x: x.unique(), np.unique),
    "parts": (lambda x: (x.repeat(2, 2, 1) % 2).reshape(2, 14, 5).unique(axis=2),
              lambda a: np.unique(np.mod(np.tile(a, (2, 2, 1)), 2).reshape(2, 14, 5), axis=2)),
    "rows": (lambda x: x.repeat(2, 5).unique(axis=0),
             lambda a: np.unique(np.tile(a, (2, 5)), axis=0)),
    "inverse": (lambda x: x.unique(return_inverse=True)[1],
                lambda a: np.unique(a, return_inverse=True)[1].reshape(a.shape)),
    "counts": (lambda x: x.unique(return_counts=True)[1],
               lambda a: np.unique(a, return_counts=True)[1]),
    "unique columns": (lambda x: (x > 0).long()[:, [0, 1, 0, 3, 1]].unique(axis=1),
                       lambda a: np.unique((a > 0)[:, [0, 1, 0, 3, 1]] * 1, axis=1)),
    "unique rows": (lambda x: x[[2, 0, 2, 1]].unique(return_inverse=True, axis=0)[1],
                    lambda a: np.unique(a[[2, 0, 2, 1]], axis=0, return_inverse=True)[1].ravel()),
    "runs": (lambda x: x.abs().clamp(0, 1).flatten().unique_consecutive(return_counts=True)[1],
             lambda a: np.diff(np.flatnonzero(np.concatenate(
                 [[True], np.diff(abs(a.ravel()) > 0) != 0, [True]])))),
    "isin": (lambda x: x.isin(Tensor([1, -2])), lambda a: np.isin(a, [1, -2])),
    "isin many": (lambda x: x.isin(Tensor.arange(-40, 2)), lambda a: np.isin(a, np.arange(-40, 2))),
    "bincount": (lambda x: x.flatten().abs().bincount(minlength=6),
                 lambda a: np.bincount(abs(a.ravel()), minlength=6)),
    "weights": (lambda x: x[0].abs().bincount(x[1].float()),
                lambda a: np.bincount(abs(a[0]), a[1])),
    "histc": (lambda x: x.float().histc(4, -2, 2).int(),
              lambda a: np.histogram(a, 4, (-2, 2))[0]),
    "searchsorted": (lambda x: x.sort(-1)[0].searchsorted(x),
                     lambda a: np.array([np.searchsorted(np.sort(r), r) for r in a])),
    "bucketize": (lambda x: x.bucketize(Tensor([-1, 0, 2]), right=True),
                  lambda a: np.searchsorted([-1, 0, 2], a, "right")),
    "quantile": (lambda x: x.quantile([0.1, 0.5], 1), lambda a: np.quantile(a, [0.1, 0.5], 1)),
    "quantile all": (lambda x: x.quantile(0.3, interpolation="nearest"),
                     lambda a: np.quantile(a, 0.3, method="nearest")),
    "norm": (lambda x: x.norm(3, 1, True), lambda a: np.linalg.norm(a, 3, 1, True)),
    "norm inf": (lambda x: x.norm(float("inf")), lambda a: abs(a).max()),
    "cov": (lambda x: x.cov(), np.cov),
    "corrcoef": (lambda x: x.corrcoef(), np.corrcoef),
    "logcumsumexp": (lambda x: (x * 300).logcumsumexp(1),
                     lambda a: np.logaddexp.accumulate(a * 300.0, 1)),
    "outer": (lambda x: x[0].outer(x[1]), lambda a: np.outer(a[0], a[1])),
    "kron": (lambda x: x.kron(x[:2, :3]), lambda a: np.kron(a, a[:2, :3])),
    "cross": (lambda x: x[:3].cross(x[1:4], 0), lambda a: np.cross(a[:3], a[1:4], axis=0)),
    "vecdot": (lambda x: x.vecdot(x), lambda a: (a * a).sum(-1)),
    "tensordot": (lambda x: x.tensordot(x, [[0], [0]]), lambda a: np.tensordot(a, a, [[0], [0]])),
    "addmm": (lambda x: x.addmm(x @ x.T, x, beta=2, alpha=-1), lambda a: 2 * a - a @ a.T @ a),
    "trace": (lambda x: x.trace(), np.trace),
    "cdist": (lambda x: x.cdist(x[:2]),
              lambda a: np.linalg.norm(a[:, None] - a[None, :2], axis=-1)),
    "movedim": (lambda x: x.unsqueeze(0).movedim([0, 1], [2, 0]),
                lambda a: np.moveaxis(a[None], [0, 1], [2, 0])),
    "rot90": (lambda x: x.rot90(3), lambda a: np.rot90(a, 3)),
    "index_select": (lambda x: x.index_select(1, Tensor([6, 0])), lambda a: a[:, [6, 0]]),
    "along": (lambda x: x.take_along_dim(x.argsort(1), 1), lambda a: np.sort(a, 1)),
    "unfold": (lambda x: x.unfold(1, 3, 2),
               lambda a: np.lib.stride_tricks.sliding_window_view(a, 3, 1)[:, ::2]),
    "nansum": (lambda x: (x.float() / x * x).nansum(0), lambda a: a.sum(0)),
    "frac": (lambda x: (x / 2).frac(), lambda a: np.fmod(a / 2, 1)),
    "xlogy": (lambda x: x.abs().xlogy(x.abs()), lambda a: abs(a) * np.log(abs(a) + (a == 0))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_numpy(name: str) -> None:
    mine, theirs = CASES[name]
    wanted = theirs(SMALL)
    found = mine(Tensor(SMALL)).numpy()
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_places_of_extremes() -> None:
    given = np.array([[1, 3, 2, 3], [np.nan, 1, 2, np.nan], [5, 5, 0, 0]], np.float32)
    for name in ("max", "min"):
        values, places = getattr(Tensor(given), name)(1, indices=True)
        np.testing.assert_array_equal(values.numpy(), getattr(given, name)(1))
        np.testing.assert_array_equal(places.numpy(), getattr(given, f"arg{name}")(1))
    values, places = Tensor(given).cummax(1, indices=True)
    np.testing.assert_array_equal(values.numpy(), np.maximum.accumulate(given, 1))
    np.testing.assert_array_equal(places.numpy(), [[0, 1, 1, 3], [0, 0, 0, 3], [0, 1, 1, 1]])
    with pytest.raises(BadArgument, match="expected one axis for indices"):
        Tensor(given).max(indices=True)


def test_im2col_and_fold_are_counterparts() -> None:
    image = random.standard_normal((2, 3, 7, 6)).astype(np.float32)
    columns = Tensor(image).im2col((3, 2), padding=1, stride=2)
    assert columns.shape == (2, 18, 16)
    counts = Tensor.ones(2, 3, 7, 6).im2col((3, 2), padding=1, stride=2)
    options = {"padding": 1, "stride": 2}
    folded = columns.fold((7, 6), (3, 2), **options) / counts.fold((7, 6), (3, 2), **options)
    np.testing.assert_allclose(folded.numpy(), image, rtol=1e-6)


def test_choices_follow_their_weights() -> None:
    Tensor.manual_seed(1)
    weights = Tensor([[1.0, 0.0, 3.0], [0.0, 1.0, 1.0]])
    drawn = weights.multinomial(4000, replacement=True).numpy()
    shares = [np.bincount(row, minlength=3) / 4000 for row in drawn]
    np.testing.assert_allclose(shares, [[0.25, 0, 0.75], [0, 0.5, 0.5]], atol=0.03)
    order = weights.multinomial(2).numpy()
    assert sorted(order[0]) == [0, 2] and sorted(order[1]) == [1, 2]
    assert Tensor.full((4000,), 0.3).bernoulli().mean().item() == pytest.approx(0.3, abs=0.03)
    with pytest.raises(BadArgument, match="expected 1 to 3 different indices, got 4"):
        weights.multinomial(4)


def test_the_stream_continues_from_a_state() -> None:
    Tensor.manual_seed(9)
    Tensor.rand(3).realize()
    state = Tensor.get_rng_state()
    first = Tensor.randn(5).numpy()
    Tensor.set_rng_state(state)
    np.testing.assert_array_equal(Tensor.randn(5).numpy(), first)
    with pytest.raises(BadArgument, match="expected a state of get_rng_state"):
        Tensor.set_rng_state((0, -1))


def test_creation() -> None:
    np.testing.assert_array_equal(Tensor.linspace(-1, 1, 5).numpy(), np.linspace(-1, 1, 5))
    np.testing.assert_allclose(Tensor.logspace(0, 3, 4, 2).numpy(), [1, 2, 4, 8])
    for indexing in ("ij", "xy"):
        grids = Tensor.meshgrid(Tensor([1, 2, 3]), Tensor([4, 5]), indexing=indexing)
        wanted = np.meshgrid([1, 2, 3], [4, 5], indexing=indexing)
        for mine, theirs in zip(grids, wanted, strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: x.float().bincount(), BadArgument, "expected integers of one axis"),
        (lambda x: (x[0] * 0 - 1).bincount(), BadArgument, "expected numbers >= 0, got -1"),
        (lambda x: x.quantile(2), BadArgument, "q must be from 0 to 1, got 2"),
        (lambda x: x.outer(x), BadArgument, "expected tensors of one axis"),
        (lambda x: x.searchsorted(x[0]), BadArgument, "must agree in all axes but the last"),
        (lambda x: x.unfold(0, 9, 1), BadArgument, "expected 0 <= size <= 5"),
        (lambda x: x.fold((4, 4), 2), BadArgument, r"expected \[batch, channels \* 4, 9\]"),
    ],
)
def test_bad_arguments(call: Callable[[Any], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(Tensor(SMALL))
