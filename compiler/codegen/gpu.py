"""Kernels for GPUs: code shared by AMD (TargetSpec.abi "amdhsa") and NVIDIA
(compiler.codegen.nvptx), and AMD's own.

Both are one function per kernel with pointers to global memory, and 64-bit words of numbers, as
parameters. They differ in the
calling convention, in the names of thread and group numbers, and in the implementation of barriers.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ugpu.compiler.codegen.instructions.exchange import Word, amd
from ugpu.compiler.codegen.lines import element_type, stored_type
from ugpu.compiler.codegen.shell import Shell
from ugpu.compiler.codegen.values import Values
from ugpu.compiler.dtype import DType, bool_, float16, float32, rounded
from ugpu.compiler.expression.algebra import Index
from ugpu.compiler.expression.value import Memory, Value
from ugpu.compiler.kernel.ir import Kernel
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.target import TargetSpec

# Values that the kernels never use, so that the driver need not provide them (LLVM AMDGPUUsage,
# "amdgpu-no-*" attributes).
_UNUSED = (
    "dispatch-ptr", "queue-ptr", "implicitarg-ptr", "dispatch-id", "heap-ptr", "hostcall-ptr",
    "multigrid-sync-arg", "default-queue", "completion-action", "lds-kernel-id", "workitem-id-y",
    "workitem-id-z", "flat-scratch-init", "cluster-id-x", "cluster-id-y", "cluster-id-z",
)  # fmt: skip
_FENCE = 'syncscope("workgroup")'


class Gpu(Shell):
    """Code generation shared by the GPU targets."""

    convention: str  # LLVM's calling convention of a kernel
    thread: str  # the intrinsic that numbers threads
    group: str  # the intrinsic that numbers groups along an axis
    separator: str  # between the kernel's and a local memory's name

    def __init__(self, kernel: Kernel, target: TargetSpec, bits: int) -> None:
        super().__init__(kernel, target, bits, has_fma=True)

    def module(self) -> str:
        kernel, lines = self.kernel, self.lines
        allocas = self.registers()
        globals_ = []
        for memory in kernel.locals:
            if memory.space == "local" and not memory.dynamic:
                kind = f"[{memory.count} x {stored_type(memory.dtype)}]"
                name = f"@{kernel.name}{self.separator}{memory.name}"
                globals_.append(f"{name} = internal addrspace(3) global {kind} poison, align 64")
                lines.pointers[memory.name] = name
        globals_ += self.dynamic()
        for memory in kernel.parameters:
            lines.pointers[memory.name] = f"%{memory.name}"
        lines.places = {memory.name: place for place, memory in enumerate(kernel.parameters)}
        lines.take(kernel.parameters)
        self._variable("thread", self.thread, kernel.block)
        for axis in range(3):
            if kernel.grid[axis] > 1:
                name = self.group.format("xyz"[axis])
                self._variable(kernel.group(axis).name, name, kernel.grid[axis])
        self.statements(kernel.body)

        def parameter(place: int, memory: Memory) -> str:
            if memory.space == "by_value":
                return f"i64 %{memory.name}"
            mark = "writeonly" if place < kernel.outputs else "readonly"
            extent = self.extent(memory)
            return f"ptr addrspace(1) noalias {mark} align 256{extent} %{memory.name}"

        parameters = ", ".join([parameter(*each) for each in enumerate(kernel.parameters)])
        head = [
            *globals_,
            f"define {self.convention} void @{kernel.name}({parameters}) #0 {{",
            "entry:",
            *allocas,
        ]
        self.above = len(head)
        text = [
            *head,
            *lines.text,
            "  ret void",
            "}",
            *sorted(lines.declarations),
            f"attributes #0 = {{ nounwind {self.attributes()} }}",
            "!0 = !{}",
            *self.metadata(),
        ]
        return "\n".join(text) + "\n"

    def dynamic(self) -> list[str]:
        """Return globals of local memory whose size the launch gives; sets the pointers to it."""
        if self.kernel.dynamic_local:
            raise NotSupported("dynamic local memory", target=self.target.name)
        return []

    def extent(self, memory: Memory) -> str:
        """Return the attribute with the number of bytes at a parameter, if the target uses it."""
        return ""

    def attributes(self) -> str:
        """Return the kernel's attributes in LLVM IR."""
        raise NotImplementedError

    def metadata(self) -> list[str]:
        """Return the metadata to which `barrier` refers."""
        return []

    def _variable(self, name: str, intrinsic: str, size: int) -> None:
        lines = self.lines
        lines.declarations.add(f"declare i32 @{intrinsic}()")
        text = lines.new(f"call range(i32 0, {size}) i32 @{intrinsic}()")
        if lines.index_type == "i64":
            text = lines.new(f"zext nneg i32 {text} to i64")
        lines.variables[name] = text


class AmdValues(Values):
    """Values of AMD's GPUs. extremes: whether one instruction is `extreme`; where it is not, LLVM
    has three for it (v_max_f32, v_cmp_o_f32, v_cndmask_b32)."""

    extremes = False

    def extreme(self, node: Value, sources: list[str], kind: str) -> str:
        for which, number in enumerate(node.sources):
            if self.extremes or number.op != "const" or not _above(number.arg, node.op == "max"):
                continue
            constant, other = sources[which], sources[1 - which]
            test = "ole" if node.op == "max" else "oge"  # of zeros, the constant is the right one
            chosen = self.new(f"fcmp {test} {kind} {other}, {constant}")
            tests = element_type(bool_, node.lanes)
            return self.new(f"select {tests} {chosen}, {kind} {constant}, {kind} {other}")
        return super().extreme(node, sources, kind)

    def _cast(
        self, text: str, source: DType, target: DType, lanes: int, node: Value | None = None
    ) -> str:
        """LLVM rounds a product of a half and a float by v_fma_mixlo_f16 with 0 as the third
        operand, to which a product of -0 is added; one that is canonicalised it leaves alone."""
        if target is float16 and node is not None and _is_mixed(node):
            kind = element_type(source, lanes)
            text = self.intrinsic("canonicalize", kind, [text])
        return super()._cast(text, source, target, lanes, node)

    def other_lane(self, mask: int) -> Word:
        return amd(self, mask, self.wave_size)

    def among(self, memory: Memory, which: Index) -> str:
        """Read from the kernel's arguments, eight bytes each, if those are consecutive."""
        first = self.places[memory.among[0].name]
        if [self.places[each.name] - first for each in memory.among] != [*range(len(memory.among))]:
            return super().among(memory, which)
        segment = "llvm.amdgcn.kernarg.segment.ptr"
        start = self.call(segment, "ptr addrspace(4)", [])
        kind, place = self.index_type, self.index((which + first) * 8)
        at = self.new(f"getelementptr inbounds i8, ptr addrspace(4) {start}, {kind} {place}")
        kind = self.spaces[memory.space]
        return self.new(f"load {kind}, ptr addrspace(4) {at}, align 8, !invariant.load !0")


def _is_mixed(node: Value) -> bool:
    """Return whether a value is a product of which one factor alone is a half."""
    if node.op != "mul" or node.dtype is not float32:
        return False
    halves = [
        rounded(factor.arg, float16) == factor.arg
        if factor.op == "const"
        else factor.op == "cast" and factor.sources[0].dtype is float16
        for factor in node.sources
    ]
    return halves[0] is not halves[1]


def _above(constant: float, greater: bool) -> bool:
    """Return whether a constant equal to a number is their maximum (else minimum): not of zeros."""
    if math.isnan(constant):
        return False
    return constant != 0 or (math.copysign(1, constant) > 0) == greater


class Amd(Gpu):
    """An AMD HSA kernel (LLVM AMDGPUUsage)."""

    values = AmdValues
    pointers: ClassVar = {
        "global": "ptr addrspace(1)",
        "local": "ptr addrspace(3)",
        "register": "ptr addrspace(5)",
    }
    convention = "amdgpu_kernel"
    thread = "llvm.amdgcn.workitem.id.x"
    group = "llvm.amdgcn.workgroup.id.{}"
    separator = "."
    lines: AmdValues

    def __init__(self, kernel: Kernel, target: TargetSpec, bits: int) -> None:
        super().__init__(kernel, target, bits)
        # V_MAXIMUM_F32 of the RDNA4 ISA document, V_MAXIMUM3_F32 of the CDNA4 ISA document.
        self.lines.extremes = target.cpu == "gfx950" or target.cpu.startswith("gfx12")

    def barrier(self) -> None:
        # only local memory is shared between the threads of a group
        self.lines.put(f"fence {_FENCE} release, !mmra !1")
        self.lines.declarations.add("declare void @llvm.amdgcn.s.barrier()")
        self.lines.put("call void @llvm.amdgcn.s.barrier()")
        self.lines.put(f"fence {_FENCE} acquire, !mmra !1")

    def attributes(self) -> str:
        kernel = self.kernel
        single = [f"workgroup-id-{'xyz'[axis]}" for axis in range(3) if kernel.grid[axis] == 1]
        unused = " ".join(f'"amdgpu-no-{name}"' for name in (*_UNUSED, *single))
        size = f'"{kernel.block},{kernel.block}"'
        return f'"amdgpu-flat-work-group-size"={size} "uniform-work-group-size"="true" {unused}'

    def metadata(self) -> list[str]:
        return ['!1 = !{!"amdgpu-synchronize-as", !"local"}']
