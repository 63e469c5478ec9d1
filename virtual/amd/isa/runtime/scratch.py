"""Scratch access of lanes at offsets of their own.

If every enabled lane stays within the wave's scratch and within the dwords that it begins in, an
access is one of `near` memory for each dword: the offsets are spread by the lanes' interleaving.
Others, and those beyond the wave's scratch, which fault at their address in the private aperture,
are left to the loop over lanes of `flat`.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import PREFIX, SIZES, data_parameter
from ugpu.virtual.shader.text import VECTOR, constant, field, lanes, splat

_DWORD = 4


def _moves(store: bool, size: int) -> str:
    """Return the lines that move each dword between its rows and its column.

    ORDER: the first column is loaded last and stored first, since `near` functions may pass data
    through it.
    """
    part = min(size, _DWORD)
    lines = []
    for number in sorted(range(-(-size // _DWORD)), reverse=not store):
        lines.append(f"  %row{number} = shl i64 {_DWORD * number}, %wave.shift\n")
        lines.append(f"  %base{number} = add i64 %wave.scratch, %row{number}\n")
        at = context.IO_COLUMN * number
        lines.append(f"  %column{number} = getelementptr i8, ptr %columns, i64 {at}\n")
        call = f"ptr %context, i64 %base{number}, {VECTOR} %spread, i32 %lanes"
        if store:
            lines.append(f"  %x{number} = load {VECTOR}, ptr %column{number}, align 64\n")
            call += f", {VECTOR} %x{number}"
            lines.append(f"  call void @{PREFIX}near_store_{part}({call})\n")
        else:
            lines.append(f"  %x{number} = call {VECTOR} @{PREFIX}near_load_{part}({call})\n")
            lines.append(f"  store {VECTOR} %x{number}, ptr %column{number}, align 64\n")
    return "".join(lines)


def _access(store: bool, size: int) -> str:
    """Define scratch_<verb>_<size>: lanes access `size` bytes at offsets in their scratch."""
    verb = "store" if store else "load"
    data = data_parameter(size)
    place = "ptr %data, i64 0" if data else f"ptr %context, i64 {context.IO}"
    head = f"@{PREFIX}scratch_{verb}_{size}(ptr %context, {VECTOR} %own, i32 %lanes{data})"
    pairs = ", ".join(f"i32 {lane}, i32 {lane + 32}" for lane in range(32))
    return f"""
define void {head} noinline {{
entry:
{field("wave.scratch", layout.WAVE_SCRATCH, "i64")}
{field("wave.size", layout.SCRATCH_WAVE, "i64")}{field("wave.shift", layout.WAVE_SHIFT, "i64")}
{field("first.lane", layout.FIRST_LANE, "i64")}{field("private", layout.PRIVATE_HIGH, "i64")}
  %columns = getelementptr i8, {place}
  %limit.64 = lshr i64 %wave.size, %wave.shift
  %limit = trunc i64 %limit.64 to i32
  %fits = icmp uge i32 %limit, {size}
  %last = sub i32 %limit, {size}
{splat("last.v", "i32", "%last")}
  %beyond = icmp ugt {VECTOR} %own, %last.v
  %byte = and {VECTOR} %own, {constant("i32", _DWORD - 1)}
  %splits = icmp ugt {VECTOR} %byte, {constant("i32", _DWORD - min(size, _DWORD))}
  %apart = or <32 x i1> %beyond, %splits
  %apart.b = bitcast <32 x i1> %apart to i32
  %apart.on = and i32 %apart.b, %lanes
  %together = icmp eq i32 %apart.on, 0
  %good = and i1 %fits, %together
  br i1 %good, label %near, label %loop
near:
  %shift = trunc i64 %wave.shift to i32
{splat("shift.v", "i32", "%shift")}
  %first = trunc i64 %first.lane to i32
  %first.4 = shl i32 %first, 2
{splat("first.v", "i32", "%first.4")}
  %dword = xor {VECTOR} %own, %byte
  %rows = shl {VECTOR} %dword, %shift.v
  %mine = add {VECTOR} %first.v, {lanes([_DWORD * lane for lane in range(32)])}
  %in.row = or {VECTOR} %mine, %byte
  %spread = add {VECTOR} %rows, %in.row
{_moves(store, size)}
  ret void
loop:
  %high = trunc i64 %private to i32
{splat("high.v", "i32", "%high")}
  %mixed = shufflevector {VECTOR} %own, {VECTOR} %high.v, <64 x i32> <{pairs}>
  %flat = bitcast <64 x i32> %mixed to <32 x i64>
  call void @apart_{verb}_{size}(ptr %context, <32 x i64> %flat, i32 %lanes{data})
  ret void
}}
"""


def scratch_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return "\n".join(_access(store, size) for store in (False, True) for size in SIZES), set()


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}scratch_{verb}_{size}" for verb in ("load", "store") for size in SIZES]
