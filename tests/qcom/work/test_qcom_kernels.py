"""The driver's own kernels are what their sources compile to."""

from __future__ import annotations

import pytest

from tests.support.adreno.mesa import kernel_of, needs_mesa
from ugpu.qcom import chips
from ugpu.qcom.kernels import THREADS, file_of, objects
from ugpu.tools.compile import adreno_kernels
from ugpu.virtual.adreno.isa.decoder.table import table
from ugpu.virtual.adreno.sp.delays import behind_predication
from ugpu.virtual.adreno.sp.hazards import violations
from ugpu.virtual.adreno.sp.program import load


@pytest.mark.parametrize("chip", chips.names())
def test_the_files_hold_all_kernels(chip: str) -> None:
    facts = chips.facts(chip)
    found = objects(facts)
    assert set(found) == set(adreno_kernels.sources())
    for name, image in found.items():
        kernel = kernel_of(image)
        made = (kernel.name, kernel.generation, kernel.threads)
        assert made == (name, facts.generation, THREADS)


@needs_mesa
@pytest.mark.parametrize("chip", adreno_kernels.OLDEST)
def test_the_files_are_what_the_tool_makes(chip: str) -> None:
    assert objects(chips.facts(chip)) == adreno_kernels.make(chip)


@pytest.mark.parametrize("chip", chips.names())
def test_each_chip_can_run_them(chip: str) -> None:
    """The code keeps the rules of each chip, not only of the one that it was compiled for."""
    facts = chips.facts(chip)
    for image in objects(facts).values():
        program = load(kernel_of(image).code, True, table(facts.gpu_id or 740))
        assert violations(program, facts.generation, facts.scalar_unit) == ()
        assert not (facts.predication_nops and list(behind_predication(program)))


def test_a_file_for_each_kind() -> None:
    files = {file_of(chips.facts(chip)) for chip in chips.names()}
    assert files == {file_of(chips.facts(chip)) for chip in adreno_kernels.OLDEST}
