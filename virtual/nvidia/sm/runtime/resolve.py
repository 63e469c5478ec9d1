"""Native functions that resolve addresses of lanes to host addresses, one for each state space.

`resolve_<space>` takes 32 addresses, the mask of lanes to resolve and the size of an access in
bytes. It returns 32 host addresses; lanes not in the mask get a spare place. Misaligned and
out-of-range addresses are noted in the context, and their lanes get the spare place too. Accesses
are naturally aligned, so none crosses a page boundary.
Source: PTX ISA 8.x, "State Spaces", "Generic Addressing" and "Alignment".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.shader import tlb
from ugpu.virtual.shader.memory import PAGE_SHIFT, Access
from ugpu.virtual.shader.text import Text, field, lanes, splat
from ugpu.virtual.shader.tlb import columns_of, pages_of, translate_ir

PREFIX = "nvsm_"
WIDE = "<32 x i64>"
MASK = "<32 x i1>"
ACCESS_NAMES = tlb.NAMES | tlb.ATOMIC_NAMES


_CHECK = f"""
  %size.1 = sub i32 %size, 1
  %size.w = zext i32 %size.1 to i64
{splat("size.v", "i64", "%size.w")}
  %low.v = and {WIDE} %addresses, %size.v
  %odd.v = icmp ne {WIDE} %low.v, zeroinitializer
  %odd.b = bitcast {MASK} %odd.v to i32
  %odd = and i32 %odd.b, %lanes
  %is.odd = icmp ne i32 %odd, 0
  br i1 %is.odd, label %misaligned, label %straight, !prof !1
misaligned:
  call void @{PREFIX}note(ptr %context, i32 {layout.MISALIGNED}, i32 %odd, {WIDE} %addresses)
  br label %straight
straight:
  %even = xor i32 %odd, -1
  %good = and i32 %lanes, %even
"""


def _global(name: str, access: Access) -> str:
    tag, delta = columns_of(access)
    look = Text(prefix="look.")
    pages, offsets = pages_of(look, "%addresses", WIDE)
    gather = "@llvm.masked.gather.v32i64.v32p0"
    return f"""
define {WIDE} @{PREFIX}resolve_global_{name}(ptr %context, {WIDE} %addresses, i32 %lanes,
    i32 %size) noinline {{
entry:
{field("tlb", layout.TLB, "ptr")}
  %spare = getelementptr i8, ptr %context, i64 {layout.SPARE}
  %spare.i = ptrtoint ptr %spare to i64
{splat("spare.v", "i64", "%spare.i")}{_CHECK}
  %none = icmp eq i32 %good, 0
  br i1 %none, label %nothing, label %some
nothing:
  ret {WIDE} %spare.v
some:
  %mask = bitcast i32 %good to {MASK}
  %first = call i32 @llvm.cttz.i32(i32 %good, i1 true)
  %va = extractelement {WIDE} %addresses, i32 %first
{splat("va.v", "i64", "%va")}
  %differ = xor {WIDE} %addresses, %va.v
  %far.v = icmp ugt {WIDE} %differ, splat (i64 {(1 << PAGE_SHIFT) - 1})
  %far.b = bitcast {MASK} %far.v to i32
  %far = and i32 %far.b, %good
  %one.page = icmp eq i32 %far, 0
  br i1 %one.page, label %near, label %many
near:
  %host = call i64 @{PREFIX}translate_{name}(ptr %context, i64 %va)
  %move = sub i64 %host, %va
{splat("move.v", "i64", "%move")}
  %near.all = add {WIDE} %addresses, %move.v
  %near.hosts = select {MASK} %mask, {WIDE} %near.all, {WIDE} %spare.v
  ret {WIDE} %near.hosts
many:
{look.text()}
  %tag.p = getelementptr i8, ptr %tlb, i64 {tag}
  %tags.p = getelementptr i8, ptr %tag.p, {WIDE} {offsets}
  %tags = call {WIDE} {gather}(<32 x ptr> align 8 %tags.p, {MASK} %mask, {WIDE} zeroinitializer)
  %delta.p = getelementptr i8, ptr %tlb, i64 {delta}
  %deltas.p = getelementptr i8, ptr %delta.p, {WIDE} {offsets}
  %deltas = call {WIDE} {gather}(<32 x ptr> align 8 %deltas.p, {MASK} %mask, {WIDE} zeroinitializer)
  %hit.v = icmp eq {WIDE} %tags, {pages}
  %hit.b = bitcast {MASK} %hit.v to i32
  %miss.b = xor i32 %hit.b, -1
  %missing = and i32 %miss.b, %good
  %all = add {WIDE} %addresses, %deltas
  %hosts = select {MASK} %mask, {WIDE} %all, {WIDE} %spare.v
  %all.hit = icmp eq i32 %missing, 0
  br i1 %all.hit, label %done, label %loop, !prof !0
done:
  ret {WIDE} %hosts
loop:
  %left = phi i32 [ %missing, %many ], [ %rest, %loop ]
  %so.far = phi {WIDE} [ %hosts, %many ], [ %more, %loop ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %lane.va = extractelement {WIDE} %addresses, i32 %lane
  %lane.host = call i64 @{PREFIX}translate_{name}(ptr %context, i64 %lane.va)
  %more = insertelement {WIDE} %so.far, i64 %lane.host, i32 %lane
  %again = icmp ne i32 %rest, 0
  br i1 %again, label %loop, label %end
end:
  ret {WIDE} %more
}}
"""


_BEYOND = f"""
  call void @{PREFIX}note(ptr %context, i32 {layout.BAD_ADDRESS}, i32 %beyond, {WIDE} %addresses)
  br label %inside
"""
# A group's own memory can also be addressed by its rank in the cluster, see `distributed`.
_PERHAPS_MAPPED = f"""
  %mapped = call {WIDE} @{PREFIX}resolve_own(ptr %context, {WIDE} %addresses, i32 %good, i32 %size)
  ret {WIDE} %mapped
"""


def _bounded(name: str, limit: int, base: str, beyond: str = _BEYOND) -> str:
    """Define a resolver of contiguous memory. limit: its size's offset in the context."""
    return f"""
define {WIDE} @{PREFIX}resolve_{name}(ptr %context, {WIDE} %addresses, i32 %lanes,
    i32 %size) noinline {{
entry:
  %spare = getelementptr i8, ptr %context, i64 {layout.SPARE}
  %spare.i = ptrtoint ptr %spare to i64
{splat("spare.v", "i64", "%spare.i")}{_CHECK}
{field("limit", limit, "i64")}
  %size.64 = zext i32 %size to i64
  %room = sub i64 %limit, %size.64
  %has.room = icmp sge i64 %room, 0
{splat("room.v", "i64", "%room")}
  %beyond.v = icmp ugt {WIDE} %addresses, %room.v
  %beyond.b = bitcast {MASK} %beyond.v to i32
  %beyond.c = select i1 %has.room, i32 %beyond.b, i32 -1
  %beyond = and i32 %beyond.c, %good
  %is.beyond = icmp ne i32 %beyond, 0
  br i1 %is.beyond, label %outside, label %inside, !prof !1
outside:
{beyond}
inside:
  %within = xor i32 %beyond, -1
  %right = and i32 %good, %within
  %mask = bitcast i32 %right to {MASK}
{base}
  %all = add {WIDE} %addresses, %base.v
  %hosts = select {MASK} %mask, {WIDE} %all, {WIDE} %spare.v
  ret {WIDE} %hosts
}}
"""


def _shared() -> str:
    base = field("shared", layout.SHARED, "ptr")
    base += "  %shared.i = ptrtoint ptr %shared to i64\n"
    base += splat("base.v", "i64", "%shared.i")
    return _bounded("shared", layout.SHARED_SIZE, base, _PERHAPS_MAPPED)


def _local() -> str:
    base = (
        field("locals", layout.LOCALS, "ptr")
        + field("local.size", layout.LOCAL_SIZE, "i64")
        + field("warp", layout.WARP, "i32")
        + f"""
  %locals.i = ptrtoint ptr %locals to i64
  %warp.64 = zext i32 %warp to i64
  %warp.lane = shl i64 %warp.64, 5
  %warp.at = mul i64 %warp.lane, %local.size
  %warp.base = add i64 %locals.i, %warp.at
{splat("warp.v", "i64", "%warp.base")}{splat("step.v", "i64", "%local.size")}
  %steps = mul {WIDE} %step.v, {lanes(list(range(32)), "i64")}
  %base.v = add {WIDE} %warp.v, %steps
"""
    )
    return _bounded("local", layout.LOCAL_SIZE, base)


def _window(name: str, offset: int, limit: str) -> str:
    return f"""
{field(f"{name}.window", offset, "i64")}{splat(f"{name}.w", "i64", f"%{name}.window")}
  %{name}.at = sub {WIDE} %addresses, %{name}.w
  %{name}.in = icmp ult {WIDE} %{name}.at, {limit}
  %{name}.b = bitcast {MASK} %{name}.in to i32
  %{name}.lanes = and i32 %{name}.b, %lanes
"""


def _generic(name: str) -> str:
    def call(space: str, at: str, which: str) -> str:
        return (
            f"call {WIDE} @{PREFIX}resolve_{space}(ptr %context, {WIDE} {at}, i32 {which},"
            " i32 %size)"
        )

    return f"""
define {WIDE} @{PREFIX}resolve_generic_{name}(ptr %context, {WIDE} %addresses, i32 %lanes,
    i32 %size) noinline {{
entry:
{field("groups", layout.CLUSTER_SIZE, "i32")}
  %ranks = zext i32 %groups to i64
  %windows = add i64 %ranks, 1
  %ends = shl i64 %windows, {layout.CLUSTER_SHIFT}
{splat("ends.v", "i64", "%ends")}{_window("shared", layout.SHARED_WINDOW, "%ends.v")}
{_window("local", layout.LOCAL_WINDOW, f"splat (i64 {layout.GENERIC_WINDOW_SIZE})")}
  %either = or i32 %shared.lanes, %local.lanes
  %outside = icmp eq i32 %either, 0
  br i1 %outside, label %global, label %mixed
global:
  %g = {call(f"global_{name}", "%addresses", "%lanes")}
  ret {WIDE} %g
mixed:
  %neither = xor i32 %either, -1
  %global.lanes = and i32 %lanes, %neither
  %m.g = {call(f"global_{name}", "%addresses", "%global.lanes")}
  %m.s = {call("cluster", "%shared.at", "%shared.lanes")}
  %m.l = {call("local", "%local.at", "%local.lanes")}
  %m.1 = select {MASK} %shared.in, {WIDE} %m.s, {WIDE} %m.g
  %m.2 = select {MASK} %local.in, {WIDE} %m.l, {WIDE} %m.1
  ret {WIDE} %m.2
}}
"""


def _note() -> str:
    """Define note: record the first fault of a call."""
    return f"""
define void @{PREFIX}note(ptr %context, i32 %code, i32 %lanes, {WIDE} %addresses) noinline {{
{field("known", layout.FAULT_CODE, "i32")}
  %is.first = icmp eq i32 %known, 0
  br i1 %is.first, label %keep, label %done
keep:
  store i32 %code, ptr %known.p
  %lanes.p = getelementptr i8, ptr %context, i64 {layout.FAULT_LANES}
  store i32 %lanes, ptr %lanes.p
  %first = call i32 @llvm.cttz.i32(i32 %lanes, i1 false)
  %lane = and i32 %first, 31
  %va = extractelement {WIDE} %addresses, i32 %lane
  %va.p = getelementptr i8, ptr %context, i64 {layout.FAULT_ADDRESS}
  store i64 %va, ptr %va.p
  br label %done
done:
  ret void
}}
"""


def resolve_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    parts = [_note(), _shared(), _local(), translate_ir(PREFIX, ACCESS_NAMES)]
    for access, name in ACCESS_NAMES.items():
        parts += [_global(name, access), _generic(name)]
    return "\n".join(parts), {
        "declare i32 @llvm.cttz.i32(i32, i1)",
        f"declare {WIDE} @llvm.masked.gather.v32i64.v32p0(<32 x ptr>, {MASK}, {WIDE})",
    }


def names() -> list[str]:
    """Return the functions that kernels may call."""
    found = [f"{PREFIX}resolve_shared", f"{PREFIX}resolve_local"]
    for name in ACCESS_NAMES.values():
        found += [f"{PREFIX}{f}_{name}" for f in ("translate", "resolve_global", "resolve_generic")]
    return found
