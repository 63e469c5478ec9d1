"""The matrix units' instructions as LLVM intrinsics.

Names and operand types: LLVM's IntrinsicsAMDGPU.td (int_amdgcn_wmma_*, int_amdgcn_mfma_*) and
IntrinsicsNVVM.td (int_nvvm_mma_*). compiler.kernel.matrix_units describes the lanes' contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ugpu.compiler.codegen.lines import Lines, element_type
from ugpu.compiler.kernel.matrix_units import UNITS, MatrixUnit


@dataclass(frozen=True)
class Amd:
    """One call on whole vectors. operand: LLVM's type of both factors. signs: whether a flag
    (signed) precedes each factor. tail: constant arguments after the total."""

    name: str
    operand: str
    signs: bool = False
    tail: tuple[tuple[str, str], ...] = ()

    def call(self, lines: Lines, unit: MatrixUnit, left: str, right: str, total: str) -> str:
        kind = element_type(unit.total, unit.total_lanes)
        factors = [
            _as(lines, text, element_type(unit.element, lanes), self.operand)
            for text, lanes in ((right, unit.held), (left, unit.left_lanes))
        ]
        arguments: list[tuple[str, str]] = []
        for factor in factors:
            arguments += [("i1", "true")] if self.signs else []
            arguments.append((self.operand, factor))
        arguments += [(kind, total), *self.tail]
        return lines.call(f"llvm.amdgcn.{self.name}", kind, arguments)


@dataclass(frozen=True)
class Nvidia:
    """One call on 32-bit registers. register: their LLVM type."""

    name: str
    register: str

    def call(self, lines: Lines, unit: MatrixUnit, left: str, right: str, total: str) -> str:
        kind = element_type(unit.total)
        arguments = [
            *self._registers(lines, unit, left, unit.left_lanes),
            *self._registers(lines, unit, right, unit.held),
        ]
        vector = element_type(unit.total, unit.total_lanes)
        for lane in range(unit.total_lanes):
            taken = lines.new(f"extractelement {vector} {total}, i32 {lane}")
            arguments.append((kind, taken))
        result = "{ " + ", ".join([kind] * unit.total_lanes) + " }"
        given = self._called(lines, unit, result, arguments)
        joined = "poison"
        for lane in range(unit.total_lanes):
            part = lines.new(f"extractvalue {result} {given}, {lane}")
            joined = lines.new(f"insertelement {vector} {joined}, {kind} {part}, i32 {lane}")
        return joined

    def _called(
        self, lines: Lines, unit: MatrixUnit, result: str, arguments: list[tuple[str, str]]
    ) -> str:
        return lines.call(f"llvm.nvvm.mma.{self.name}", result, arguments)

    def _registers(
        self, lines: Lines, unit: MatrixUnit, text: str, lanes: int
    ) -> list[tuple[str, str]]:
        count = lanes * unit.element.itemsize // 4
        words = f"<{count} x i32>"
        whole = _as(lines, text, element_type(unit.element, lanes), words)
        parts = [lines.new(f"extractelement {words} {whole}, i32 {i}") for i in range(count)]
        return [(self.register, _as(lines, part, "i32", self.register)) for part in parts]


class Ptx(Nvidia):
    """An instruction for which LLVM has no intrinsic, in the words of PTX; totals in float32."""

    def _called(
        self, lines: Lines, unit: MatrixUnit, result: str, arguments: list[tuple[str, str]]
    ) -> str:
        totals = unit.total_lanes
        names = [f"${place}" for place in range(totals + len(arguments))]
        left = totals + unit.left_lanes * unit.element.itemsize // 4
        right = left + unit.held * unit.element.itemsize // 4
        parts = (names[:totals], names[totals:left], names[left:right], names[right:])
        text = f"mma.sync.aligned.{self.name} " + ", ".join(f"{{{', '.join(p)}}}" for p in parts)
        kinds = ["=f"] * totals + ["r"] * (right - totals) + ["f"] * totals
        given = ", ".join(f"{kind} {text}" for kind, text in arguments)
        return lines.new(f'call {result} asm sideeffect "{text};", "{",".join(kinds)}"({given})')


def _as(lines: Lines, text: str, source: str, target: str) -> str:
    return text if source == target else lines.new(f"bitcast {source} {text} to {target}")


_MFMA = (("i32", "0"),) * 3  # no broadcast, no permutation
_CLAMP = (("i1", "false"),)
CALLS: Mapping[str, Amd | Nvidia] = {
    "gfx11.float16": Amd("wmma.f32.16x16x16.f16.v8f32.v16f16", "<16 x half>"),
    "gfx11.bfloat16": Amd("wmma.f32.16x16x16.bf16.v8f32.v16i16", "<16 x i16>"),
    "gfx11.int8": Amd("wmma.i32.16x16x16.iu8.v8i32.v4i32", "<4 x i32>", True, _CLAMP),
    "gfx12.float16": Amd("wmma.f32.16x16x16.f16.v8f32.v8f16", "<8 x half>"),
    "gfx12.bfloat16": Amd("wmma.f32.16x16x16.bf16.v8f32.v8i16", "<8 x i16>"),
    "gfx12.int8": Amd("wmma.i32.16x16x16.iu8.v8i32.v2i32", "<2 x i32>", True, _CLAMP),
    "gfx12.float8_e4m3fn": Amd("wmma.f32.16x16x16.fp8.fp8.v8f32.v2i32", "<2 x i32>"),
    "gfx12.float8_e5m2": Amd("wmma.f32.16x16x16.bf8.bf8.v8f32.v2i32", "<2 x i32>"),
    "gfx942.float16": Amd("mfma.f32.16x16x16f16", "<4 x half>", tail=_MFMA),
    "gfx942.bfloat16": Amd("mfma.f32.16x16x16bf16.1k", "<4 x i16>", tail=_MFMA),
    "gfx942.int8": Amd("mfma.i32.16x16x32.i8", "i64", tail=_MFMA),
    "gfx942.float8_e4m3fnuz": Amd("mfma.f32.16x16x32.fp8.fp8", "i64", tail=_MFMA),
    "gfx942.float8_e5m2fnuz": Amd("mfma.f32.16x16x32.bf8.bf8", "i64", tail=_MFMA),
    "gfx950.float16": Amd("mfma.f32.16x16x32.f16", "<8 x half>", tail=_MFMA),
    "gfx950.bfloat16": Amd("mfma.f32.16x16x32.bf16", "<8 x bfloat>", tail=_MFMA),
    "gfx950.int8": Amd("mfma.i32.16x16x64.i8", "<4 x i32>", tail=_MFMA),
    "gfx950.float8_e4m3fn": Amd("mfma.f32.16x16x32.fp8.fp8", "i64", tail=_MFMA),
    "gfx950.float8_e5m2": Amd("mfma.f32.16x16x32.bf8.bf8", "i64", tail=_MFMA),
    "sm_80.float16": Nvidia("m16n8k16.row.col.f32.f32", "<2 x half>"),
    "sm_80.bfloat16": Nvidia("m16n8k16.row.col.bf16", "i32"),
    "sm_80.int8": Nvidia("m16n8k32.row.col.s8", "i32"),
    "sm_80.tf32": Nvidia("m16n8k8.row.col.tf32", "i32"),
    "sm_89.float8_e4m3fn": Ptx("m16n8k32.row.col.f32.e4m3.e4m3.f32", "i32"),
    "sm_89.float8_e5m2": Ptx("m16n8k32.row.col.f32.e5m2.e5m2.f32", "i32"),
}


def matrix_product(lines: Lines, name: str, left: str, right: str, total: str) -> str:
    """Return the SSA value of unit `name`'s total + left x right."""
    return CALLS[name].call(lines, UNITS[name], left, right, total)


def shared_matrices(lines: Lines, pointer: str, turned: bool, kind: str) -> str:
    """Return the SSA value of a lane's part of four 8 x 16-byte matrices in shared memory (PTX ISA,
    "ldmatrix"), as a vector of type `kind`. pointer: of the lane's row."""
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{'.trans' if turned else ''}.b16.p3"
    result = "{ i32, i32, i32, i32 }"
    given = lines.call(name, result, [("ptr addrspace(3)", pointer)])
    joined = "poison"
    for register in range(4):
        taken = lines.new(f"extractvalue {result} {given}, {register}")
        joined = lines.new(f"insertelement <4 x i32> {joined}, i32 {taken}, i32 {register}")
    return _as(lines, joined, "<4 x i32>", kind)
