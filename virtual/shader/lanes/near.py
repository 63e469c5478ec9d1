"""Vector memory access that a kernel's own fast path did not cover.

`near` functions take a base and 32-bit offsets. If all enabled lanes lie in one page, they need one
TLB look-up and one gather or scatter. `far` functions take 64-bit addresses; with equal high halves
they use the `near` path. Every other access is left to `runs`.
"""

from __future__ import annotations

from ugpu.hcq.objects.jit import host
from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import PREFIX, SIZES, data_parameter
from ugpu.virtual.shader.lanes.octets import octets_ir
from ugpu.virtual.shader.lanes.rows import Rows, load_block, load_rows, store_block, store_rows
from ugpu.virtual.shader.lanes.runs import RUN, run_starts
from ugpu.virtual.shader.text import constant, field, lanes, splat
from ugpu.virtual.shader.tlb import PAGE

WIDE = "<32 x i64>"
BLOCK = 128  # bytes, as many as dwords of all lanes
_HALF = "<16 x i32>"
_SELECT = "llvm.x86.avx512.vpermi2var.d.512"
VECTOR = "<32 x i32>"
_SPLAT = "<32 x i32> zeroinitializer"


def _selects() -> bool:
    """Return whether the host selects dwords of two vectors."""
    return "+avx512f" in host()[1].split(",")


def _by_value(size: int) -> bool:
    """Return whether the data of an access passes in registers rather than through columns."""
    return size <= 4


def _signature(store: bool, size: int, addresses: str) -> tuple[str, str]:
    """Return the result type and the parameters of an access function."""
    result = VECTOR if not store and _by_value(size) else "void"
    data = data_parameter(size)
    if store and _by_value(size):
        data = f", {VECTOR} %data"
    return result, f"ptr %context, {addresses}, i32 %lanes{data}"


def _begin() -> str:
    """Return code that finds %off and %va, of the first enabled lane, and the lanes' %mask; without
    an enabled lane it branches to %nothing."""
    return f"""
  %none = icmp eq i32 %lanes, 0
  br i1 %none, label %nothing, label %some
some:
  %mask = bitcast i32 %lanes to <32 x i1>
  %lane.0 = trunc i32 %lanes to i1
  br i1 %lane.0, label %from.0, label %from.first, !prof !0
from.0:
  %off.0 = extractelement {VECTOR} %offsets, i32 0
  br label %begun
from.first:
  %first = call i32 @llvm.cttz.i32(i32 %lanes, i1 true)
  %off.f = extractelement {VECTOR} %offsets, i32 %first
  br label %begun
begun:
  %off = phi i32 [ %off.0, %from.0 ], [ %off.f, %from.first ]
  %off.64 = zext i32 %off to i64
  %va = add i64 %base, %off.64
"""


def _one_page(size: int, store: bool) -> str:
    """Return code that branches to %near with %host (of the first lane) and %step, or to %general.

    %step is each lane's distance from the first enabled lane. Saturating limits keep lanes that are
    4 GB apart from looking close.
    """
    kind = "write" if store else "read"
    aligned = ""
    good = "%near.1"
    if size == 2:
        aligned = f"""
  %odd.v = and {VECTOR} %step, {constant("i32", 1)}
  %odd.l = icmp ne {VECTOR} %odd.v, zeroinitializer
  %odd.m = and <32 x i1> %odd.l, %mask
  %odd.b = bitcast <32 x i1> %odd.m to i32
  %va.odd = and i64 %va, 1
  %va.even = icmp eq i64 %va.odd, 0
  %steps.even = icmp eq i32 %odd.b, 0
  %even = and i1 %va.even, %steps.even
  %near.2 = and i1 %near.1, %even
"""
        good = "%near.2"
    return f"""
  %in.64 = and i64 %va, {PAGE - 1}
  %in = trunc i64 %in.64 to i32
  %low = call i32 @llvm.usub.sat.i32(i32 %off, i32 %in)
  %room = sub i32 {PAGE - size}, %in
  %has.room = icmp sge i32 %room, 0
  %high = call i32 @llvm.uadd.sat.i32(i32 %off, i32 %room)
  %span = sub i32 %high, %low
{splat("off.v", "i32", "%off")}{splat("low.v", "i32", "%low")}
{splat("span.v", "i32", "%span")}
  %step = sub {VECTOR} %offsets, %off.v
  %above.low = sub {VECTOR} %offsets, %low.v
  %outside = icmp ugt {VECTOR} %above.low, %span.v
  %outside.b = bitcast <32 x i1> %outside to i32
  %outside.on = and i32 %outside.b, %lanes
  %all.in = icmp eq i32 %outside.on, 0
  %near.1 = and i1 %all.in, %has.room
{aligned}
  br i1 {good}, label %near, label %general
near:
{field("tlb", context.TLB, "ptr")}
  %host.i = call i64 @host_{kind}_{size}(ptr %context, ptr %tlb, i64 %va)
  %host = inttoptr i64 %host.i to ptr
"""


def _pointers(step: str, host: str, name: str = "near") -> str:
    return (
        f"  %{name}.w = sext {VECTOR} {step} to {WIDE}\n"
        f"  %{name}.p = getelementptr i8, ptr {host}, {WIDE} %{name}.w\n"
    )


def _in_block(size: int, store: bool) -> str:
    """Return code for lanes within BLOCK bytes, at a multiple of that, ahead of any other check: a
    load takes the block as two vectors, from which each lane selects its dword. Otherwise it
    branches to %apart.

    Of a host with AVX-512, on which a load takes a third of a gather's time.
    """
    inside = BLOCK - size  # bits that a place may have: what is loaded lies in one dword
    return f"""
  %va.32 = trunc i64 %va to i32
  %in.block = and i32 %va.32, {BLOCK - 1}
  %begin = sub i32 %off, %in.block
{splat("begin.v", "i32", "%begin")}
  %place = sub {VECTOR} %offsets, %begin.v
  %rest = and {VECTOR} %place, {constant("i32", ~inside)}
  %bad = icmp ne {VECTOR} %rest, zeroinitializer
  %bad.b = bitcast <32 x i1> %bad to i32
  %bad.on = and i32 %bad.b, %lanes
  %together = icmp eq i32 %bad.on, 0
  ; Offsets that wrap around at 4 GB are close numbers but not close addresses.
  %straight = icmp ule i32 %begin, {(1 << 32) - BLOCK}
  %block.ok = and i1 %together, %straight
  br i1 %block.ok, label %in.a.block, label %apart
in.a.block:
  %to.start = zext i32 %in.block to i64
  %va.start = sub i64 %va, %to.start
{field("tlb.b", context.TLB, "ptr")}
  %start.i = call i64 @host_{"write" if store else "read"}_{size}(ptr %context, ptr %tlb.b,
    i64 %va.start)
  %start = inttoptr i64 %start.i to ptr
{_scattered("%place", "%start", "block") if store else _selected(size)}
apart:
"""


def _selected(size: int) -> str:
    """Load from a block by two selections."""
    halves = []
    for half, part in enumerate(("a", "b")):
        order = ", ".join(f"i32 {16 * half + lane}" for lane in range(16))
        halves.append(f"""
  %{part}.index = shufflevector {VECTOR} %index, {VECTOR} poison, {_HALF} <{order}>
  %{part} = call {_HALF} @{_SELECT}({_HALF} %block.a, {_HALF} %{part}.index, {_HALF} %block.b)
""")
    both = ", ".join(f"i32 {lane}" for lane in range(32))
    return f"""
  %start.b = getelementptr i8, ptr %start, i64 {BLOCK // 2}
  %block.a = load {_HALF}, ptr %start, align 1
  %block.b = load {_HALF}, ptr %start.b, align 1
  %index = lshr {VECTOR} %place, {constant("i32", 2)}
{"".join(halves)}
  %selected = shufflevector {_HALF} %a, {_HALF} %b, {VECTOR} <{both}>
{shifted("%selected", "%place", size, "block")}
  %block.v = select <32 x i1> %mask, {VECTOR} %block.r, {VECTOR} zeroinitializer
  ret {VECTOR} %block.v
"""


def shifted(words: str, place: str, size: int, name: str) -> str:
    """Return the lines that make %<name>.r of the bytes at `place` of each lane's dword."""
    if size == 4:
        return f"  %{name}.r = freeze {VECTOR} {words}\n"
    return f"""
  %{name}.byte = and {VECTOR} {place}, {constant("i32", 3)}
  %{name}.count = shl {VECTOR} %{name}.byte, {constant("i32", 3)}
  %{name}.moved = lshr {VECTOR} {words}, %{name}.count
  %{name}.r = and {VECTOR} %{name}.moved, {constant("i32", (1 << 8 * size) - 1)}
"""


def _near_small(store: bool, size: int) -> str:
    """Return the body of the one-page case for up to four bytes a lane."""
    if store:
        return _scattered("%step", "%host", "near") if size == 4 else _narrow_stores(size)
    return _gathered(size)


def _scattered(step: str, host: str, name: str) -> str:
    """Store dwords by a scatter."""
    return f"""
{_pointers(step, host, name)}
  call void @llvm.masked.scatter.v32i32.v32p0({VECTOR} %data, <32 x ptr> align 1 %{name}.p,
    <32 x i1> %mask)
  ret void
"""


def _gathered(size: int) -> str:
    """Load up to four bytes a lane by a gather."""
    gather = f"call {VECTOR} @llvm.masked.gather.v32i32.v32p0(<32 x ptr> align 1 %near.p, "
    gather += f"<32 x i1> %mask, {VECTOR} zeroinitializer)"
    if size == 4:
        return _pointers("%step", "%host") + f"  %v = {gather}\n  ret {VECTOR} %v\n"
    # Aligned dwords do not leave the page; the requested bytes are shifted down.
    return f"""
  %odd.start = and i64 %host.i, 3
  %odd.32 = trunc i64 %odd.start to i32
{splat("odd", "i32", "%odd.32")}
  %from.dword = add {VECTOR} %step, %odd
  %byte = and {VECTOR} %from.dword, {constant("i32", 3)}
  %dword = sub {VECTOR} %step, %byte
{_pointers("%dword", "%host")}
  %w = {gather}
{shifted("%w", "%from.dword", size, "v")}
  ret {VECTOR} %v.r
"""


def _narrow_stores(size: int) -> str:
    """Store bytes or words lane by lane; disabled lanes repeat into spare memory."""
    kind = f"i{8 * size}"
    lines = [_pointers("%step", "%host")]
    lines.append(f"  %spare = getelementptr i8, ptr %context, i64 {context.SPARE}\n")
    lines.append(splat("spare.v", "ptr", "%spare"))
    lines.append("  %safe = select <32 x i1> %mask, <32 x ptr> %near.p, <32 x ptr> %spare.v\n")
    for lane in range(32):
        lines.append(
            f"  %at{lane} = extractelement <32 x ptr> %safe, i32 {lane}\n"
            f"  %d{lane} = extractelement {VECTOR} %data, i32 {lane}\n"
            f"  %n{lane} = trunc i32 %d{lane} to {kind}\n"
            f"  store {kind} %n{lane}, ptr %at{lane}, align 1\n"
        )
    return "".join(lines) + "  ret void\n"


def _near_wide(store: bool, size: int) -> str:
    """Return the body of the one-page case for more than four bytes a lane."""
    block, runs, every = Rows("b"), Rows("r"), Rows("e")
    (store_block if store else load_block)(block, size, ["%host"])
    (store_block if store else load_block)(runs, size, _run_pointers(runs))
    if store:
        pointers = [_listed(every, lane) for lane in range(32)]
        for half in (0, 1):
            store_rows(every, size, pointers[16 * half : 16 * half + 16], half)
    else:
        for half in (0, 1):
            pointers = [_listed(every, 16 * half + lane) for lane in range(16)]
            load_rows(every, size, pointers, (half,))
    return f"""
  %follows = icmp eq {VECTOR} %step, {lanes([size * lane for lane in range(32)])}
  %follow.b = bitcast <32 x i1> %follows to i32
  %in.row = icmp eq i32 %follow.b, -1
  %all.on = icmp eq i32 %lanes, -1
  %as.block = and i1 %in.row, %all.on
  br i1 %as.block, label %block, label %parts
block:
{block.text()}
  ret void
parts:
  %run.starts = shufflevector {VECTOR} %step, {VECTOR} poison, {VECTOR} {run_starts()}
  %run.steps = sub {VECTOR} %step, %run.starts
  %run.on = icmp eq {VECTOR} %run.steps, {lanes([lane % RUN * size for lane in range(32)])}
  %run.b = bitcast <32 x i1> %run.on to i32
  %in.runs = icmp eq i32 %run.b, -1
  %as.runs = and i1 %in.runs, %all.on
  br i1 %as.runs, label %runs, label %each
runs:
{runs.text()}
  ret void
each:
{_pointers("%step", "%host")}
  %spare = getelementptr i8, ptr %context, i64 {context.SPARE}
{splat("spare.v", "ptr", "%spare")}
  %safe = select <32 x i1> %mask, <32 x ptr> %near.p, <32 x ptr> %spare.v
  %list = getelementptr i8, ptr %context, i64 {context.ADDRESSES}
  store <32 x ptr> %safe, ptr %list, align 64
{every.text()}
  ret void
"""


def _run_pointers(e: Rows) -> list[str]:
    """Return the address where each run of lanes begins."""
    found = []
    for lane in range(0, 32, RUN):
        step = e.value(f"extractelement {VECTOR} %step, i32 {lane}")
        found.append(e.value(f"getelementptr i8, ptr %host, i32 {step}"))
    return found


def _listed(e: Rows, lane: int) -> str:
    """Return a lane's pointer from the list in the context."""
    place = e.value(f"getelementptr ptr, ptr %list, i64 {lane}")
    return e.value(f"load ptr, ptr {place}")


def _general(store: bool, size: int) -> str:
    """Return code that passes all addresses %wide to the functions that process them one by one."""
    verb = "store" if store else "load"
    column = f"  %column = getelementptr i8, ptr %context, i64 {context.IO}\n"
    data = data_parameter(size)
    call = f"  call void @runs_{verb}_{size}(ptr %context, {WIDE} %wide, i32 %lanes{data})\n"
    if not _by_value(size):
        return call + "  ret void\n"
    if store:
        return column + f"  store {VECTOR} %data, ptr %column, align 64\n" + call + "  ret void\n"
    return (
        column
        + call
        + f"  %result = load {VECTOR}, ptr %column, align 64\n  ret {VECTOR} %result\n"
    )


def _near(store: bool, size: int) -> str:
    verb = "store" if store else "load"
    result, parameters = _signature(store, size, f"i64 %base, {VECTOR} %offsets")
    body = _near_small(store, size) if size <= 4 else _near_wide(store, size)
    nothing = f"  ret {VECTOR} zeroinitializer\n" if result == VECTOR else "  ret void\n"
    first = "" if _by_value(size) else octets_ir(store, size)
    block = _in_block(size, store) if _selects() and size <= 4 and not (store and size < 4) else ""
    return f"""
define {result} @{PREFIX}near_{verb}_{size}({parameters}) noinline {{
{first}{_begin()}{block}{_one_page(size, store)}
{body}
general:
  %offsets.64 = zext {VECTOR} %offsets to {WIDE}
{splat("base.v", "i64", "%base")}
  %wide = add {WIDE} %base.v, %offsets.64
{_general(store, size)}
nothing:
{nothing}
}}
"""


def _far(store: bool, size: int) -> str:
    verb = "store" if store else "load"
    result, parameters = _signature(store, size, f"{VECTOR} %lows, {VECTOR} %highs, i64 %base")
    data = parameters[parameters.index("%lanes") + len("%lanes") :]
    call = f"call {result} @{PREFIX}near_{verb}_{size}(ptr %context, i64 %start, {VECTOR} %lows,"
    call += f" i32 %lanes{data})"
    back = (
        f"  %near.r = {call}\n  ret {VECTOR} %near.r\n"
        if result == VECTOR
        else (f"  {call}\n  ret void\n")
    )
    order = ", ".join(f"i32 {lane}, i32 {lane + 32}" for lane in range(32))
    return f"""
define {result} @{PREFIX}far_{verb}_{size}({parameters}) noinline {{
  %first = call i32 @llvm.cttz.i32(i32 %lanes, i1 false)
  %lane = and i32 %first, 31
  %high = extractelement {VECTOR} %highs, i32 %lane
{splat("high.v", "i32", "%high")}
  %differ = icmp ne {VECTOR} %highs, %high.v
  %differ.b = bitcast <32 x i1> %differ to i32
  %differ.on = and i32 %differ.b, %lanes
  %equal = icmp eq i32 %differ.on, 0
  br i1 %equal, label %near, label %general
near:
  %high.64 = zext i32 %high to i64
  %top = shl i64 %high.64, 32
  %start = add i64 %top, %base
{back}
general:
  %mixed = shufflevector {VECTOR} %lows, {VECTOR} %highs, <64 x i32> <{order}>
  %pairs = bitcast <64 x i32> %mixed to {WIDE}
{splat("base.v", "i64", "%base")}
  %wide = add {WIDE} %base.v, %pairs
{_general(store, size)}
}}
"""


def near_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    kinds = [(store, size) for store in (False, True) for size in SIZES]
    parts = [make(*kind) for kind in kinds for make in (_near, _far)]
    pointers, mask = "<32 x ptr>", "<32 x i1>"
    needed = {f"declare {_HALF} @{_SELECT}({_HALF}, {_HALF}, {_HALF})"} if _selects() else set()
    return "\n".join(parts), needed | {
        "declare i32 @llvm.usub.sat.i32(i32, i32)",
        "declare i32 @llvm.uadd.sat.i32(i32, i32)",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        f"declare {VECTOR} @llvm.masked.gather.v32i32.v32p0({pointers}, {mask}, {VECTOR})",
        f"declare void @llvm.masked.scatter.v32i32.v32p0({VECTOR}, {pointers}, {mask})",
    }


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [
        f"{PREFIX}{reach}_{verb}_{size}"
        for reach in ("near", "far")
        for verb in ("load", "store")
        for size in SIZES
    ]
