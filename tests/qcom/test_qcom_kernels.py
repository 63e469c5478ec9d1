"""The driver's own kernels are what their sources compile to."""

from __future__ import annotations

import pytest

from qcom.kernels import THREADS, objects
from tests.support.adreno import kernel_of, needs_mesa
from tools import adreno_kernels


@pytest.mark.parametrize("generation", [6, 7])
def test_the_files_hold_all_kernels(generation: int) -> None:
    found = objects(generation)
    assert set(found) == set(adreno_kernels.sources())
    for name, image in found.items():
        kernel = kernel_of(image)
        assert (kernel.name, kernel.generation, kernel.threads) == (name, generation, THREADS)


@needs_mesa
@pytest.mark.parametrize("generation", [6, 7])
def test_the_files_are_what_the_tool_makes(generation: int) -> None:
    assert objects(generation) == adreno_kernels.make(generation)
