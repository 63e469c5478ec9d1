"""How wide the vectors are that LLVM uses in loops, by processor; sums of products by fma."""

from __future__ import annotations

import dataclasses

import llvmlite.binding as llvm
import pytest

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process import objects
from ugpu.compiler.dtype import float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.hcq.state import host

FEATURES = dict.fromkeys(
    ("avx2", "fma", "f16c", "sse4.1", "avx512f", "avx512vl", "avx512bw", "avx512dq"), True
)


def _sum() -> Node:
    """A sum of two arrays."""
    return graph.elementwise("add", float32, *(buffer(5000, dtype=float32) for _ in range(2)))


def _assembly(cpu: str, features: dict[str, bool], of: Node) -> str:
    """A kernel in assembly."""
    text = host.feature_string(features)
    target = dataclasses.replace(HOST, cpu=cpu, features=text, vector_bytes=64)
    (kernel,) = kernels_of(of, target)
    objects.compile_text(emit(kernel, target), target)
    machine = objects._machine(target.triple, target.cpu, target.features, 3)
    module = llvm.parse_assembly(emit(kernel, target))
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


@pytest.mark.parametrize("cpu", ["sapphirerapids", "znver4", "znver5"])
def test_processors_with_fast_wide_vectors_use_them(cpu: str) -> None:
    assert "zmm" in _assembly(cpu, FEATURES | host.tuning(cpu, FEATURES), _sum())


def test_llvm_alone_prefers_half_of_them_on_sapphire_rapids() -> None:
    """Once this fails, the list of processors has lost its reason."""
    assert "zmm" not in _assembly("sapphirerapids", FEATURES, _sum())


@pytest.mark.parametrize(("shape", "axis"), [((256, 1024), 0), ((64, 5000), 1)])
def test_sums_of_products_round_once(shape: tuple[int, int], axis: int) -> None:
    """Across memory (one row by a matrix) and along it: a product and a sum are one instruction."""
    matrix, row = buffer(*shape, dtype=float32), buffer(shape[axis], dtype=float32)
    across = graph.reshape(row, (shape[0], 1) if axis == 0 else (1, shape[1]))
    terms = graph.elementwise("mul", float32, matrix, graph.expand(across, shape))
    text = _assembly("sapphirerapids", FEATURES, graph.reduce("sum", terms, (axis,)))
    assert "vfmadd" in text and "vmulps" not in text


def test_nothing_is_preferred_without_the_instructions_or_for_others() -> None:
    assert host.tuning("sapphirerapids", FEATURES | {"avx512f": False}) == {}
    assert host.tuning("skylake-avx512", FEATURES) == {}


@pytest.mark.parametrize("model", ["rocketlake", "icelake-server", "cooperlake"])
def test_a_processor_with_tiles_is_not_named_by_an_older_model(model: str) -> None:
    """Hypervisors may set the model that CPUID reports."""
    tiles = {"amx-tile": True, "avx512fp16": True}
    assert host.named_by(model, FEATURES | tiles) == "sapphirerapids"
    assert host.named_by(model, FEATURES | tiles | {"amx-tile": False}) == model
    assert host.named_by("graniterapids", FEATURES | tiles) == "graniterapids"
