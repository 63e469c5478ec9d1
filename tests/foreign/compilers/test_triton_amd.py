"""Triton's kernels for gfx1100 and gfx1201 run on the virtual Navi31 and Navi48 by way of hcq, and
agree with NumPy.

They are linked by Triton's own LLVM and linker (ET_DYN), take their local memory at launch, and end
with two pointers to scratch memory that is not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.foreign.client import require, run_client
from tests.support.amd.am_navi31 import build_chip
from ugpu import hcq
from ugpu.am.chips import facts_of
from ugpu.hcq.device.device import Device
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.options import ChipOptions

require("triton")
pytestmark = pytest.mark.foreign
WAVE, LIMIT_S = 32, 150
Images = dict[str, dict[str, Any]]  # what triton_kernels tells of each, its image under "image"


CARDS = {"navi31": "gfx1100", "navi48": "gfx1201"}


@pytest.fixture(scope="module", params=CARDS)
def card(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def images(card: str, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """The kernels, compiled in a process of their own."""
    folder = tmp_path_factory.mktemp("triton")
    arguments = [f"hip:{CARDS[card]}:32", str(folder)]
    result = folder / "result.json"
    found: Images = run_client(
        "tests.foreign.compilers.triton_kernels", arguments, result, {}, LIMIT_S
    )
    for entry in found.values():
        entry["image"] = (Path(folder) / entry["file"]).read_bytes()
    return found


@pytest.fixture(scope="module")
def chip(card: str) -> Iterator[Chip]:
    made = build_chip(ChipOptions(vram=1 << 30), facts_of(card))
    yield made
    made.close()


@pytest.fixture(scope="module")
def gpu(card: str, chip: Chip) -> Iterator[Device]:
    with hcq.open(f"virtual:{card}", chip=chip) as opened:
        yield opened


def run(
    gpu: Device, entry: dict[str, Any], grid: tuple[int, ...], args: list[Any], out: np.ndarray
) -> np.ndarray:
    """Run a kernel; arrays among `args` are its inputs, `out` among them is what it returns."""
    with gpu.load(entry["image"]) as program:
        given: list[Any] = []
        for argument in args:
            if isinstance(argument, np.ndarray):
                buffer = gpu.alloc(argument.nbytes)
                buffer.copy_from(argument)
                given.append(buffer)
            else:
                given.append(argument)
        gpu.queue().launch(
            program[entry["name"]],
            grid=grid,
            block=(WAVE * entry["warps"],),
            args=(*given, None, None),
            dynamic_local=entry["shared"],
        ).submit()
        gpu.synchronize()
        (place,) = (number for number, argument in enumerate(args) if argument is out)
        result = given[place].numpy(out.dtype).reshape(out.shape).copy()
        for buffer in given:
            if isinstance(buffer, hcq.Buffer):
                buffer.close()
    return result


def numbers(*shape: int, kind: str = "f4", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_add(gpu: Device, images: Images, kind: str) -> None:
    element = "f4" if kind == "f32" else "f2"
    x, y, out = numbers(1000, kind=element), numbers(1000, kind=element, seed=1), np.zeros(1000)
    out = out.astype(element)
    args = [x, y, out, np.int32(1000)]
    assert np.array_equal(run(gpu, images[f"add {kind}"], (4,), args, out), x + y)


def test_softmax_and_layernorm(gpu: Device, images: Images) -> None:
    x, out = numbers(6, 100), np.zeros((6, 100), "f4")
    raised = np.exp(x - x.max(1, keepdims=True))
    found = run(gpu, images["softmax"], (6,), [x, out, np.int32(100)], out)
    assert np.allclose(found, raised / raised.sum(1, keepdims=True), 1e-5, 1e-7)
    args = [x, out, np.int32(100), np.float32(1e-5)]
    found = run(gpu, images["layernorm"], (6,), args, out)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    assert np.allclose(found, expected, 1e-4, 1e-5)


@pytest.mark.parametrize(("kind", "element"), [("f16", "f2"), ("f32", "f4")])
def test_products(gpu: Device, images: Images, kind: str, element: str) -> None:
    """Matrix instructions for f16, fused multiply-adds for f32."""
    a, b = numbers(64, 96, kind=element), numbers(96, 64, kind=element, seed=1)
    out = np.zeros((64, 64), "f4")
    args = [a, b, out, np.int32(64), np.int32(96)]
    found = run(gpu, images[f"matmul {kind}"], (2, 2), args, out)
    assert np.allclose(found, a.astype("f8") @ b.astype("f8"), 1e-4, 1e-4)


def test_histogram_and_scan(gpu: Device, images: Images) -> None:
    x = np.random.default_rng(2).integers(0, 16, 1000, np.int32)
    counts = np.zeros(16, np.int32)
    found = run(gpu, images["histogram"], (4,), [x, counts, np.int32(1000)], counts)
    # Lanes beyond the end are masked.
    assert np.array_equal(found, np.bincount(x, minlength=16))
    values, out = numbers(256), np.zeros(256, "f4")
    found = run(gpu, images["scan"], (1,), [values, out], out)
    assert np.allclose(found, np.cumsum(values, dtype="f8"), 1e-4, 1e-4)


def philox(seed: int, offsets: np.ndarray) -> np.ndarray:
    """Return Philox-4x32-10's first word (Salmon et al., 2011), the counter in its first word."""
    counter = [offsets.astype(np.uint64), *(np.zeros_like(offsets, np.uint64) for _ in range(3))]
    keys = [seed, 0]
    for _ in range(10):
        first, third = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
        counter = [
            (third >> high) ^ counter[1] ^ np.uint64(keys[0]),
            third & low,
            (first >> high) ^ counter[3] ^ np.uint64(keys[1]),
            first & low,
        ]
        keys = [keys[0] + 0x9E3779B9 & 0xFFFFFFFF, keys[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return counter[0].astype(np.uint32)


def test_random_numbers(gpu: Device, images: Images) -> None:
    x, out = numbers(1000), np.zeros(1000, "f4")
    found = run(gpu, images["dropout"], (4,), [x, out, np.int32(1000), np.int32(7)], out)
    words = philox(7, np.arange(1000)).view(np.int32)
    kept = np.where(words < 0, -words - 1, words) * 4.6566127342e-10 > 0.5
    assert 400 < kept.sum() < 600
    assert np.array_equal(found, np.where(kept, x * 2, np.float32(0)))


def test_functions(gpu: Device, images: Images) -> None:
    x, out = numbers(256) * 3, np.zeros(256, "f4")
    found = run(gpu, images["functions"], (1,), [x, out], out)
    wide = x.astype("f8")
    error = np.array([math.erf(value) for value in wide])
    expected = np.sin(wide) + np.log2(np.abs(wide) + 1) * np.exp2(wide) + np.floor(wide) + error
    assert np.allclose(found, expected, 2e-5, 2e-5)


def test_nothing_of_it_was_objected_to(chip: Chip, gpu: Device) -> None:
    assert chip.violations == []
