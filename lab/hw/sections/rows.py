"""Attention, softmax, layer norm and reductions, each checked against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.hw.budget import Budget, median_s
from lab.hw.report import Result
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import NotSupported, UgpuError

TITLE = "Attention and rows"
CHECKED = 2  # heads and rows that NumPy computes too
#: name -> shapes and element type on a GPU; lab/hw/peer_torch.py has the same works
ATTENTION = (4, 16, 2048, 64)  # of each factor, in bfloat16
ROWS = (16384, 4096)  # in float32
SMALL: Mapping[tuple[int, ...], tuple[int, ...]] = {ATTENTION: (1, 2, 64, 32), ROWS: (64, 256)}


@dataclass(frozen=True)
class Row:
    """A work on rows. numpy: the same of the first rows, in float64. near: the bound of errors, of
    the largest element."""

    name: str
    work: Callable[[Tensor], Tensor]
    numpy: Callable[[NDArray[np.float64]], Any]  # an array or, of a whole array, a number
    near: float = 1e-5
    whole: bool = False


def _layer_norm(x: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5))


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


WORKS = (
    Row("softmax", lambda x: x.softmax(-1), _softmax),
    Row("layer norm", lambda x: x.layernorm(), _layer_norm),
    Row("sum of rows", lambda x: x.sum(-1), lambda x: x.sum(-1), 1e-4),
    Row("largest of rows", lambda x: x.max(-1), lambda x: x.max(-1), 0.0),
    Row("places of the largest", lambda x: x.argmax(-1), lambda x: x.argmax(-1), 0.0),
    Row("sum of all", lambda x: x.sum(), lambda x: x.sum(), 1e-3, whole=True),
)


def run(device: str, budget: Budget) -> Iterator[Result]:
    """Attention in both forms, then each of WORKS."""
    with hcq.open(device) as opened:
        for place, name in enumerate(("attention bfloat16", "causal attention bfloat16")):
            share = budget.part(0.4 / (2 - place))
            yield guarded(opened, name, partial(attention, opened, name, share))
        rows = np.random.default_rng(3).standard_normal(_shape(ROWS, budget), np.float32)
        x = Tensor(rows, device=opened).realize()
        for place, work in enumerate(WORKS):
            share = budget.part(1 / (len(WORKS) - place))
            yield guarded(opened, work.name, partial(row, opened, work, x, rows, share))


def guarded(device: Device, name: str, work: Callable[[], Result], title: str = TITLE) -> Result:
    """Return a work's result: a failed one after an error, with the device reset if it needs
    that."""
    try:
        return work()
    except UgpuError as error:
        if device.failure is not None:
            device.reset()
        outcome = "skipped" if isinstance(error, NotSupported) else "failed"
        return Result(title, name, outcome, remark=f"{type(error).__name__}: {error}"[:200])


def attention(device: Device, name: str, budget: Budget) -> Result:
    """softmax(q @ k^T / sqrt(depth)) @ v of bfloat16."""
    causal = name.startswith("causal")
    random = np.random.default_rng(5)
    shape = _shape(ATTENTION, budget)
    given = [
        Tensor(random.standard_normal(shape, np.float32), device=device).to("bfloat16").realize()
        for _ in range(3)
    ]

    @jit
    def work(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.scaled_dot_product_attention(k, v, is_causal=causal).realize()

    found = work(*given)[0, :CHECKED].to("float32").numpy().astype("f8")
    q, k, v = (each[0, :CHECKED].to("float32").numpy().astype("f8") for each in given)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(shape[-1])
    if causal:
        scores = np.where(np.tri(shape[-2], dtype=bool), scores, -np.inf)
    wanted = _softmax(scores) @ v
    return measured(device, name, partial(work, *given), found, wanted, 2e-2, budget)


def row(device: Device, work: Row, x: Tensor, rows: NDArray[np.float32], budget: Budget) -> Result:
    """One of WORKS."""
    recorded = jit(lambda given: work.work(given).realize())
    result = recorded(x)
    shown = result if work.whole else result[:CHECKED]
    wanted = work.numpy((rows if work.whole else rows[:CHECKED]).astype("f8"))
    found = shown.numpy()
    return measured(device, work.name, partial(recorded, x), found, wanted, work.near, budget)


def measured(
    device: Device, name: str, work: Callable[[], object], found: Any, wanted: Any, near: float,
    budget: Budget,
) -> Result:  # fmt: skip
    """Return the median time of a work whose result was compared; wrong ones have failed."""

    def step() -> None:
        work()
        device.synchronize()

    for _ in range(3):
        step()
    wrong = float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))
    seconds, times = median_s(step, budget, 50)
    remark = f"median of {times}, largest error {wrong:.1e} of the largest element"
    outcome = "measured" if wrong <= near else "failed"
    return Result(TITLE, name, outcome, seconds * 1e6, "us", remark, "<= 1.0")


def _shape(shape: tuple[int, ...], budget: Budget) -> tuple[int, ...]:
    return SMALL[shape] if budget.small else shape
