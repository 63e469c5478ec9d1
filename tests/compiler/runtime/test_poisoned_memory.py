"""Devices whose memory holds NaNs at first, as far as it is not theirs to rely on: nothing that is
computed depends on memory that nobody has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.amd.am_navi31 import build_chip
from tests.support.compiler.compiler_devices import NAN, poisoned
from tests.support.corpus.workloads import WORKLOADS, Bench, Places
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.nvidia.options import MachineOptions

SIZE = 256 << 20


@pytest.fixture(scope="module", params=["virtual:navi31", "virtual:gh100"])
def device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Device]:
    options: dict[str, object] = {"machine": MachineOptions(memory=2 * SIZE, poison=NAN)}
    with ExitStack() as stack:
        if request.param == "virtual:navi31":
            chip = build_chip(ChipOptions(vram=SIZE, noise=SIZE, poison=NAN))
            stack.callback(chip.close)
            options = {"chip": chip}
        opened = stack.enter_context(hcq.open(request.param, **options))
        poisoned(opened, tmp_path_factory.mktemp("kernels"))
        yield opened


def test_memory_that_nobody_has_written_is_not_zero(device: Device) -> None:
    with device.alloc(4096) as buffer:
        assert (buffer.numpy(np.uint32) == NAN).all()


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_workloads(device: Device, workload: Callable[[Bench], None]) -> None:
    with device.load(contract_object(device.target)) as program, ExitStack() as stack:
        workload(Bench(device, program, Places(), stack))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("rows", [1, 65])
def test_results_are_those_of_numpy(device: Device, rows: int, kind: type) -> None:
    """Sizes that no tile divides: products, sums, softmax, pads, gathered rows."""
    random = np.random.default_rng(rows)
    left, right = (random.standard_normal(s).astype(kind) for s in ((rows, 37), (37, 29)))
    wide = left.astype(np.float64) @ right.astype(np.float64)
    product = Tensor(left, device=device) @ Tensor(right, device=device)
    found = product.softmax(axis=-1).pad(((0, 3), (1, 0)))
    total = product.sum(axis=0)
    picked = product[Tensor(np.array([rows - 1, 0], np.int32), device=device)]
    results = [each.numpy().astype(np.float64) for each in (product, found, total, picked)]
    shifted = np.exp(wide - wide.max(axis=-1, keepdims=True))
    soft = np.pad(shifted / shifted.sum(axis=-1, keepdims=True), ((0, 3), (1, 0)))
    expected = [wide, soft, wide.sum(axis=0), wide[[rows - 1, 0]]]
    tolerance = 0.05 if kind is np.float16 else 1e-4
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
