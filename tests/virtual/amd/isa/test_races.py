"""Races in LDS: accesses of several waves without a barrier between them are named, others not."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import pytest

from tests.support.amd.isa.gfx_corpus import compile_ir
from tests.support.amd.isa.gfx_run import Machine
from ugpu.hcq.device.debugging import Code, Halted
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.targets.target import target
from ugpu.virtual.amd.shader import Ending

CPUS = {"gfx11": "gfx1100", "gfx12": "gfx1201"}
WAVE64 = ",+wavefrontsize64"
BARRIER = """
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
"""
SIGNAL = "  call void @llvm.amdgcn.s.barrier.signal(i32 -1)\n"
WAIT = "  call void @llvm.amdgcn.s.barrier.wait(i16 -1)\n"
# Steps of a kernel: %t is the work-item, %u its mirror image in the group.
STORE = "  store volatile i32 %t, ptr addrspace(3) %mine\n"
STORE_THEIRS = "  store volatile i32 %t, ptr addrspace(3) %theirs\n"
LOAD_MINE = "  %m = load volatile i32, ptr addrspace(3) %mine\n"
LOAD = "  %x = load volatile i32, ptr addrspace(3) %theirs\n"
LOAD_FIRST = "  %f = load volatile i32, ptr addrspace(3) @lds\n"
ATOMIC = "  %a = atomicrmw add ptr addrspace(3) @lds, i32 1 monotonic\n"
ATOMIC_TOO = "  %b = atomicrmw add ptr addrspace(3) @lds, i32 1 monotonic\n"
BYTE = (
    "  %b8 = trunc i32 %t to i8\n"
    "  %bp = getelementptr i8, ptr addrspace(3) @lds, i32 %t\n"
    "  store volatile i8 %b8, ptr addrspace(3) %bp\n"
)
RACES = {
    "a store before another wave's load": (STORE + LOAD, ("ds_store_b32", "ds_load_b32")),
    "a barrier between them": (STORE + BARRIER + LOAD, None),
    "a load before another wave's store": (
        STORE + BARRIER + LOAD + STORE, ("ds_load_b32", "ds_store_b32"),
    ),
    "stores to the same": (STORE + STORE_THEIRS, ("ds_store_b32", "ds_store_b32")),
    "the wave's own": (STORE + LOAD_MINE + STORE, None),
    "all load": (LOAD_FIRST + LOAD, None),
    "all count": (ATOMIC + ATOMIC_TOO, None),
    "a count before it is set": (ATOMIC + STORE, ("ds_add", "ds_store_b32")),
    "a count after a barrier": (STORE + BARRIER + ATOMIC, None),
    "bytes of one dword": (BYTE, None),
    "one barrier for two exchanges": (
        STORE + BARRIER + LOAD + BARRIER + STORE_THEIRS + BARRIER + LOAD_MINE, None,
    ),
}  # fmt: skip
SPLIT = {
    "a store before the signal": (STORE + SIGNAL + WAIT + LOAD, None),
    "a store after it": (SIGNAL + STORE + WAIT + LOAD, ("ds_store_b32", "ds_load_b32")),
    "a load before the wait": (STORE + SIGNAL + LOAD + WAIT, ("ds_store_b32", "ds_load_b32")),
}


def kernel(steps: str) -> str:
    return f"""
@lds = internal addrspace(3) global [128 x i32] poison
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.barrier()
declare void @llvm.amdgcn.s.barrier.signal(i32)
declare void @llvm.amdgcn.s.barrier.wait(i16)
define amdgpu_kernel void @k(ptr addrspace(1) %out) #0 {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %u = sub i32 127, %t
  %mine = getelementptr [128 x i32], ptr addrspace(3) @lds, i32 0, i32 %t
  %theirs = getelementptr [128 x i32], ptr addrspace(3) @lds, i32 0, i32 %u
{steps}
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="128,128" "amdgpu-no-implicitarg-ptr" }}
"""


def found(
    steps: str, name: str, options: str = "", *, checked: bool = True, core: GfxCore | None = None
) -> tuple[str, ...]:
    """Run four groups of 128 work-items; return the violations."""
    machine = Machine(core or GfxCore(2, target=target(name), check_waits=checked))
    image = compile_ir(kernel(steps), options, CPUS[name]).image
    outcome, _ = machine.run(image, [np.zeros(4, np.uint32)], 4, 128)
    machine.core.close()
    assert outcome.ending is Ending.DONE, outcome
    return outcome.violations


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", WAVE64])
@pytest.mark.parametrize("name", CPUS)
@pytest.mark.parametrize("case", RACES)
def test_accesses_without_a_barrier_are_named(case: str, name: str, options: str) -> None:
    steps, expected = RACES[case]
    violations = found(steps, name, options)
    if expected is None:
        assert violations == ()
        return
    assert violations
    for text in violations:
        first, second = text.split(" and ", 1)
        assert expected[0] in first
        assert expected[1] in second
        assert "race: no barrier between their accesses to byte" in text


def test_a_race_is_named_once_and_only_when_asked() -> None:
    (text,) = found(STORE + LOAD, "gfx11")
    assert "(wave " in text
    assert found(STORE + LOAD, "gfx11", checked=False) == ()


@pytest.mark.parametrize("case", SPLIT)
def test_between_signal_and_wait_nothing_is_ordered(case: str) -> None:
    steps, expected = SPLIT[case]
    violations = found(steps, "gfx12")
    assert bool(violations) == (expected is not None)
    assert expected is None or all(name in violations[0] for name in expected)


class Lines:
    """A debugger that halts nowhere and knows one source line."""

    active = True

    def opened(self, device: object) -> None: ...

    def stops(self, code: Code) -> Collection[int] | None:
        return ()

    def place(self, address: int) -> str:
        return f"kernel.c:{address & 0xFF}"

    def halted(self, wave: Halted) -> bool:
        return True


def test_under_a_debugger_source_lines_are_named() -> None:
    core = GfxCore(2, debugger=Lines(), check_waits=True)
    (text,) = found(STORE + LOAD, "gfx11", core=core)
    places = re.findall(r"at (0x[0-9a-f]+) \(kernel\.c:(\d+)\)", text)
    assert len(places) == 2
    assert all(int(address, 16) & 0xFF == int(line) for address, line in places)
