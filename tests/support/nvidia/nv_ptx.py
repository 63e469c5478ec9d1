"""PTX modules for the tests of the NVIDIA driver, and cubins made of them once."""

from __future__ import annotations

import functools

from ugpu.nv.code.assemble import assemble

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

FULL = """
.version {version}
.target {target}
.address_size 64
.global .align 4 .u32 table[4] = {{1, 2, 3, 4}};
.global .align 8 .u64 pointer = table;
.const .align 4 .u32 constants[4] = {{5, 6, 7, 8}};
.visible .entry full(.param .u64 .ptr .global .align 16 out, .param .u64 x, .param .u32 n,
                     .param .f32 scale)
{{
  .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<6>; .reg .pred %p;
  .shared .align 4 .b8 shared_block[512];
  .local .align 4 .b8 stack_block[64];
  ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [x]; ld.param.u32 %r1, [n];
  ld.param.f32 %f4, [scale];
  mov.u32 %r2, %tid.x; setp.ge.u32 %p, %r2, %r1; @%p bra DONE;
  mul.wide.u32 %rd3, %r2, 4; add.u64 %rd1, %rd1, %rd3;
  mov.u64 %rd5, stack_block; cvta.local.u64 %rd5, %rd5; add.u64 %rd5, %rd5, %rd2;
  st.f32 [%rd5], %f4;
  cvt.u32.u64 %r3, %rd3; mov.u32 %r4, shared_block; add.u32 %r4, %r4, %r3;
  st.shared.f32 [%r4], %f4; bar.sync 0; ld.shared.f32 %f3, [%r4+4];
  ld.f32 %f2, [%rd5+4]; add.f32 %f1, %f3, %f2;
  ld.const.u32 %r5, [constants+4]; ld.global.u32 %r6, [table+8]; add.u32 %r5, %r5, %r6;
  mov.b32 %f2, %r5; add.f32 %f1, %f1, %f2;
  st.global.f32 [%rd1], %f1;
DONE: ret;
}}
.visible .entry small(.param .u64 out) .reqntid 64, 1, 1
{{ .reg .b64 %rd; ld.param.u64 %rd, [out]; st.global.u32 [%rd], 1; ret; }}
"""


def full(target: str) -> bytes:
    """A module with globals, constants, shared and local memory, barriers and relocations."""
    version = "8.7" if int(target[3:].rstrip("af")) >= 100 else "7.0"
    text = FULL.format(version=version, target=target if version == "8.7" else "sm_75")
    return text.encode()


@functools.cache
def cubin(target: str) -> bytes:
    """The module's machine code."""
    return assemble(full(target), target)
