"""Scratch access of lanes at offsets of their own.

If every enabled lane stays within the wave's scratch and within the dwords that it begins in, an
access is one of `near` memory for each dword: the offsets are spread by the lanes' interleaving.
A wave's scratch is usually as contiguous in the host's memory as in the GPU's: then one gather or
scatter does for a dword, whatever its pages.
Others, and those beyond the wave's scratch, which fault at their address in the private aperture,
are left to the loop over lanes of `flat`.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import PREFIX, SIZES, data_parameter
from ugpu.virtual.shader.lanes.near import shifted
from ugpu.virtual.shader.memory import PAGE_SHIFT, Access
from ugpu.virtual.shader.text import VECTOR, Text, constant, field, lanes, splat
from ugpu.virtual.shader.tlb import columns_of, pages_of

_DWORD = 4
_MOST_PAGES = 64  # of an access whose pages are looked up together


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


def _span(store: bool, size: int) -> str:
    """Return code for %spread offsets in several pages: it branches to %span with the host address
    %origin of the wave's scratch, if all pages from the first to the last one are in the TLB and
    as far from their host addresses, and to %apart.pages otherwise."""
    tag_at, delta_at = columns_of(Access.WRITE if store else Access.READ)
    look = Text(prefix="look")
    _, offset = pages_of(look, "%page.va")
    rows = -(-size // _DWORD)
    return f"""
  %any = icmp ne i32 %lanes, 0
  br i1 %any, label %some, label %nothing
nothing:
  ret void
some:
  %mask = bitcast i32 %lanes to <32 x i1>
  %lows = select <32 x i1> %mask, {VECTOR} %spread, {VECTOR} {constant("i32", -1)}
  %highs = select <32 x i1> %mask, {VECTOR} %spread, {VECTOR} zeroinitializer
  %least = call i32 @llvm.vector.reduce.umin.v32i32({VECTOR} %lows)
  %most = call i32 @llvm.vector.reduce.umax.v32i32({VECTOR} %highs)
  %least.64 = zext i32 %least to i64
  %most.64 = zext i32 %most to i64
  %rows.bytes = shl i64 {_DWORD * (rows - 1)}, %wave.shift
  %end.64 = add i64 %most.64, %rows.bytes
  %start.va = add i64 %wave.scratch, %least.64
  %last.byte = add i64 %wave.scratch, %end.64
  %last.va = or i64 %last.byte, 3
  %start.page = lshr i64 %start.va, {PAGE_SHIFT}
  %last.page = lshr i64 %last.va, {PAGE_SHIFT}
  %apart.by = sub i64 %last.page, %start.page
  %few = icmp ult i64 %apart.by, {_MOST_PAGES}
{field("tlb", context.TLB, "ptr")}
  br i1 %few, label %page, label %apart.pages
page:
  %page.now = phi i64 [ %start.page, %some ], [ %page.next, %page.good ]
  %delta.first = phi i64 [ 0, %some ], [ %delta, %page.good ]
  %page.va = shl i64 %page.now, {PAGE_SHIFT}
{look.text()}
  %entry.at = getelementptr i8, ptr %tlb, i64 {offset}
  %tag.at = getelementptr i8, ptr %entry.at, i64 {tag_at}
  %delta.at = getelementptr i8, ptr %entry.at, i64 {delta_at}
  %tag = load atomic i64, ptr %tag.at monotonic, align 8
  %delta = load atomic i64, ptr %delta.at monotonic, align 8
  %known = icmp eq i64 %tag, %page.now
  %begin = icmp eq i64 %page.now, %start.page
  %equal = icmp eq i64 %delta, %delta.first
  %alike = or i1 %begin, %equal
  %page.ok = and i1 %known, %alike
  br i1 %page.ok, label %page.good, label %apart.pages
page.good:
  %page.next = add i64 %page.now, 1
  %more = icmp ult i64 %page.now, %last.page
  br i1 %more, label %page, label %span
span:
  %origin.i = add i64 %wave.scratch, %delta
  %origin = inttoptr i64 %origin.i to ptr
{_span_moves(store, size)}
  ret void
apart.pages:
"""


def _span_moves(store: bool, size: int) -> str:
    """Return the lines that move each dword between its rows at %origin and its column."""
    lines = [f"  %dwords = and {VECTOR} %spread, {constant('i32', -_DWORD)}\n"]
    lines.append(f"  %dwords.64 = zext {VECTOR} %dwords to <32 x i64>\n")
    for number in range(-(-size // _DWORD)):
        lines.append(f"""
  %from.row{number} = shl i64 {_DWORD * number}, %wave.shift
  %row.at{number} = getelementptr i8, ptr %origin, i64 %from.row{number}
  %at{number} = getelementptr i8, ptr %row.at{number}, <32 x i64> %dwords.64
  %io{number} = getelementptr i8, ptr %columns, i64 {context.IO_COLUMN * number}
""")
        if store:
            lines.append(f"""
  %word{number} = load {VECTOR}, ptr %io{number}, align 64
  call void @llvm.masked.scatter.v32i32.v32p0({VECTOR} %word{number},
    <32 x ptr> align 1 %at{number}, <32 x i1> %mask)
""")
            continue
        lines.append(f"""
  %word{number} = call {VECTOR} @llvm.masked.gather.v32i32.v32p0(<32 x ptr> align 1 %at{number},
    <32 x i1> %mask, {VECTOR} zeroinitializer)
{shifted(f"%word{number}", "%own", size, f"part{number}")}
  store {VECTOR} %part{number}.r, ptr %io{number}, align 64
""")
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
{"" if store and size < _DWORD else _span(store, size)}
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
    return "\n".join(_access(store, size) for store in (False, True) for size in SIZES), {
        f"declare i32 @llvm.vector.reduce.{name}.v32i32({VECTOR})" for name in ("umin", "umax")
    }


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}scratch_{verb}_{size}" for verb in ("load", "store") for size in SIZES]
