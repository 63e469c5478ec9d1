"""Kernels: goldens of the IR, the rules verify.py keeps, index widths, and the GPU's
instructions."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.conftest import Golden
from tests.support.compiler.compiler_cases import GFX1100, HOST, buffer, disassembly, kernels_of
from ugpu.compiler import dtype as dtypes
from ugpu.compiler.codegen.emit import emit, index_bits
from ugpu.compiler.codegen.process import objects as codegen
from ugpu.compiler.dtype import DType, bfloat16, float16, float32, int32
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
from ugpu.compiler.expression.value import Memory, const, load, value, walk
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import ByValue, Node
from ugpu.compiler.kernel.ir import (
    Barrier,
    If,
    Kernel,
    Loop,
    Prefetch,
    Statement,
    Store,
    thread_range,
)
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.kernel.verify import BrokenKernel, verify
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.target import TargetSpec


def matmul(rows: int, depth: int, columns: int, dtype: DType = float32) -> Node:
    wide_left = graph.cast(buffer(rows, depth, dtype=dtype), float32)
    left = graph.reshape(wide_left, (rows, 1, depth))
    right = graph.permute(graph.cast(buffer(depth, columns, dtype=dtype), float32), (1, 0))
    shape = (rows, columns, depth)
    right = graph.expand(graph.reshape(right, (1, columns, depth)), shape)
    product = graph.elementwise("mul", float32, graph.expand(left, shape), right)
    return graph.reshape(graph.reduce("sum", product, (2,)), (rows, columns))


def row_sums(rows: int, columns: int) -> Node:
    return graph.reduce("sum", buffer(rows, columns, dtype=float32), (1,))


def column_maxima(rows: int, columns: int) -> Node:
    return graph.reduce("max", buffer(rows, columns, dtype=float32), (0,))


def scaled_bias(rows: int, columns: int) -> Node:
    values, bias = buffer(rows, columns, dtype=float32), buffer(columns, dtype=float32)
    shape = (rows, columns)
    wide = graph.expand(graph.reshape(bias, (1, columns)), shape)
    doubled = graph.elementwise("mul", float32, values, graph.full(2.0, float32, shape))
    return graph.elementwise("add", float32, doubled, wide)


def padded_transpose(rows: int, columns: int) -> Node:
    turned = graph.permute(buffer(rows, columns, dtype=float16), (1, 0))
    return graph.pad(turned, ((1, 1), (0, 2)), 0.0)


def across(node: Node, shape: tuple[int, ...]) -> Node:
    return graph.expand(node, shape)


def softmax(*shape: int, axis: int = 1) -> Node:
    source = buffer(*shape, dtype=float32)
    largest = across(graph.reduce("max", source, (axis,)), shape)
    raised = graph.elementwise("exp", float32, graph.elementwise("sub", float32, source, largest))
    return graph.elementwise(
        "div", float32, raised, across(graph.reduce("sum", raised, (axis,)), shape)
    )


def centred(*shape: int) -> Node:
    source = buffer(*shape, dtype=float32)
    mean = graph.elementwise(
        "mul",
        float32,
        graph.reduce("sum", source, (1,)),
        graph.full(1 / shape[1], float32, (shape[0], 1)),
    )
    return graph.elementwise("sub", float32, source, across(mean, shape))


def attention(rows: int, keys: int, depth: int, columns: int) -> Node:
    shape = (rows, keys, depth)
    left = graph.expand(graph.reshape(buffer(rows, depth, dtype=float32), (rows, 1, depth)), shape)
    right = graph.expand(graph.reshape(buffer(keys, depth, dtype=float32), (1, keys, depth)), shape)
    products = graph.reduce("sum", graph.elementwise("mul", float32, left, right), (2,))
    scores = graph.reshape(products, (rows, keys))
    largest = across(graph.reduce("max", scores, (1,)), (rows, keys))
    raised = graph.elementwise("exp", float32, graph.elementwise("sub", float32, scores, largest))
    total = across(graph.reduce("sum", raised, (1,)), (rows, keys))
    weights = graph.reshape(graph.elementwise("div", float32, raised, total), (rows, 1, keys))
    values = graph.permute(buffer(keys, columns, dtype=float32), (1, 0))
    shape = (rows, columns, keys)
    values = graph.expand(graph.reshape(values, (1, columns, keys)), shape)
    product = graph.elementwise("mul", float32, graph.expand(weights, shape), values)
    return graph.reshape(graph.reduce("sum", product, (2,)), (rows, columns))


CURATED: dict[str, Callable[[], Node]] = {
    "scaled_bias": lambda: scaled_bias(64, 1024),
    "scaled_bias_odd": lambda: scaled_bias(7, 13),
    "padded_transpose": lambda: padded_transpose(30, 50),
    "row_sums": lambda: row_sums(10, 4096),
    "column_maxima": lambda: column_maxima(500, 3000),
    "total": lambda: graph.reduce("sum", buffer(1000, dtype=int32), (0,)),
    "softmax": lambda: softmax(64, 1024),
    "softmax_down": lambda: softmax(100, 300, axis=0),
    "centred": lambda: centred(20, 3000),
    "attention": lambda: attention(100, 300, 32, 64),
    "matmul": lambda: matmul(256, 256, 256),
    "matmul_odd": lambda: matmul(33, 50, 70),
    "matmul_f16": lambda: matmul(256, 256, 256, float16),
}


@pytest.mark.golden
@pytest.mark.parametrize("target", [HOST, GFX1100], ids=["host", "gfx1100"])
@pytest.mark.parametrize("name", sorted(CURATED))
def test_golden_ir(golden: Golden, name: str, target: TargetSpec) -> None:
    kernels = kernels_of(CURATED[name](), target)
    golden.check(f"compiler/{name}_{target.name}.txt", "\n".join(format_kernel(k) for k in kernels))


@pytest.mark.golden
def test_golden_llvm(golden: Golden) -> None:
    for target in (HOST, GFX1100):
        (kernel,) = kernels_of(scaled_bias(64, 1024), target)
        golden.check(f"compiler/scaled_bias_{target.name}.ll.txt", emit(kernel, target))


def test_lowering_is_reproducible() -> None:
    for build in CURATED.values():
        (one,), (two,) = kernels_of(build(), GFX1100), kernels_of(build(), GFX1100)
        assert one.name == two.name and format_kernel(one) == format_kernel(two)


# ---- beyond 2^31 -------------------------------------------------------------------------------


def loads(kernel: Kernel) -> list[tuple[Index, int]]:
    """The index of each load's first element, and how many it loads."""
    found: list[tuple[Index, int]] = []

    def visit(body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Store):
                accesses = [node for node in walk(statement.value) if node.op == "load"]
                found.extend(
                    (a.arg.index, a.lanes) for a in accesses if a.arg.memory.space == "global"
                )
            elif isinstance(statement, If | Loop):
                visit(statement.body)

    visit(kernel.body)
    return found


@pytest.mark.parametrize(
    ("elements", "bits"),
    [(1 << 20, 32), (1 << 28, 32), (1 << 29, 32), ((1 << 29) + 1024, 64), (1 << 33, 64)],
)
def test_index_width_follows_from_byte_offsets(elements: int, bits: int) -> None:
    (kernel,) = kernels_of(scaled_bias(elements // 1024, 1024), GFX1100)
    assert index_bits(kernel, GFX1100) == bits
    text = emit(kernel, GFX1100)
    assert ("mul nuw nsw i32" in text) == (bits == 32)  # byte offsets of 32 bits
    assert disassembly(kernel)


@pytest.mark.parametrize("target", [HOST, GFX1100], ids=["host", "gfx1100"])
def test_elements_beyond_2_31_are_addressed_right(target: TargetSpec) -> None:
    """Rows of 3 * 2^20 elements, 2^12 of them, transposed: every corner of 1.3e10 elements."""
    rows, columns = 1 << 12, 3 << 20
    source = buffer(rows, columns, dtype=float32)
    turned = graph.permute(source, (1, 0))
    root = graph.elementwise("add", float32, turned, turned)
    (kernel,) = kernels_of(root, target)
    assert index_bits(kernel, target) == 64
    reached = set()
    for index, lanes in loads(kernel):
        used = sorted(index.ranges(), key=lambda r: r.name)
        for corner in range(1 << len(used)):
            values = {r.name: (r.size - 1) * (corner >> i & 1) for i, r in enumerate(used)}
            position = index.evaluate(values)
            assert index.low <= position <= index.high
            reached |= {position, position + lanes - 1}
    assert min(reached) == 0 and max(reached) == rows * columns - 1 > 1 << 33


@pytest.mark.parametrize("target", [HOST, GFX1100], ids=["host", "gfx1100"])
@pytest.mark.parametrize(
    ("build", "last"),
    [
        (lambda: softmax(1 << 22, 3 << 10), (3 << 32) - 1),
        (lambda: softmax(1 << 10, 5 << 22, axis=0), (5 << 32) - 1),
        (lambda: attention(1 << 26, 300, 64, 64), (1 << 32) - 1),
        (lambda: attention(64, 1 << 26, 64, 64), (1 << 32) - 1),
    ],
    ids=["rows", "columns", "queries", "keys"],
)
def test_fused_kernels_reach_beyond_2_31(
    target: TargetSpec, build: Callable[[], Node], last: int
) -> None:
    (kernel,) = kernels_of(build(), target)
    assert index_bits(kernel, target) == 64
    assert max(index.high + lanes - 1 for index, lanes in loads(kernel)) >= last
    assert min(index.low for index, _ in loads(kernel)) == 0
    assert "i64" in emit(kernel, target)


def test_grid_of_a_huge_tensor_covers_it_exactly() -> None:
    (kernel,) = kernels_of(scaled_bias(1 << 22, 1 << 11), GFX1100)  # 2^33 elements
    threads = kernel.grid[0] * kernel.grid[1] * kernel.grid[2] * kernel.block
    assert threads * 4 == 1 << 33


# ---- the rules ---------------------------------------------------------------------------------

OUT, IN = Memory("out", float32, 64), Memory("in0", float32, 64)
NUMBER = Memory("in1", float32, 1, "by_value")
SHARED = Memory("shared", float32, 64, "local")
REGISTER = Memory("total", float32, 2, "register")
THREAD = thread_range(64).index()
HALF = const(1.0, bfloat16)
ONE = const(1.0, float32)


def broken(*body: Statement, parameters: tuple[Memory, ...] = (OUT, IN)) -> Kernel:
    return Kernel("bad", parameters, (SHARED, REGISTER), (1, 1, 1), 64, body)


BROKEN: dict[str, Kernel] = {
    "only the first parameter is written": broken(Store(IN, THREAD, ONE)),
    "a store has its memory's type": broken(Store(OUT, THREAD, const(1, int32))),
    "a range is used inside its loop": broken(Store(OUT, Range("loose", 9).index(), ONE)),
    "prefetches are of parameters": broken(Prefetch(SHARED, THREAD)),
    "a barrier is reached by all": broken(If(at_least_zero(THREAD - 5), (Barrier(),))),
    "registers are indexed by constants": broken(Store(REGISTER, THREAD, ONE)),
    "a register index is in range": broken(Store(REGISTER, constant(2), ONE)),
    "a local access stays inside": broken(Store(SHARED, THREAD + 1, ONE)),
    "a loop's range is bound once": broken(
        Loop(Range("r", 4), (Loop(Range("r", 4), (Barrier(),)),))
    ),
    "only loads of parameters are gated": broken(
        Store(OUT, THREAD, load(SHARED, THREAD, at_least_zero(THREAD - 1)))
    ),
    "sources have the result's type": broken(
        Store(OUT, THREAD, value("add", float32, (ONE, const(1, int32))))
    ),
    "16-bit and 8-bit floats are computed in float32": broken(
        Store(
            OUT,
            THREAD,
            value("cast", float32, (value("neg", float16, (const(1.0, float16),)),)),
        )
    ),
    "an operation of the lowered grammar": broken(
        Store(OUT, THREAD, value("reduce", float32, (ONE,), ("sum", ())))
    ),
    "a load names a memory": broken(Store(OUT, THREAD, load(Memory("x", float32, 1), constant(0)))),
    "a shuffle chooses among": broken(
        Store(OUT, THREAD, value("shuffle", float32, (ONE, ONE), (2,)))
    ),
    "lanes of dot2": broken(Store(OUT, THREAD, value("dot2", float32, (HALF, HALF, ONE), lanes=1))),
    "a number has one element": broken(
        Store(OUT, THREAD, load(NUMBER, THREAD)), parameters=(OUT, NUMBER)
    ),
    "a number is a scalar": broken(
        Store(OUT, THREAD, value("extract", float32, (load(NUMBER, constant(0), lanes=2),), 0)),
        parameters=(OUT, NUMBER),
    ),
    "a bitcast keeps the size": broken(
        Store(OUT, THREAD, value("bitcast", float32, (const(1, dtypes.int64),)))
    ),
}


@pytest.mark.parametrize("rule", sorted(BROKEN))
def test_verify_finds(rule: str) -> None:
    with pytest.raises(BrokenKernel, match=rule):
        verify(BROKEN[rule])


def test_a_processor_without_what_kernels_need_is_refused() -> None:
    old = TargetSpec("old", "host", "x86_64-unknown-linux-gnu", "x86-64", "-f16c,-sse4.1")
    (kernel,) = kernels_of(scaled_bias(4, 4), old)
    with pytest.raises(NotSupported, match="does not support"):
        emit(kernel, old)


def test_unknown_targets_are_refused() -> None:
    alien = TargetSpec("alien", "spirv", "spirv64", "none")
    with pytest.raises(NotSupported, match="spirv"):
        kernels_of(scaled_bias(4, 4), alien)


# ---- instructions ------------------------------------------------------------------------------


def count(text: str, word: str) -> int:
    return sum(1 for line in text.splitlines() if word in line)


def test_matmul_uses_wide_loads_and_fused_multiplies() -> None:
    # more than a launch takes: the smallest blocks are for less
    (kernel,) = kernels_of(matmul(1024, 1024, 1024), GFX1100)
    text = disassembly(kernel)
    # a thread's block is 8 x 8: 4 vectors a step for 64 multiplications, two at a time
    assert count(text, "global_load_b128") == 4 and count(text, "global_store_b128") == 16
    steps = count(text, "ds_load_b128") // 4
    assert steps >= 4 and count(text, "s_barrier") == 2
    assert 2 * count(text, "v_dual_fmac_f32") >= 60 * steps  # two multiplications in one
    assert count(text, "scratch_") == 0


def test_matmul_of_16_bit_floats_uses_the_matrix_units() -> None:
    for dtype, name in ((float16, "f16"), (bfloat16, "bf16")):
        (kernel,) = kernels_of(matmul(256, 256, 256, dtype), GFX1100)
        text = disassembly(kernel)
        products = count(text, f"v_wmma_f32_16x16x16_{name}")
        assert products % 8 == 0  # of one slice; LLVM may write the loop out
        assert count(text, "ds_load_b128") == 2 * products and count(text, "scratch_") == 0


def test_matrix_units_need_whole_waves() -> None:
    half, single = Memory("half", float16, 16, "local"), Memory("total", float32, 1, "register", 8)
    parameter = Memory("out", float32, 8)
    fragment, total = load(half, constant(0), lanes=16), load(single, constant(0), lanes=8)
    product = value("matrix", float32, (fragment, fragment, total), "gfx11.float16", 8)
    inside = at_least_zero(constant(3) - thread_range(32).index())
    body: tuple[Statement, ...] = (If(inside, (Store(single, constant(0), product),)),)
    with pytest.raises(BrokenKernel, match="whole waves"):
        verify(Kernel("kernel", (parameter,), (half, single), (1, 1, 1), 32, body))
    wrong = value("matrix", float32, (total, fragment, total), "gfx11.float16", 8)
    body = (Store(single, constant(0), wrong),)
    with pytest.raises(BrokenKernel, match="lanes of matrix"):
        verify(Kernel("kernel", (parameter,), (half, single), (1, 1, 1), 32, body))


def test_a_number_by_value_is_read_with_the_addresses() -> None:
    """It is in the kernarg segment, from which scalar loads come."""
    number = Node("buffer", float32, ())
    number.storage = ByValue(0)
    spread = graph.expand(graph.reshape(number, (1,)), (1024,))
    product = graph.elementwise("mul", float32, buffer(1024, dtype=float32), spread)
    (kernel,) = kernels_of(product, GFX1100)
    assert [memory.space for memory in kernel.parameters] == ["global", "global", "by_value"]
    text = disassembly(kernel)
    assert count(text, "global_load_b128") == count(text, "global_store_b128") == 1
    assert count(text, "_load_b") == 1 + count(text, "s_load_b")


def test_elementwise_moves_whole_vectors_without_branches() -> None:
    (kernel,) = kernels_of(scaled_bias(64, 1024), GFX1100)
    text = disassembly(kernel)
    assert count(text, "global_load_b128") == 2 and count(text, "global_store_b128") == 1
    assert count(text, "s_cbranch") == 0
    assert count(text, "_load_b") == 2 + count(text, "s_load_b")


def test_host_code_calls_nothing() -> None:
    """The loader of the cpu device has no C library to offer."""
    for name in CURATED:
        (kernel,) = kernels_of(CURATED[name](), HOST)
        image = ELFFile(io.BytesIO(codegen.compile_text(emit(kernel, HOST), HOST)))
        table = image.get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        undefined = [
            s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name
        ]
        assert undefined == []
