"""PTX for NVIDIA GPUs: the operation corpus for every architecture, and what each text must be."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from tests.conftest import Golden
from tests.support.compiler.compiler_cases import buffer, kernels_of
from tests.support.corpus import corpus_ptx
from tests.support.corpus.operation_corpus import corpus
from tests.support.nvidia import nvjitlink
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.kernel.ir import Kernel, Store
from ugpu.compiler.kernel.shared.grid import within_limits
from ugpu.compiler.kernel.verify import verify
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.target import TargetSpec, ptx_target

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
ENTRY = re.compile(r"\.visible \.entry (\w+)\(\n(.*?)\n\)\n\.reqntid (\d+), 1, 1\n\{", re.DOTALL)


def ptx(kernel: Kernel, target: TargetSpec) -> str:
    return compile_text(emit(kernel, target), target).decode()


@cache
def corpus_kernels(cpu: str) -> dict[str, Kernel]:
    """The corpus' kernels by name."""
    programs = corpus_ptx.programs(ptx_target(cpu))
    return {step.kernel.name: step.kernel for made in programs for step in made.launches}


def check_entry(kernel: Kernel, text: str, cpu: str) -> None:
    """One entry with the kernel's parameters and threads; nothing called, nothing external."""
    entries = ENTRY.findall(text)
    assert [name for name, _, _ in entries] == [kernel.name] and text.count(".entry") == 1
    assert f"\n.target {cpu}\n" in text and "\n.address_size 64\n" in text
    parameters = entries[0][1].split(",\n")
    for place, parameter in enumerate(parameters):
        kind, name = parameter.strip().rsplit(" ", 1)
        assert kind == ".param .u64 .ptr .global .align 256", parameter
        assert name == f"{kernel.name}_param_{place}"
    assert len(parameters) == len(kernel.parameters)
    assert int(entries[0][2]) == kernel.block
    foreign = re.findall(r"\.extern (.*);", text)
    ring = f".shared .align 1024 .b8 {kernel.name}_ring[]"
    assert foreign == ([ring] if kernel.dynamic_local else []), foreign
    assert not re.search(r"\bcall\b|\.func|\.local\b", text), text


@pytest.mark.parametrize(
    "cpu",
    [
        cpu if cpu in ("sm_75", "sm_90a") else pytest.param(cpu, marks=pytest.mark.slow)
        for cpu in ARCHITECTURES
    ],
)
def test_a_share_of_the_corpus(cpu: str) -> None:
    """Each architecture takes every eighth kernel, so that together they take all."""
    share = list(corpus_kernels(cpu).values())[ARCHITECTURES.index(cpu) :: len(ARCHITECTURES)]
    assert len(share) > 40
    for kernel in share:
        check_entry(kernel, ptx(kernel, ptx_target(cpu)), cpu)


@pytest.mark.slow
@pytest.mark.skipif(nvjitlink.library() is None, reason="nvidia-nvjitlink is not installed")
@pytest.mark.parametrize("cpu", ARCHITECTURES)
def test_the_corpus_assembles(cpu: str) -> None:
    """All of it without matrix units and with the most of them, a share on each in between."""
    step = 1 if cpu in ("sm_75", "sm_90a") else 4
    for kernel in list(corpus_kernels(cpu).values())[ARCHITECTURES.index(cpu) % step :: step]:
        text = ptx(kernel, ptx_target(cpu))
        check_entry(kernel, text, cpu)
        assert nvjitlink.assemble(text.encode(), cpu).startswith(b"\x7fELF")


@pytest.mark.skipif(nvjitlink.library() is None, reason="nvidia-nvjitlink is not installed")
def test_the_assembler_is_asked(cpu: str = "sm_90") -> None:
    """A text with an instruction that is none is refused, so the other tests can fail."""
    kernel = next(iter(corpus_kernels(cpu).values()))
    text = ptx(kernel, ptx_target(cpu))
    nvjitlink.assemble(text.encode(), cpu)
    with pytest.raises(nvjitlink.DoesNotAssemble):
        nvjitlink.assemble(text.replace("ret;", "retire;").encode(), cpu)


def test_roundings_are_spelled_out() -> None:
    """The assembler may fuse `add.f32`; `add.rn.f32` it must leave alone. Our polynomials rely on
    it. Division and roots round to nearest, and numbers below the normal ones are kept."""
    cases = ("exp", "sin", "div_float32", "sqrt", "reciprocal")
    for name in cases:
        kernels = [k for k in corpus_kernels("sm_80").values() if k.origin.startswith(name[:3])]
        assert kernels, name
        for kernel in kernels:
            text = ptx(kernel, ptx_target("sm_80"))
            assert not re.search(r"\b(add|sub|mul|fma)\.f(32|16)\b", text)
            assert ".ftz" not in text and ".approx" not in text


def test_a_group_shares_memory_and_waits() -> None:
    root = graph.reduce("sum", buffer(10, 4096, dtype=float32), (1,))
    target = ptx_target("sm_80")
    (kernel,) = kernels_of(root, target)
    text = ptx(kernel, target)
    assert re.search(r"\.shared \.align \d+ \.b8 \w+\[32\];", text)  # a total per warp
    assert text.count("bar.sync \t0;") == 1 and "ld.global.nc.v4.b32" in text
    assert text.count("shfl.sync.bfly.b32") == 5


@pytest.mark.golden
def test_golden_ptx(golden: Golden) -> None:
    """As LLVM 22 writes it, which pyproject.toml pins."""
    target = ptx_target("sm_80")
    table = buffer(10, 4096, dtype=float32)
    roots = {
        "doubled": graph.elementwise("add", float32, table, table),
        "row_sums": graph.reduce("sum", table, (1,)),
    }
    for name, root in roots.items():
        (kernel,) = kernels_of(root, target)
        golden.check(f"compiler/{name}_sm_80.ptx.txt", ptx(kernel, target))


def test_grids_beyond_65535_are_laid_out_along_x() -> None:
    target = ptx_target("sm_80")
    turned = graph.permute(buffer(1024, 70000, dtype=float32), (1, 0))
    root = graph.elementwise("add", float32, turned, turned)
    (kernel,) = kernels_of(root, target)
    assert kernel.grid == (70000, 1, 1)
    assert "%ctaid.x" in ptx(kernel, target) and "%ctaid.y" not in ptx(kernel, target)
    unlimited = TargetSpec(**{**target.__dict__, "max_grid": ((1 << 31) - 1,) * 3})
    (wide,) = kernels_of(root, unlimited)
    assert wide.grid == (1, 70000, 1)
    # every element is written by the same thread of the same flat group
    (one,), (other,) = wide.body, kernel.body
    assert isinstance(one, Store) and isinstance(other, Store)
    for group, thread in ((0, 0), (69999, 255), (12345, 77)):
        flat = other.index.evaluate({"group_x": group, "thread": thread})
        assert flat == one.index.evaluate({"group_y": group, "group_x": 0, "thread": thread})


def test_folding_a_grid_keeps_the_rules() -> None:
    target = ptx_target("sm_80")
    shape = (70000, 8, 8)
    left, right = buffer(*shape, dtype=float32), buffer(*shape, dtype=float32)
    wide_left = graph.expand(graph.reshape(left, (70000, 8, 1, 8)), (70000, 8, 8, 8))
    turned = graph.permute(right, (0, 2, 1))
    wide_right = graph.expand(graph.reshape(turned, (70000, 1, 8, 8)), (70000, 8, 8, 8))
    product = graph.elementwise("mul", float32, wide_left, wide_right)
    (kernel,) = kernels_of(graph.reduce("sum", product, (3,)), target)
    assert kernel.grid == (70000, 1, 1)
    verify(kernel)
    assert "bar.sync" in ptx(kernel, target)
    with pytest.raises(NotSupported, match="grid"):
        within_limits(Kernel("k", (), (), (1 << 16, 1 << 16, 1), 32, ()), target.max_grid)


def test_the_corpus_is_broad() -> None:
    cases = corpus()
    assert len(cases) > 400
    reached = {dtype.name for case in cases.values() for dtype in (a.dtype for a in case.inputs)}
    assert len(reached) == 11
    wrong = cases["add_int32"]
    with pytest.raises(AssertionError):
        wrong.compare(np.zeros((7, 37), np.int32))
