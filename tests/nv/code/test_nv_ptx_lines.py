"""Machine code names the line of PTX that it was assembled from."""

from __future__ import annotations

import sys

import pytest

from tests.support.nvidia.nv_machine import opened, powered
from tests.support.nvidia.nv_ptx import TARGETS, full
from ugpu.nv.code import ptx_lines as ptxlines
from ugpu.nv.code.assemble import assemble
from ugpu.nv.code.cubin import parse_cubin

pytest.importorskip("elftools.elf.elffile", reason="pyelftools is not installed")
INSTRUCTION_BYTES = 16  # of machine code, from sm_70 on


def lines_named(cubin: bytes, function: str, size: int) -> list[int]:
    return [ptxlines.line_of(cubin, function, at) for at in range(0, size, INSTRUCTION_BYTES)]


@pytest.mark.parametrize("target", TARGETS)
def test_each_function_names_its_own_lines_and_keeps_its_code(target: str) -> None:
    ptx = full(target).replace(b";", b";\n")
    plain, cubin = assemble(ptx, target), assemble(ptx, target, options=ptxlines.OPTIONS)
    lines = ptx.decode().split("\n")
    start = next(n for n, line in enumerate(lines) if ".entry small" in line) + 1
    before, after = parse_cubin(plain), parse_cubin(cubin)
    for name, code in before.kernels.items():
        section = [s for s in before.sections if s.name == f".text.{name}"]
        same = [s for s in after.sections if s.name == f".text.{name}"]
        assert [s.data for s in section] == [s.data for s in same]
        seen = {line for line in lines_named(cubin, name, code.code_size) if line}
        assert all((line >= start) == (name == "small") for line in seen)
        wanted = {"small": "st.global.u32", "full": "st.shared.f32"}[name]
        assert any(wanted in lines[line - 1] for line in seen)
        assert ptxlines.line_of(cubin, name, 1 << 40) == 0


def test_tables_that_cannot_be_read_name_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = assemble(full("sm_86"), "sm_86", options=ptxlines.OPTIONS)
    assert ptxlines.line_of(cubin, "small", 0) > 0
    for damaged in (b"", cubin[:100], assemble(full("sm_86"), "sm_86")):
        assert ptxlines.line_of(damaged, "small", 0) == 0
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    assert ptxlines.line_of(cubin, "small", 0) == 0


def test_an_address_in_a_loaded_program_names_its_instruction() -> None:
    with powered("ga102") as machine, opened(machine) as device:
        programs = device.driver.programs
        with device.load(full("sm_86").replace(b";", b";\n")) as program:
            start = program["small"].address
            size = program["small"].details.code.code_size
            found = [programs.culprit(start + at) for at in range(0, size, INSTRUCTION_BYTES)]
            texts = {each.text: each for each in found if each is not None}
            assert texts["st.global.u32 [%rd], 1;"].line > 1
            assert programs.culprit(start + (1 << 30)) is None
        assert programs.culprit(start) is None  # unloaded
