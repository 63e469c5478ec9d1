"""PTX of `vprintf` and `__assertfail`, which CUDA's driver has and a cubin lacks.

Both append a record to a buffer of the device, which nv.code.output reads. The routine replaces a
declaration `.extern .func ... vprintf(...);`, so that an assembler and a model of the chip get the
same text. Signatures: CUDA C++ Programming Guide 12.9, "Formatted Output" and
"Assertion"; clang lib/CodeGen/CGGPUBuiltin.cpp (the second argument points to a structure of the
promoted arguments, each at its natural alignment).

The buffer, little endian: 8 bytes taken so far, 8 bytes capacity, 8 bytes number of dropped
records, 8 bytes zero. From byte 32 on it contains records, each at a multiple of 8: 4 bytes size, 4
bytes kind (0 printf, 1 assert). A printf record continues with the address of the format, 8 bytes
length of the arguments, and the arguments. An assert record continues with the addresses of
message, file and function, and 4 bytes each for the line, the three parts of the block's index, the
three of the thread's index, and zero.
"""

from __future__ import annotations

import re

STATE = "__ugpu_output"  # variable that holds the buffer's address; 0: no buffer
HEAD_SIZE, PRINTF, ASSERT = 32, 0, 1
PRINTF_SIZE, ASSERT_SIZE = 24, 64

_RESERVE = """
  mov.u64 %o0, __ugpu_output; ld.global.u64 %o1, [%o0];
  setp.eq.u64 %op, %o1, 0; @%op bra {none};
  cvt.u64.u32 %o2, {size}; atom.global.add.u64 %o3, [%o1], %o2;
  add.u64 %o4, %o3, %o2; ld.global.u64 %o5, [%o1+8];
  setp.le.u64 %op, %o4, %o5; @%op bra {room};
  atom.global.add.u64 %o3, [%o1+16], 1; bra {none};
{room}:
  add.u64 %o1, %o1, %o3; add.u64 %o1, %o1, 32;
  st.global.u32 [%o1], {size}; st.global.u32 [%o1+4], {kind};
"""

_VPRINTF = """
.func (.param .b32 vprintf_result) vprintf(.param .b64 vprintf_format, .param .b64 vprintf_list)
{
  .reg .pred %op; .reg .pred %wp; .reg .b64 %o<6>;
  .reg .b64 %format; .reg .b64 %list; .reg .b64 %at; .reg .b64 %to;
  .reg .b32 %c; .reg .b32 %wide; .reg .b32 %bytes; .reg .b32 %size; .reg .b32 %count; .reg .b32 %t;
  ld.param.u64 %format, [vprintf_format]; ld.param.u64 %list, [vprintf_list];
  mov.u32 %bytes, 0; mov.u32 %count, 0; mov.u64 %at, %format;
PLAIN:
  ld.u8 %c, [%at]; add.u64 %at, %at, 1;
  setp.eq.u32 %op, %c, 0; @%op bra COUNTED;
  setp.ne.u32 %op, %c, 37; @%op bra PLAIN;
  mov.u32 %wide, 0;
FIELD:
  ld.u8 %c, [%at]; add.u64 %at, %at, 1;
  setp.eq.u32 %op, %c, 0; @%op bra COUNTED;
  setp.eq.u32 %op, %c, 37; @%op bra PLAIN;
  setp.eq.u32 %op, %c, 42; @%op bra STAR;
@IS_WIDE@
  mov.u32 %size, 8;
@IS_EIGHT@
  setp.eq.u32 %wp, %wide, 0; selp.u32 %size, 4, 8, %wp;
@IS_INTEGER@
  bra FIELD;
WIDE:
  mov.u32 %wide, 1; bra FIELD;
STAR:
  add.u32 %bytes, %bytes, 3; and.b32 %bytes, %bytes, -4; add.u32 %bytes, %bytes, 4;
  bra FIELD;
TAKE:
  sub.u32 %t, %size, 1; add.u32 %bytes, %bytes, %t; neg.s32 %t, %size; and.b32 %bytes, %bytes, %t;
  add.u32 %bytes, %bytes, %size; add.u32 %count, %count, 1;
  bra PLAIN;
COUNTED:
  add.u32 %size, %bytes, 31; and.b32 %size, %size, -8;
@RESERVE@
  st.global.u64 [%o1+8], %format; cvt.u64.u32 %o2, %bytes; st.global.u64 [%o1+16], %o2;
  add.u64 %to, %o1, 24; mov.u64 %at, %list;
COPY:
  setp.eq.u32 %op, %bytes, 0; @%op bra DONE;
  ld.u32 %t, [%at]; st.global.u32 [%to], %t;
  add.u64 %at, %at, 4; add.u64 %to, %to, 4; sub.u32 %bytes, %bytes, 4;
  bra COPY;
DONE:
  st.param.b32 [vprintf_result], %count; ret;
NONE:
  mov.u32 %count, -1; st.param.b32 [vprintf_result], %count; ret;
}
"""

_ASSERTFAIL = """
.func __assertfail(.param .b64 assert_message, .param .b64 assert_file, .param .b32 assert_line,
  .param .b64 assert_function, .param .b64 assert_size)
{
  .reg .pred %op; .reg .b64 %o<6>; .reg .b64 %a<3>; .reg .b32 %r<8>;
@RESERVE@
  ld.param.u64 %a0, [assert_message]; ld.param.u64 %a1, [assert_file];
  ld.param.u64 %a2, [assert_function]; ld.param.u32 %r0, [assert_line];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;
  mov.u32 %r4, %tid.x; mov.u32 %r5, %tid.y; mov.u32 %r6, %tid.z;
  st.global.u64 [%o1+8], %a0; st.global.u64 [%o1+16], %a1; st.global.u64 [%o1+24], %a2;
  st.global.u32 [%o1+32], %r0; st.global.u32 [%o1+36], %r1; st.global.u32 [%o1+40], %r2;
  st.global.u32 [%o1+44], %r3; st.global.u32 [%o1+48], %r4; st.global.u32 [%o1+52], %r5;
  st.global.u32 [%o1+56], %r6; st.global.u32 [%o1+60], 0;
  membar.sys;
NONE:
  trap; ret;
}
"""


def _any_of(letters: str, label: str) -> str:
    return "\n".join(
        f"  setp.eq.u32 %op, %c, {ord(letter)}; @%op bra {label};" for letter in letters
    )


def _routines() -> dict[str, str]:
    printf = _VPRINTF.replace("@IS_WIDE@", _any_of("lzjtqL", "WIDE"))
    printf = printf.replace("@IS_EIGHT@", _any_of("eEfFgGaAspn", "TAKE"))
    printf = printf.replace("@IS_INTEGER@", _any_of("diouxXc", "TAKE"))
    reserve = _RESERVE.format(none="NONE", room="ROOM", size="%size", kind=PRINTF)
    failed = _RESERVE.format(none="NONE", room="ROOM", size="%r0", kind=ASSERT)
    failed = f"  mov.u32 %r0, {ASSERT_SIZE};{failed}"
    return {
        "vprintf": printf.replace("@RESERVE@", reserve),
        "__assertfail": _ASSERTFAIL.replace("@RESERVE@", failed),
    }


_ROUTINES = _routines()
_DECLARED = re.compile(
    rb"\.extern\s+\.func\s*(?:\([^()]*\)\s*)?(vprintf|__assertfail)\s*\([^()]*\)\s*(?:\.noreturn\s*)?;"
)


def with_routines(ptx: bytes) -> bytes:
    """The text with routines in place of declarations; unchanged if it declares neither."""
    seen: set[bytes] = set()

    def routine(found: re.Match[bytes]) -> bytes:
        first, name = not seen, found[1]
        if name in seen:
            return b""
        seen.add(name)
        state = f".global .align 8 .u64 {STATE};\n".encode() if first else b""
        return state + _ROUTINES[name.decode()].encode()

    return _DECLARED.sub(routine, ptx)
