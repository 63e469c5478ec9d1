"""Rules of the host's kernels that begin above a size, above and below each threshold.

tests/compiler/kernel/test_sizes_listed.py holds that no constant of the compiler is missing here,
in test_sizes_gpu.py, or in its own list.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.compiler.size_rules import Array, Inputs, Lowered, Rule, above, below
from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device

LANES = 16  # float32 of the widest vector; narrower ones have lower thresholds


def loops(lowered: Lowered, name: str) -> int:
    """Return the size of the loop of a name, 0 without it."""
    sizes = re.findall(rf"for {name} in (\d+)", lowered.text())
    return max((int(size) for size in sizes), default=0)


def panels(lowered: Lowered) -> bool:
    """Whether a product is computed in panels."""
    return loops(lowered, "column_panel") > 0


def softmax(x: Array, axis: int) -> Array:
    raised = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(raised / raised.sum(axis, keepdims=True))


def attention(queries: Array, keys: Array, values: Array) -> Array:
    scores = queries @ keys.T / np.sqrt(queries.shape[-1])
    return softmax(scores, -1) @ values


def attended(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return queries.scaled_dot_product_attention(keys, values)


def windows(x: Array, size: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))


def padded(x: Array) -> Array:
    return np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])


def depthwise(x: Array, weights: Array) -> Array:
    return np.asarray(np.einsum("nchwij,cij->nchw", windows(padded(x), 3), weights[:, 0]))


def chained(x: Any, pairs: int) -> Any:  # of a Tensor, or an array
    for number in range(pairs):
        x = (x ^ number) + 1
    return x


def added_at(x: Array, index: Array, values: Array) -> Array:
    result = x.copy()
    np.add.at(result, (index, np.arange(x.shape[1])), values)
    return result


def raised(x: Tensor) -> Tensor:
    return (x - x.mean(1, True)).exp()


def raised_there(x: Array) -> Array:
    return np.exp(x - x.mean(1, keepdims=True))


def several_at_once(lowered: Lowered) -> bool:
    """Whether an instruction multiplies several steps of the depth."""
    return any(name in lowered.text() for name in ("dot2", "dot4", "+= tile4 x"))


def rolled(lowered: Lowered) -> bool:
    return any(" rolled" in line for line in lowered.text().splitlines())


LOOPS = (
    Rule(
        "kernel.host.turned", "SMALLEST LANES WIDTH",
        lambda x: x.permute(1, 0).contiguous(), lambda x: x.T,
        lambda found: found.has("stage0"),
        [((64, 256),), ((256, 64),), ((512, 33),), ((300, 65),), ((1001, 47),)],
        [((15, 2000),), ((2000, 15),), ((127, 129),)],
    ),
    Rule(
        "kernel.host.nest", "CHUNK", lambda x: x + 1, lambda x: x + 1,
        lambda found: found.grid(0) > 1,
        [((32768,),), ((16385,),), ((3, 16400),), ((326, 100),), ((327, 100),)],
        [((16384,),), ((163, 100),)],
    ),
    Rule(
        "kernel.host.loops", "ROLLED",
        lambda x, i: x.gather(1, i.cast("int64").abs()),
        lambda x, i: np.take_along_axis(x, abs(i), 1),
        rolled, [((3, 4), (3, 16)), ((3, 4), (3, 37))], [((3, 4), (3, 15))],
        ("float32", "int32"),
    ),
    Rule(
        "kernel.host.loops", "ABREAST ROLLED",
        lambda x: x.permute(0, 1, 3, 2).contiguous(), lambda x: x.transpose(0, 1, 3, 2),
        lambda found: found.text().count("for ") == 3,
        [((3, 5, 2, 33),), ((5, 3, 4, 15),), ((5, 3, 16, 9),), ((7, 5, 3, 37),)],
        [((3, 5, 5, 9),), ((3, 5, 15, 9),), ((7, 5, 64, 9),)],
    ),
    Rule(
        "kernel.host.loops", "AHEAD FAR HEAVY MOST CACHE_LINE",
        lambda x: x.asinh(), np.arcsinh, lambda found: "prefetch" in found.text(),
        [((8192,),), ((8193,),), ((16384 + 529,),), ((2, 8700),)], [((8191,),), ((81, 100),)],
        tolerance=1e-6,
    ),
    Rule(
        "kernel.host.loops", "AHEAD HEAVY",
        lambda x: x.asinh(), np.arcsinh, lambda found: loops(found, "ahead0") == 32,
        [((9000,),)], [((1000,),)], tolerance=1e-6,
    ),
    Rule(
        "kernel.host.loops", "TESTED",
        lambda x: x.sin(), np.sin, lambda found: loops(found, "part") > 0,
        [((1025,),), ((16384 + 1030,),), ((2, 2047),)], [((1024,),), ((63,),)], tolerance=1e-6,
    ),
    Rule(
        "kernel.host.rows", "STREAMS MANY", lambda x: x.sum(1), lambda x: x.sum(1),
        lambda found: found.count("total") == 2,
        [((64, 8193),), ((66, 8200),)], [((62, 8193),), ((65, 8193),), ((64, 8192),)],
    ),
    Rule(
        "kernel.host.rows", "STEPS OPERATIONS", lambda x: x.sum(0), lambda x: x.sum(0),
        lambda found: found.has("total") and found.grid(0) > 1,
        [((8, 128),), ((9, 65),), ((17, 130),), ((3, 257),)], [((9, 64),)],
    ),
    Rule(
        "kernel.host.nest", "COLUMNS", lambda x: x.sum(1), lambda x: x.sum(1),
        lambda found: found.count("total") == 1024 and found.grid(0) > 1,
        [((4, 9, 2048),), ((4, 9, 1025),), ((5, 8, 2050),)], [((4, 9, 1024),)],
    ),
    Rule(
        "kernel.host.rows", "ROWS", lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: found.has("total") and not panels(found),
        [((3, 40), (40, 128)), ((3, 17), (17, 333))], [((4, 40), (40, 128))],
    ),
    Rule(
        "schedule.split", "LONG PIECE FEW", lambda x: x.sum(-1), lambda x: x.sum(-1),
        lambda found: len(found.kernels) > 1,
        [((65536,),), ((65537,),), ((63, 65539),)], [((65535,),), ((64, 65536),)],
    ),
    Rule(
        "schedule.split", "DEPTH WORK SHARES SIDE SHORTEST",
        lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: len(found.kernels) > 1,
        [((16, 8192), (8192, 16)), ((17, 8190), (8190, 33))],
        [((16, 4095), (4095, 33)), ((7, 8192), (8192, 16)), ((65, 4096), (4096, 65)),
         ((16, 4096), (4096, 16))],
    ),
)  # fmt: skip

ROWS = (
    Rule(
        "kernel.host.rows", "columns side by side", lambda x: x.softmax(0), lambda x: softmax(x, 0),
        lambda found: found.has("total1") and found.grid(0) > 1,
        [((5, 2048),), ((5, 65),), ((3, 2050),)], [((5, 64),)], tolerance=1e-6,
    ),
    Rule(
        "pattern.cost", "HELD_BYTES", lambda x: raised(x) / raised(x).sum(1, True),
        lambda x: raised_there(x) / raised_there(x).sum(1, keepdims=True),
        lambda found: found.has("total1") and not found.has("held0"),
        [((64, 66560),), ((64, 65537),)], [((64, 65536),)], tolerance=1e-6, slow=("cpu",),
    ),
    Rule(
        "kernel.host.scan", "STRETCH", lambda x: x.cumsum(1), lambda x: x.cumsum(1),
        lambda found: found.has("bases"),
        [((6, 2048),), ((6, 1025),), ((3, 2050),), ((3, 1027),)], [((6, 1024),)],
    ),
    Rule(
        "kernel.host.scan", "STRETCH across", lambda x: x.cumsum(0), lambda x: x.cumsum(0),
        lambda found: found.has("bases"),
        [((2048, 6),), ((1025, 6),), ((2050, 65),)], [((1024, 6),)],
    ),
    Rule(
        "kernel.host.scan", "ABREAST", lambda x: x.cumsum(1), lambda x: x.cumsum(1),
        lambda found: found.count("totals") > 1,
        [((8, 100),), ((12, 33),), ((4, 100),), ((6, 1027),)], [((7, 100),), ((2, 100),)],
    ),
    Rule(
        "kernel.host.scan", "chunks", lambda x: x.cumsum(1), lambda x: x.cumsum(1),
        lambda found: found.grid(0) > 1,
        [((256, 128),), ((340, 97),)], [((128, 128),)],
    ),
    Rule(
        "kernel.host.nest", "LINE", lambda x: x.cumsum(0), lambda x: x.cumsum(0),
        lambda found: found.grid(0) > 1, [((5, 128),), ((5, 65),)], [((5, 64),)],
    ),
    Rule(
        "kernel.host.scan", "columns", lambda x: x.cumsum(1), lambda x: x.cumsum(1),
        lambda found: found.count("totals") == 1024 and found.grid(0) > 1,
        [((4, 3, 2048),), ((4, 3, 1025),)], [((4, 3, 1024),)],
    ),
    Rule(
        "kernel.host.scan", "LANES", lambda x: x.cummax(1), lambda x: np.maximum.accumulate(x, 1),
        lambda found: found.has("carried"),
        [((3, 17),), ((5, 64),), ((2, 1025),), ((1, 2047),), ((33, 1000),)], [((3, 4),)],
        dtypes=("int32",),
    ),
    Rule(
        "methods.order.running", "PIECE", lambda x: x.cumsum(0), lambda x: x.cumsum(0),
        lambda found: len(found.kernels) > 1,
        [((32768,),), ((49151,),), ((49152,),), ((50001,),)], [((32767,),)],
    ),
    Rule(
        "kernel.host.sorting.places", "TOGETHER", lambda x: x.argsort(1),
        lambda x: np.argsort(x, 1, kind="stable"), lambda found: found.has("ranks"),
        [((1, 128),), ((1, 127),), ((1, 3),)], [((1, 129),)],
    ),
    Rule(
        "kernel.host.sorting.places", "SHORT", lambda x: x.argsort(1),
        lambda x: np.argsort(x, 1, kind="stable"), lambda found: found.has("even"),
        [((1, 4096),), ((1, 129),), ((1, 1001),)], [((1, 128),), ((1, 4097),)],
    ),
    Rule(
        "kernel.host.sorting.places", "CHUNK", lambda x: x.argsort(1),
        lambda x: np.argsort(x, 1, kind="stable"),
        lambda found: found.has("columns") and found.grid(0) > 1,
        [((256, 128),), ((400, 100),)], [((100, 100),)],
    ),
    Rule(
        "kernel.host.sorting.places", "CHUNK of halves", lambda x: x.argsort(1),
        lambda x: np.argsort(x, 1, kind="stable"),
        lambda found: found.has("even") and found.grid(0) > 1,
        [((9, 2048),), ((11, 1999),)], [((8, 2048),)],
    ),
    Rule(
        "kernel.host.sorting.network", "LONGEST", lambda x: x.argsort(1),
        lambda x: np.argsort(x, 1, kind="stable"), lambda found: found.has("columns"),
        [((8, 1024),), ((9, 1001),)], [((8, 1025),), ((1, 1024),)],
    ),
    Rule(
        "graph.along", "HELD", lambda x: x.argsort(1), lambda x: np.argsort(x, 1, kind="stable"),
        lambda found: found.has("counts") and not found.has("even"),
        [((2, 8192),), ((3, 4097),)], [((2, 4096),)],
    ),
    Rule(
        "graph.along", "KEPT", lambda x: x.kthvalue(2001)[1],
        lambda x: np.argsort(x, 1, kind="stable")[:, 2000],
        lambda found: found.has("outside") and len(found.kernels) > 2,
        [((2, 8193),), ((1, 16384),), ((3, 9001),)], [((2, 8192),), ((2, 8001),)],
    ),
    Rule(
        "kernel.host.sorting.selection", "CHUNK", lambda x: x.kthvalue(31)[1],
        lambda x: np.argsort(x, 1, kind="stable")[:, 30],
        lambda found: found.has("outside") and found.grid(0) > 1,
        [((256, 128 + 1),), ((20, 1000),)], [((16, 1024),)],
    ),
    Rule(
        "methods.order.sorting", "FEW ALL", lambda x: x.topk(65)[0],
        lambda x: np.flip(np.sort(x, 1), 1)[:, :65], lambda found: found.has("outside"),
        [((3, 256),), ((3, 130),), ((2, 1001),)], [((3, 129),), ((2, 128),)],
    ),
    Rule(
        "methods.order.sorting", "SHARE", lambda x: x.topk(129)[0],
        lambda x: np.flip(np.sort(x, 1), 1)[:, :129], lambda found: len(found.kernels) > 6,
        [((2, 129 * 64),), ((1, 10_001),)], [((2, 129 * 64 - 1),)],
    ),
)  # fmt: skip

PRODUCTS = (
    Rule(
        "pattern.contraction", "SMALLEST SHORTEST", lambda x, y: x @ y, lambda x, y: x @ y,
        panels,
        [((8, 4), (4, 8)), ((9, 5), (5, 11)), ((37, 70), (70, 33))],
        [((7, 15), (15, 8)), ((8, 3), (3, 8))],
    ),
    Rule(
        "pattern.contraction", "FEWEST LONGER", lambda x, y: x.permute(1, 0) @ y,
        lambda x, y: x.T @ y, panels,
        [((16, 4), (16, 40)), ((17, 5), (17, 43))], [((15, 4), (15, 40)), ((17, 1), (17, 40))],
    ),
    Rule(
        "kernel.host.products.matmul", "DOTS",
        lambda x, y: x @ y.permute(1, 0), lambda x, y: x @ y.T,
        panels, [((5, 16), (40, 16)), ((7, 19), (41, 19))],
        [((4, 16), (40, 16))],
    ),
    Rule(
        "kernel.host.products.tiles", "COUNTS",
        lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: loops(found, "slice") > 1,  # slices of the depth, and tiles
        [((40, 1024), (1024, 64)), ((41, 513), (513, 67)), ((130, 1027), (1027, 259))],
    ),
    Rule(
        "kernel.host.products.sides", "SIDE",
        lambda x, y: x @ y, lambda x, y: x @ y,
        panels,
        [((3, 384, 12), (12, 40)), ((3, 383, 12), (12, 40)), ((5, 77, 12), (12, 41))],
    ),
    Rule(
        "kernel.host.products.packing", "SHORT",
        lambda x, y: x @ y.permute(1, 0), lambda x, y: x @ y.T,
        lambda found: found.has("right_stage"),
        [((40, 8), (48, 8)), ((41, 9), (50, 9)), ((40, 300), (50, 300))], [((40, 7), (50, 7))],
    ),
    Rule(
        "kernel.host.products.packing", "LINE SETS ABREAST",
        lambda x, y: x @ y, lambda x, y: x @ y,
        lambda found: panels(found) and found.has("left"),  # rows that share a set are packed
        [((40, 1024), (1024, 200)), ((35, 2048), (2048, 150))], [((40, 1040), (1040, 200))],
    ),
    Rule(
        "kernel.host.products.dots", "MOST_ROWS HIGH WIDE DEEP", lambda x, y: x @ y.permute(1, 0),
        lambda x, y: x @ y.T, lambda found: found.has("sums"),
        [((16, 8 * LANES), (8, 8 * LANES)), ((5, 8 * LANES + 1), (11, 8 * LANES + 1)),
         ((3, 300), (65, 300))],
        [((17, 8 * LANES), (17, 8 * LANES)), ((7, 8 * LANES), (7, 8 * LANES)), ((16, 31), (8, 31))],
    ),
    Rule(
        "kernel.host.products.dots", "GROUP LEAST",
        lambda x, y: x @ y.permute(1, 0), lambda x, y: x @ y.T,
        lambda found: found.has("sums") and found.grid(0) > 1,
        [((4, 128), (128, 128)), ((3, 131), (1030, 131))], [((4, 128), (127, 128))],
    ),
    Rule(
        "kernel.attention.host", "FEW ABREAST", attended, attention,
        lambda found: found.count("largest") == 1,
        [((4, 16), (128, 16), (128, 16)), ((3, 13), (131, 13), (131, 19))],
        [((5, 16), (128, 16), (128, 16))], tolerance=1e-5,
    ),
    Rule(
        "kernel.attention.host", "KEYS VECTORS", attended, attention,
        lambda found: found.count("largest") > 1 and loops(found, "block") > 1,
        [((64, 16), (256, 16), (256, 16)), ((33, 13), (301, 13), (301, 19))],
        [((33, 16), (120, 16), (120, 16))], tolerance=1e-5,
    ),
    Rule(
        "pattern.online", "WIDEST", attended, attention,
        lambda found: not found.has("largest"),
        [((5, 4097), (9, 4097), (9, 8))], [((5, 4096), (9, 4096), (9, 8))], tolerance=1e-4,
    ),
)  # fmt: skip

OTHERS = (
    Rule(
        "pattern.cost", "WINDOW", lambda x: x.max_pool2d(8, stride=1),
        lambda x: windows(x, 8).max((-2, -1)),
        lambda found: found.has("stage", "lines"), [((1, 2, 15, 16),), ((1, 1, 40, 41),)],
    ),
    Rule(
        "pattern.cost", "WINDOW above", lambda x: x.max_pool2d(9, stride=1),
        lambda x: windows(x, 9).max((-2, -1)),
        lambda found: not found.has("stage"), [((1, 2, 16, 25),), ((1, 1, 20, 23),)],
    ),
    Rule(
        "kernel.host.windows", "STAGED WHOLE",
        lambda x, y: x.conv2d(y, padding=1, groups=2), depthwise,
        lambda found: found.has("stage") and found.grid(0) == 3,
        [((1, 2, 72, 131), (2, 1, 3, 3)), ((1, 2, 70, 131), (2, 1, 3, 3))],
        [((1, 2, 27, 131), (2, 1, 3, 3))],
    ),
    Rule(
        "pattern.cost", "WINDOW_LINES", lambda x, y: x.conv2d(y, padding=1, groups=2), depthwise,
        lambda found: len(found.kernels) > 1,  # the padded image is stored first
        [((1, 2, 3, 5460), (2, 1, 3, 3)), ((1, 2, 2, 5472), (2, 1, 3, 3))],
        [((1, 2, 3, 5459), (2, 1, 3, 3))],
    ),
    Rule(
        "pattern.cost", "PHASES", lambda x, y: Tensor.cat([x, y]).max(2),
        lambda x, y: np.concatenate([x, y]).max(2),
        lambda found: not found.has("stage"),
        [((3, 9, 17), (4, 9, 17)), ((61, 72, 24), (8, 72, 24))], [((3, 9, 16), (4, 9, 16))],
    ),
    Rule(
        "pattern.cost", "LONGEST", lambda x: chained(x, 53), lambda x: chained(x, 53),
        lambda found: len(found.kernels) > 1, [((64,),), ((37,),)], dtypes=("int32",),
    ),
    Rule(
        "pattern.cost", "LONGEST below", lambda x: chained(x, 52), lambda x: chained(x, 52),
        lambda found: len(found.kernels) == 1, [((64,),), ((37,),)], dtypes=("int32",),
    ),
    Rule(
        "kernel.scatter", "LONG", lambda x, i, y: x.scatter_add(0, i.cast("int64"), y), added_at,
        lambda found: found.grid(1) > 1,
        [((4, 4), (16384, 4), (16384, 4)), ((5, 3), (21847, 3), (21847, 3))],
        [((4, 4), (16383, 4), (16383, 4))], ("float32", "uint8", "float32"),
    ),
    Rule(
        "kernel.scatter", "LINE", lambda x, i, y: x.scatter_add(0, i.cast("int64"), y), added_at,
        lambda found: found.grid(0) > 1,
        [((4, 32), (9, 32), (9, 32)), ((5, 17), (9, 17), (9, 17))],
        [((4, 16), (9, 16), (9, 16))], ("float32", "uint8", "float32"),
    ),
)  # fmt: skip

# Text that a kernel of this processor has only if it multiplies several steps at once.
NARROW = (
    Rule(
        "kernel.host.products.packing", "PAIR",
        lambda x, y: (x.cast("bfloat16") @ y.cast("bfloat16")).cast("float32"), lambda x, y: x @ y,
        several_at_once,
        [((40, 64), (64, 48)), ((33, 65), (65, 41)), ((17, 1037), (1037, 35))], tolerance=2**-8,
    ),
    Rule(
        "kernel.host.products.packing", "QUAD",
        lambda x, y: x.cast("int32") @ y.cast("int32"),
        lambda x, y: x.astype(np.int32) @ y.astype(np.int32), several_at_once,
        [((40, 64), (64, 48)), ((33, 67), (67, 41)), ((17, 1030), (1030, 35))], dtypes=("int8",),
    ),
)  # fmt: skip

JOINED = (
    Rule(
        "schedule.express", "FEW", lambda *x: Tensor.cat([x[0] * 2, x[1] + 1, *x[2:]]),
        lambda *x: np.concatenate([x[0] * 2, x[1] + 1, *x[2:]]), lambda found: found.grid(0) > 3,
        [((8,), (16,), (8,), (8,)), ((5,), (20001,), (7,), (300,))], [((5,), (20,), (7,))],
    ),
    Rule(
        "kernel.shared.pieces", "FEW_CODES", lambda *x: Tensor.cat(list(x), 1),
        lambda *x: np.concatenate(x, 1), lambda found: "_by_" in found.text(),
        [tuple((3, size) for size in (8, 16, 24, 32, 40)),
         tuple((3, size) for size in (5, 7, 11, 301, 20003))],
        [tuple((3, size) for size in (8, 16, 24, 32))],
    ),
    Rule(
        "kernel.shared.ragged", "HOST_ELEMENTS", lambda *x: Tensor.cat(list(x)),
        lambda *x: np.concatenate(x), lambda found: found.grid(0) > 5,
        [tuple((size,) for size in (16384, 32768, 8, 16, 24)),
         tuple((size,) for size in (16385, 40001, 7, 9, 11))],
        [tuple((size,) for size in (16384, 16383, 8, 16, 24))],
    ),
)  # fmt: skip

RULES = (*LOOPS, *ROWS, *PRODUCTS, *OTHERS, *JOINED)


@pytest.mark.parametrize(("rule", "shapes"), above(RULES, "cpu"))
def test_above_a_threshold(cpu: Device, rule: Rule, shapes: Inputs) -> None:
    rule.check(shapes, cpu)


@pytest.mark.parametrize(("rule", "shapes"), above(NARROW, "cpu"))
def test_narrow_types(cpu: Device, rule: Rule, shapes: Inputs) -> None:
    """Where the processor has no such instruction, the products are right without it."""
    wanted = "+avx512bf16" if rule.limits == "PAIR" else "+avx512vnni"
    target = cpu.target
    if wanted in target.features.split(",") and target.vector_bytes == 64:
        rule.check(shapes, cpu)
    else:
        replace(rule, taken=lambda _: True).check(shapes, cpu)


@pytest.mark.parametrize(("rule", "shapes"), below(RULES, "cpu"))
def test_below_it_another_kernel_is_made(cpu: Device, rule: Rule, shapes: Inputs) -> None:
    rule.check_below(shapes, cpu)
