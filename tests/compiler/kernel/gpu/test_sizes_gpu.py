"""Rules of GPU kernels that begin above a size, above and below each threshold, on every device
that has them. See test_sizes_host.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.compiler.kernel.host.test_sizes_host import (
    added_at,
    attended,
    attention,
    softmax,
    windows,
)
from tests.support.compiler.compiler_devices import poisoned
from tests.support.compiler.size_rules import Array, Inputs, Lowered, Rule, above, below, lowered
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.adreno.profit import fetched
from ugpu.compiler.kernel.choices import (
    Attention,
    Dots,
    MatrixTiles,
    RingTiles,
    Rows,
    Sharing,
    Threads,
    Tiles,
)
from ugpu.hcq.device.device import Device

NAVI31, GH100, A630 = "virtual:navi31", "virtual:gh100", "virtual:a630"
ALL = (NAVI31, GH100, A630)


def way(lowered: Lowered) -> str:
    first = lowered.choices[0]
    return first.way if isinstance(first, Sharing) else ""


def form(lowered: Lowered) -> str:
    first = lowered.choices[0]
    return first.form if isinstance(first, Attention) else ""


def lanes(lowered: Lowered) -> int:
    first = lowered.choices[0]
    return first.lanes if isinstance(first, Sharing | Rows) else 0


def convolved(x: Array, w: Array) -> Array:
    """Convolve with stride 2, without padding."""
    found = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::2, ::2]
    return np.asarray(np.einsum("ncyxhw,ochw->noyx", found, w))


ROWS = (
    Rule(
        "kernel.gpu.loops", "BLOCK", lambda x, y: x + y, lambda x, y: x + y,
        lambda found: found.grid(1) == 3 and isinstance(found.choices[0], Threads),
        [((3, 1024), (3, 1)), ((3, 1025), (3, 1)), ((3, 2052), (3, 1))], [((3, 1020), (3, 1))],
        devices=ALL,
    ),
    Rule(
        "kernel.gpu.reduction", "SHORT", lambda x: x.sum(1), lambda x: x.sum(1),
        lambda found: way(found) == "lanes",
        [((40, 16),), ((40, 17),), ((300, 31),)], [((40, 15),)], devices=ALL,
    ),
    Rule(
        "kernel.gpu.reduction", "REUSED",
        lambda x, w: x.conv2d(w, stride=2), convolved,
        lambda found: way(found) == "threads",
        [((1, 3, 65, 65), (32, 3, 3, 3)), ((1, 3, 66, 67), (33, 3, 3, 3))],
        [((1, 3, 65, 65), (31, 3, 3, 3)), ((1, 3, 259, 257), (2, 3, 3, 3))], devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.gpu.reduction", "columns", lambda x: x.sum(0), lambda x: x.sum(0),
        lambda found: way(found) == "columns",
        [((128, 32),), ((129, 33),), ((301, 9),)], [((63, 9),), ((128, 7),)], devices=ALL,
    ),
    Rule(
        "kernel.gpu.reduction", "MANY", lambda x: x.sum(0), lambda x: x.sum(0),
        lambda found: way(found) == "threads",
        [((128, 32768),), ((129, 32769),)], [((128, 32767),)], devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.gpu.rows", "SHARE FULL", lambda x: x.sum(1), lambda x: x.sum(1),
        lambda found: lanes(found) < 32,
        [((2120, 128),), ((2113, 131),)], [((9, 128),)], devices=ALL, slow=(A630,),
    ),
    Rule(
        "kernel.gpu.rows", "ODD", lambda x: x.softmax(1), lambda x: softmax(x, 1),
        lambda found: isinstance(found.choices[0], Rows) and found.choices[0].width == 4,
        [((9, 64),), ((9, 65),), ((7, 131),)], [((9, 63),)], tolerance=1e-6, devices=ALL,
        slow=(A630,),
    ),
    Rule(
        "kernel.gpu.rows", "HELD STEPS", lambda x: x.softmax(1), lambda x: softmax(x, 1),
        lambda found: found.has("total1") and not found.has("held0"),
        [((3, 9216),), ((3, 8193),)], [((3, 8192),)], tolerance=1e-6, devices=ALL, slow=ALL,
    ),
    Rule(
        "schedule.split", "LONG PIECE FEW", lambda x: x.sum(-1), lambda x: x.sum(-1),
        lambda found: len(found.kernels) > 1,
        [((65536,),), ((65537,),), ((3, 65539),)], [((65535,),), ((64, 65536),)], devices=ALL,
        slow=ALL,
    ),
    Rule(
        "schedule.split", "DEPTH WORK SHARES SIDE",
        lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: len(found.kernels) > 1,
        [((16, 8192), (8192, 16)), ((17, 8190), (8190, 33))], [((16, 4095), (4095, 16))],
        devices=ALL, slow=ALL,
    ),
    Rule(
        "methods.order.running", "BLOCK", lambda x: x.cumsum(1), lambda x: x.cumsum(1),
        lambda found: len(found.kernels) > 1,
        [((2, 192),), ((3, 129),), ((2, 8257),)], [((3, 128),)], devices=ALL, slow=ALL,
    ),
    Rule(
        "methods.order.sorting", "SHORT START EACH", lambda x: x.argsort(-1),
        lambda x: np.argsort(x, -1, kind="stable"), lambda found: len(found.kernels) > 6,
        [((6144,),), ((5906,),), ((43, 1025),)], [((5905,),), ((64, 1024),)], ("uint8",),
        devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.scatter", "SHARE", lambda x, i, y: x.scatter_add(0, i.cast("int64"), y), added_at,
        lambda found: "//" in found.text(),  # several threads of a column
        [((4, 8), (64, 8), (64, 8)), ((5, 7), (67, 7), (67, 7))],
        [((4, 24600), (2, 24600), (2, 24600))], ("float32", "uint8", "float32"), devices=ALL,
    ),
    Rule(
        "kernel.shared.pieces", "FEW_CODES", lambda *x: Tensor.cat(list(x), 1),
        lambda *x: np.concatenate(x, 1), lambda found: "_by_" in found.text(),
        [tuple((3, size) for size in (8, 16, 24, 32, 40)),
         tuple((3, size) for size in (5, 7, 11, 301, 1003))],
        [tuple((3, size) for size in (8, 16, 24, 32))], devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.shared.ragged", "THREADS THREAD_VECTORS", lambda *x: Tensor.cat(list(x)),
        lambda *x: np.concatenate(x), lambda found: found.grid(0) > 5,
        [tuple((size,) for size in (8192, 16384, 8, 16, 24)),
         tuple((size,) for size in (2049, 5001, 7, 9, 11))],
        [tuple((size,) for size in (2048, 2044, 8, 16, 24))], devices=ALL, slow=ALL,
    ),
)  # fmt: skip

PRODUCTS = (
    Rule(
        "kernel.gpu.dots", "DEPTH TILED_DEPTH BLOCK STEPS LANES",
        lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: isinstance(found.choices[0], Dots),
        [((4, 64), (64, 4)), ((2, 67), (67, 2)), ((7, 519), (519, 4)), ((16, 300), (300, 31)),
         ((12, 1031), (1031, 6)), ((2, 4099), (4099, 8))],
        [((4, 63), (63, 4)), ((3, 512), (512, 7)), ((16, 255), (255, 31)), ((32, 260), (260, 32))],
        devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.gpu.dots", "DEPTH BLOCK, several ranges of a side",
        lambda x, y: x.conv2d(y), lambda x, y: np.einsum("nchwij,ocij->nohw", windows(x, 3), y),
        lambda found: isinstance(found.choices[-1], Dots),
        [((1, 8, 4, 4), (6, 8, 3, 3)), ((2, 29, 6, 6), (5, 29, 3, 3)),
         ((3, 30, 4, 7), (4, 30, 3, 3))],
        [((1, 7, 4, 4), (6, 7, 3, 3)), ((1, 32, 5, 7), (3, 32, 3, 3))], devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.gpu.tiles", "SIDES BLOCKS DEPTH MOVED", lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: isinstance(found.choices[0], Tiles),
        [((8, 4), (4, 8)), ((33, 17), (17, 65)), ((128, 32), (32, 128)), ((600, 17), (17, 601)),
         ((520, 300), (300, 523))],
        [((7, 16), (16, 8)), ((8, 3), (3, 8))], devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.gpu.tiles", "SIDES BLOCKS DEPTH MOVED, turned",
        lambda x, y: x.permute(1, 0) @ y.permute(1, 0), lambda x, y: x.T @ y.T,
        lambda found: isinstance(found.choices[0], Tiles),
        [((32, 64), (64, 32)), ((17, 131), (67, 17)), ((300, 521), (523, 300))], devices=ALL,
        slow=ALL,
    ),
    Rule(
        "kernel.gpu.matrix", "VECTOR TURNED LONGEST SHARE", lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: isinstance(found.choices[0], MatrixTiles),
        [((32, 64), (64, 32)), ((17, 19), (19, 23)), ((33, 64), (64, 33)), ((64, 128), (128, 64)),
         ((33, 131), (131, 41)), ((385, 70), (70, 391)), ((1153, 40), (40, 1161))],
        [((7, 16), (16, 8)), ((8, 3), (3, 8))], ("float16",), devices=(NAVI31,),
        slow=(NAVI31,),
    ),
    Rule(
        "kernel.gpu.matrix", "VECTOR TURNED, turned",
        lambda x, y: x.permute(1, 0) @ y.permute(1, 0), lambda x, y: x.T @ y.T,
        lambda found: isinstance(found.choices[0], MatrixTiles),
        [((64, 32), (32, 64)), ((37, 131), (67, 37))], (), ("float16",), devices=(NAVI31,),
        slow=(NAVI31,),
    ),
    Rule(
        "kernel.nvidia.ring", "WAVE_TILES GROUP_TILES", lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: isinstance(found.choices[0], RingTiles),
        [((32, 32), (32, 32)), ((33, 33), (33, 33)), ((64, 64), (64, 64)), ((65, 67), (67, 71)),
         ((600, 40), (40, 1403)), ((1153, 40), (40, 1161)), ((1409, 40), (40, 1416)),
         ((1409, 64), (64, 777)), ((1409, 65), (65, 1417)), ((1409, 64), (64, 2832))],
        [((31, 64), (64, 40)), ((40, 31), (31, 40))], ("float16",), devices=(GH100,),
        slow=(GH100,),
    ),
    Rule(
        "kernel.shared.grid", "max_grid", lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: found.grid(0) > 65535 and found.grid(2) == 1,
        [((65536, 8, 4), (65536, 4, 8)), ((65537, 8, 5), (65537, 5, 9))],
        [((65535, 8, 4), (65535, 4, 8))], devices=(GH100,), slow=(GH100,),
    ),
)  # fmt: skip

ATTENTION = (
    Rule(
        "kernel.attention.gpu", "FEW GROUP_KEYS GROUP_LANES", attended, attention,
        lambda found: form(found) == "group",
        [((15, 64), (40, 64), (40, 64)), ((3, 12), (41, 12), (41, 9))],
        [((16, 64), (40, 64), (40, 64))], tolerance=1e-5, devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.attention.group", "HELD TOGETHER", attended, attention,
        lambda found: form(found) == "group" and not found.has("left"),  # too long to keep
        [((3, 544), (40, 544), (40, 64)), ((1, 521), (33, 521), (33, 21))],
        [((3, 512), (40, 512), (40, 64))], tolerance=1e-5, devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.attention.threads", "KEYS ROWS LONGEST TOGETHER", attended, attention,
        lambda found: form(found) == "thread",
        [((16, 64), (32, 64), (32, 64)), ((70, 19), (41, 19), (41, 21)),
         ((17, 129), (17, 129), (17, 20)), ((17, 20), (17, 20), (17, 130))],
        [((15, 64), (32, 64), (32, 64))], tolerance=1e-5, devices=ALL, slow=ALL,
    ),
    Rule(
        "kernel.attention.tiles", "VECTOR LONGEST SHARE", attended, attention,
        lambda found: form(found) == "matrix",
        [((16, 64), (64, 64), (64, 64)), ((70, 64), (301, 64), (301, 64)),
         ((33, 128), (70, 128), (70, 128)), ((17, 136), (37, 136), (37, 24)),
         ((17, 24), (37, 24), (37, 136))],
        [((15, 64), (64, 64), (64, 64))], ("float16",), tolerance=3e-2,
        devices=(NAVI31, GH100), slow=(NAVI31, GH100),
    ),
)  # fmt: skip

RULES = (*ROWS, *PRODUCTS, *ATTENTION)


def opened(name: str, factory: pytest.TempPathFactory) -> Iterator[Device]:
    with hcq.open(name) as device:
        poisoned(device, factory.mktemp("kernels"))
        yield device


@pytest.fixture(scope="module")
def navi31(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    yield from opened(NAVI31, tmp_path_factory)


@pytest.fixture(scope="module")
def gh100(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    yield from opened(GH100, tmp_path_factory)


@pytest.fixture(scope="module")
def a630(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    yield from opened(A630, tmp_path_factory)


@pytest.mark.parametrize(("rule", "shapes"), above(RULES, NAVI31))
def test_on_navi31(navi31: Device, rule: Rule, shapes: Inputs) -> None:
    rule.check(shapes, navi31)


@pytest.mark.parametrize(("rule", "shapes"), above(RULES, GH100))
def test_on_gh100(gh100: Device, rule: Rule, shapes: Inputs) -> None:
    rule.check(shapes, gh100)


@pytest.mark.parametrize(("rule", "shapes"), above(RULES, A630))
def test_on_a630(a630: Device, rule: Rule, shapes: Inputs) -> None:
    rule.check(shapes, a630)


@pytest.mark.parametrize(("rule", "shapes"), below(RULES, NAVI31))
def test_below_on_navi31(navi31: Device, rule: Rule, shapes: Inputs) -> None:
    rule.check_below(shapes, navi31)


@pytest.mark.parametrize(("rule", "shapes"), below(RULES, GH100))
def test_below_on_gh100(gh100: Device, rule: Rule, shapes: Inputs) -> None:
    rule.check_below(shapes, gh100)


@pytest.mark.parametrize(("rule", "shapes"), below(RULES, A630))
def test_below_on_a630(a630: Device, rule: Rule, shapes: Inputs) -> None:
    rule.check_below(shapes, a630)


# ---- choices that one rule makes by size -------------------------------------------------------


def test_products_meet_every_size_of_tiles(navi31: Device, gh100: Device) -> None:
    """The shapes of the tables above meet each of the default tiles."""
    for module, device, count in (
        ("kernel.gpu.matrix", navi31, 5),  # four tiles, and a deeper slice
        ("kernel.nvidia.ring", gh100, 6),
        ("kernel.gpu.tiles", navi31, 4),
    ):
        rules = [rule for rule in PRODUCTS if rule.module == module]
        met = {
            str(lowered(rule.build(shapes, device)[0]).choices[0])
            for rule in rules for shapes in rule.shapes
        }  # fmt: skip
        assert len(met) >= count, (module, met)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 2, 20, 32), (1, 2, 21, 37)])
def test_elements_read_again_are_texels(a630: Device, shape: tuple[int, ...]) -> None:
    """compiler.codegen.adreno.profit, WORTH: windows that overlap are fetched, single reads not."""
    array = np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)
    x = Tensor(array, device=a630)
    pooled = x.max_pool2d(3, stride=1)
    assert any(fetched(kernel) for kernel in lowered(pooled).kernels)
    assert not any(fetched(kernel) for kernel in lowered(x + 1).kernels)
    assert (pooled.numpy() == windows(array, 3).max((-2, -1))).all()
