"""Each element of a kernel's results is stored, by one group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.support.compiler.strict.owners import NONE, Unknown, owners, watch
from tests.support.corpus.operation_corpus import corpus
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import Range, at_least_zero, constant
from ugpu.compiler.expression.value import Memory, broadcast, const
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Store, group_range
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device

TURNS = 40  # the fast suite checks every fortieth case
OUT = Memory("out", float32, 10)
GROUP, STEP = group_range(0, 3).index(), Range("step", 4)
ZERO = const(0, float32)


def kernel(store: Store, *around: Callable[[Store | If], If]) -> Kernel:
    statement: Store | If = store
    for each in around:
        statement = each(statement)
    loop = Loop(STEP, (statement,), constant(10) - GROUP * 4)
    return Kernel("blocks", (OUT,), (), (3, 1, 1), 1, (loop,))


def test_blocks_of_four_of_ten_elements() -> None:
    (owner,) = owners(kernel(Store(OUT, GROUP * 4 + STEP.index(), ZERO))).values()
    assert owner.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_an_element_of_two_groups() -> None:
    with pytest.raises(AssertionError, match=r"out\[3\] is stored by the groups [01] and [01]"):
        owners(kernel(Store(OUT, GROUP * 3 + STEP.index(), ZERO)))


def test_vectors_that_reach_into_a_neighbour() -> None:
    wide = Store(OUT, GROUP * 3, broadcast(ZERO, 4))
    with pytest.raises(AssertionError, match=r"out\[3\] is stored by the groups [01] and [01]"):
        owners(kernel(wide))


def test_an_element_that_none_stores() -> None:
    found = owners(kernel(
        Store(OUT, GROUP * 4 + STEP.index(), ZERO),
        lambda store: If(at_least_zero(STEP.index() - 1), (store,)),
    ))  # fmt: skip
    assert np.flatnonzero(found[OUT] == NONE).tolist() == [0, 4, 8]


def test_a_store_outside() -> None:
    whole = kernel(Store(OUT, GROUP * 4 + STEP.index(), ZERO))
    (loop,) = whole.body
    assert isinstance(loop, Loop)
    with pytest.raises(AssertionError, match="kernel blocks"):
        owners(replace(whole, body=(replace(loop, bound=None),)))


def test_one_too_large() -> None:
    grid = (1 << 25, 1, 1)
    with pytest.raises(Unknown, match="threads"):
        owners(replace(kernel(Store(OUT, GROUP * 4 + STEP.index(), ZERO)), grid=grid))


@pytest.mark.parametrize("threads", [2, 7])
@pytest.mark.parametrize(
    ("out", "channels", "side", "window", "stride"),
    [(32, 64, 34, 2, 1), (24, 40, 71, 3, 2), (8, 3, 112, 7, 2), (128, 128, 30, 3, 1)],
)
def test_convolutions(
    threads: int, out: int, channels: int, side: int, window: int, stride: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Groups of some rows of an image, whose columns do not fill whole panels; and of some
    channels in Winograd tiles, which do not either."""
    counts = watch(monkeypatch)
    with hcq.open("cpu", threads=threads) as device:
        use_cache(device, None)
        image = Tensor.zeros(1, channels, side, side, device=device).contiguous()
        weights = Tensor.zeros(out, channels, window, window, device=device).contiguous()
        image.conv2d(weights, stride=stride).realize()
    assert counts.checked and not counts.unknown


def checked(device: Device, names: list[str], patch: pytest.MonkeyPatch) -> None:
    use_cache(device, None)
    counts = watch(patch)
    for name in names:
        corpus()[name].build(device).realize()
    assert counts.checked > 4 * len(counts.unknown) and counts.checked >= len(names) // 2


@pytest.mark.parametrize(
    ("device", "turn"), [("cpu", 3), ("virtual:navi31", 7), ("virtual:gh100", 11)]
)
def test_a_share_of_the_corpus(device: str, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with hcq.open(device) as opened:
        checked(opened, list(corpus())[turn::TURNS], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("device", ["cpu", "virtual:navi31", "virtual:gh100"])
def test_the_whole_corpus(device: str, quarter: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with hcq.open(device) as opened:
        checked(opened, list(corpus())[quarter::4], monkeypatch)
