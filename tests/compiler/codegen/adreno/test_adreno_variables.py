"""Variables of kernels for Adreno: values in a block, registers of NIR between blocks."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.support.adreno import ir3_run
from tests.support.adreno.mesa import kernel_of, module, needs_mesa, target
from ugpu.compiler.codegen.adreno.llvm.syntax import PLAIN
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_here
from ugpu.hcq.errors import CompileError

SHARE, TURN = 32, 5


@cache
def texts(chip: str) -> list[str]:
    """LLVM IR of a share of the corpus's kernels."""
    programs = ir3_run.programs(chip, TURN, SHARE)
    kernels = {step.kernel.name: step.kernel for one in programs for step in one.launches}
    return [emit(kernel, target(chip)) for kernel in kernels.values()]


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_kernels_need_nothing_of_llvm(chip: str) -> None:
    """LLVM inlines and makes values of variables where PLAIN is not there."""
    same = 0
    for text in texts(chip):
        assert PLAIN in text
        plain, by_llvm = (
            kernel_of(compile_here(each, target(chip))) for each in (text, text.replace(PLAIN, ""))
        )
        same += plain == by_llvm
        assert plain.instructions <= by_llvm.instructions
        assert plain.full_registers <= by_llvm.full_registers
    assert same >= len(texts(chip)) * 3 // 4


def test_a_block_loads_and_stores_a_variable_once() -> None:
    found = 0
    for text in texts("a740"):
        loaded: set[str] = set()
        stored: set[str] = set()
        for line in text.splitlines():
            if line and line[0] != " ":
                loaded.clear()
                stored.clear()
            variable = re.search(r"ptr addrspace\(5\) (%[\w.]+)", line)
            if variable is None or " i8" in line:  # a bool, which is tested as it is loaded
                continue
            stores = line.startswith("  store")
            seen = stored if stores else loaded | stored
            assert variable[1] not in seen, line
            (stored if stores else loaded).add(variable[1])
            found += 1
    assert found


@needs_mesa
@pytest.mark.parametrize("body", [
    "  %v = alloca i32, addrspace(5)\n  %x = load float, ptr addrspace(5) %v, align 4",
    "  store i32 0, ptr addrspace(5) null, align 4",
    "  %v = alloca i32, i32 4, addrspace(5)\n",
    "  %v = alloca i32\n",
])  # fmt: skip
def test_a_variable_is_whole(body: str) -> None:
    text = module(body, "ptr addrspace(1) %out").replace("#0 = {", "#0 = { " + PLAIN)
    assert PLAIN in text
    with pytest.raises(CompileError) as found:
        compile_here(text, target("a740"))
    code = str(found.value.facts["code"])
    assert "addrspace(5)" in code or "alloca" in code
