"""Kernels of the host read nothing of their local memory that they have not written, and groups
store nothing into what other groups compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.compiler.gradients.test_gradients_attention import check
from tests.support.compiler.strict.poisoned import backwards, poison_locals, poisoned, turn_groups
from ugpu import Tensor, hcq
from ugpu.compiler.numeric import fft
from ugpu.hcq.device.device import Device

THREADS = 4  # kernels have groups for as many
RANDOM = np.random.default_rng(8)
LEFT, RIGHT = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((65, 33), (33, 19)))
IMAGES, WINDOWS = (
    RANDOM.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 11, 13), (7, 5, 3, 3))
)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as patch:
        turn_groups(patch)
        with hcq.open("cpu", threads=THREADS) as opened:
            poison_locals(opened, tmp_path_factory.mktemp("poisoned"), patch)
            yield opened


def test_memory_is_filled() -> None:
    text = "entry:\n  %x = alloca [3 x float], align 64\n  %g = phi i64 [ %first, %entry ]"
    assert "icmp ult i64 %next.x, 12" in poisoned(text) and "%first, %filled.x ]" in poisoned(text)


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [((2, 3, 9, 5, 2), "causal"), ((3, 37, 53, 20, 24), "floats"), ((4, 3, 6, 8, 8), "bools")],
)
def test_gradients_of_attention(device: Device, sizes: Any, kind: str) -> None:
    check(device, sizes, kind)


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "product": (lambda t: t(LEFT) @ t(RIGHT), lambda: LEFT @ RIGHT),
    "turned": (lambda t: t(LEFT).T @ t(LEFT), lambda: LEFT.T @ LEFT),
    "softmax": (lambda t: (t(LEFT) * 9).softmax(0).sum(0), lambda: np.ones(33)),
    "sorted": (lambda t: t(LEFT).sort(1)[0], lambda: np.sort(LEFT, 1)),
    "places": (lambda t: t(LEFT).argsort(0), lambda: LEFT.argsort(0)),
    "running": (lambda t: t(LEFT).cumsum(1), lambda: LEFT.cumsum(1)),
    "variance": (lambda t: t(LEFT).var(0), lambda: LEFT.var(0, ddof=1)),
    "transform": (lambda t: fft.rfft(t(LEFT)), lambda: np.fft.rfft(LEFT)),
    "places of maxima": (lambda t: t(LEFT).argmax(1), lambda: LEFT.argmax(1)),
}


@pytest.mark.parametrize("name", CASES)
def test_works(device: Device, name: str) -> None:
    mine, wanted = CASES[name]
    found = mine(lambda array: Tensor(array, device=device)).numpy()
    exact = wanted()
    if np.iscomplexobj(exact):
        exact = np.stack([exact.real, exact.imag], -1)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
def test_windows(device: Device, stride: int) -> None:
    """Beside the same sums by NumPy."""
    images, windows = (Tensor(array, device=device) for array in (IMAGES, WINDOWS))
    found = images.conv2d(windows, padding=1, stride=stride).numpy()
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    exact = np.einsum("bchwij,ocij->bohw", seen[:, :, ::stride, ::stride], WINDOWS)
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-3)


def test_groups_are_turned() -> None:
    text = ("groups.head:\n  %group = phi i64 [ %first, %entry ]\n"
            "  %more = icmp slt i64 %group, %last\ngroups.run:\n"
            "  %x = add i64 %group, 1\n  %next = add nuw nsw i64 %group, 1\n")  # fmt: skip
    turned = backwards(text, 7)
    assert "groups.run:\n  %group = sub i64 6, %turn.n\n  %x = add i64 %group, 1" in turned
    assert "icmp slt i64 %turn.n, %last" in turned and "add nuw nsw i64 %turn.n, 1" in turned


# Columns are rows of an image, of which a group has some, in panels of whole vectors. Channels of
# the result and of the image, its side, the window's side and stride.
@pytest.mark.parametrize(
    "sizes", [(32, 64, 34, 2, 1), (64, 64, 30, 3, 1), (24, 40, 71, 3, 2), (96, 48, 57, 2, 1)]
)
def test_groups_of_some_rows_of_an_image_store_no_others(
    device: Device, sizes: tuple[int, int, int, int, int]
) -> None:
    """Where the columns of a group do not fill whole panels, two threads stored undefined numbers
    into each other's results."""
    out, channels, side, window, stride = sizes
    image = RANDOM.standard_normal((1, channels, side, side), dtype=np.float32)
    weights = RANDOM.standard_normal((out, channels, window, window), dtype=np.float32)
    found = Tensor(image, device=device).conv2d(Tensor(weights, device=device), stride=stride)
    seen = np.lib.stride_tricks.sliding_window_view(image, (window, window), (2, 3))
    exact = np.einsum("bchwij,ocij->bohw", seen[:, :, ::stride, ::stride], weights, optimize=True)
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-3, atol=1e-3)
