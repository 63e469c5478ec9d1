"""Arguments of kernels in PTX: their number, size and kind are checked before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

from ugpu.hcq.errors import BadArgument
from ugpu.nv.code.source import _parameters
from ugpu.nv.device.device import NvDevice

TYPES = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry typed(
  .param .u64 .ptr .global .align 4 out, // where to
  .param .s32 number,
  .param .f32 real,
  .param .b32 bits,
  .param .f64 wide,
  .param .align 8 .b8 block[16]
)
{ .reg .b64 %rd; .reg .b32 %r; ld.param.u64 %rd, [out]; ld.param.u32 %r, [number];
  st.global.u32 [%rd], %r; ret; }
.visible .entry unmarked(.param .u64 out, .param .u32 number)
{ .reg .b64 %rd; .reg .b32 %r; ld.param.u64 %rd, [out]; ld.param.u32 %r, [number];
  st.global.u32 [%rd], %r; ret; }
"""


def test_ptx_tells_names_and_kinds() -> None:
    assert _parameters(TYPES.encode())["typed"] == (
        ("out", "integer"), ("number", "integer"), ("real", "float"), ("bits", ""),
        ("wide", "float"), ("block", ""),
    )  # fmt: skip
    assert _parameters(b"no PTX at all .entry x(,,)") == {"x": ()}
    assert _parameters(b"\xff.entry x(.param)") == {"x": (("param", ""),)}


def test_kinds_and_counts_are_checked(gh100: NvDevice) -> None:
    with gh100.load(TYPES.encode()) as program, gh100.alloc(64) as out:
        kernel = program["unmarked"]
        queue = gh100.queue()
        for args, reason in (
            ((out, np.float32(1)), "'number' of unmarked is an integer of 4 bytes; a float32"),
            ((np.float64(1), np.uint32(1)), "'out' of unmarked is an integer of 8 bytes"),
            ((out, np.uint64(1)), "'number' of unmarked is an integer of 4 bytes; a uint64 of 8"),
            ((out,), "2 arguments, got 1"),
            ((out, 7), "pass a Buffer or a NumPy scalar"),
        ):
            with pytest.raises(BadArgument, match=reason):
                queue.launch(kernel, grid=(1,), block=(1,), args=args)
        for number in (np.uint32(7), np.int32(-7)):
            with gh100.queue() as queue:
                queue.launch(kernel, grid=(1,), block=(1,), args=(out, number))
            gh100.synchronize()
            assert out[:4].numpy(number.dtype)[0] == number
        assert [(a.kind, a.is_address) for a in program["typed"].arguments or ()] == [
            ("", True), ("integer", False), ("float", False), ("", False), ("float", False),
            ("", False),
        ]  # fmt: skip


STRUCTURE = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry sum(.param .u64 out, .param .b8 small[3], .param .align 8 .b8 pair[16])
{ .reg .b64 %rd<2>; .reg .b32 %r<4>; ld.param.u64 %rd0, [out]; ld.param.u32 %r0, [pair];
  ld.param.u64 %rd1, [pair+8]; cvt.u32.u64 %r1, %rd1; ld.param.u8 %r2, [small+2];
  add.u32 %r0, %r0, %r1; add.u32 %r0, %r0, %r2; st.global.u32 [%rd0], %r0; ret; }
"""
PAIR = np.dtype([("first", np.uint32), ("second", np.uint64)], align=True)


def test_structures_by_value(gh100: NvDevice) -> None:
    """Given as bytes or as a NumPy structured scalar of the size that the kernel declares."""
    pair = np.array((5, 37), PAIR)[()]
    assert isinstance(pair, np.void)
    with gh100.load(STRUCTURE.encode()) as program, gh100.alloc(64) as out:
        for small, given in ((b"\0\0\1", pair), (bytearray(b"\0\0\1"), pair.tobytes())):
            out.fill(0)
            with gh100.queue() as queue:
                queue.launch(program["sum"], grid=(1,), block=(1,), args=(out, small, given))
            gh100.synchronize()
            assert out[:4].numpy(np.uint32)[0] == 43
        for args, reason in (
            ((out, b"\0\0", pair), "'small' of sum is a scalar of 3 bytes; a bytes of 2"),
            ((out, b"\0\0\0", bytes(17)), "'pair' of sum is a scalar of 16 bytes; a bytes of 17"),
            ((bytes(8), b"\0\0\0", pair), "'out' of sum must be an .* got a structure of 8 bytes"),
        ):
            with pytest.raises(BadArgument, match=reason):
                gh100.queue().launch(program["sum"], grid=(1,), block=(1,), args=args)
