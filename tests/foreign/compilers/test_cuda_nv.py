"""CUDA C++ by NVIDIA's NVRTC runs on the virtual GH100 and GB202 by way of hcq.

NVIDIA's headers say what wmma fragments, video functions and small floats are; products and
bytes are compared with NumPy, conversions with those of the headers for chips without instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.foreign.client import run_client
from tests.foreign.compilers.cuda_kernels import PRODUCTS, places
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.program import Program

if places() is None:
    pytest.skip("needs nvidia-cuda-nvrtc: `make test-foreign` installs it", allow_module_level=True)
pytestmark = pytest.mark.foreign
LIMIT_S = 120
CHIPS = {"gh100": "compute_90", "gb202": "compute_120a"}


@pytest.fixture(scope="module", params=CHIPS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
            ) -> Iterator[tuple[Device, Program]]:  # fmt: skip
    """A device of each chip with all kernels, compiled in a process of their own."""
    result = tmp_path_factory.mktemp("cuda") / "result.json"
    text: str = run_client(
        "tests.foreign.compilers.cuda_kernels", [CHIPS[request.param]], result, {}, LIMIT_S
    )
    with hcq.open(f"virtual:{request.param}") as gpu, gpu.load(text.encode()) as loaded:
        yield gpu, loaded


def run(
    program: tuple[Device, Program], name: str, args: list[Any], out: np.ndarray,
    grid: tuple[int, ...] = (1,), block: int = 32,
) -> np.ndarray:  # fmt: skip
    """Run a kernel on arrays and numbers; return what `out` among them has become."""
    gpu, loaded = program
    given = []
    for argument in args:
        if isinstance(argument, np.ndarray):
            buffer = gpu.alloc(argument.nbytes)
            buffer.copy_from(argument)
            given.append(buffer)
        else:
            given.append(argument)
    gpu.queue().launch(loaded[name], grid=grid, block=(block,), args=tuple(given)).submit()
    gpu.synchronize()
    (place,) = (number for number, argument in enumerate(args) if argument is out)
    found = given[place].numpy(out.dtype).reshape(out.shape).copy()
    for buffer in given:
        if isinstance(buffer, hcq.Buffer):
            buffer.close()
    return found


def _stored(kind: str, matrix: np.ndarray, layout: str) -> np.ndarray:
    """A factor as it lies in memory: of whole numbers that its type holds."""
    lines = matrix if layout == "row_major" else matrix.T
    if kind == "half":
        return lines.astype(np.float16)
    if kind == "__nv_bfloat16":
        return (lines.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind.endswith("s4"):
        nibbles = lines.astype(np.int64) & 15
        return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8)
    if kind.endswith("b1"):
        return np.packbits(lines.astype(np.uint8), axis=1, bitorder="little")
    types = {"signed char": np.int8, "unsigned char": np.uint8, "double": np.float64}
    return lines.astype(types.get(kind, np.float32))


@pytest.mark.parametrize("name", PRODUCTS)
def test_fragments(program: tuple[Device, Program], name: str) -> None:
    m, n, k, kind, sums, first, second = PRODUCTS[name]
    random = np.random.default_rng(len(name) + k)
    low, high = (0, 2) if kind.endswith("b1") else (0, 8) if kind[0] == "u" else (-7, 8)
    a, b = random.integers(low, high, (m, k)), random.integers(low, high, (k, n))
    types = {"half": np.float16, "float": np.float32, "double": np.float64, "int": np.int32}
    c = random.integers(-20, 20, (m, n)).astype(types[sums])
    out = np.zeros((n, m), types[sums])
    given = [_stored(kind, a, first), _stored(kind, b, second)]
    leads = [k if first == "row_major" else m, n if second == "row_major" else k]
    # Sums are stored by columns, with the stride of rows of C: both are n, or m where that is more.
    lead = max(m, n)
    room_c, room_d = np.zeros((m, lead), c.dtype), np.zeros((n, lead), out.dtype)
    room_c[:, :n] = c
    found = run(program, name, [*given, room_c, room_d, *map(np.uint32, (*leads, lead))], room_d)
    if kind.endswith("b1"):
        product = (a[:, :, None] ^ b[None]).sum(axis=1)
    else:
        product = a @ b * (1 if kind.endswith("s4") else 2)
    assert np.array_equal(found[:, :m].T, product + 2 * c.astype(np.int64))
    assert not found[:, m:].any()


def test_a_tiled_product(program: tuple[Device, Program]) -> None:
    random = np.random.default_rng(2)
    a, b = (random.standard_normal(s).astype(np.float16) for s in ((128, 96), (96, 192)))
    bias = np.tile(random.standard_normal(192).astype(np.float32), (16, 1))
    out = np.zeros((128, 192), np.float32)
    found = run(program, "gemm", [a, b, bias, out, np.uint32(96)], out, (3, 2), 128)
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias[0], 0)
    assert np.allclose(found, wanted, 1e-4, 1e-3)


def test_pairs_of_words_are_exchanged(program: tuple[Device, Program]) -> None:
    total = np.array([(1 << 64) - 5, 1000], np.uint64)
    found = run(program, "pairs", [total], total, (3,), 64)
    assert int(found[0]) == (3 * 63 * 32 - 5) % (1 << 64) and int(found[1]) == 1000 - 192


def _lanes(x: np.ndarray, bits: int, signed: bool) -> np.ndarray:
    return x.view(np.dtype(f"{'i' if signed else 'u'}{bits // 8}")).reshape(-1, 32 // bits).astype(
        np.int64)  # fmt: skip


def test_video_functions(program: tuple[Device, Program]) -> None:
    random = np.random.default_rng(3)
    a, b = (random.integers(0, 1 << 32, 256, np.uint32) for _ in range(2))
    found = run(program, "video", [a, b, out := np.zeros((256, 12), np.uint32)], out, (4,), 64)
    s4, u4 = (_lanes(a, 8, True), _lanes(b, 8, True)), (_lanes(a, 8, False), _lanes(b, 8, False))
    s2, u2 = (
        (_lanes(a, 16, True), _lanes(b, 16, True)),
        (_lanes(a, 16, False), _lanes(b, 16, False)),
    )
    total = s4[0] + s4[1]
    wanted = [
        (8, total), (8, np.clip(total, -128, 127)), (8, abs(u4[0] - u4[1])),
        (8, np.where(total >= 0, total + 1, total) >> 1), (16, (u2[0] + u2[1] + 1) >> 1),
        (32, abs(s4[0] - s4[1]).sum(1, keepdims=True)),
        (32, abs(u2[0] - u2[1]).sum(1, keepdims=True)), (8, -(s4[0] > s4[1]).astype(int)),
        (16, (u2[0] <= u2[1]).astype(int)), (16, np.maximum(*s2)), (8, np.minimum(*u4)),
        (16, np.clip(u2[0] - u2[1], 0, 65535)),
    ]  # fmt: skip
    for column, (bits, lanes) in enumerate(wanted):
        assert np.array_equal(_lanes(found[:, column].copy(), bits, False),
                              lanes & (1 << bits) - 1), column  # fmt: skip


SMALL: dict[str, np.ndarray] = {}  # what each chip has found


def test_small_floats(program: tuple[Device, Program]) -> None:
    """On GB202 these are instructions, on GH100 integers from NVIDIA's headers: all bits agree."""
    random = np.random.default_rng(4)
    pairs = random.integers(0, 1 << 32, (4096, 2), np.uint32)
    scale = (random.integers(118, 134, (2048, 2)) << 23).astype(np.uint32)
    pairs[:2048] = (pairs[:2048] & 0x807FFFFF) | scale  # of a size that the formats have
    pairs[:512] &= 0xFFF80000  # ties
    out = np.zeros((4096, 7), np.uint32)
    found = run(program, "small", [pairs, out], out, (64,), 64)
    SMALL[program[0].name] = found
    assert len({len(np.unique(found[:, n])) > 8 for n in range(7)}) == 1
    first = next(iter(SMALL.values()))
    for column in range(7):
        different = np.flatnonzero(found[:, column] != first[:, column])
        assert not len(different), (column, pairs[different[0]], found[different[0], column],
                                    first[different[0], column])  # fmt: skip
