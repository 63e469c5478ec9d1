"""Kinds of arguments from DWARF: what `clang -x hip -g` writes, where the metadata has no types."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.support.kernels import compile_ir
from ugpu import hcq
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.objects.code_object import parse_amdhsa
from ugpu.hcq.objects.source_types import with_kinds

SOURCE = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @_Z4axpyPff5countj(
    ptr addrspace(1) %out, float %a, i32 %n, i32 %mode, [2 x i32] %pair) #0 !dbg !10 {
  %i = call i32 @llvm.amdgcn.workitem.id.x(), !dbg !30
  %at = getelementptr float, ptr addrspace(1) %out, i32 %i, !dbg !30
  store float %a, ptr addrspace(1) %at, !dbg !30
  ret void, !dbg !30
}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-flat-work-group-size"="64,64"
  "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-dispatch-ptr" }
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2, !3}
!0 = distinct !DICompileUnit(language: DW_LANG_C_plus_plus_14, file: !1, emissionKind: FullDebug)
!1 = !DIFile(filename: "axpy.hip", directory: "kernels")
!2 = !{i32 7, !"Dwarf Version", i32 DWARF_VERSION}
!3 = !{i32 2, !"Debug Info Version", i32 3}
!10 = distinct !DISubprogram(name: "axpy", linkageName: "LINKAGE", file: !1, line: 1,
  type: !11, unit: !0, spFlags: DISPFlagDefinition, retainedNodes: !12)
!11 = !DISubroutineType(types: !13)
!13 = !{null}
!12 = !{PARAMETERS}
!14 = !DILocalVariable(name: "out", arg: 1, scope: !10, file: !1, line: 1, type: !20)
!15 = !DILocalVariable(name: "a", arg: 2, scope: !10, file: !1, line: 1, type: !21)
!16 = !DILocalVariable(name: "n", arg: 3, scope: !10, file: !1, line: 1, type: !23)
!17 = !DILocalVariable(name: "mode", arg: 4, scope: !10, file: !1, line: 1, type: !25)
!18 = !DILocalVariable(name: "pair", arg: 5, scope: !10, file: !1, line: 1, type: !26)
!20 = !DIDerivedType(tag: DW_TAG_pointer_type, baseType: !21, size: 64)
!21 = !DIBasicType(name: "float", size: 32, encoding: DW_ATE_float)
!22 = !DIBasicType(name: "unsigned int", size: 32, encoding: DW_ATE_unsigned)
!23 = !DIDerivedType(tag: DW_TAG_typedef, name: "count", file: !1, line: 1, baseType: !24)
!24 = !DIDerivedType(tag: DW_TAG_const_type, baseType: !22)
!25 = !DICompositeType(tag: DW_TAG_enumeration_type, name: "Mode", file: !1, line: 1,
  baseType: !22, size: 32, elements: !27)
!26 = !DICompositeType(tag: DW_TAG_structure_type, name: "Pair", file: !1, line: 1, size: 64,
  elements: !28)
!27 = !{!29}
!28 = !{}
!29 = !DIEnumerator(name: "FAST", value: 1)
!30 = !DILocation(line: 2, column: 3, scope: !10)
"""
NAME = "_Z4axpyPff5countj"
ALL = "!14, !15, !16, !17, !18"


def built(version: int = 5, parameters: str = ALL, linkage: str = NAME) -> bytes:
    text = SOURCE.replace("DWARF_VERSION", str(version)).replace("PARAMETERS", parameters)
    return compile_ir(text.replace("LINKAGE", linkage), "amdgcn-amd-amdhsa", "gfx1100")


def kinds(image: bytes) -> list[str]:
    arguments = {name: kernel.arguments for name, kernel in parse_amdhsa(image).kernels.items()}
    return [argument.kind for argument in with_kinds(image, arguments)[NAME]]


@pytest.mark.parametrize("version", [4, 5])
def test_types_come_from_dwarf(version: int) -> None:
    pytest.importorskip("elftools")
    assert kinds(built(version)) == ["", "float", "integer", "integer", ""]


@pytest.mark.parametrize(
    ("parameters", "linkage"), [("!14, !15, !16", NAME), ("", NAME), (ALL, "_Z5otherv")]
)
def test_what_disagrees_tells_nothing(parameters: str, linkage: str) -> None:
    assert kinds(built(parameters=parameters, linkage=linkage)) == [""] * 5


def test_damaged_tables_tell_nothing(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("elftools")
    image = bytearray(built())
    plain = parse_amdhsa(bytes(image))
    arguments = {name: kernel.arguments for name, kernel in plain.kernels.items()}
    at = image.index(b".debug_info\0")
    assert with_kinds(bytes(image[: len(image) // 2]) + bytes(image[at : at + 12]), arguments) == (
        arguments
    )
    assert "invalid" in caplog.text


def test_without_pyelftools_kinds_stay_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    assert kinds(built()) == [""] * 5


def test_a_float_for_an_integer_is_refused() -> None:
    pytest.importorskip("elftools")
    with hcq.open("virtual:navi31") as device, device.load(built()) as program:
        out, rest = device.alloc(256), (np.uint32(3), np.uint32(1), bytes(8))
        with pytest.raises(BadArgument, match="integer of 4 bytes; a float32"):
            wrong = (out, np.float32(2), np.float32(3), *rest[1:])
            device.queue().launch(program[NAME], grid=(1,), block=(64,), args=wrong)
        with device.queue() as queue:
            queue.launch(program[NAME], grid=(1,), block=(64,), args=(out, np.float32(2), *rest))
        device.synchronize()
        assert (out.numpy(np.float32) == 2).all()
