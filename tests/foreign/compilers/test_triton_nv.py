"""Triton's products with scales of blocks run on the virtual GB202 by way of hcq.

Triton knows from its own sources which lane holds which scale of mma's; the PTX ISA has figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.foreign.client import require, run_client
from tests.foreign.compilers.scaled_cases import CASES, EDGE, K
from tests.support.nvidia.number_codes import table
from ugpu import hcq
from ugpu.hcq.device.device import Device

require("triton")
pytestmark = pytest.mark.foreign
LIMIT_S = 150


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What Triton makes of each case, in a process of its own."""
    result = Path(tmp_path_factory.mktemp("triton")) / "result.json"
    found: dict[str, dict[str, Any]] = run_client(
        "tests.foreign.compilers.triton_scaled", [], result, {}, LIMIT_S
    )
    return found


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    with hcq.open("virtual:gb202") as opened:
        yield opened


@pytest.mark.parametrize("name", CASES)
def test_products_with_scales(gpu: Device, compiled: dict[str, dict[str, Any]], name: str) -> None:
    case, made = CASES[name], compiled[name]
    assert all(f"kind::{case.kind}" in one for one in made["instructions"])
    random = np.random.default_rng(1)

    def codes(kind: str) -> np.ndarray:  # by rows of A and columns of B
        numbers = np.flatnonzero(np.isfinite(table(kind)))
        return numbers[random.integers(0, len(numbers), (EDGE, K))].astype(np.uint8)

    factors = codes(case.first), codes(case.second)
    least, most = (1, 127) if case.scale == "ue4m3" else (120, 134)
    scales = [random.integers(least, most, (EDGE, K // case.each), np.uint8) for _ in range(2)]
    stored = [
        one if case.in_byte(n) == 1 else (one[:, ::2] | one[:, 1::2] << 4).astype(np.uint8)
        for n, one in enumerate(factors)
    ]
    given = []
    for one in (stored[0], scales[0], stored[1], scales[1], np.zeros((EDGE, EDGE), np.float32)):
        given.append(gpu.alloc(one.nbytes))
        given[-1].copy_from(np.ascontiguousarray(one))
    with gpu.load(made["ptx"].encode()) as program:
        gpu.queue().launch(
            program["scaled"], grid=(1,), block=(128,), args=(*given, None, None),
            dynamic_local=made["shared"],
        ).submit()  # fmt: skip
        gpu.synchronize()
    found = given[-1].numpy(np.float32).reshape(EDGE, EDGE).copy()
    for buffer in given:
        buffer.close()
    left, right = (
        table(kind)[one] * np.repeat(table(case.scale)[scale], case.each, 1)
        for kind, one, scale in zip((case.first, case.second), factors, scales, strict=True)
    )
    size = abs(left) @ abs(right).T
    assert (abs(found - left @ right.T) <= 2.0**-20 * size).all()
