"""The tests' own PTX kernels assemble for every architecture."""

from __future__ import annotations

import pytest

from tests.support.nvidia import nvjitlink, ptx_kernels


@pytest.mark.parametrize("cpu", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100"])
def test_kernels_of_the_tests_assemble(cpu: str) -> None:
    if nvjitlink.library() is None:
        pytest.skip("nvidia-nvjitlink is not installed")
    for body in (ptx_kernels.CONTRACT, ptx_kernels.FAULTY):
        assert nvjitlink.assemble(ptx_kernels.text(body, cpu), cpu).startswith(b"\x7fELF")
