"""Kernels that misbehave on purpose, and a virtual Navi31 to run them on."""

from __future__ import annotations

from tests.support.kernels import compile_ir

KERNELS = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @good(ptr addrspace(1) %out, i32 %value) #0 {
  store i32 %value, ptr addrspace(1) %out
  ret void
}
define amdgpu_kernel void @read_at(ptr addrspace(1) %out, i64 %address) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  %value = load volatile i32, ptr addrspace(1) %p
  store i32 %value, ptr addrspace(1) %out
  ret void
}
define amdgpu_kernel void @write_at(ptr addrspace(1) %out, i64 %address) #0 {
  %p = inttoptr i64 %address to ptr addrspace(1)
  store volatile i32 7, ptr addrspace(1) %p
  store i32 1, ptr addrspace(1) %out
  ret void
}
define amdgpu_kernel void @jump_to(ptr addrspace(1) %out, i64 %address) #0 {
  call void @llvm.amdgcn.s.sleep(i32 85)
  call void @llvm.amdgcn.s.sleep(i32 85)
  call void @llvm.amdgcn.s.sleep(i32 85)
  call void @llvm.amdgcn.s.sleep(i32 85)
  ret void
}
define amdgpu_kernel void @illegal(ptr addrspace(1) %out) #0 {
  call void @llvm.amdgcn.s.sleep(i32 84)
  store i32 1, ptr addrspace(1) %out
  ret void
}
define amdgpu_kernel void @illegal_in(ptr addrspace(1) %out, i32 %which) #0 {
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %mine = icmp eq i32 %group, %which
  br i1 %mine, label %bad, label %good
bad:
  call void @llvm.amdgcn.s.sleep(i32 83)
  br label %good
good:
  store i32 1, ptr addrspace(1) %out
  ret void
}
define amdgpu_kernel void @forever(ptr addrspace(1) %out) #0 {
entry:
  br label %loop
loop:
  %value = load volatile i32, ptr addrspace(1) %out
  %stop = icmp eq i32 %value, 12345
  br i1 %stop, label %done, label %loop
done:
  ret void
}
declare void @llvm.amdgcn.s.sleep(i32)
declare i32 @llvm.amdgcn.workgroup.id.x()
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-no-dispatch-ptr"
  "amdgpu-flat-work-group-size"="64,64" }
"""


# By hand, from the RDNA3 and RDNA4 ISA documents: s_sleep as a placeholder, and what replaces it.
_SLEEP_85 = bytes.fromhex("550083bf")
_SLEEP_84 = bytes.fromhex("540083bf")
_SLEEP_83 = bytes.fromhex("530083bf")
# s_load_b64 s[2:3], s[0:1], 8; s_waitcnt lgkmcnt(0), or s_wait_kmcnt 0; s_setpc_b64 s[2:3]
_JUMP = bytes.fromhex("800004f4080000f8 07fc89bf 024880be")
_JUMP_GFX12 = bytes.fromhex("802000f4080000f8 0000c7bf 024880be")
_UNDEFINED = bytes.fromhex("fffffff7")  # no such instruction


def faulty_object(isa: str = "gfx1100") -> bytes:
    """A code object with one good kernel and those that fault, stop or never end."""
    image = compile_ir(KERNELS, "amdgcn-amd-amdhsa", isa)
    assert image.count(_SLEEP_85 * 4) == 1
    assert image.count(_SLEEP_84) == 1
    assert image.count(_SLEEP_83) == 1
    image = image.replace(_SLEEP_83, _UNDEFINED)
    jump = _JUMP_GFX12 if isa.startswith("gfx12") else _JUMP
    return image.replace(_SLEEP_85 * 4, jump).replace(_SLEEP_84, _UNDEFINED)
