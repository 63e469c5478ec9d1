"""Matrix units: the lane layouts of each family, written down again from the documents, and the
instructions that come out."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import Golden
from tests.support.compiler.compiler_cases import GFX1100, buffer, disassembly, kernels_of
from tests.support.compiler.kernel_interpreter import interpret
from tests.support.compiler.matrix_hardware import hardware
from tests.support.nvidia import nvjitlink
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import DType, float16, float32, has_numpy, int8, int32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.choices import MatrixTiles
from ugpu.compiler.kernel.gpu import matrix as gpu_matrix
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.kernel.matrix_units import UNITS, MatrixUnit
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.kernel.verify import verify
from ugpu.compiler.pattern.contraction import find_contraction
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import TargetSpec, matrix_family, ptx_target

Array = NDArray[Any]


def amd(cpu: str, wave: int) -> TargetSpec:
    return dataclasses.replace(
        GFX1100, name=cpu, cpu=cpu, wave_size=wave, matrix=matrix_family(cpu), compute_units=64
    )


TARGETS = {
    "gfx11": GFX1100,
    "gfx12": amd("gfx1201", 32),
    "gfx942": amd("gfx942", 64),
    "gfx950": amd("gfx950", 64),
    "sm_80": ptx_target("sm_80", 64),
    "sm_89": ptx_target("sm_89", 64),
}


# ---- kernels -----------------------------------------------------------------------------------


def product(rows: int, depth: int, columns: int, element: DType, turned: bool = False) -> Node:
    """rows x columns of wide sums, plus a row of them. turned: both factors stored transposed."""
    total = int32 if element is int8 else float32
    left = buffer(*((depth, rows) if turned else (rows, depth)), dtype=element)
    right = buffer(*((columns, depth) if turned else (depth, columns)), dtype=element)
    if turned:
        left, right = graph.permute(left, (1, 0)), graph.permute(right, (1, 0))
    if element is float32:
        left, right = cleared(left), cleared(right)
    shape = (rows, columns, depth)
    ours = graph.expand(graph.reshape(graph.cast(left, total), (rows, 1, depth)), shape)
    theirs = graph.permute(graph.cast(right, total), (1, 0))
    theirs = graph.expand(graph.reshape(theirs, (1, columns, depth)), shape)
    summed = graph.reduce("sum", graph.elementwise("mul", total, ours, theirs), (2,))
    return graph.reshape(summed, (rows, columns))


def cleared(node: Node) -> Node:
    """The 13 lowest bits set to zero: a TensorFloat-32."""
    bits = graph.bitcast(node, int32)
    mask = graph.full(-0x2000, int32, node.shape)
    masked = graph.elementwise("and", int32, bits, mask)
    return graph.bitcast(masked, float32)


def lowered(root: Node, target: TargetSpec, tiles: MatrixTiles | None = None) -> Kernel:
    (group,) = schedule([root])
    computation = express(group)
    parts = find_contraction(computation)
    assert parts is not None
    unit = gpu_matrix.suits(parts, target)
    assert unit is not None
    chosen = tiles or gpu_matrix.default_tiles(parts, unit, target)
    return verify(gpu_matrix.matmul(computation, parts, target, unit, chosen))


Shape = tuple[int, int, int]


def check(unit: MatrixUnit, tiles: MatrixTiles | None, shape: Shape, turned: bool) -> None:
    rows, depth, columns = shape
    target = TARGETS[unit.name.partition(".")[0]]
    kernel = lowered(product(rows, depth, columns, unit.element, turned), target, tiles)
    random = np.random.default_rng(rows)
    kind = np.dtype(unit.element.name if has_numpy(unit.element) else "float32")
    left = random.integers(-4, 5, (rows, depth)).astype(kind)
    right = random.integers(-4, 5, (depth, columns)).astype(kind)
    given = [left.T, right.T] if turned else [left, right]
    found = interpret(kernel, [np.ascontiguousarray(a) for a in given], hardware)
    expected = left.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_array_equal(found.reshape(rows, columns), expected)


@pytest.mark.parametrize("name", sorted(UNITS))
def test_lanes_hold_what_the_documents_say(name: str) -> None:
    check(UNITS[name], None, (40, 70, 48), turned=False)


SOME = ("gfx11.float16", "gfx12.float8_e5m2", "gfx12.bfloat16", "gfx950.int8", "sm_80.float16")


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize(
    ("waves", "fragments", "buffers"),
    [((1, 1), (1, 2), 1), ((1, 2), (2, 4), 2), ((2, 1), (1, 1), 2)],
)
def test_other_tiles(
    name: str, waves: tuple[int, int], fragments: tuple[int, int], buffers: int
) -> None:
    unit = UNITS[name]
    tiles = MatrixTiles(name, waves, fragments, 128 // unit.element.itemsize, buffers)
    check(unit, tiles, (33, 150, 35), turned=True)
    check(unit, tiles, (9, 16, 64), turned=False)


# ---- code --------------------------------------------------------------------------------------

INSTRUCTIONS = {
    "gfx11.float16": "v_wmma_f32_16x16x16_f16",
    "gfx11.bfloat16": "v_wmma_f32_16x16x16_bf16",
    "gfx11.int8": "v_wmma_i32_16x16x16_iu8",
    "gfx12.float16": "v_wmma_f32_16x16x16_f16",
    "gfx12.bfloat16": "v_wmma_f32_16x16x16_bf16",
    "gfx12.int8": "v_wmma_i32_16x16x16_iu8",
    "gfx12.float8_e4m3fn": "v_wmma_f32_16x16x16_fp8_fp8",
    "gfx12.float8_e5m2": "v_wmma_f32_16x16x16_bf8_bf8",
    "gfx942.float16": "v_mfma_f32_16x16x16_f16",
    "gfx942.bfloat16": "v_mfma_f32_16x16x16_bf16",
    "gfx942.int8": "v_mfma_i32_16x16x32_i8",
    "gfx942.float8_e4m3fnuz": "v_mfma_f32_16x16x32_fp8_fp8",
    "gfx942.float8_e5m2fnuz": "v_mfma_f32_16x16x32_bf8_bf8",
    "gfx950.float16": "v_mfma_f32_16x16x32_f16",
    "gfx950.bfloat16": "v_mfma_f32_16x16x32_bf16",
    "gfx950.int8": "v_mfma_i32_16x16x64_i8",
    "gfx950.float8_e4m3fn": "v_mfma_f32_16x16x32_fp8_fp8",
    "gfx950.float8_e5m2": "v_mfma_f32_16x16x32_bf8_bf8",
    "sm_80.float16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "sm_80.bfloat16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "sm_80.int8": "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
    "sm_80.tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    "sm_89.float8_e4m3fn": "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
    "sm_89.float8_e5m2": "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32",
}


def test_every_unit_is_looked_at() -> None:
    assert set(INSTRUCTIONS) == set(UNITS)


@pytest.mark.parametrize("name", sorted(UNITS))
def test_the_units_instruction_is_in_the_code(name: str) -> None:
    unit = UNITS[name]
    target = TARGETS[name.partition(".")[0]]
    (kernel,) = kernels_of(product(512, 512, 512, unit.element), target)
    (totals,) = [memory for memory in kernel.locals if memory.name == "totals"]
    if target.abi == "ptx":
        image = compile_text(emit(kernel, target), target)
        text = image.decode()
        assert "ldmatrix" in text and "ld.shared" not in text
        assert ".local" not in text  # nothing is spilled by LLVM
        if nvjitlink.library() is not None:
            assert nvjitlink.assemble(image, target.cpu)
    else:
        text = disassembly(kernel, target)
        assert "scratch_" not in text
        assert "ds_load_b128" in text or "ds_read_b128" in text
    found = len(re.findall(rf"{re.escape(INSTRUCTIONS[name])}\b", text))
    tile = totals.count * (64 // unit.element.itemsize) // unit.depth
    assert found >= tile and found % totals.count == 0


@pytest.mark.golden
@pytest.mark.parametrize("family", ["gfx12", "gfx942", "sm_80"])
def test_golden_of_a_product(golden: Golden, family: str) -> None:
    (kernel,) = kernels_of(product(256, 256, 256, float16), TARGETS[family])
    golden.check(f"compiler/matmul_f16_{family}.txt", format_kernel(kernel))


def test_factors_of_other_types_stay_off_the_units() -> None:
    for element in (float32, int8):
        total = element  # neither cast nor cleared
        shape = (64, 64, 64)
        left, right = (buffer(64, 64, dtype=element) for _ in range(2))
        ours = graph.expand(graph.reshape(left, (64, 1, 64)), shape)
        theirs = graph.expand(graph.reshape(graph.permute(right, (1, 0)), (1, 64, 64)), shape)
        summed = graph.reduce("sum", graph.elementwise("mul", total, ours, theirs), (2,))
        for target in TARGETS.values():
            (kernel,) = kernels_of(summed, target)
            assert "matrix" not in emit(kernel, target) and "mma" not in emit(kernel, target)


def test_tensors_ask_for_tf32(cpu: Device) -> None:
    target = TARGETS["sm_80"]
    random = np.random.default_rng(2)
    arrays = [random.normal(size=(40, 40)).astype(np.float32) for _ in range(2)]
    left, right = (Tensor(array, device=cpu) for array in arrays)
    (group,) = schedule([(left.tf32() @ right.tf32()).node])
    kernel = lower(express(group), target)
    assert INSTRUCTIONS["sm_80.tf32"] in compile_text(emit(kernel, target), target).decode()
    rounded = left.tf32().numpy()
    np.testing.assert_allclose(rounded, arrays[0], rtol=2**-11)
    assert not (rounded.view(np.uint32) & 0x1FFF).any()
    np.testing.assert_allclose(
        (left.tf32() @ right.tf32()).numpy(), rounded @ right.tf32().numpy(), rtol=1e-4, atol=1e-4
    )
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 3.4028235e38, 1 + 2**-11, 1 + 3 * 2**-11])
    expected = np.array([np.nan, np.inf, -np.inf, -0.0, np.inf, 1, 1 + 2**-9])
    found = Tensor(special.astype(np.float32), device=cpu).tf32().numpy()
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    odd = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(Tensor(odd, device=cpu).tf32().numpy()).all()


def test_older_architectures_have_none() -> None:
    target = ptx_target("sm_75")
    (kernel,) = kernels_of(product(64, 64, 64, float16), target)
    assert "mma" not in emit(kernel, target)
