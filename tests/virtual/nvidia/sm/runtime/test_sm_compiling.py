"""How much care kernels are compiled with: little at first, more once they have run for long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import HEAD, Bench
from ugpu.virtual.nvidia.sm import multiprocessors
from ugpu.virtual.nvidia.sm.multiprocessors import VirtualMultiprocessors
from ugpu.virtual.nvidia.sm_contract import SmEnding

DOUBLE = (
    HEAD.format(target="sm_90")
    + """
.visible .entry k(.param .u64 out)
{
  .reg .b64 %a; .reg .b32 %x, %t;
  ld.param.u64 %a, [out]; mov.u32 %t, %tid.x;
  mad.wide.u32 %a, %t, 4, %a;
  ld.global.u32 %x, [%a]; add.u32 %x, %x, %x; st.global.u32 [%a], %x;
  ret;
}
"""
)


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The levels that kernels were compiled at."""
    seen: list[int] = []
    compile_object = multiprocessors.jit.compile_object

    def watched(ir: str, passes: int, optimise: int) -> bytes:
        if f"@{multiprocessors.NAME}(" in ir:  # not the runtime functions
            seen.append(optimise)
        return compile_object(ir, passes, optimise)

    monkeypatch.setattr(multiprocessors.jit, "compile_object", watched)
    return seen


def bench(folder: Path) -> Bench:
    made = Bench()
    made.units = VirtualMultiprocessors(workers=1, cache=folder)
    return made


def double(made: Bench, times: int) -> None:
    """Run it some times over, and look whether it was right each time."""
    address, values = made.array(np.arange(32, dtype=np.uint32))
    for number in range(1, times + 1):
        assert made.launch(DOUBLE, address).ending is SmEnding.DONE
        assert (values == np.arange(32, dtype=np.uint32) << number).all()


def test_a_kernel_that_runs_long_is_compiled_again(
    tmp_path: Path, levels: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessors, "_HOT", 0.0)  # any time at all is long
    made = bench(tmp_path)
    double(made, 1)
    assert levels == [0]
    double(made, 8)
    assert levels == [0, 1]
    other = bench(tmp_path)
    double(other, 3)
    assert levels == [0, 1], "careful code was kept on disk, and nothing is better"


def test_a_kernel_that_has_not_run_for_long_is_left_alone(
    tmp_path: Path, levels: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessors, "_HOT", 1e9)
    made = bench(tmp_path)
    double(made, 20)
    double(bench(tmp_path), 20)
    assert levels == [0]


def test_chips_share_the_code_of_equal_kernels(
    tmp_path: Path, levels: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessors, "_HOT", 1e9)  # however slow the processor is
    made = bench(tmp_path)
    for count, target in enumerate(("sm_80", "sm_90", "sm_120"), 1):
        address, values = made.array(np.arange(32, dtype=np.uint32))
        text = DOUBLE.replace("sm_90", target)
        assert made.launch(text, address, target=target).ending is SmEnding.DONE
        assert (values == 2 * np.arange(32, dtype=np.uint32)).all()
        assert len(levels) == 1, count
    refused = made.launch(DOUBLE.replace("sm_90", "sm_100"), address, target="sm_90")
    assert refused.ending is SmEnding.BAD_LAUNCH  # the module is for a newer chip all the same
    other = DOUBLE.replace("add.u32 %x, %x, %x", "add.u32 %x, %x, 1")
    assert made.launch(other, address).ending is SmEnding.DONE
    assert len(levels) == 2
