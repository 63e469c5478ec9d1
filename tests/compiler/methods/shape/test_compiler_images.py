"""Resizing, sampling and padding of images against PyTorch, in every mode."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.hcq.errors import BadArgument

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional
torch.manual_seed(0)
IMAGES, GRID = torch.randn(2, 3, 7, 9), torch.rand(2, 4, 5, 2) * 3 - 1.5
SIZES: list[dict[str, Any]] = [{"size": (5, 14)}, {"scale_factor": 1.7}, {"scale_factor": 0.4}]


def near(mine: Tensor, theirs: Any) -> None:
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=6e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "area", "bilinear", "bicubic"])
@pytest.mark.parametrize("wanted", SIZES)
def test_interpolate(mode: str, wanted: dict[str, Any]) -> None:
    own = {{"scale_factor": "scale"}.get(name, name): value for name, value in wanted.items()}
    for aligned in (False, True) if mode.startswith("bi") else (None,):
        theirs = F.interpolate(IMAGES, mode=mode, align_corners=aligned, **wanted)
        mine = Tensor(IMAGES.numpy()).interpolate(mode=mode, align_corners=bool(aligned), **own)
        near(mine, theirs)


MODES = list(
    itertools.product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)
    )
)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "padding", "aligned"), MODES)
def test_grid_sample(mode: Any, padding: Any, aligned: bool) -> None:
    mine = Tensor(IMAGES.numpy()).grid_sample(Tensor(GRID.numpy()), mode, padding, aligned)
    near(mine, F.grid_sample(IMAGES, GRID, mode, padding, aligned))


def test_grid_sample_of_volumes_and_its_gradients() -> None:
    volume = torch.randn(1, 2, 3, 4, 5, requires_grad=True)
    grid = (torch.rand(1, 2, 2, 2, 3) * 2 - 1).requires_grad_()
    mine = [Tensor(each.detach().numpy()).requires_grad_() for each in (volume, grid)]
    found, wanted = mine[0].grid_sample(mine[1]), F.grid_sample(volume, grid, align_corners=False)
    near(found.detach(), wanted.detach())
    weight = torch.randn(wanted.shape)
    wanted.backward(weight)
    found.backward(Tensor(weight.numpy()))
    for own, other in zip(mine, (volume, grid), strict=True):
        np.testing.assert_allclose(own.grad.numpy(), other.grad.numpy(), atol=2e-5)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding(mode: Any) -> None:
    found = Tensor(IMAGES.numpy()).pad_with([(0, 0), (0, 0), (2, 3), (1, 4)], mode)
    near(found, F.pad(IMAGES, (1, 4, 2, 3), mode=mode))


def test_heads_of_keys_serve_groups_of_queries() -> None:
    query, key, value = (torch.randn(1, heads, 6, 4) for heads in (8, 2, 2))
    mine = [Tensor(each.numpy()) for each in (query, key, value)]
    found = mine[0].scaled_dot_product_attention(mine[1], mine[2], enable_gqa=True)
    near(found, F.scaled_dot_product_attention(query, key, value, enable_gqa=True))
    with pytest.raises(BadArgument, match="do not divide"):
        mine[1].scaled_dot_product_attention(mine[0], mine[0], enable_gqa=True)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: x.pad_with([(0, 0)] * 3 + [(9, 0)], "reflect"), "can add -9 to 8 elements"),
        (lambda x: x.grid_sample(x), "expected images"),
        (lambda x: x[0].interpolate(3, mode="bicubic"), "mode 'bicubic' is not supported"),
    ],
)
def test_bad_arguments(call: Any, words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        call(Tensor(IMAGES.numpy()))
