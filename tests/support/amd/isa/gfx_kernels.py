"""Kernels in LLVM IR that exercise what the corpus's single loads and stores do not."""

from __future__ import annotations

TRIPLE = "amdgcn-amd-amdhsa"

_HEAD = """
target triple = "amdgcn-amd-amdhsa"
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workitem.id.y()
declare i32 @llvm.amdgcn.workitem.id.z()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workgroup.id.y()
declare i32 @llvm.amdgcn.workgroup.id.z()
declare void @llvm.amdgcn.s.barrier()
"""
_TAIL = """
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-flat-work-group-size"="1,1024" }
"""


def module(text: str) -> str:
    """Put the head and the attributes around kernels."""
    return _HEAD + text + _TAIL


# Sum of 256 floats of each group, in local memory with a barrier in every step.
REDUCE = module("""
@shared = internal addrspace(3) global [256 x float] poison
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %x) #0 {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %base = shl i32 %g, 8
  %i = add i32 %base, %t
  %from = getelementptr float, ptr addrspace(1) %x, i32 %i
  %value = load float, ptr addrspace(1) %from
  %mine = getelementptr [256 x float], ptr addrspace(3) @shared, i32 0, i32 %t
  store float %value, ptr addrspace(3) %mine
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  br label %step
step:
  %half = phi i32 [ 128, %entry ], [ %next, %joined ]
  %active = icmp ult i32 %t, %half
  br i1 %active, label %add, label %joined
add:
  %other = add i32 %t, %half
  %theirs = getelementptr [256 x float], ptr addrspace(3) @shared, i32 0, i32 %other
  %a = load float, ptr addrspace(3) %mine
  %b = load float, ptr addrspace(3) %theirs
  %sum = fadd float %a, %b
  store float %sum, ptr addrspace(3) %mine
  br label %joined
joined:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %next = lshr i32 %half, 1
  %done = icmp eq i32 %next, 0
  br i1 %done, label %finish, label %step
finish:
  %first = icmp eq i32 %t, 0
  br i1 %first, label %write, label %end
write:
  %total = load float, ptr addrspace(3) %mine
  %to = getelementptr float, ptr addrspace(1) %out, i32 %g
  store float %total, ptr addrspace(1) %to
  br label %end
end:
  ret void
}
""")

# A private array indexed at run time: scratch memory, its stores and loads scattered.
SCRATCH = module("""
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %x) #0 {
entry:
  %array = alloca [24 x i32], addrspace(5)
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %base = shl i32 %g, 6
  %i = add i32 %base, %t
  br label %fill
fill:
  %k = phi i32 [ 0, %entry ], [ %k1, %fill ]
  %w = mul i32 %k, 1000
  %v = add i32 %w, %i
  %p = getelementptr [24 x i32], ptr addrspace(5) %array, i32 0, i32 %k
  store volatile i32 %v, ptr addrspace(5) %p
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, 24
  br i1 %more, label %fill, label %read
read:
  %from = getelementptr i32, ptr addrspace(1) %x, i32 %i
  %index = load i32, ptr addrspace(1) %from
  %q = getelementptr [24 x i32], ptr addrspace(5) %array, i32 0, i32 %index
  %r = load volatile i32, ptr addrspace(5) %q
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 %r, ptr addrspace(1) %to
  ret void
}
""")

# The ids of a work-item in all three dimensions.
IDS = module("""
define amdgpu_kernel void @k(ptr addrspace(1) %out) #0 {
  %tx = call i32 @llvm.amdgcn.workitem.id.x()
  %ty = call i32 @llvm.amdgcn.workitem.id.y()
  %tz = call i32 @llvm.amdgcn.workitem.id.z()
  %gx = call i32 @llvm.amdgcn.workgroup.id.x()
  %gy = call i32 @llvm.amdgcn.workgroup.id.y()
  %gz = call i32 @llvm.amdgcn.workgroup.id.z()
  %a = mul i32 %tz, 3
  %b = add i32 %a, %ty
  %c = mul i32 %b, 5
  %local = add i32 %c, %tx
  %d = mul i32 %gz, 2
  %e = add i32 %d, %gy
  %f = mul i32 %e, 4
  %group = add i32 %f, %gx
  %h = mul i32 %group, 30
  %i = add i32 %h, %local
  %t1 = shl i32 %tz, 8
  %t2 = or i32 %t1, %ty
  %t3 = shl i32 %t2, 8
  %t4 = or i32 %t3, %tx
  %g1 = shl i32 %group, 24
  %v = or i32 %t4, %g1
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 %v, ptr addrspace(1) %to
  ret void
}
""")

# Every work-item adds to one of eight counters, and takes a ticket.
ATOMICS = module("""
define amdgpu_kernel void @k(ptr addrspace(1) %counters, ptr addrspace(1) %tickets,
    ptr addrspace(1) %seen, ptr addrspace(1) %sums) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %slot = and i32 %t, 7
  %p = getelementptr i32, ptr addrspace(1) %counters, i32 %slot
  %old = atomicrmw add ptr addrspace(1) %p, i32 1 syncscope("agent") monotonic
  %ticket = atomicrmw add ptr addrspace(1) %tickets, i64 1 syncscope("agent") monotonic
  %to = getelementptr i32, ptr addrspace(1) %seen, i64 %ticket
  store i32 1, ptr addrspace(1) %to
  %f = uitofp i32 %slot to float
  %ignored = atomicrmw fadd ptr addrspace(1) %sums, float %f syncscope("agent") monotonic,
      !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  %q = getelementptr i32, ptr addrspace(1) %sums, i32 1
  %high = atomicrmw umax ptr addrspace(1) %q, i32 %t syncscope("agent") monotonic
  ret void
}
!0 = !{}
""")

# Local atomics: a histogram.
HISTOGRAM = module("""
@bins = internal addrspace(3) global [16 x i32] poison
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %x) #0 {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %first = icmp ult i32 %t, 16
  br i1 %first, label %clear, label %ready
clear:
  %c = getelementptr [16 x i32], ptr addrspace(3) @bins, i32 0, i32 %t
  store i32 0, ptr addrspace(3) %c
  br label %ready
ready:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  %from = getelementptr i32, ptr addrspace(1) %x, i32 %t
  %value = load i32, ptr addrspace(1) %from
  %bin = and i32 %value, 15
  %p = getelementptr [16 x i32], ptr addrspace(3) @bins, i32 0, i32 %bin
  %old = atomicrmw add ptr addrspace(3) %p, i32 1 syncscope("workgroup") monotonic
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  br i1 %first, label %write, label %end
write:
  %q = getelementptr [16 x i32], ptr addrspace(3) @bins, i32 0, i32 %t
  %count = load i32, ptr addrspace(3) %q
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %count, ptr addrspace(1) %to
  br label %end
end:
  ret void
}
""")

# Stores and loads of 32 bits at a byte offset that may straddle pages.
UNALIGNED = module("""
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %x, i32 %offset) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %four = shl i32 %t, 2
  %at = add i32 %four, %offset
  %from = getelementptr i8, ptr addrspace(1) %x, i32 %at
  %value = load i32, ptr addrspace(1) %from, align 1
  %more = add i32 %value, 1
  %to = getelementptr i8, ptr addrspace(1) %out, i32 %at
  store i32 %more, ptr addrspace(1) %to, align 1
  ret void
}
""")

# Offsets of 32 bits that wrap around.
WRAPPED = module("""
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %x, i32 %offset) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %four = shl i32 %t, 2
  %at = add i32 %four, %offset
  %wide = zext i32 %at to i64
  %from = getelementptr i8, ptr addrspace(1) %x, i64 %wide
  %value = load i32, ptr addrspace(1) %from
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %value, ptr addrspace(1) %to
  ret void
}
""")

# Loads through a pointer out of memory, and stores through another.
WILD = module("""
define amdgpu_kernel void @k(ptr addrspace(1) %pointers, ptr addrspace(1) %out) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %at = getelementptr i64, ptr addrspace(1) %pointers, i32 %t
  %address = load i64, ptr addrspace(1) %at
  %wild = inttoptr i64 %address to ptr addrspace(1)
  %value = load i32, ptr addrspace(1) %wild
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %value, ptr addrspace(1) %to
  store i32 7, ptr addrspace(1) %wild
  ret void
}
""")

# Lanes store and load through flat pointers into local, private and global memory by turns.
FLAT = module("""
@block = internal addrspace(3) global [64 x i32] poison
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %x) #0 {
  %own = alloca [4 x i32], addrspace(5)
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %local = getelementptr [64 x i32], ptr addrspace(3) @block, i32 0, i32 %t
  %which = and i32 %t, 3
  %private = getelementptr [4 x i32], ptr addrspace(5) %own, i32 0, i32 %which
  %global = getelementptr i32, ptr addrspace(1) %x, i32 %t
  %fl = addrspacecast ptr addrspace(3) %local to ptr
  %fp = addrspacecast ptr addrspace(5) %private to ptr
  %fg = addrspacecast ptr addrspace(1) %global to ptr
  %is1 = icmp eq i32 %which, 1
  %is2 = icmp eq i32 %which, 2
  %a = select i1 %is1, ptr %fl, ptr %fg
  %b = select i1 %is2, ptr %fp, ptr %a
  %value = mul i32 %t, 77
  store volatile i32 %value, ptr %b
  store volatile i32 0, ptr addrspace(5) %own
  %back = load volatile i32, ptr %b
  %old = atomicrmw add ptr %a, i32 1 syncscope("workgroup") monotonic,
      !amdgpu.no.fine.grained.memory !0
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %back, ptr addrspace(1) %to
  %place = add i32 %t, 64
  %to2 = getelementptr i32, ptr addrspace(1) %out, i32 %place
  %last = load volatile i32, ptr %a
  store i32 %last, ptr addrspace(1) %to2
  ret void
}
!0 = !{}
""")

# Reads its private array and local memory beyond their ends.
BEYOND = module("""
@block = internal addrspace(3) global [128 x i32] poison
define amdgpu_kernel void @k(ptr addrspace(1) %out, i32 %index) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %mine = getelementptr [128 x i32], ptr addrspace(3) @block, i32 0, i32 %t
  store volatile i32 5, ptr addrspace(3) %mine
  %far = add i32 %t, %index
  %p = getelementptr [128 x i32], ptr addrspace(3) @block, i32 0, i32 %far
  store volatile i32 6, ptr addrspace(3) %p
  %r = load volatile i32, ptr addrspace(3) %p
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %r, ptr addrspace(1) %to
  ret void
}
""")

SPIN = module("""
define amdgpu_kernel void @k(ptr addrspace(1) %flag) #0 {
entry:
  br label %loop
loop:
  %value = load atomic i32, ptr addrspace(1) %flag syncscope("agent") monotonic, align 4
  %set = icmp ne i32 %value, 0
  br i1 %set, label %done, label %loop
done:
  ret void
}
""")

WMMA = module("""
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %a, ptr addrspace(1) %b) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %l = and i32 %t, 15
  %pa = getelementptr <16 x {kind}>, ptr addrspace(1) %a, i32 %l
  %pb = getelementptr <16 x {kind}>, ptr addrspace(1) %b, i32 %l
  %x = load <16 x {kind}>, ptr addrspace(1) %pa
  %y = load <16 x {kind}>, ptr addrspace(1) %pb
  %r = call <8 x float> @llvm.amdgcn.wmma.f32.16x16x16.{name}.v8f32.v16{name2}(
      <16 x {work}> %x, <16 x {work}> %y, <8 x float> zeroinitializer)
  %po = getelementptr <8 x float>, ptr addrspace(1) %out, i32 %t
  store <8 x float> %r, ptr addrspace(1) %po
  ret void
}
declare <8 x float> @llvm.amdgcn.wmma.f32.16x16x16.{name}.v8f32.v16{name2}(
    <16 x {work}>, <16 x {work}>, <8 x float>)
""")


def wmma(kind: str) -> str:
    """Return the matrix kernel for half or bfloat operands, rows of A and columns of B by lane."""
    if kind == "half":
        parts = {"kind": "half", "name": "f16", "name2": "f16", "work": "half"}
    else:
        parts = {"kind": "i16", "name": "bf16", "name2": "i16", "work": "i16"}
    text = WMMA
    for name, value in parts.items():
        text = text.replace("{" + name + "}", value)
    return text
