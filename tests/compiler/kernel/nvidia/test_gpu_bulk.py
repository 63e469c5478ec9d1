"""Products of packed factors on Hopper: layouts, what kernels mean, when it pays, the code."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.compiler.kernel.gpu.test_matrix_units import product
from tests.conftest import Golden
from tests.support.compiler.compiler_cases import buffer
from tests.support.compiler.kernel_interpreter import interpret
from tests.support.compiler.matrix_hardware import hardware
from tests.support.compiler.packed_products import (
    ELEMENTS,
    HOPPER,
    groups_of,
    lowered,
    numbers,
    times,
)
from tests.support.nvidia import nvjitlink
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.nvptx import PACKED
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import bfloat16, float16, float32, int8
from ugpu.compiler.expression.algebra import Range, constant
from ugpu.compiler.expression.value import Memory, interning, load
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.kernel.choices import BulkTiles, RingTiles, from_text, to_text
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Signal
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.kernel.nvidia import bulk as gpu_bulk
from ugpu.compiler.kernel.nvidia import ring as gpu_ring
from ugpu.compiler.kernel.nvidia.packed import Packed, recognise
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.kernel.verify import BrokenKernel, verify
from ugpu.compiler.pattern.contraction import find_contraction
from ugpu.compiler.plan import packing
from ugpu.compiler.plan.packing import computation_of, packed
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.state.target import TargetSpec, ptx_target
from ugpu.nv.code.cubin import parse_cubin

Array = NDArray[Any]
SMALL = (1, 1), (1, 8)  # 64 x 64


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are packed however small they are."""
    monkeypatch.setattr(packing, "pays", lambda *_: True)


def computed(
    kind: str,
    shape: tuple[int, int, int],
    turned: bool,
    tiles: BulkTiles | None = None,
    target: TargetSpec = HOPPER,
) -> Kernel:
    """Hold what packing and the product compute of small integers against NumPy."""
    root = product(*shape, ELEMENTS[kind], turned)
    one, two, last = groups_of(root)
    left, right = numbers(kind, shape, shape[0] + shape[1])
    arrays = [left.T, right.T] if turned else [left, right]
    made = []
    for group, array in zip((one, two), arrays, strict=True):
        kernel = lowered(group, target)
        assert kernel.name.startswith("pack_")
        made.append(interpret(kernel, [np.ascontiguousarray(array)], hardware))
    kernel = lowered(last, target, tiles)
    found = interpret(kernel, made, hardware)
    expected = left.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_array_equal(found.reshape(shape[0], shape[2]), expected)
    return kernel


# ---- layouts -----------------------------------------------------------------------------------


def layouts() -> st.SearchStrategy[Packed]:
    kinds = st.sampled_from([(float16, False), (float16, True), (float32, False), (int8, False)])
    return st.builds(
        lambda kind, across, depth: Packed(kind[0], across, depth, kind[1]),
        kinds, st.integers(1, 400), st.integers(1, 300),
    )  # fmt: skip


@given(layout=layouts(), data=st.data())
def test_every_element_has_a_place_of_its_own(layout: Packed, data: st.DataObject) -> None:
    """What lies at an element's place is that element; whole chunks are inside or outside."""
    across = data.draw(st.integers(0, layout.blocks * 64 - 1))
    step = data.draw(st.integers(0, layout.slices * layout.length - 1))
    number = data.draw(st.integers(0, 2))
    at = layout.place(*map(constant, (number, across, step))).constant
    assert 0 <= at < 3 * layout.size <= layout.count(3)
    (place,), row, column = layout.element(constant(at), (3,))
    assert (place.constant, row.constant, column.constant) == (number, across, step)
    holds = all(c.constant >= 0 for c in layout.conditions(constant(across), constant(step)))
    assert holds == (across < layout.across and step < layout.depth)
    padding = layout.padding(layout.count(3))
    assert padding[at] != holds and padding[3 * layout.size :].all()


@given(layout=layouts(), data=st.data())
def test_units_read_what_tiles_bring(layout: Packed, data: st.DataObject) -> None:
    """PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", without swizzling, in
    units of 16 bytes: K-major ((8, n), 2) : ((1, stride), leading), MN-major ((1, n), (8, k)) :
    ((-, stride), (1, leading))."""
    size, stages = layout.dtype.itemsize, data.draw(st.integers(0, 3))
    start = stages * 256 * 128
    leading, stride = (PACKED >> 16 & 0x3FFF) << 4, (PACKED >> 32 & 0x3FFF) << 4
    assert PACKED >> 62 == 0 and PACKED >> 49 & 7 == 0 and PACKED & 0x3FFF == 0
    unit = 32 // size  # steps of one instruction
    first = data.draw(st.integers(0, layout.length // unit - 1)) * unit
    across, step = data.draw(st.integers(0, 255)), data.draw(st.integers(0, unit - 1))
    begin = start + layout.inside(constant(0), constant(first)).constant * size
    if layout.turned:
        at = across // 8 * stride + step // 8 * leading + step % 8 * 16 + across % 8 * size
    else:
        chunk, inside = step * size // 16, step * size % 16
        at = across % 8 * 16 + across // 8 * stride + chunk * leading + inside
    lies = layout.inside(constant(across), constant(first + step)).constant * size
    assert begin % 16 == 0 and begin + at == start + lies


def test_tiles_are_one_piece() -> None:
    layout = Packed(float16, 520, 200, False)
    start = layout.slice_start(constant(1), constant(2), constant(256)).constant
    assert start == layout.place(constant(1), constant(256), constant(128)).constant
    inside = {
        layout.inside(constant(a), constant(k)).constant for a in range(256) for k in range(64)
    }
    assert inside == set(range(256 * 64))


def test_what_is_not_packed_is_not_taken_for_it() -> None:
    across, depth = Range("a", 300), Range("k", 200)
    layout = Packed(float16, 300, 200, True)
    memory = Memory("in0", float16, layout.count(2))
    place = layout.place(constant(1), across.index(), depth.index())
    known = recognise(load(memory, place), across, depth, turns=True)
    assert known is not None and known[0] == layout and known[2] == constant(layout.size)
    assert recognise(load(memory, place), across, depth, turns=False) is None
    assert recognise(load(memory, place + 8), across, depth, turns=True) is None
    short = dataclasses.replace(memory, count=2 * layout.size)
    assert recognise(load(short, place), across, depth, turns=True) is None
    plain = load(memory, across.index() * 200 + depth.index())
    assert recognise(plain, across, depth, turns=True) is None


# ---- what kernels mean -------------------------------------------------------------------------


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", sorted(ELEMENTS))
def test_products(kind: str, turned: bool) -> None:
    for shape in ((72, 88, 80), (64, 300, 64)):
        kernel = computed(kind, shape, turned)
        assert f"+= sm_90a.{kind} 64x" in format_kernel(kernel)


@pytest.mark.usefixtures("always")
@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(sorted(ELEMENTS)), rows=st.integers(8, 200), depth=st.integers(8, 200),
    columns=st.integers(8, 200), turned=st.booleans(), units=st.integers(1, 5),
    stages=st.integers(2, 4),
)  # fmt: skip
def test_products_of_any_size(
    kind: str, rows: int, depth: int, columns: int, turned: bool, units: int, stages: int
) -> None:
    """Edges of any kind; more tiles than groups; rings that end within a tile."""
    tiles = BulkTiles(f"sm_90a.{kind}", *SMALL, stages)
    target = ptx_target("sm_90a", units)
    computed(kind, (rows, depth, columns), turned, tiles, target)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "tiles",
    [
        BulkTiles("sm_90a.float16", (2, 1), (1, 32), 4),
        BulkTiles("sm_90a.float16", (1, 2), (2, 16), 3),
        BulkTiles("sm_90a.float16", (1, 1), (1, 16), 2),
        BulkTiles("sm_90a.float16", (1, 1), (1, 16), 3, cluster=2),
        BulkTiles("sm_90a.float16", (2, 1), (1, 32), 2, cluster=2),
    ],
    ids=str,
)
def test_tiles(tiles: BulkTiles) -> None:
    assert gpu_bulk.holds(tiles, HOPPER) and from_text(to_text(tiles)) == tiles
    kernel = computed("float16", (200, 200, 300), False, tiles, ptx_target("sm_90a", 2))
    assert kernel.cluster == tiles.cluster and kernel.grid[0] == 2


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("rows", "units", "cluster"), [(192, 2, 1), (256, 2, 1), (320, 4, 1), (384, 4, 2)]
)
def test_each_tile_is_computed_once(rows: int, units: int, cluster: int) -> None:
    """Where groups do not divide the tiles, some groups are idle in the last turn."""
    *_, last = groups_of(product(rows, 64, 64, float16))
    tiles = BulkTiles("sm_90a.float16", *SMALL, 2, cluster=cluster)
    kernel = lowered(last, ptx_target("sm_90a", units), tiles)
    turns = [loop for loop in loops_of(kernel.body) if loop.range.name == "turn"]
    assert len(turns) == 2  # of the wave that fetches, and of those that multiply
    for loop in turns:
        inner = loop.body[0]
        conditions = inner.conditions if isinstance(inner, If) and len(loop.body) == 1 else ()
        places = [
            {"group_x": group, "turn": turn}
            for group in range(kernel.grid[0]) for turn in range(loop.range.size)
        ]  # fmt: skip
        run = sum(all(c.evaluate(place) >= 0 for c in conditions) for place in places)
        assert run == rows // 64


def loops_of(body: tuple[Any, ...]) -> list[Loop]:
    found = [statement for statement in body if isinstance(statement, Loop)]
    for statement in body:
        if isinstance(statement, If | Loop):
            found += loops_of(statement.body)
    return found


@pytest.mark.usefixtures("always")
def test_a_missing_wait_shows() -> None:
    """The interpreter is strict enough: kernels without their waits compute something else."""
    one, two, last = groups_of(product(64, 640, 64, float16))
    left, right = numbers("float16", (64, 640, 64), 1)
    made = [
        interpret(lowered(group), [array], hardware) for group, array in ((one, left), (two, right))
    ]
    tiles = BulkTiles("sm_90a.float16", *SMALL, 2)
    kernel = lowered(last, tiles=tiles)
    expected = (left.astype(np.float64) @ right.astype(np.float64)).reshape(-1)
    np.testing.assert_array_equal(interpret(kernel, made, hardware), expected)

    def changed(body: tuple[Any, ...], name: str) -> tuple[Any, ...]:
        kept = []
        for statement in body:
            if hasattr(statement, "body"):
                statement = dataclasses.replace(statement, body=changed(statement.body, name))
            waits = isinstance(statement, Signal) and statement.operation == "wait"
            if waits and statement.memory.name == name:
                continue
            if type(statement).__name__ == name:
                statement = dataclasses.replace(statement, pending=5)
            kept.append(statement)
        return tuple(kept)

    for name in ("full", "empty", "Settle"):
        broken = dataclasses.replace(kernel, body=changed(kernel.body, name))
        try:
            found = interpret(broken, made, hardware)
        except AssertionError:
            continue
        assert not np.array_equal(found, expected), name


@pytest.mark.usefixtures("always")
def test_batches_and_epilogues() -> None:
    """A factor that is the same for all of the batch is packed once; what follows the sum stays."""
    left, right = buffer(3, 40, 72, dtype=float16), buffer(72, 48, dtype=float16)
    bias = buffer(48, dtype=float32)
    shape = (3, 40, 48, 72)
    ours = graph.expand(graph.reshape(graph.cast(left, float32), (3, 40, 1, 72)), shape)
    theirs = graph.permute(graph.cast(right, float32), (1, 0))
    theirs = graph.expand(graph.reshape(theirs, (1, 1, 48, 72)), shape)
    total = graph.reduce("sum", graph.elementwise("mul", float32, ours, theirs), (3,))
    offset = graph.expand(graph.reshape(bias, (1, 1, 48, 1)), (3, 40, 48, 1))
    root = graph.elementwise("add", float32, total, offset)
    one, two, last = groups_of(root)
    random = np.random.default_rng(3)
    a = random.integers(-4, 5, (3, 40, 72)).astype(np.float16)
    b = random.integers(-4, 5, (72, 48)).astype(np.float16)
    c = random.integers(-4, 5, 48).astype(np.float32)
    assert computation_of(one).output.count == Packed(float16, 120, 72, False).count(1)
    made = [interpret(lowered(g), [x], hardware) for g, x in ((one, a), (two, b))]
    found = interpret(lowered(last), [*made, c], hardware)
    np.testing.assert_array_equal(found.reshape(3, 40, 48), a.astype("f8") @ b + c)


@pytest.mark.usefixtures("always")
def test_a_square_is_packed_once_each_way() -> None:
    """x @ x.T reads one packed array twice; two products share what they share."""
    x = buffer(64, 96, dtype=float16)

    pack, last = groups_of(times(x, x))
    assert len(last.inputs) == 1 and last.inputs[0] is pack.root
    values = np.random.default_rng(5).integers(-4, 5, (64, 96)).astype(np.float16)
    made = interpret(lowered(pack), [values], hardware)
    found = interpret(lowered(last), [made], hardware)
    np.testing.assert_array_equal(found.reshape(64, 64), values.astype("f8") @ values.T)
    other = [buffer(80, 96, dtype=float16) for _ in range(2)]
    kinds = [computation_of(g).origin for g in groups_of(*(times(x, each) for each in other))]
    assert kinds.count("pack") == 3


LAYERS = [(72, 128, 64, False), (130, 64, 40, False), (128, 72, 70, True)]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("rows", "inner", "columns", "right"), LAYERS)
def test_layers_store_what_the_next_one_reads(
    rows: int, inner: int, columns: int, right: bool
) -> None:
    """What a product makes for one other, as its left factor or (turned) its right one, is stored
    as that reads it; no kernel packs it."""
    x, w = buffer(rows, 48, dtype=float16), buffer(inner, 48, dtype=float16)
    hidden = graph.cast(times(x, w), float16)
    if right:  # [rows][inner] summed over rows
        v = buffer(columns, rows, dtype=float16)
        root = times(v, graph.permute(hidden, (1, 0)))
    else:
        v = buffer(columns, inner, dtype=float16)
        root = times(hidden, v)
    groups = groups_of(root)
    assert [computation_of(group).origin.split()[0] for group in groups].count("pack") == 3
    random = np.random.default_rng(rows)
    values = {id(n): random.integers(-2, 3, n.shape).astype(np.float16) for n in (x, w, v)}
    h = values[id(x)].astype("f8") @ values[id(w)].T
    expected = values[id(v)].astype("f8") @ h if right else h @ values[id(v)].T
    for group in groups:
        inputs = [values[id(node)] for node in group.inputs]
        values[id(group.root)] = interpret(lowered(group), inputs, hardware)
    np.testing.assert_array_equal(values[id(root)].reshape(expected.shape), expected)
    # what somebody asks for, and what two read, is stored as it is
    with interning:
        asked = packed(schedule([hidden, root]), HOPPER, [hidden, root])
    assert any(group.root is hidden for group in asked)
    other = graph.elementwise("add", float16, hidden, hidden)
    twice = groups_of(root, other)
    assert any(group.root is hidden for group in twice)


# ---- choices -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_every_choice_can_be_lowered(kind: str) -> None:
    *_, last = groups_of(product(520, 136, 392, ELEMENTS[kind]))
    computation = computation_of(last)
    first, *others = spaces(computation, HOPPER)
    assert type(first.start) is BulkTiles
    assert {type(space.start) for space in others} > {RingTiles}
    tried = [first.start, *first.neighbours(first.start)]
    assert len(tried) > 6
    for tiles in tried:
        kernel = lower(computation, HOPPER, tiles)
        assert kernel.dynamic_local <= HOPPER.dynamic_local_memory
        assert kernel.grid[0] <= 132


@pytest.mark.usefixtures("always")
def test_tiles_follow_the_size() -> None:
    def tile(size: int) -> tuple[int, int]:
        *_, last = groups_of(product(size, size, size, bfloat16))
        parts = find_contraction(computation_of(last))
        assert parts is not None
        known = gpu_bulk.factors(parts, HOPPER)
        assert known is not None
        return gpu_ring.sides_of(gpu_bulk.default_tiles(parts, known[0], HOPPER))

    assert tile(4096) == (128, 256)
    assert tile(2048) == (128, 128)
    assert tile(512) == (64, 64)


# ---- rules -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("always")
def test_broken_kernels_are_refused() -> None:
    *_, last = groups_of(product(64, 128, 64, float16))
    kernel = lowered(last)
    begin, barrier, producer, consumers = kernel.body
    assert isinstance(consumers, If) and isinstance(producer, If)
    split = If((consumers.conditions[0] - 32,), consumers.body)  # not whole groups of four waves
    inside = If(consumers.conditions, (*consumers.body, barrier))
    for body in ((begin, barrier, producer, split), (begin, barrier, producer, inside)):
        with pytest.raises(BrokenKernel):
            verify(dataclasses.replace(kernel, body=body))
    short = dataclasses.replace(kernel.parameters[1], count=4096)
    with pytest.raises(BrokenKernel):
        verify(dataclasses.replace(kernel, parameters=(kernel.parameters[0], short)))


# ---- code --------------------------------------------------------------------------------------


def code(kernel: Kernel) -> str:
    return compile_text(emit(kernel, HOPPER), HOPPER).decode()


@pytest.mark.usefixtures("always")
def test_instructions() -> None:
    *_, last = groups_of(product(4096, 4096, 4096, bfloat16))
    text = code(lowered(last))
    copies = text.count("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes")
    assert copies and copies == 2 * text.count("mbarrier.arrive.expect_tx")
    assert text.count("mbarrier.init") == 8
    assert "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " in text
    assert text.count("bar.sync") == 1 and "ld.shared" not in text and "st.shared" not in text
    assert text.count("st.global.v4.b32") == text.count("st.global") == 32
    assert text.count("shfl.sync.bfly") == 128
    assert ".local" not in text and ".reqntid 288" in text


@pytest.mark.usefixtures("always")
def test_instructions_of_a_cluster() -> None:
    """Half of the columns for both groups, all rows for its own; both give a stage back to both."""
    *_, last = groups_of(product(4096, 4096, 4096, bfloat16))
    kernel = lowered(last, tiles=BulkTiles("sm_90a.bfloat16", (2, 1), (1, 32), 4, cluster=2))
    text = code(kernel)
    assert ".reqnctapercluster 2" in text and "fence.mbarrier_init.release.cluster" in text
    plain = text.count("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [")
    shared = text.count("complete_tx::bytes.multicast::cluster [")
    assert plain == shared == text.count("mbarrier.arrive.expect_tx")
    told = text.count("mapa.shared::cluster.u32")
    assert told == text.count("mbarrier.arrive.release.cluster.shared::cluster.b64") == 4
    assert text.count("barrier.cluster.arrive") == text.count("barrier.cluster.wait") == 2
    if nvjitlink.library() is not None:
        image = nvjitlink.assemble(compile_text(emit(kernel, HOPPER), HOPPER), "sm_90a")
        (found,) = parse_cubin(image).kernels.values()
        assert found.stack_size == 0 and found.registers <= 224


@pytest.mark.skipif(nvjitlink.library() is None, reason="nvidia-nvjitlink is not installed")
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("kind", "size"), [("bfloat16", 4096), ("int8", 1001)])
def test_assembled_resources(kind: str, size: int) -> None:
    """Registers suffice, nothing lies in local memory, all shared memory is dynamic."""
    *_, last = groups_of(product(size, size, size, ELEMENTS[kind]))
    kernel = lowered(last)
    image = nvjitlink.assemble(compile_text(emit(kernel, HOPPER), HOPPER), "sm_90a")
    (found,) = parse_cubin(image).kernels.values()
    warps = kernel.block // 32
    assert found.stack_size == 0 and found.shared_size <= 1024
    assert warps * -(-found.registers * 32 // 256) * 256 <= 64 << 10
    assert 0 < kernel.dynamic_local <= HOPPER.dynamic_local_memory


@pytest.mark.golden
@pytest.mark.usefixtures("always")
def test_golden_of_a_product_of_packed_factors(golden: Golden) -> None:
    first, _, last = groups_of(product(200, 256, 192, float16))
    tiles = BulkTiles("sm_90a.float16", *SMALL, 3)
    golden.check("compiler/pack_f16_sm_90a.txt", format_kernel(lowered(first)))
    golden.check("compiler/matmul_packed_f16_sm_90a.txt", format_kernel(lowered(last, tiles=tiles)))
    golden.check("compiler/matmul_packed_f16_sm_90a.ptx", code(lowered(last, tiles=tiles)))
