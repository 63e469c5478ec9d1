"""Each element of a kernel's results is stored, by one group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.support.compiler.compiler_cases import GFX1100
from tests.support.compiler.strict.owners import NONE, Unknown, checked, lowered, owners
from tests.support.corpus.operation_corpus import corpus
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import Range, at_least_zero, constant
from ugpu.compiler.expression.value import Memory, broadcast, const
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Store, group_range
from ugpu.hcq.cpu.driver import host_target
from ugpu.hcq.device.device import core_of
from ugpu.hcq.state.target import TargetSpec, matrix_family, ptx_target
from ugpu.qcom import chips

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
    threads: int, out: int, channels: int, side: int, window: int, stride: int
) -> None:  # fmt: skip
    """Groups of some rows of an image, whose columns do not fill whole panels; and of some
    channels in Winograd tiles, which do not either."""
    with hcq.open("cpu", threads=threads) as device:
        image = Tensor.zeros(1, channels, side, side, device=device).contiguous()
        weights = Tensor.zeros(out, channels, window, window, device=device).contiguous()
        found, unknown = checked(lowered(image.conv2d(weights, stride=stride), device.target))
    assert found and not unknown


def amd(cpu: str, wave: int) -> TargetSpec:
    return replace(GFX1100, name=cpu, cpu=cpu, wave_size=wave, matrix=matrix_family(cpu))


WAVES = {"gfx1100": 32, "gfx1201": 32, "gfx942": 64, "gfx950": 64}
TARGETS = [
    host_target(1), replace(host_target(2), vector_bytes=32),
    *(amd(cpu, wave) for cpu, wave in WAVES.items()), replace(GFX1100, name="wide", wave_size=64),
    *(ptx_target(cpu, 64) for cpu in ("sm_75", "sm_89", "sm_90a", "sm_120a")),
    *(chips.facts(name).target() for name in ("a630", "a660", "a740", "a750")),
]  # fmt: skip


def check_corpus(names: list[str], target: TargetSpec, patch: pytest.MonkeyPatch) -> None:
    """The host's device holds inputs, and takes the target, by which methods choose."""
    with hcq.open("cpu") as host:
        patch.setattr(core_of(host).driver, "target", target)
        results = [corpus()[name].build(host) for name in names]
        found, unknown = checked(kernel for each in results for kernel in lowered(each, target))
    assert found > 4 * len(unknown) and 2 * found > len(names)
    assert all(" needs " in reason for reason in unknown), unknown  # data


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_share_of_the_corpus(target: TargetSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = TARGETS.index(target)
    check_corpus(list(corpus())[turn::TURNS], target, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_whole_corpus(target: TargetSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    check_corpus(list(corpus()), target, monkeypatch)
