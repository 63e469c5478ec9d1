"""Small kernels for tests, in LLVM IR per ABI, compiled by llvmlite."""

from __future__ import annotations

import base64
import functools
import threading
from pathlib import Path

import llvmlite.binding as llvm

from tests.support.nvidia import ptx_kernels
from ugpu.hcq.disk.objects import kept
from ugpu.hcq.objects import jit
from ugpu.hcq.state.target import TargetSpec, adreno_chip

_lock = threading.Lock()  # LLVM's targets are initialised once, its contexts used by one at a time


@functools.cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def compile_ir(ir: str, triple: str, cpu: str, features: str = "", optimise: int = 2) -> bytes:
    """A relocatable object from LLVM IR (position-independent)."""
    make = functools.partial(_compile, ir, triple, cpu, features, optimise)
    parts = (jit.llvm_version(), triple, cpu, features, optimise, ir)
    return kept(make, Path(__file__), *parts)


def _compile(ir: str, triple: str, cpu: str, features: str, optimise: int) -> bytes:
    with _lock:
        _initialise()
        machine = llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu, features=features, opt=optimise, reloc="pic"
        )
        module = llvm.parse_assembly(ir)
        module.verify()
        return bytes(machine.emit_object(module))


AMD_TABLE = """
target triple = "amdgcn-amd-amdhsa"
@hidden = internal unnamed_addr addrspace(4) constant [4 x i32] [i32 11, i32 22, i32 33, i32 44]
@shown = addrspace(4) constant [4 x i32] [i32 1000, i32 2000, i32 3000, i32 4000], align 16
define amdgpu_kernel void @look_up(ptr addrspace(1) %out, ptr addrspace(1) %x, i32 %offset) #0
    !kernel_arg_type !0 {
  %id = call i32 @llvm.amdgcn.workitem.id.x()
  %from = getelementptr i32, ptr addrspace(1) %x, i32 %id
  %value = load i32, ptr addrspace(1) %from
  %index = and i32 %value, 3
  %p = getelementptr [4 x i32], ptr addrspace(4) @hidden, i32 0, i32 %index
  %a = load i32, ptr addrspace(4) %p
  %q = getelementptr [4 x i32], ptr addrspace(4) @shown, i32 0, i32 %index
  %b = load i32, ptr addrspace(4) %q
  %sum = add i32 %a, %b
  %total = add i32 %sum, %offset
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %id
  store i32 %total, ptr addrspace(1) %to
  ret void
}
define amdgpu_kernel void @implicit(ptr addrspace(1) %out) {
  store i32 5, ptr addrspace(1) %out
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-flat-work-group-size"="1,256" }
!0 = !{!"uint*", !"uint*", !"uint"}
"""


def amd_table_object(cpu: str = "gfx1100") -> bytes:
    """Two kernels; one uses constant tables, one through the global offset table."""
    return compile_ir(AMD_TABLE, "amdgcn-amd-amdhsa", cpu)


# ---- kernels of the contract suite: the same four for every ABI
# ----------------------------------- scale(out, x, u32 count, u32 factor): out[i] = x[i] * factor
# for i < count add(out, x, y, u32 count): out[i] = x[i] + y[i] for i < count
# spin(flag): loops until the 32-bit word at flag is not zero
# wide(out, u64 value, u8 small): out[0] = value + small

HOST = """
target triple = "{triple}"
@scale.ugpu = constant {{ i32, i32, [38 x i8] }} {{ i32 2, i32 24,
  [38 x i8] c"ptr out, ptr x, i32 count, i32 factor\\00" }}
@add.ugpu = constant {{ i32, i32, [33 x i8] }} {{ i32 2, i32 28,
  [33 x i8] c"ptr out, ptr x, ptr y, i32 count\\00" }}
@spin.ugpu = constant {{ i32, i32, [9 x i8] }} {{ i32 2, i32 8, [9 x i8] c"ptr flag\\00" }}
@wide.ugpu = constant {{ i32, i32, [29 x i8] }} {{ i32 2, i32 17,
  [29 x i8] c"ptr out, i64 value, i8 small\\00" }}

define internal {{ i64, i64 }} @range(ptr %launch) alwaysinline {{
  %first = load i64, ptr %launch
  %last.at = getelementptr i8, ptr %launch, i64 8
  %last = load i64, ptr %last.at
  %block.at = getelementptr i8, ptr %launch, i64 28
  %block = load i32, ptr %block.at
  %wide = zext i32 %block to i64
  %low = mul i64 %first, %wide
  %high = mul i64 %last, %wide
  %a = insertvalue {{ i64, i64 }} undef, i64 %low, 0
  %b = insertvalue {{ i64, i64 }} %a, i64 %high, 1
  ret {{ i64, i64 }} %b
}}
define void @scale(ptr %kernarg, ptr %launch) {{
entry:
  %out = load ptr, ptr %kernarg
  %x.at = getelementptr i8, ptr %kernarg, i64 8
  %x = load ptr, ptr %x.at
  %count.at = getelementptr i8, ptr %kernarg, i64 16
  %count = load i32, ptr %count.at
  %factor.at = getelementptr i8, ptr %kernarg, i64 20
  %factor = load i32, ptr %factor.at
  %limit = zext i32 %count to i64
  %range = call {{ i64, i64 }} @range(ptr %launch)
  %low = extractvalue {{ i64, i64 }} %range, 0
  %high = extractvalue {{ i64, i64 }} %range, 1
  br label %loop
loop:
  %i = phi i64 [ %low, %entry ], [ %next, %skip ]
  %more = icmp ult i64 %i, %high
  br i1 %more, label %check, label %done
check:
  %inside = icmp ult i64 %i, %limit
  br i1 %inside, label %body, label %skip
body:
  %from = getelementptr i32, ptr %x, i64 %i
  %value = load i32, ptr %from
  %product = mul i32 %value, %factor
  %to = getelementptr i32, ptr %out, i64 %i
  store i32 %product, ptr %to
  br label %skip
skip:
  %next = add i64 %i, 1
  br label %loop
done:
  ret void
}}
define void @add(ptr %kernarg, ptr %launch) {{
entry:
  %out = load ptr, ptr %kernarg
  %x.at = getelementptr i8, ptr %kernarg, i64 8
  %x = load ptr, ptr %x.at
  %y.at = getelementptr i8, ptr %kernarg, i64 16
  %y = load ptr, ptr %y.at
  %count.at = getelementptr i8, ptr %kernarg, i64 24
  %count = load i32, ptr %count.at
  %limit = zext i32 %count to i64
  %range = call {{ i64, i64 }} @range(ptr %launch)
  %low = extractvalue {{ i64, i64 }} %range, 0
  %high = extractvalue {{ i64, i64 }} %range, 1
  br label %loop
loop:
  %i = phi i64 [ %low, %entry ], [ %next, %skip ]
  %more = icmp ult i64 %i, %high
  br i1 %more, label %check, label %done
check:
  %inside = icmp ult i64 %i, %limit
  br i1 %inside, label %body, label %skip
body:
  %from.x = getelementptr i32, ptr %x, i64 %i
  %a = load i32, ptr %from.x
  %from.y = getelementptr i32, ptr %y, i64 %i
  %b = load i32, ptr %from.y
  %sum = add i32 %a, %b
  %to = getelementptr i32, ptr %out, i64 %i
  store i32 %sum, ptr %to
  br label %skip
skip:
  %next = add i64 %i, 1
  br label %loop
done:
  ret void
}}
define void @spin(ptr %kernarg, ptr %launch) {{
entry:
  %flag = load ptr, ptr %kernarg
  br label %loop
loop:
  %value = load volatile i32, ptr %flag
  %set = icmp ne i32 %value, 0
  br i1 %set, label %done, label %loop
done:
  ret void
}}
define void @wide(ptr %kernarg, ptr %launch) {{
  %out = load ptr, ptr %kernarg
  %value.at = getelementptr i8, ptr %kernarg, i64 8
  %value = load i64, ptr %value.at
  %small.at = getelementptr i8, ptr %kernarg, i64 16
  %small = load i8, ptr %small.at
  %extended = zext i8 %small to i64
  %sum = add i64 %value, %extended
  store i64 %sum, ptr %out
  ret void
}}
"""

# of GPUs but NVIDIA's; {kernel}, {group}, {thread}: how AMD's and Adreno's differ
GPU = """
define internal i32 @index() alwaysinline {{
  %group = call i32 @{group}()
  %thread = call i32 @{thread}()
  %base = mul i32 %group, 64
  %i = add i32 %base, %thread
  ret i32 %i
}}
define {kernel} void @scale(
    ptr addrspace(1) %out, ptr addrspace(1) %x, i32 %count, i32 %factor) #0 !kernel_arg_type !0 {{
  %i = call i32 @index()
  %inside = icmp ult i32 %i, %count
  br i1 %inside, label %body, label %done
body:
  %from = getelementptr i32, ptr addrspace(1) %x, i32 %i
  %value = load i32, ptr addrspace(1) %from
  %product = mul i32 %value, %factor
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 %product, ptr addrspace(1) %to
  br label %done
done:
  ret void
}}
define {kernel} void @add(
    ptr addrspace(1) %out, ptr addrspace(1) %x, ptr addrspace(1) %y, i32 %count) #0
    !kernel_arg_type !1 {{
  %i = call i32 @index()
  %inside = icmp ult i32 %i, %count
  br i1 %inside, label %body, label %done
body:
  %from.x = getelementptr i32, ptr addrspace(1) %x, i32 %i
  %a = load i32, ptr addrspace(1) %from.x
  %from.y = getelementptr i32, ptr addrspace(1) %y, i32 %i
  %b = load i32, ptr addrspace(1) %from.y
  %sum = add i32 %a, %b
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 %sum, ptr addrspace(1) %to
  br label %done
done:
  ret void
}}
define {kernel} void @spin(ptr addrspace(1) %flag) #0 !kernel_arg_type !2 {{
  br label %loop
loop:
  %value = load atomic i32, ptr addrspace(1) %flag syncscope("one-as") acquire, align 4
  %set = icmp ne i32 %value, 0
  br i1 %set, label %done, label %loop
done:
  ret void
}}
define {kernel} void @wide(ptr addrspace(1) %out, i64 %value, i8 %small) #0
    !kernel_arg_type !3 {{
  %extended = zext i8 %small to i64
  %sum = add i64 %value, %extended
  store i64 %sum, ptr addrspace(1) %out
  ret void
}}
declare i32 @{group}()
declare i32 @{thread}()
attributes #0 = {{ {attributes} }}
!0 = !{{!"uint*", !"uint*", !"uint", !"uint"}}
!1 = !{{!"uint*", !"uint*", !"uint*", !"uint"}}
!2 = !{{!"uint*"}}
!3 = !{{!"ulong*", !"ulong", !"uchar"}}
"""
AMD = 'target triple = "amdgcn-amd-amdhsa"' + GPU.format(
    kernel="amdgpu_kernel", group="llvm.amdgcn.workgroup.id.x", thread="llvm.amdgcn.workitem.id.x",
    attributes='"amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" '
    '"amdgpu-flat-work-group-size"="64,64"',
)  # fmt: skip
ADRENO = GPU.format(
    kernel="spir_kernel", group="adreno.group.x", thread="adreno.thread",
    attributes='nounwind "adreno-threads"="64"',
)  # fmt: skip
_GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def adreno_file(generation: int) -> str:
    """The file below tests/golden that holds the object for a generation in base64: machines
    without Mesa's compiler run the contract suite too. `make golden` writes it."""
    return f"adreno/contract_gen{generation}.txt"


def contract_object(target: TargetSpec) -> bytes:
    """The contract suite's kernels for a device; they expect 64 threads per group."""
    if target.abi == "host":
        return compile_ir(HOST.format(triple=target.triple), target.triple, target.cpu)
    if target.abi == "amdhsa":
        return compile_ir(AMD, target.triple, target.cpu, target.features)
    if target.abi == "ptx":
        return ptx_kernels.text(ptx_kernels.CONTRACT, target.cpu).rstrip()
    if target.abi == "ir3":
        text = (_GOLDEN / adreno_file(adreno_chip(target)[1])).read_text(encoding="ascii")
        return base64.b64decode(text)
    raise AssertionError(f"no kernels for abi {target.abi}")
