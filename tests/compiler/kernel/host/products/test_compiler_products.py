"""Matrix products on the host, however their factors lie in memory, at sizes that fill no tile."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import DType, bfloat16, float32
from ugpu.compiler.expression.algebra import Range, constant
from ugpu.compiler.expression.value import Memory, load, value
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.host.nest import Axis, Part
from ugpu.compiler.kernel.host.products.packing import Direct, Packing, direct_height
from ugpu.compiler.kernel.host.products.sides import NARROW
from ugpu.compiler.kernel.ir import If, Loop, Prefetch, Statement
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import Caches

SIZES = st.sampled_from([1, 2, 7, 8, 13, 16, 31, 32, 47, 64, 97, 130])
DEPTHS = st.sampled_from([1, 3, 4, 16, 17, 63, 257, 300, 515])
TYPES = ["float32", "float16", "bfloat16", "int32", "int64", "uint8"]


def _array(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    if "float" in name:
        # few bits, so that every product of two and most sums are exact in each type
        return rng.integers(-8, 9, shape).astype(np.float32) / 4
    return rng.integers(0, 6, shape).astype(name)


def _tensor(array: np.ndarray, name: str, device: Device) -> Tensor:
    if name == "bfloat16":
        return Tensor(array, device=device).cast(bfloat16).realize()
    return Tensor(array.astype(name), device=device)


def _laid(rng: np.random.Generator, rows: int, columns: int, how: str, name: str, device: Device
          ) -> tuple[Tensor, np.ndarray]:  # fmt: skip
    """A rows x columns factor: as it is, transposed, every other element, or one row repeated."""
    if how == "transposed":
        array = _array(rng, (columns, rows), name)
        return _tensor(array, name, device).permute(1, 0), array.T
    if how == "strided":
        array = _array(rng, (2 * rows, 3 * columns), name)
        return _tensor(array, name, device)[::2, 1::3], array[::2, 1::3]
    if how == "flipped":
        array = _array(rng, (rows, columns), name)
        return _tensor(array, name, device).flip(0, 1), array[::-1, ::-1]
    if how == "expanded":
        array = _array(rng, (1, columns), name)
        whole = _tensor(array, name, device).expand((rows, columns))
        return whole, np.broadcast_to(array, (rows, columns))
    array = _array(rng, (rows, columns), name)
    return _tensor(array, name, device), array


LAYOUTS = st.sampled_from(["plain", "transposed", "strided", "flipped", "expanded"])


@pytest.mark.parametrize("depth", [17, 32, 65, 127, 512, 513, 2048])
@pytest.mark.parametrize("columns", [17, 33, 49, 196])
def test_last_columns_are_computed_along_the_depth(cpu: Device, depth: int, columns: int) -> None:
    """Columns that would leave a vector mostly empty, with an epilogue that reads other arrays; a
    row with NaN and infinities leaves the others alone."""
    rng = np.random.default_rng(depth + columns)
    rows = 45
    left, right = _array(rng, (rows, depth), "float32"), _array(rng, (depth, columns), "float32")
    left[7, :3] = np.nan, np.inf, -np.inf
    bias, other = _array(rng, (rows, 1), "float32"), _array(rng, (rows, columns), "float32")
    a, b, c, d = (Tensor(each, device=cpu) for each in (left, right, bias, other))
    wanted = np.maximum(left @ right + bias + other, 0)
    np.testing.assert_array_equal((a @ b + c + d).relu().numpy(), wanted)
    assert np.isnan(wanted[7]).all() and np.isfinite(np.delete(wanted, 7, 0)).all()


@pytest.mark.parametrize("operations", [1, 4, 5, 6, 7, 12, 13])
def test_epilogues_of_any_length(cpu: Device, operations: int) -> None:
    """Results of few operations are vectors in registers; longer ones go through memory."""
    rng = np.random.default_rng(operations)
    left, right = _array(rng, (33, 40), "float32"), _array(rng, (40, 37), "float32")
    found, wanted = Tensor(left, device=cpu) @ Tensor(right, device=cpu), left @ right
    for number in range(operations):
        more = _array(rng, (33, 37), "float32")
        found = (found + Tensor(more, device=cpu)).maximum(-1.0 - number)
        wanted = np.maximum(wanted + more, np.float32(-1.0 - number))
    np.testing.assert_array_equal(found.numpy(), wanted)


@given(st.integers(0, 1 << 30), SIZES, DEPTHS, SIZES, LAYOUTS, LAYOUTS, st.sampled_from(TYPES))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_products_equal_numpys(
    cpu: Device, seed: int, m: int, k: int, n: int, left: str, right: str, name: str
) -> None:
    rng = np.random.default_rng(seed)
    a, x = _laid(rng, m, k, left, name, cpu)
    b, y = _laid(rng, k, n, right, name, cpu)
    result = (a @ b).cast("float32") if "float" in name else a @ b
    # sums of quarters of quarters: exact in float32
    wanted = x.astype(np.float64) @ y.astype(np.float64)
    if name in ("float16", "bfloat16"):
        assert np.allclose(result.numpy(), wanted, rtol=2.0**-8, atol=0)
    else:
        assert (result.numpy() == wanted.astype(result.numpy().dtype)).all()


@pytest.mark.parametrize("left", ["plain", "transposed", "strided"])
@pytest.mark.parametrize("right", ["plain", "transposed", "expanded"])
@pytest.mark.parametrize("shape", [(8, 5, 8), (37, 33, 50), (65, 1027, 47), (9, 514, 130)])
def test_products_of_bfloat16(
    cpu: Device, left: str, right: str, shape: tuple[int, int, int]
) -> None:
    """Odd depths, and several slices: what lies beyond the depth must count as zero."""
    rng = np.random.default_rng(3)
    m, k, n = shape
    a, x = _laid(rng, m, k, left, "bfloat16", cpu)
    b, y = _laid(rng, k, n, right, "bfloat16", cpu)
    # where bfloat16 shows all digits of the sums, as in float32, they are equal
    exact = (a.cast("float32") @ b.cast("float32")).cast(bfloat16).cast("float32").numpy()
    assert ((a @ b).cast("float32").numpy() == exact).all()
    assert np.allclose(exact, x.astype(np.float64) @ y, rtol=2.0**-8, atol=0)


def test_processors_with_pairs_multiply_pairs() -> None:
    features = "+avx512f,+avx512bw,+avx512vl,+avx512bf16,+fma,+f16c,+sse4.1"
    target = dataclasses.replace(HOST, cpu="znver4", features=features, vector_bytes=64)
    for kernel in kernels_of(_product(40, 50, 60, bfloat16), target):
        text = emit(kernel, target)
        assert "llvm.x86.avx512bf16.dpbf16ps.512" in text
        compile_text(text, target)
    for kernel in kernels_of(_product(40, 50, 60, bfloat16), HOST):
        assert "dpbf16" not in emit(kernel, HOST)


@pytest.mark.parametrize("channels", [2, 33, 300])
def test_convolutions_of_bfloat16_multiply_pairs(cpu: Device, channels: int) -> None:
    """Two channels at a time, at the same place of a window; of an odd number the last alone."""
    random = np.random.default_rng(0)
    x = random.integers(-4, 5, (2, channels, 9, 10)).astype(np.float32)
    weight = random.integers(-4, 5, (12, channels, 3, 3)).astype(np.float32)
    image, kernel = (Tensor(each, device=cpu).cast(bfloat16).realize() for each in (x, weight))
    result = image.conv2d(kernel, stride=2).cast("float32").numpy()
    exact = Tensor(x, device=cpu).conv2d(Tensor(weight, device=cpu), stride=2)
    assert (result == exact.cast(bfloat16).cast("float32").numpy()).all()
    features = "+avx512f,+avx512bw,+avx512vl,+avx512bf16,+fma,+f16c,+sse4.1"
    target = dataclasses.replace(HOST, cpu="znver4", features=features, vector_bytes=64)
    node = image.conv2d(kernel, stride=2).node
    assert any("dpbf16ps" in emit(each, target) for each in kernels_of(node, target))


def _product(rows: int, depth: int, columns: int, dtype: DType) -> Node:
    shape = (rows, columns, depth)
    left = graph.cast(buffer(rows, depth, dtype=dtype), float32)
    right = graph.cast(buffer(columns, depth, dtype=dtype), float32)
    left = graph.expand(graph.reshape(left, (rows, 1, depth)), shape)
    right = graph.expand(graph.reshape(right, (1, columns, depth)), shape)
    return graph.reduce("sum", graph.elementwise("mul", float32, left, right), (2,))


@pytest.mark.parametrize("shape", [(3, 40, 50, 33), (2, 1, 9, 300, 17)])
def test_batches_of_products_with_an_epilogue(cpu: Device, shape: tuple[int, ...]) -> None:
    *batch, m, k, n = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*batch, m, k)).astype(np.float32)
    y = rng.standard_normal((n, k)).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32)
    a, b, c = (Tensor(each, device=cpu) for each in (x, y, bias))
    wanted = np.maximum(x @ y.T + bias, 0)
    assert np.allclose(((a @ b.permute(1, 0)) + c).relu().numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [12, 16, 24])
def test_right_factors_of_few_rows_are_not_packed(cpu: Device, rows: int) -> None:
    """As 1 x 1 convolutions to few channels read images; the columns are whole panels."""
    rng = np.random.default_rng(rows)
    left, right = _array(rng, (rows, 48), "float32"), _array(rng, (48, 1024), "float32")
    shape = (rows, 1024, 48)
    a = graph.expand(graph.reshape(buffer(rows, 48, dtype=float32), (rows, 1, 48)), shape)
    b = graph.permute(buffer(48, 1024, dtype=float32), (1, 0))
    b = graph.expand(graph.reshape(b, (1, 1024, 48)), shape)
    (kernel,) = kernels_of(graph.reduce("sum", graph.elementwise("mul", float32, a, b), (2,)), HOST)
    assert "right" not in [memory.name for memory in kernel.locals]
    found = Tensor(left, device=cpu) @ Tensor(right, device=cpu)
    np.testing.assert_array_equal(found.numpy(), left @ right)


def test_panels_are_not_unrolled_around_their_vectors() -> None:
    """LLVM compares the addresses of all stores in an unrolled body with each other: 4 s for a
    product of MobileNetV2 whose right factor has 17 panels."""
    target = dataclasses.replace(HOST, cpu="znver4", features="+avx512f,+fma", vector_bytes=64)
    shape = (320, 784, 144)
    left = graph.expand(graph.reshape(buffer(320, 144, dtype=float32), (320, 1, 144)), shape)
    right = graph.permute(buffer(144, 784, dtype=float32), (1, 0))
    right = graph.expand(graph.reshape(right, (1, 784, 144)), shape)
    product = graph.reduce("sum", graph.elementwise("mul", float32, left, right), (2,))
    (kernel,) = kernels_of(product, target)
    loops = {loop.range.name: loop.rolled for loop in _loops(kernel.body)}
    assert loops["right_panel"]
    assert not loops["right_element"] and not loops["step"] and not loops["row_panel"]
    assert "!llvm.loop " in emit(kernel, target)


def _loops(body: tuple[Statement, ...]) -> Iterator[Loop]:
    for statement in body:
        if isinstance(statement, Loop | If):
            yield from _loops(statement.body)
        if isinstance(statement, Loop):
            yield statement


@given(st.data())
def test_left_factors_that_are_not_packed_are_read_inside(data: st.DataObject) -> None:
    """Every element of every panel, for tiles that end inside, at and beyond the last row."""
    size, depth = data.draw(st.integers(8, 200)), data.draw(st.integers(8, 40))
    height, panels = data.draw(st.integers(4, 28)), data.draw(st.integers(1, 5))
    row, step = Range("row", size), Range("step", depth)
    memory = Memory("left", float32, 3 + size * depth)
    factor = load(memory, row.index() * depth + step.index() + 3)
    slice_ = Part(Axis(step), constant(0), depth)
    most = direct_height(factor, Axis(row), slice_)
    if height > most:
        assert height > size
        return
    count = panels * height - data.draw(st.integers(0, height - 1))
    group = Range("group", -(-size // count), "group")
    across = Part(Axis(row), group.index() * count, count)
    packing = Packing(16, slice_, {}, 1, plain=True, in_rows=False, direct=most, far=0)
    direct = packing.left(factor, across, height)
    assert isinstance(direct, Direct) and not direct.statements
    panel = Range("panel", panels)
    for element in range(height):
        index = direct.load(panel.index(), step.index(), element, 1).arg.index
        for tile in range(group.size):
            for each in range(-(-min(count, size - tile * count) // height)):
                at = index.evaluate({"group": tile, "panel": each, "step": 0}) - 3
                wanted = tile * count + each * height + element
                assert 0 <= at <= (size - 1) * depth
                assert wanted >= size or at == wanted * depth


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@pytest.mark.parametrize("width", [16, 48, 64])
def test_the_next_panel_is_fetched_line_by_line(width: int, rows: int) -> None:
    """Of a right factor in place: all lines of the next panel, by panels of rows together; after
    the last one the first of the next slice; never outside the array."""
    panels, slices, steps = 4, 3, 5
    columns, depth = panels * width, slices * steps
    column, step = Range("column", columns), Range("step", depth)
    factor = load(Memory("in", float32, columns * depth), step.index() * columns + column.index())
    group, number = Range("group", 2, "group"), Range("slice", slices)
    across = Part(Axis(column), group.index() * (columns // 2), columns // 2)
    direct = Direct(factor, across, Part(Axis(step), number.index() * steps, steps), width)
    row, panel, at = Range("row", rows), Range("panel", panels // 2), Range("at", steps)
    fetches = list(direct.ahead(row.index(), rows, (panel.index() + 1) * width, at.index()))
    behind = direct.ahead(row.index(), rows, panel.index() * width + columns, at.index(), 2)
    assert {fetch.level for fetch in behind} == {2}
    for here in range(panels * slices):
        inside, tile = here % panels % 2, here % panels // 2
        places = {"group": tile, "slice": here // panels, "panel": inside, "at": steps - 1}
        found = {
            fetch.index.evaluate({**places, "row": each}) for fetch in fetches
            for each in range(rows)
        }  # fmt: skip
        following = (here + 1) % (panels * slices)
        first = (following // panels * steps + steps - 1) * columns + following % panels * width
        assert found == {first + line for line in range(0, width, 16)}


@pytest.mark.parametrize(
    ("pitch", "most"), [(1024, 6), (2048, 6), (512, 12), (1032, 6 * 128), (1000, 6 * 128)]
)
def test_rows_that_share_a_cache_set_are_read_a_few_at_a_time(pitch: int, most: int) -> None:
    row, step = Range("row", 5000), Range("step", 256)
    factor = load(Memory("left", float32, 5000 * pitch), row.index() * pitch + step.index())
    assert direct_height(factor, Axis(row), Part(Axis(step), constant(0), 256)) == most


def test_what_is_no_plain_memory_along_the_depth_is_packed() -> None:
    row, step = Range("row", 64), Range("step", 64)
    slice_, memory = Part(Axis(step), constant(0), 64), Memory("left", float32, 64 * 128)
    plain = load(memory, row.index() * 64 + step.index())
    assert direct_height(plain, Axis(row), slice_) == 64
    turned = load(memory, step.index() * 64 + row.index())
    gated = load(memory, row.index() * 64 + step.index(), (row.index() - 3,))
    divided = load(memory, row.index() * 64 + step.index() + row.index() // 7)
    fused = value("neg", float32, (plain,))
    for factor in (turned, gated, divided, fused):
        assert direct_height(factor, Axis(row), slice_) == 0
    near = 64 * 64 * 4  # bytes of memory with the slice
    assert direct_height(turned, Axis(row), slice_, near) == 64
    assert direct_height(turned, Axis(row), slice_, near - 1) == 0


@pytest.mark.parametrize(
    "shape",
    [(1025, 64, 130), (64, 300, 300), (35, 1024, 65), (8, 9, 8), (67, 1023, 530), (35, 1203, 270)],
)
def test_products_whose_left_factor_is_not_packed(cpu: Device, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(1)
    left, right = _array(rng, (rows, depth), "float32"), _array(rng, (depth, columns), "float32")
    result = (Tensor(left, device=cpu) @ Tensor(right, device=cpu)).numpy()
    assert (result == left @ right).all()


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids", "graniterapids", "haswell"])
@pytest.mark.parametrize("size", [64, 512, 1000, 2048])
def test_large_right_factors_are_prefetched_while_packed(cpu: str, size: int) -> None:
    lanes, second = (8, 256) if cpu == "haswell" else (16, 1024 if cpu == "znver4" else 2048)
    caches = Caches(48 << 10, second << 10)
    target = dataclasses.replace(HOST, cpu=cpu, vector_bytes=lanes * 4, caches=caches)
    shape = (size, size, size)
    rows = graph.reshape(buffer(size, size, dtype=float32), (size, 1, size))
    columns = graph.permute(buffer(size, size, dtype=float32), (1, 0))
    columns = graph.reshape(columns, (1, size, size))
    left, right = graph.expand(rows, shape), graph.expand(columns, shape)
    pairs = graph.elementwise("mul", float32, left, right)
    (kernel,) = kernels_of(graph.reduce("sum", pairs, (2,)), target)
    loops = {loop.range.name for loop in _loops(kernel.body)}
    assert ("right_element_line" in loops) == (4 * size * size >= second << 9)


@pytest.mark.parametrize(
    "shape", [(64, 512, 64), (33, 700, NARROW), (33, 700, NARROW + 1), (128, 513, 40), (9, 20, 16)]
)
def test_products_whose_left_factor_lies_across(cpu: Device, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(1)
    left, right = _array(rng, (depth, rows), "float32"), _array(rng, (depth, columns), "float32")
    result = (Tensor(left, device=cpu).T @ Tensor(right, device=cpu)).numpy()
    assert (result == left.T @ right).all()


@pytest.mark.parametrize("side", [8, 33, 129, 300])
@pytest.mark.parametrize("depth", [5, 700])  # one slice, and several
def test_half_of_a_symmetric_product(cpu: Device, side: int, depth: int) -> None:
    """The result is that of two different arrays, bit for bit."""
    rng = np.random.default_rng(side)
    a = rng.standard_normal((2, depth, side), dtype=np.float32)
    bias = rng.standard_normal(side, dtype=np.float32)
    x, y = Tensor(a, device=cpu), Tensor(a.copy(), device=cpu)
    whole = x.permute(0, 2, 1) @ y
    assert_bits((x.permute(0, 2, 1) @ x).numpy(), whole.numpy())
    assert_bits((x.permute(0, 2, 1) @ x + bias).numpy(), (whole + bias).numpy())
    rows = x.permute(0, 2, 1)
    assert_bits((rows @ rows.permute(0, 2, 1)).numpy(), whole.numpy())


@pytest.mark.parametrize(
    ("depth", "side", "levels"), [(1203, 284, [[2], [2]]), (203, 284, [[], []]), (1203, 60, [[]])]
)
def test_a_far_symmetric_product(
    cpu: Device, depth: int, side: int, levels: list[list[int]]
) -> None:
    """Panels bring the next slice of what is far to the second level; of panels that the diagonal
    crosses, only the half above it is computed."""
    rng = np.random.default_rng(depth)
    a = rng.standard_normal((depth, side), dtype=np.float32)
    found = (Tensor(a, device=cpu).T @ Tensor(a, device=cpu)).numpy()
    x = Tensor(a, device=cpu)
    exact = a.T.astype(np.float64) @ a
    assert_bits((x.T @ x).numpy(), found)
    assert np.abs(found - exact).max() <= 2.0**-18 * np.abs(exact).max()
    caches = Caches(48 << 10, 1 << 20)
    target = dataclasses.replace(
        HOST, cpu="sapphirerapids", vector_bytes=64, caches=caches, compute_units=1
    )
    (kernel,) = kernels_of(_symmetric(1, depth, side), target)
    panels = [loop for loop in _loops(kernel.body) if loop.range.name == "step"]
    prefetches = [[each.level for each in p.body if isinstance(each, Prefetch)] for p in panels]
    assert prefetches == levels


@pytest.mark.parametrize("units", [1, 2, 8])
@pytest.mark.parametrize("cpu", ["znver4", "znver5", "graniterapids", "haswell", "neoverse-n1"])
def test_no_processor_reads_a_symmetric_product_beyond_what_is_packed(cpu: str, units: int) -> None:
    """Lowering checks every access, whatever blocks the cost model chooses."""
    lanes = {"haswell": 8, "neoverse-n1": 4}.get(cpu, 16)
    caches = Caches(48 << 10, 2 << 20)
    target = dataclasses.replace(
        HOST, cpu=cpu, vector_bytes=lanes * 4, caches=caches, compute_units=units
    )
    for batch, depth, side in itertools.product((1, 2), (64, 700), (33, 300, 500)):
        (kernel,) = kernels_of(_symmetric(batch, depth, side), target)
        assert kernel.body


def _symmetric(batch: int, depth: int, side: int) -> Node:
    rows = graph.permute(buffer(batch, depth, side, dtype=float32), (0, 2, 1))
    shape = (batch, side, side, depth)
    left = graph.expand(graph.reshape(rows, (batch, side, 1, depth)), shape)
    right = graph.expand(graph.reshape(rows, (batch, 1, side, depth)), shape)
    return graph.reduce("sum", graph.elementwise("mul", float32, left, right), (3,))


def assert_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert (found.view(np.uint32) == wanted.view(np.uint32)).all()
