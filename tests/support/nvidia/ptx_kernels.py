"""Small kernels for NVIDIA GPUs, in PTX by hand: the contract suite's, and ones that fail."""

from __future__ import annotations

_HEAD = """\
.version {version}
.target {cpu}
.address_size 64
"""

# The contract suite's: see tests/support/kernels.py.
CONTRACT = """
.visible .entry scale(
  .param .u64 out, .param .u64 x, .param .u32 count, .param .u32 factor)
.reqntid 64, 1, 1
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %a<4>;
  ld.param.u64 %a0, [out];
  ld.param.u64 %a1, [x];
  ld.param.u32 %r0, [count];
  ld.param.u32 %r1, [factor];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r2, 64, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p bra done;
  mul.wide.u32 %a2, %r4, 4;
  add.u64 %a1, %a1, %a2;
  add.u64 %a0, %a0, %a2;
  ld.global.u32 %r5, [%a1];
  mul.lo.u32 %r5, %r5, %r1;
  st.global.u32 [%a0], %r5;
done:
  ret;
}

.visible .entry add(
  .param .u64 out, .param .u64 x, .param .u64 y, .param .u32 count)
.reqntid 64, 1, 1
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %a<4>;
  ld.param.u64 %a0, [out];
  ld.param.u64 %a1, [x];
  ld.param.u64 %a2, [y];
  ld.param.u32 %r0, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r2, 64, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p bra done;
  mul.wide.u32 %a3, %r4, 4;
  add.u64 %a0, %a0, %a3;
  add.u64 %a1, %a1, %a3;
  add.u64 %a2, %a2, %a3;
  ld.global.u32 %r5, [%a1];
  ld.global.u32 %r6, [%a2];
  add.u32 %r5, %r5, %r6;
  st.global.u32 [%a0], %r5;
done:
  ret;
}

.visible .entry spin(.param .u64 flag)
.maxntid 64, 1, 1
{
  .reg .pred %p;
  .reg .b32 %r0;
  .reg .b64 %a0;
  ld.param.u64 %a0, [flag];
again:
  ld.acquire.sys.global.u32 %r0, [%a0];
  setp.eq.u32 %p, %r0, 0;
  @%p bra again;
  ret;
}

.visible .entry wide(.param .u64 out, .param .u64 value, .param .u8 small)
.maxntid 64, 1, 1
{
  .reg .b16 %h0;
  .reg .b64 %a<4>;
  ld.param.u64 %a0, [out];
  ld.param.u64 %a1, [value];
  ld.param.u8 %h0, [small];
  cvt.u64.u16 %a2, %h0;
  add.u64 %a1, %a1, %a2;
  st.global.u64 [%a0], %a1;
  ret;
}
"""

# Each fails in one way. read_at and write_at take the address; trap stops with an exception.
FAULTY = """
.visible .entry read_at(.param .u64 out, .param .u64 address)
.reqntid 64, 1, 1
{
  .reg .b32 %r0;
  .reg .b64 %a<2>;
  ld.param.u64 %a0, [out];
  ld.param.u64 %a1, [address];
  ld.volatile.global.u32 %r0, [%a1];
  st.global.u32 [%a0], %r0;
  ret;
}

.visible .entry write_at(.param .u64 out, .param .u64 address)
.reqntid 64, 1, 1
{
  .reg .b64 %a<2>;
  ld.param.u64 %a0, [out];
  ld.param.u64 %a1, [address];
  st.volatile.global.u32 [%a1], 7;
  st.global.u32 [%a0], 7;
  ret;
}

.visible .entry stop(.param .u64 out)
.reqntid 64, 1, 1
{
  .reg .b64 %a0;
  ld.param.u64 %a0, [out];
  st.global.u32 [%a0], 7;
  trap;
  ret;
}
"""


def text(body: str, cpu: str) -> bytes:
    """A module for an architecture such as "sm_90"; the PTX version is the first that knows it.

    Source: PTX ISA, "Release Notes": sm_75 6.3, sm_80 7.0, sm_89 and sm_90 7.8, sm_90a 8.0, sm_100
    8.6, sm_120 8.7.
    """
    number = int("".join(letter for letter in cpu if letter.isdigit()))
    version = "8.7" if number >= 120 else "8.6" if number >= 100 else "8.0"
    return (_HEAD.format(version=version, cpu=cpu) + body).encode("ascii")
