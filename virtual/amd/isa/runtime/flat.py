"""Flat memory access: each lane's address may be in local memory, in scratch or elsewhere."""

from __future__ import annotations

from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import PREFIX, SIZES, columns, data_parameter, move, rows_of
from ugpu.virtual.shader.text import VECTOR, field, splat

ATOMIC_SIZES = (32, 64)  # bits


def _parted_case(size: int) -> str:
    """Return the blocks that route %va, with %most bytes still to be moved there: to %access
    with %local.safe, or to %global.

    %own.step is the number of bytes for scratch: it is interleaved by dwords, and an access that
    begins within one and ends in the next is made byte by byte.
    """
    return f"""
  %high = lshr i64 %va, 32
  %is.shared = icmp eq i64 %high, %shared
  br i1 %is.shared, label %local, label %not.local
local:
  %low = and i64 %va, 4294967295
  %end = add i64 %low, {size}
  %in = icmp ule i64 %end, %lds.size
  %local.at = getelementptr i8, ptr %lds, i64 %low
  %local.safe = select i1 %in, ptr %local.at, ptr %dummy
  br label %access
not.local:
  %is.private = icmp eq i64 %high, %private
  br i1 %is.private, label %scratch, label %global
scratch:
  %own = and i64 %va, 4294967295
  %byte = and i64 %own, 3
  %byte.end = add i64 %byte, %most
  %whole = icmp ule i64 %byte.end, 4
  %own.step = select i1 %whole, i64 %most, i64 1
  %own.end = add i64 %own, %own.step
  %own.bytes = shl i64 %own.end, %wave.shift
  %own.in = icmp ule i64 %own.bytes, %wave.size
  br i1 %own.in, label %spread.out, label %global
spread.out:
  %dword = lshr i64 %own, 2
  %dword.4 = shl i64 %dword, 2
  %spread = shl i64 %dword.4, %wave.shift
  %wave.lane = add i64 %lane, %first.lane
  %lane4 = shl i64 %wave.lane, 2
  %s0 = or i64 %spread, %lane4
  %s1 = or i64 %s0, %byte
  %scratch.va = add i64 %wave.scratch, %s1
  br label %global
"""


def _parted(store: bool, size: int) -> str:
    """Define apart_<verb>_<size>: each lane of an access on its own, dword by dword."""
    verb = "store" if store else "load"
    rows, stride = rows_of(size)
    before = columns(size, True) if store else ""
    after = "" if store else columns(size, False)
    part = min(size, 4)
    return f"""
define internal void @apart_{verb}_{size}(ptr %context, <32 x i64> %addresses,
    i32 %lanes{data_parameter(size)}) noinline {{
entry:
{field("lds", context.SHARED, "ptr")}{field("lds.size", context.SHARED_SIZE, "i64")}
{field("shared", layout.SHARED_HIGH, "i64")}{field("private", layout.PRIVATE_HIGH, "i64")}
{field("wave.scratch", layout.WAVE_SCRATCH, "i64")}
{field("wave.size", layout.SCRATCH_WAVE, "i64")}{field("wave.shift", layout.WAVE_SHIFT, "i64")}
{field("first.lane", layout.FIRST_LANE, "i64")}
  %dummy = alloca i128
  store i128 0, ptr %dummy
{before}
  %list = getelementptr i8, ptr %context, i64 {context.ADDRESSES}
  store <32 x i64> %addresses, ptr %list, align 64
  %none = icmp eq i32 %lanes, 0
  br i1 %none, label %done, label %loop
loop:
  %left = phi i32 [ %lanes, %entry ], [ %rest, %next ]
  %lane32 = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %lane = zext i32 %lane32 to i64
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %va.p = getelementptr i64, ptr %list, i64 %lane
  %va.lane = load i64, ptr %va.p
  %row.offset = mul i64 %lane, {stride}
  %row.base = add i64 %row.offset, {rows}
  %row.lane = getelementptr i8, ptr %context, i64 %row.base
  br label %parts
parts:
  %done.bytes = phi i64 [ 0, %loop ], [ %bytes, %part.done ]
  %va = add i64 %va.lane, %done.bytes
  %row = getelementptr i8, ptr %row.lane, i64 %done.bytes
  %left.bytes = sub i64 {size}, %done.bytes
  %few = icmp ult i64 %left.bytes, {part}
  %most = select i1 %few, i64 %left.bytes, i64 {part}
{_parted_case(part)}
global:
  %global.va = phi i64 [ %va, %not.local ], [ %va, %scratch ], [ %scratch.va, %spread.out ]
  %step = phi i64 [ %most, %not.local ], [ %own.step, %scratch ], [ %own.step, %spread.out ]
  call void @{PREFIX}cross_{verb}(ptr %context, ptr %row, i64 %global.va, i64 %step)
  br label %part.done
access:
  %at = phi ptr [ %local.safe, %local ]
{move(store, part)}
  br label %part.done
part.done:
  %moved = phi i64 [ %step, %global ], [ {part}, %access ]
  %bytes = add i64 %done.bytes, %moved
  %again = icmp ult i64 %bytes, {size}
  br i1 %again, label %parts, label %next
next:
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %loop, label %done
done:
{after}
  ret void
}}
"""


def _half(name: str, first: int) -> str:
    order = ", ".join(f"i32 {2 * lane + first}" for lane in range(32))
    return (
        f"  %{name} = shufflevector <64 x i32> %halves, <64 x i32> poison, <32 x i32> <{order}>\n"
    )


def _in_aperture(name: str, place: int) -> str:
    """Return the lines that make %<name>.on the enabled lanes with an address in an aperture."""
    return f"""
{field(name, place, "i64")}  %{name}.32 = trunc i64 %{name} to i32
{splat(f"{name}.v", "i32", f"%{name}.32")}
  %{name}.in = icmp eq {VECTOR} %highs, %{name}.v
  %{name}.b = bitcast <32 x i1> %{name}.in to i32
  %{name}.on = and i32 %{name}.b, %lanes
"""


def _far(store: bool, size: int) -> str:
    """Return the lines that access memory outside the apertures."""
    arguments = f"(ptr %context, {VECTOR} %lows, {VECTOR} %highs, i64 0, i32 %lanes"
    function = f"@{PREFIX}far_{'store' if store else 'load'}_{size}"
    if size > 4:
        return f"  call void {function}{arguments}, ptr %data)"
    column = f"  %column = getelementptr i8, ptr %context, i64 {context.IO}\n"
    if store:
        return (
            f"{column}  %x = load {VECTOR}, ptr %column, align 64\n"
            f"  call void {function}{arguments}, {VECTOR} %x)"
        )
    return (
        f"{column}  %x = call {VECTOR} {function}{arguments})\n"
        f"  store {VECTOR} %x, ptr %column, align 64"
    )


def _flat_access(store: bool, size: int) -> str:
    """Define flat_<verb>_<size>: lanes in the apertures access local memory or scratch.

    Lanes that are all outside the apertures, or all in scratch, are left to functions for that.
    """
    verb, data = "store" if store else "load", data_parameter(size)
    return f"""
define void @{PREFIX}flat_{verb}_{size}(ptr %context, <32 x i64> %addresses,
    i32 %lanes{data}) noinline {{
entry:
  %halves = bitcast <32 x i64> %addresses to <64 x i32>
{_half("lows", 0)}{_half("highs", 1)}
{_in_aperture("shared", layout.SHARED_HIGH)}{_in_aperture("private", layout.PRIVATE_HIGH)}
  %any = or i32 %shared.on, %private.on
  %none = icmp eq i32 %any, 0
  br i1 %none, label %far, label %inside
far:
{_far(store, size)}
  ret void
inside:
  %private.all = icmp eq i32 %private.on, %lanes
  %private.only = icmp eq i32 %shared.on, 0
  %all.scratch = and i1 %private.all, %private.only
  br i1 %all.scratch, label %scratch, label %mixed
scratch:
  call void @{PREFIX}scratch_{verb}_{size}(ptr %context, {VECTOR} %lows, i32 %lanes{data})
  ret void
mixed:
  call void @apart_{verb}_{size}(ptr %context, <32 x i64> %addresses, i32 %lanes{data})
  ret void
}}
"""


def _atomic_hosts(bits: int) -> str:
    """Define atomic_hosts_<bits>(context, addresses, lanes, flat), which returns the host addresses
    of the enabled lanes' atomic accesses. Beyond the end of local memory, each lane gets its own
    zeroed location."""
    return f"""
define <32 x i64> @{PREFIX}atomic_hosts_{bits}(ptr %context, <32 x i64> %addresses, i32 %lanes,
    i1 %flat) noinline {{
entry:
{field("lds", context.SHARED, "ptr")}{field("lds.size", context.SHARED_SIZE, "i64")}
{field("shared", layout.SHARED_HIGH, "i64")}
  %list = getelementptr i8, ptr %context, i64 {context.ADDRESSES}
  store <32 x i64> %addresses, ptr %list, align 64
  %spares = getelementptr i8, ptr %context, i64 {context.ROWS}
  %none = icmp eq i32 %lanes, 0
  br i1 %none, label %done, label %loop
loop:
  %left = phi i32 [ %lanes, %entry ], [ %rest, %next ]
  %lane32 = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %lane = zext i32 %lane32 to i64
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %va.p = getelementptr i64, ptr %list, i64 %lane
  %va.raw = load i64, ptr %va.p
  %va = and i64 %va.raw, {-(bits // 8)}
  %high = lshr i64 %va, 32
  %in.shared = icmp eq i64 %high, %shared
  %local.one = and i1 %in.shared, %flat
  br i1 %local.one, label %local, label %global
local:
  %low = and i64 %va, 4294967295
  %end = add i64 %low, {bits // 8}
  %inside = icmp ule i64 %end, %lds.size
  %local.at = getelementptr i8, ptr %lds, i64 %low
  %spare = getelementptr [16 x i8], ptr %spares, i64 %lane
  store i64 0, ptr %spare
  %local.safe = select i1 %inside, ptr %local.at, ptr %spare
  %local.host = ptrtoint ptr %local.safe to i64
  br label %next
global:
  %global.host = call i64 @{PREFIX}translate_write(ptr %context, i64 %va)
  br label %next
next:
  %host = phi i64 [ %local.host, %local ], [ %global.host, %global ]
  store i64 %host, ptr %va.p
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %loop, label %done
done:
  %hosts = load <32 x i64>, ptr %list, align 64
  ret <32 x i64> %hosts
}}
"""


def flat_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    kinds = [(store, size) for store in (False, True) for size in SIZES]
    parts = [make(*kind) for kind in kinds for make in (_parted, _flat_access)]
    parts += [_atomic_hosts(bits) for bits in ATOMIC_SIZES]
    return "\n".join(parts), {"declare i32 @llvm.cttz.i32(i32, i1)"}


def names() -> list[str]:
    """Return the functions that kernels may call."""
    found = [f"{PREFIX}flat_{verb}_{size}" for verb in ("load", "store") for size in SIZES]
    return found + [f"{PREFIX}atomic_hosts_{bits}" for bits in ATOMIC_SIZES]
