"""Products by a ring of slices on NVIDIA's matrix units: what the kernels mean, how slices lie in
shared memory, and what the code is."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.compiler.kernel.gpu.test_matrix_units import TARGETS, hardware, product
from tests.conftest import Golden
from tests.support.compiler.compiler_cases import buffer
from tests.support.compiler.kernel_interpreter import interpret
from tests.support.nvidia import nvjitlink
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.nvptx import descriptor
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import DType, bfloat16, float16, float32, int8
from ugpu.compiler.expression.algebra import Range, constant
from ugpu.compiler.expression.value import Memory, const
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.choices import RingTiles, from_text, to_text
from ugpu.compiler.kernel.gpu.cut import Factor, Side
from ugpu.compiler.kernel.ir import Fetch, Kernel
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.kernel.matrix_units import GROUP_UNITS, UNITS
from ugpu.compiler.kernel.nvidia import ring as gpu_ring
from ugpu.compiler.kernel.nvidia.slices import Slices
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.pattern.contraction import Contraction, find_contraction
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.state.target import TargetSpec, ptx_target
from ugpu.nv.code.cubin import parse_cubin

Array = NDArray[Any]
HOPPER = ptx_target("sm_90a", 132)
AMPERE = TARGETS["sm_80"]
ELEMENTS = {"float16": float16, "bfloat16": bfloat16, "tf32": float32, "int8": int8}
# those of 8-bit floats are in test_float8.py
GROUPED = [name for name in sorted(GROUP_UNITS) if name.partition(".")[2] in ELEMENTS]
WAVES = [name for name in sorted(UNITS) if name.startswith("sm_80")]


def target_of(name: str) -> TargetSpec:
    return HOPPER if name in GROUP_UNITS else AMPERE


def parts_of(root: Node) -> Contraction:
    (group,) = schedule([root])
    parts = find_contraction(express(group))
    assert parts is not None
    return parts


def lowered(root: Node, target: TargetSpec, tiles: RingTiles | None = None) -> Kernel:
    (group,) = schedule([root])
    return lower(express(group), target, tiles)


def computed(name: str, kernel: Kernel, shape: tuple[int, int, int], turned: bool) -> None:
    """Hold what the kernel computes of small integers against NumPy."""
    rows, depth, columns = shape
    random = np.random.default_rng(rows + depth)
    kind = {"tf32": "float32", "bfloat16": "float32"}.get(name, name)
    left = random.integers(-4, 5, (rows, depth)).astype(kind)
    right = random.integers(-4, 5, (depth, columns)).astype(kind)
    arrays = [left.T, right.T] if turned else [left, right]
    found = interpret(kernel, [np.ascontiguousarray(a) for a in arrays], hardware)
    expected = left.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_array_equal(found.reshape(rows, columns), expected)


# ---- what kernels mean -------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", GROUPED + WAVES)
def test_products(name: str, turned: bool) -> None:
    kind = name.partition(".")[2]
    for shape in ((72, 136, 80), (64, 200, 64)):
        root = product(*shape, ELEMENTS[kind], turned)
        units = gpu_ring.suits(parts_of(root), target_of(name))
        assert units[0].name == name
        kernel = lowered(root, target_of(name))
        assert f"+= {name} 64x" in format_kernel(kernel) or f"matrix.{name}" in format_kernel(
            kernel
        )
        computed(kind, kernel, shape, turned)


RINGS = [
    RingTiles("sm_90a.float16", (2, 1), (1, 16), 3),
    RingTiles("sm_90a.float16", (1, 2), (2, 8), 5),
    RingTiles("sm_90a.tf32", (1, 1), (1, 16), 3),
    RingTiles("sm_80.float16", (1, 2), (2, 2), 5),
    pytest.param(RingTiles("sm_80.bfloat16", (2, 1), (1, 8), 2), marks=pytest.mark.slow),
    pytest.param(RingTiles("sm_80.int8", (2, 2), (1, 2), 3), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("tiles", RINGS, ids=str)
def test_rings_of_all_lengths(tiles: RingTiles) -> None:
    """Fewer slices than stages, as many, and more."""
    kind = tiles.unit.partition(".")[2]
    assert gpu_ring.holds(tiles, target_of(tiles.unit)) and from_text(to_text(tiles)) == tiles
    length = 128 // ELEMENTS[kind].itemsize
    for depth, turned in (
        (length // 4, True),
        (length, False),
        (length + 1, True),
        (5 * length, False),
    ):
        root = product(70, depth, 136, ELEMENTS[kind], turned)
        computed(kind, lowered(root, target_of(tiles.unit), tiles), (70, depth, 136), turned)


def test_outer_sums_begin_again_when_all_have_read() -> None:
    """A sum over two axes: the ring is filled anew for each step of the outer one."""
    left, right = buffer(64, 3, 40, dtype=float16), buffer(64, 3, 40, dtype=float16)
    shape = (64, 64, 3, 40)
    ours = graph.expand(graph.reshape(graph.cast(left, float32), (64, 1, 3, 40)), shape)
    theirs = graph.expand(graph.reshape(graph.cast(right, float32), (1, 64, 3, 40)), shape)
    root = graph.reduce("sum", graph.elementwise("mul", float32, ours, theirs), (2, 3))
    random = np.random.default_rng(3)
    arrays = [random.integers(-4, 5, (64, 3, 40)).astype(np.float16) for _ in range(2)]
    expected = np.einsum("rab,cab->rc", *(array.astype(np.float64) for array in arrays))
    for target in (AMPERE, HOPPER):
        kernel = lowered(root, target)
        found = interpret(kernel, arrays, hardware)
        np.testing.assert_array_equal(found.reshape(64, 64), expected)


def test_a_missing_wait_shows() -> None:
    """The interpreter is strict enough: without its waits a kernel computes something else."""
    root = product(64, 256, 64, float16)
    for kind in ("Await", "Settle"):
        kernel = lowered(root, HOPPER)

        def without(body: tuple[Any, ...], kind: str = kind) -> tuple[Any, ...]:
            kept = []
            for statement in body:
                if hasattr(statement, "body"):
                    statement = dataclasses.replace(statement, body=without(statement.body))
                if type(statement).__name__ == kind:
                    statement = dataclasses.replace(statement, pending=5)
                kept.append(statement)
            return tuple(kept)

        broken = dataclasses.replace(kernel, body=without(kernel.body))
        with pytest.raises(AssertionError):
            computed("float16", broken, (64, 256, 64), False)


# ---- slices in shared memory -------------------------------------------------------------------


def exchanged(offset: int) -> int:
    """PTX ISA, 128-byte swizzling: bits 4-6 of an address are changed by bits 7-9."""
    return offset ^ (offset >> 7 & 7) << 4


def read_by_unit(text: int, across: int, step: int, size: int, turned: bool) -> int:
    """Where `wgmma` reads an element: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory
    Layout", canonical layouts of 128-byte swizzling, in units of 16 bytes of T elements.
    K-major ((8, n), 2) : ((8, stride), 1). MN-major ((8, n), (8, k)) : ((1, leading), (8, stride)).
    """
    start = (text & 0x3FFF) << 4
    leading, stride = (text >> 16 & 0x3FFF) << 4, (text >> 32 & 0x3FFF) << 4
    assert text >> 62 == 1 and text >> 49 & 7 == 0
    unit = 16 // size
    if turned:
        row = across // unit
        at = row % 8 * 16 + row // 8 * leading + step % 8 * 128 + step // 8 * stride
        inside = across % unit
    else:
        at = across % 8 * 128 + across // 8 * stride + step // unit * 16
        inside = step % unit
    return exchanged(start + at) + inside * size


@given(
    across=st.integers(0, 255), step=st.integers(0, 63), stage=st.integers(0, 3),
    wide=st.booleans(), turned=st.booleans(),
)  # fmt: skip
def test_units_read_what_slices_hold(
    across: int, step: int, stage: int, wide: bool, turned: bool
) -> None:
    """Every element of every step that a descriptor can name."""
    element = float32 if wide else float16
    turned = turned and not wide
    size = element.itemsize
    memory = Memory("right", element, 4 * 256 * 128 // size, "local", swizzled=True)
    factor = Factor(const(0, element), Range("a", 256), Range("d", 64))
    side = Side("right", factor, 256, constant(0), not turned, turned)
    slices = Slices(memory, side, turned, 256)
    step %= slices.length
    depth = 32 // size  # steps of one instruction
    first = step // depth * depth
    written = slices.stage(constant(stage)) + slices.place(constant(across), constant(step))
    start = slices.stage(constant(stage)) + slices.place(constant(0), constant(first))
    low = start.constant * size >> 4 & 0x3FFF
    read = read_by_unit(descriptor(turned, slices.length) | low, across, step - first, size, turned)
    # descriptors hold 18 bits of an address; the ring ends below
    assert read == exchanged(written.constant * size) and low << 4 == start.constant * size


@given(base=st.integers(0, 31), chunk=st.integers(0, 7))
def test_eight_rows_meet_all_banks(base: int, chunk: int) -> None:
    """`ldmatrix` reads eight neighbouring rows at one chunk, `cp.async` writes eight chunks of a
    row: of both, the 16-byte places are all different in the 128 bytes of the banks."""
    rows = {exchanged((8 * base + row) * 128 + chunk * 16) % 128 for row in range(8)}
    chunks = {exchanged(base * 128 + other * 16) % 128 for other in range(8)}
    assert len(rows) == len(chunks) == 8


@settings(max_examples=10)
@given(
    rows=st.integers(60, 140), depth=st.integers(64, 140), columns=st.integers(60, 140),
    turned=st.booleans(),
)  # fmt: skip
def test_fetches_are_whole_or_nothing(rows: int, depth: int, columns: int, turned: bool) -> None:
    """What is fetched is 16 aligned bytes that lie in the array as a whole, or outside; else the
    factor goes through registers."""
    kernel = lowered(product(rows, depth, columns, float16, turned), HOPPER)
    sizes = {"in0": rows * depth, "in1": depth * columns}
    found = [s for s in _flat(kernel.body) if isinstance(s, Fetch)]
    direct = {f.source.memory.name for f in found}
    lengths = {"in0": rows if turned else depth, "in1": depth if turned else columns}
    assert direct == {name for name, length in lengths.items() if length % 8 == 0}
    random = np.random.default_rng(rows)
    for fetch in found:
        used = set(fetch.source.index.ranges())
        for condition in fetch.source.conditions:
            used |= condition.ranges()
        for _ in range(20):
            values = {r.name: int(random.integers(0, r.size)) for r in used}
            if all(c.evaluate(values) >= 0 for c in fetch.source.conditions):
                at = fetch.source.index.evaluate(values)
                assert at % 8 == 0 and at >= 0 and at + 8 <= sizes[fetch.source.memory.name]


def _flat(body: tuple[Any, ...]) -> list[Any]:
    return [s for each in body for s in (each, *_flat(getattr(each, "body", ())))]


# ---- choices -----------------------------------------------------------------------------------


def test_defaults_for_hopper() -> None:
    def chosen(*shape: int, element: DType = bfloat16) -> RingTiles:
        parts = parts_of(product(*shape, element))
        return gpu_ring.default_tiles(parts, gpu_ring.suits(parts, HOPPER), HOPPER)

    large = chosen(4096, 4096, 4096)
    assert gpu_ring.sides_of(large) == (128, 256) and large.unit == "sm_90a.bfloat16"
    assert gpu_ring.local_bytes(large) == 192 << 10
    assert gpu_ring.sides_of(chosen(2048, 2048, 2048)) == (128, 128)
    assert gpu_ring.sides_of(chosen(512, 512, 512)) == (64, 64)
    assert chosen(4096, 4096, 4096, element=float32).unit == "sm_90a.tf32"
    # what does not fill a group's unit is left to the waves' own
    for shape in ((32, 4096, 4096), (4096, 4096, 16), (512, 16, 512)):
        assert chosen(*shape).unit == "sm_80.bfloat16"
    assert chosen(4096, 4096, 4096, element=int8).unit == "sm_90a.int8"


@pytest.mark.parametrize("name", ["sm_90a.float16", "sm_90a.tf32", "sm_80.float16", "sm_80.int8"])
def test_every_choice_of_a_space_can_be_lowered(name: str) -> None:
    target = target_of(name)
    (group,) = schedule([product(520, 136, 392, ELEMENTS[name.partition(".")[2]])])
    computation = express(group)
    space = next(
        s for s in spaces(computation, target)
        if isinstance(s.start, RingTiles) and s.start.unit == name
    )  # fmt: skip
    assert space.fits(space.start)
    tried = [space.start, *space.neighbours(space.start)]
    assert len(tried) > 6
    for tiles in tried:
        kernel = lower(computation, target, tiles)
        assert kernel.dynamic_local <= target.dynamic_local_memory


# ---- code --------------------------------------------------------------------------------------


def code(kernel: Kernel, target: TargetSpec) -> str:
    return compile_text(emit(kernel, target), target).decode()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_instructions_of_a_groups_unit(name: str, turned: bool) -> None:
    kind = name.partition(".")[2]
    kernel = lowered(product(4096, 4096, 4096, ELEMENTS[kind], turned), HOPPER)
    text = code(kernel, HOPPER)
    shape = {
        "float16": "k16.f32.f16.f16",
        "bfloat16": "k16.f32.bf16.bf16",
        "tf32": "k8.f32.tf32.tf32",
        "int8": "k32.s32.s8.s8",
    }
    wanted = f"wgmma.mma_async.sync.aligned.m64n256{shape[kind]} "
    assert text.count(wanted) == text.count("wgmma.mma_async") and text.count(wanted) % 4 == 0
    # both factors of 16 bits are fetched as they lie, and turned by the unit
    turns = ", 1, 1, 1, 0;" if turned else ", 1, 1, 0, 1;"
    immediates = {"tf32": ", 1, 1;", "int8": ";"}.get(kind, turns)
    assert f"add{immediates}" in text
    assert ("cp.async.cg.shared.global" in text) == (kind != "tf32")
    assert ("st.shared" in text) == (kind in ("tf32", "int8"))
    # eight neighbouring columns of a row at once
    assert text.count("st.global.v4.b32") == text.count("st.global") == 32
    loop = text[text.index("cp.async.wait_group \t1;") :]
    order = [
        "fence.proxy.async.shared::cta",
        "bar.sync",
        "wgmma.fence",
        "wgmma.mma_async",
        "wgmma.commit_group",
        "cp.async.commit_group",
        "wgmma.wait_group.sync.aligned \t1",
    ]
    assert [loop.index(word) for word in order] == sorted(loop.index(word) for word in order)
    assert re.search(r"\.extern \.shared \.align 1024 \.b8 \w+_ring\[\];", text)
    assert ".local" not in text


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", WAVES)
def test_instructions_of_a_waves_unit(name: str, turned: bool) -> None:
    kind = name.partition(".")[2]
    text = code(lowered(product(4096, 4096, 4096, ELEMENTS[kind], turned), AMPERE), AMPERE)
    plain = text.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16")
    turning = text.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16")
    narrow = kind in ("float16", "bfloat16")
    assert bool(turning) == narrow and plain
    assert (plain + turning) * 2 <= text.count("mma.sync") and "ld.shared" not in text
    assert ("st.shared" in text) != narrow
    assert ".local" not in text


RESOURCES = {  # at most: registers of a thread, of a group in bytes
    ("sm_80", "float16"), ("sm_86", "bfloat16"), ("sm_89", "int8"), ("sm_90", "float16"),
    ("sm_90a", "float16"), ("sm_90a", "bfloat16"), ("sm_90a", "tf32"), ("sm_90a", "int8"),
    ("sm_100", "float16"), ("sm_120", "tf32"),
}  # fmt: skip


@pytest.mark.skipif(nvjitlink.library() is None, reason="nvidia-nvjitlink is not installed")
@pytest.mark.parametrize(("cpu", "kind"), sorted(RESOURCES))
@pytest.mark.parametrize("size", [4096, 1001])
def test_assembled_resources(cpu: str, kind: str, size: int) -> None:
    """Registers suffice for a group, nothing lies in local memory, shared memory is dynamic."""
    target = ptx_target(cpu, 132)
    kernel = lowered(product(size, size, size, ELEMENTS[kind]), target)
    image = nvjitlink.assemble(compile_text(emit(kernel, target), target), cpu)
    cubin = parse_cubin(image)
    (found,) = cubin.kernels.values()
    assert found.stack_size == 0
    warps = kernel.block // 32
    assert warps * -(-found.registers * 32 // 256) * 256 <= 64 << 10
    assert found.shared_size <= 1024  # what the system keeps
    assert 0 < kernel.dynamic_local <= target.dynamic_local_memory


@pytest.mark.golden
def test_golden_of_a_group_product(golden: Golden) -> None:
    tiles = RingTiles("sm_90a.float16", (1, 1), (1, 8), 3)
    kernel = lowered(product(200, 256, 192, float16), HOPPER, tiles)
    golden.check("compiler/matmul_f16_sm_90a.txt", format_kernel(kernel))
    golden.check("compiler/matmul_f16_sm_90a.ptx", code(kernel, HOPPER))
