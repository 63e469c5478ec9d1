"""`dim` and `keepdim`, as PyTorch names them, beside `axis` and `keepdims`."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import ugpu
from ugpu.hcq.errors import BadArgument

METHODS = [
    name
    for name, method in inspect.getmembers(ugpu.Tensor, inspect.isfunction)
    if not name.startswith("_") and "axis" in inspect.signature(method).parameters
]
X = np.arange(12, dtype=np.float32).reshape(3, 4) + 1


def besides(name: str) -> dict[str, object]:
    """The arguments that a method needs besides the axis."""
    places = ugpu.Tensor(np.zeros((3, 1), np.int64), device="cpu")
    line = ugpu.Tensor(np.zeros(1, np.int64), device="cpu")
    column = ugpu.Tensor(X[:, :1], device="cpu")
    return {
        "cat": {"tensors": [column, column]}, "stack": {"tensors": [column, column]},
        "split": {"sizes": 2}, "chunk": {"count": 2}, "roll": {"shifts": 1},
        "repeat_interleave": {"count": 2}, "topk": {"count": 2}, "unflatten": {"sizes": (2, 2)},
        "gather": {"index": places}, "scatter": {"index": places, "source": column},
        "scatter_add": {"index": places, "source": column},
        "scatter_reduce": {"index": places, "source": column, "reduce": "sum"},
        "index_add": {"index": line, "source": column},
        "index_copy": {"index": line, "source": column},
        "index_fill": {"index": line, "value": 7}, "take": {"indices": line},
        "cross": {"other": ugpu.Tensor(X[:, :3], device="cpu")}, "index_select": {"index": line},
        "quantile": {"q": 0.5}, "take_along_dim": {"index": places},
        "shard": {"devices": ["cpu"]}, "unfold": {"size": 2, "step": 1},
        "vecdot": {"other": column}, "kthvalue": {"count": 2}, "nanquantile": {"q": 0.5},
        "narrow": {"start": 1, "length": 2}, "renorm": {"p": 2, "maxnorm": 3},
        "select": {"index": 1}, "select_scatter": {"source": column.flatten(), "index": 1},
        "slice_scatter": {"source": column, "start": 1, "end": 2},
        "split_with_sizes": {"split_sizes": (1, 3)}, "tensor_split": {"sections": 2},
    }.get(name, {})  # fmt: skip


def arrays(result: object) -> list[np.ndarray]:
    parts = result if isinstance(result, tuple | list) else [result]
    return [part.numpy() for part in parts]


@pytest.mark.parametrize("name", METHODS)
def test_dim_is_axis(name: str) -> None:
    columns = {"squeeze": 1, "cross": 3}.get(name, 4)
    x = ugpu.Tensor(X[:, :columns], device="cpu")
    others = besides(name)
    by_axis, by_dim = (
        arrays(getattr(ugpu.Tensor if name in ("cat", "stack") else x, name)(**others, **{word: 1}))
        for word in ("axis", "dim")
    )
    for ours, theirs in zip(by_axis, by_dim, strict=True):
        assert np.array_equal(ours, theirs)


def test_keepdim() -> None:
    x = ugpu.Tensor(X, device="cpu")
    assert x.sum(dim=1, keepdim=True).shape == (3, 1)
    assert x.mean(dim=(0, 1), keepdim=True).shape == (1, 1)
    with pytest.raises(BadArgument, match=r"Tensor\.sum got both axis and dim"):
        x.sum(axis=1, dim=1)
    with pytest.raises(TypeError, match=r"Tensor\.sum\(\) got an unexpected keyword"):
        x.sum(axes=1)
