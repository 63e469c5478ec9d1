"""Page faults on the virtual Navi31 name the instruction, and its line of source where the object
has line tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, opened, run
from tests.support.kernels import compile_ir
from ugpu.am.device.device import AmDevice
from ugpu.hcq.errors import PageFault
from ugpu.hcq.state.instruction import Culprit, Culprits, take_culprit
from ugpu.hcq.transport.recorded.accesses import TracingTransport
from ugpu.hcq.transport.recorded.recorder import RecordingTransport
from ugpu.virtual.amd.bus.pci import VirtualTransport

# What `clang -g` adds: lines 11 (the read) and 12 (the write) of kernels/copy.cl.
WITH_LINES = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @copy(ptr addrspace(1) %to, i64 %at) #0 !dbg !4 {
  %from = inttoptr i64 %at to ptr addrspace(1), !dbg !7
  %value = load volatile i32, ptr addrspace(1) %from, !dbg !7
  store i32 %value, ptr addrspace(1) %to, !dbg !8
  ret void, !dbg !8
}
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-flat-work-group-size"="64,64"
  "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-dispatch-ptr" }
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2, !3}
!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, emissionKind: LineTablesOnly)
!1 = !DIFile(filename: "copy.cl", directory: "kernels")
!2 = !{i32 7, !"Dwarf Version", i32 DWARF_VERSION}
!3 = !{i32 2, !"Debug Info Version", i32 3}
!4 = distinct !DISubprogram(name: "copy", file: !1, line: 10, type: !5, unit: !0,
  spFlags: DISPFlagDefinition)
!5 = !DISubroutineType(types: !6)
!6 = !{null}
!7 = !DILocation(line: 11, column: 3, scope: !4)
!8 = !DILocation(line: 12, column: 3, scope: !4)
"""
# One kernel for each way to memory; each reads or writes at the address that it is given.
WAYS = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @scalar(ptr addrspace(1) %out, i64 %at) #0 {
  %p = inttoptr i64 %at to ptr addrspace(1)
  %value = load i32, ptr addrspace(1) %p, !invariant.load !0
  store i32 %value, ptr addrspace(1) %out
  ret void
}
define amdgpu_kernel void @wide(ptr addrspace(1) %out, i64 %at) #0 {
  %p = inttoptr i64 %at to ptr addrspace(1)
  %value = load volatile <4 x i32>, ptr addrspace(1) %p
  store <4 x i32> %value, ptr addrspace(1) %out
  ret void
}
define amdgpu_kernel void @wide_store(ptr addrspace(1) %out, i64 %at) #0 {
  %p = inttoptr i64 %at to ptr addrspace(1)
  store volatile <4 x i32> splat (i32 1), ptr addrspace(1) %p
  ret void
}
define amdgpu_kernel void @flat(ptr addrspace(1) %out, i64 %at) #0 {
  %p = inttoptr i64 %at to ptr
  %value = load volatile i32, ptr %p
  store i32 %value, ptr addrspace(1) %out
  ret void
}
define amdgpu_kernel void @flat_store(ptr addrspace(1) %out, i64 %at) #0 {
  %p = inttoptr i64 %at to ptr
  store volatile i32 1, ptr %p
  ret void
}
define amdgpu_kernel void @atomic(ptr addrspace(1) %out, i64 %at) #0 {
  %p = inttoptr i64 %at to ptr addrspace(1)
  %old = atomicrmw add ptr addrspace(1) %p, i32 1 monotonic
  store i32 %old, ptr addrspace(1) %out
  ret void
}
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-flat-work-group-size"="64,64"
  "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-dispatch-ptr" }
!0 = !{}
"""
UNMAPPED = 0x1234_5678_9000


@pytest.fixture(scope="module")
def device() -> Iterator[AmDevice]:
    chip: Any = build_chip()
    with opened(chip) as made:
        yield made
    chip.close()


def fault(device: AmDevice, image: bytes, kernel: str, *rest: object) -> PageFault:
    with device.load(image) as program, device.alloc(64) as out:
        try:
            with pytest.raises(PageFault) as caught:
                run(device, program, kernel, out, *rest)
        finally:
            device.reset()
    return caught.value


@pytest.mark.parametrize(
    ("kernel", "instruction"),
    [("read_at", "global_load_b32"), ("write_at", "global_store_b32")],
)
def test_the_instruction_is_named(device: AmDevice, kernel: str, instruction: str) -> None:
    error = fault(device, faulty_object(), kernel, np.uint64(UNMAPPED))
    assert str(error.facts["instruction"]).startswith(f"{instruction} v")
    assert error.facts["kernel"] == kernel
    assert f"by `{error.facts['instruction']}` at byte {error.facts['offset']} of" in str(error)
    assert "source_line" not in error.facts


@pytest.mark.parametrize(
    ("kernel", "instruction"),
    [
        ("scalar", "s_load_b32"), ("wide", "global_load_b128"),
        ("wide_store", "global_store_b128"), ("flat", "flat_load_b32"),
        ("flat_store", "flat_store_b32"), ("atomic", "global_atomic_add_u32"),
    ],
)  # fmt: skip
def test_every_way_to_memory(device: AmDevice, kernel: str, instruction: str) -> None:
    image = compile_ir(WAYS, "amdgcn-amd-amdhsa", "gfx1100")
    error = fault(device, image, kernel, np.uint64(UNMAPPED))
    assert str(error.facts["instruction"]).startswith(instruction)


@pytest.mark.parametrize("version", [4, 5])
def test_the_line_of_source_is_named(device: AmDevice, version: int) -> None:
    ir = WITH_LINES.replace("DWARF_VERSION", str(version))
    image = compile_ir(ir, "amdgcn-amd-amdhsa", "gfx1100")
    error = fault(device, image, "copy", np.uint64(UNMAPPED))
    assert error.facts["source_line"] == "kernels/copy.cl:11"
    assert "kernels/copy.cl:11" in str(error)


def test_without_pyelftools_the_instruction_alone_is_named(
    device: AmDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    ir = WITH_LINES.replace("DWARF_VERSION", "5")
    image = compile_ir(ir, "amdgcn-amd-amdhsa", "gfx1100")
    error = fault(device, image, "copy", np.uint64(UNMAPPED))
    assert str(error.facts["instruction"]).startswith("global_load_b32")
    assert "source_line" not in error.facts and "ugpu[lines]" in caplog.text


def test_damaged_lines_do_not_hide_the_fault(device: AmDevice) -> None:
    ir = WITH_LINES.replace("DWARF_VERSION", "5")
    image = bytearray(compile_ir(ir, "amdgcn-amd-amdhsa", "gfx1100"))
    at = image.index(b"kernels\0copy.cl\0")
    image[at : at + 16] = b"\xff" * 16
    error = fault(device, bytes(image), "copy", np.uint64(UNMAPPED))
    assert str(error.facts["instruction"]).startswith("global_load_b32")


def test_the_last_is_told_once() -> None:
    seen = Culprits()
    for pc, address in ((1, 0x5004), (2, 0x5008), (3, 0x9000)):
        seen.add(Culprit(address, pc, "load"))
    found = seen.take(0x5000, None)
    assert found is not None and found.pc == 2
    assert seen.take(0x5000, None) is None
    assert seen.take(None, 3) == Culprit(0x9000, 3, "load") and seen.take(None, 3) is None


def traced(inner: VirtualTransport) -> TracingTransport:
    return TracingTransport(inner, lambda access: None)


@pytest.mark.parametrize("around", [traced, RecordingTransport])
def test_what_stands_around_a_model_passes_it_on(around: Callable[[Any], Any]) -> None:
    chip: Any = build_chip()
    chip.culprits.add(Culprit(0x5004, 7, "load"))
    with around(VirtualTransport(chip)) as transport:
        assert take_culprit(transport, address=0x5000) == Culprit(0x5004, 7, "load")
        assert take_culprit(transport, address=0x5000) is None
    chip.close()


def test_chips_know_nothing() -> None:
    assert take_culprit(object(), address=UNMAPPED) is None
