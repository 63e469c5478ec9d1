"""Arguments of kernels in PTX: their number, size and kind are checked before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

from hcq.errors import BadArgument
from nv.device import NvDevice
from nv.programs import _parameters

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
            ((out,), "2 arguments, 1 given"),
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
