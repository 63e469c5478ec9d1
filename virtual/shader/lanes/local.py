"""Native functions for the memory that a group shares.

Reads beyond the group's allocation return zero; writes there are dropped.
"""

from __future__ import annotations

from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import LDS_SPACE, PREFIX
from ugpu.virtual.shader.lanes.rows import (
    HALF,
    Rows,
    load_block,
    load_rows,
    numbers,
    store_apart,
    store_block,
    store_rows,
)
from ugpu.virtual.shader.lanes.runs import RUN, run_starts
from ugpu.virtual.shader.text import PASS, constant, field, lanes, splat

VECTOR = "<32 x i32>"
SIZES = (1, 2, 4, 8, 12, 16)
HOST_SIZES = (4, 8)


def _safe_offsets(size: int) -> str:
    """Return lines that define %safe: each lane's offset into the buffer, or that of spare space
    after it; %in.a.row: whether all lanes follow the first, at %start; %low and %high: halves of
    %safe."""
    return f"""
{field("lds", context.SHARED, "ptr")}{field("lds.size", context.SHARED_SIZE, "i64")}
  %limit = trunc i64 %lds.size to i32
  %end = call i32 @llvm.usub.sat.i32(i32 %limit, i32 {size - 1})
{splat("end.v", "i32", "%end")}
  %in.v = icmp ult {VECTOR} %addresses, %end.v
  %mask = bitcast i32 %lanes to <32 x i1>
  %good = and <32 x i1> %in.v, %mask
  %safe = select <32 x i1> %good, {VECTOR} %addresses, {VECTOR} {constant("i32", LDS_SPACE)}
  %first = extractelement {VECTOR} %addresses, i32 0
{splat("first.v", "i32", "%first")}
  %steps = add {VECTOR} %first.v, {lanes([size * lane for lane in range(32)])}
  %follows = icmp eq {VECTOR} %steps, %addresses
  %follow.good = and <32 x i1> %follows, %good
  %follow.bits = bitcast <32 x i1> %follow.good to i32
  %in.a.row = icmp eq i32 %follow.bits, -1
  %first.64 = zext i32 %first to i64
  %start = getelementptr i8, ptr %lds, i64 %first.64
  %list = getelementptr i8, ptr %context, i64 {context.ADDRESSES}
"""


def _pointers(e: Rows, halves: tuple[int, ...]) -> list[str]:
    """Return the addresses that the lanes of some halves access, by the offsets in %list."""
    found = []
    for lane in (16 * half + k for half in halves for k in range(16)):
        place = e.value(f"getelementptr i32, ptr %list, i64 {lane}")
        offset = e.value(f"zext i32 {e.value(f'load i32, ptr {place}')} to i64")
        found.append(e.value(f"getelementptr i8, ptr %lds, i64 {offset}"))
    return found


def _load_wide(size: int) -> str:
    """Define the load of more than four bytes a lane, into the columns at %data.

    Lanes 16..31 often read the same data as lanes 0..15: operands of matrix instructions do.
    """
    row, halves, every = Rows("r"), Rows("h"), Rows("e")
    load_block(row, size, ["%start"])
    load_rows(halves, size, _pointers(halves, (0,)), (0, 1))
    for half in (0, 1):
        load_rows(every, size, _pointers(every, (half,)), (half,))
    return f"""
define void @{PREFIX}lds_load_{size}(ptr %context, {VECTOR} %addresses, i32 %lanes,
    ptr %data) noinline {{
{_safe_offsets(size)}{_clear_spare()}
  br i1 %in.a.row, label %row, label %scattered
row:
{row.text()}
  ret void
scattered:
  store {VECTOR} %safe, ptr %list, align 64
  %low = shufflevector {VECTOR} %safe, {VECTOR} poison, {HALF} {numbers(0)}
  %high = shufflevector {VECTOR} %safe, {VECTOR} poison, {HALF} {numbers(16)}
  %differ = icmp ne {HALF} %low, %high
  %differ.bits = bitcast <16 x i1> %differ to i16
  %same = icmp eq i16 %differ.bits, 0
  br i1 %same, label %halves, label %every
halves:
{halves.text()}
  ret void
every:
{every.text()}
  ret void
}}
"""


def _store_wide(size: int) -> str:
    """Define the store of more than four bytes a lane, from the columns at %data.

    Tiles are stored in pieces of a row: either by four adjacent lanes, or (transposed tiles) by
    four lanes that are eight apart. Each of those pieces is stored at once.
    """
    row, pieces, every = Rows("r"), Rows("p"), Rows("e")
    store_block(row, size, ["%start"])
    if size == 8:
        store_apart(pieces, [_piece(pieces, lane) for lane in range(8)])
    else:
        store_block(pieces, size, [_piece(pieces, lane) for lane in range(0, 32, RUN)])
    for half in (0, 1):
        store_rows(every, size, _pointers(every, (half,)), half)
    return f"""
define void @{PREFIX}lds_store_{size}(ptr %context, {VECTOR} %addresses, i32 %lanes,
    ptr %data) noinline {{
{_safe_offsets(size)}
  br i1 %in.a.row, label %row, label %parts
row:
{row.text()}
  ret void
parts:
{_lanes_apart(size) if size == 8 else _lanes_in_runs(size)}
  %piece.bits = bitcast <32 x i1> %piece.good to i32
  %in.pieces = icmp eq i32 %piece.bits, -1
  br i1 %in.pieces, label %pieces, label %every
pieces:
{pieces.text()}
  ret void
every:
  store {VECTOR} %safe, ptr %list, align 64
{every.text()}
  ret void
}}
"""


def _lanes_in_runs(size: int) -> str:
    """Return lines that define %piece.good: lanes that are enabled and inside, and follow the first
    of their run. Runs may overlap: they are stored in the order of their lanes."""
    return f"""
  %piece.first = shufflevector {VECTOR} %addresses, {VECTOR} poison, {VECTOR} {run_starts()}
  %piece.steps = add {VECTOR} %piece.first, {lanes([lane % RUN * size for lane in range(32)])}
  %piece.follows = icmp eq {VECTOR} %piece.steps, %addresses
  %piece.good = and <32 x i1> %piece.follows, %good
"""


def _lanes_apart(size: int) -> str:
    """Return lines that define %piece.good: lanes that are enabled and inside, and follow the lane
    eight before, if no piece reaches into the next one: then the order of the stores cannot be
    observed."""
    eighth = lanes([lane % 8 for lane in range(32)])
    after = lanes([min(lane + 1, 7) if lane < 8 else 0 for lane in range(32)])
    first_seven = " ".join(f"i1 {int(lane >= 7)}," for lane in range(32))[:-1]
    return f"""
  %piece.first = shufflevector {VECTOR} %addresses, {VECTOR} poison, {VECTOR} {eighth}
  %piece.steps = add {VECTOR} %piece.first, {lanes([lane // 8 * size for lane in range(32)])}
  %piece.follows = icmp eq {VECTOR} %piece.steps, %addresses
  %piece.ends = add {VECTOR} %addresses, {constant("i32", 4 * size)}
  %piece.next = shufflevector {VECTOR} %addresses, {VECTOR} poison, {VECTOR} {after}
  %piece.clear = icmp ule {VECTOR} %piece.ends, %piece.next
  %piece.apart = or <32 x i1> %piece.clear, <{first_seven}>
  %piece.each = and <32 x i1> %piece.follows, %piece.apart
  %piece.good = and <32 x i1> %piece.each, %good
"""


def _piece(e: Rows, lane: int) -> str:
    offset = e.value(f"extractelement {VECTOR} %addresses, i32 {lane}")
    return e.value(f"getelementptr i8, ptr %lds, i64 {e.value(f'zext i32 {offset} to i64')}")


def _clear_spare() -> str:
    return (
        f"  %spare = getelementptr i8, ptr %lds, i64 {LDS_SPACE}\n"
        "  store <4 x i32> zeroinitializer, ptr %spare, align 16\n"
    )


def _load_narrow(size: int) -> str:
    """Define the load of up to four bytes a lane; the result is zero-extended."""
    e, kind = Rows("e"), f"i{8 * size}"
    joined = "poison"
    for lane, at in enumerate(_pointers(e, (0, 1))):
        element = e.value(f"load {kind}, ptr {at}, align 1")
        joined = e.value(f"insertelement <32 x {kind}> {joined}, {kind} {element}, i32 {lane}")
    return f"""
define {VECTOR} @{PREFIX}lds_load_{size}(ptr %context, {VECTOR} %addresses,
    i32 %lanes) noinline {{
{_safe_offsets(size)}{_clear_spare()}
  br i1 %in.a.row, label %row, label %every
row:
  %block = load <32 x {kind}>, ptr %start, align 1
  br label %done
every:
  store {VECTOR} %safe, ptr %list, align 64
{e.text()}
  br label %done
done:
  %v = phi <32 x {kind}> [ %block, %row ], [ {joined}, %every ]
  %wide = {"bitcast" if size == 4 else "zext"} <32 x {kind}> %v to {VECTOR}
  ret {VECTOR} %wide
}}
"""


def _store_narrow(size: int) -> str:
    """Define the store of up to four bytes a lane."""
    e, kind = Rows("e"), f"i{8 * size}"
    for lane, at in enumerate(_pointers(e, (0, 1))):
        element = e.value(f"extractelement <32 x {kind}> %v, i32 {lane}")
        e.do(f"store {kind} {element}, ptr {at}, align 1")
    return f"""
define void @{PREFIX}lds_store_{size}(ptr %context, {VECTOR} %addresses, i32 %lanes,
    {VECTOR} %data) noinline {{
{_safe_offsets(size)}
  %v = {"bitcast" if size == 4 else "trunc"} {VECTOR} %data to <32 x {kind}>
  br i1 %in.a.row, label %row, label %every
row:
  store <32 x {kind}> %v, ptr %start, align 1
  ret void
every:
  store {VECTOR} %safe, ptr %list, align 64
{e.text()}
  ret void
}}
"""


def _hosts(size: int) -> str:
    """Define lds_hosts_<size>(context, addresses, lanes): the host addresses of aligned accesses of
    the enabled lanes. Beyond the allocation each lane has its own place, which holds zero."""
    wide = f"<{PASS} x i64>"
    return f"""
define {wide} @{PREFIX}lds_hosts_{size}(ptr %context, {VECTOR} %addresses, i32 %lanes) noinline {{
entry:
{field("lds", context.SHARED, "ptr")}{field("lds.size", context.SHARED_SIZE, "i64")}
  %limit = trunc i64 %lds.size to i32
  %end = call i32 @llvm.usub.sat.i32(i32 %limit, i32 {size - 1})
{splat("end.v", "i32", "%end")}
  %even = and {VECTOR} %addresses, {constant("i32", -size)}
  %inside = icmp ult {VECTOR} %even, %end.v
  %inside.bits = bitcast <32 x i1> %inside to i32
  %beyond = xor i32 %inside.bits, -1
  %lost = and i32 %beyond, %lanes
  %base = ptrtoint ptr %lds to i64
{splat("base.v", "i64", "%base")}
  %offsets = zext {VECTOR} %even to {wide}
  %hosts = add {wide} %base.v, %offsets
  %all = icmp eq i32 %lost, 0
  br i1 %all, label %whole, label %some
whole:
  ret {wide} %hosts
some:
  %rows = getelementptr i8, ptr %context, i64 {context.ROWS}
  store <128 x i32> zeroinitializer, ptr %rows, align 64
  %rows.i = ptrtoint ptr %rows to i64
{splat("rows.v", "i64", "%rows.i")}
  %spares = add {wide} %rows.v, {lanes([16 * lane for lane in range(PASS)], "i64")}
  %safe = select <32 x i1> %inside, {wide} %hosts, {wide} %spares
  ret {wide} %safe
}}
"""


def local_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    parts = [(_load_wide if size > 4 else _load_narrow)(size) for size in SIZES]
    parts += [(_store_wide if size > 4 else _store_narrow)(size) for size in SIZES]
    parts += [_hosts(size) for size in HOST_SIZES]
    return "\n".join(parts), {"declare i32 @llvm.usub.sat.i32(i32, i32)"}


def names() -> list[str]:
    """Return the functions that kernels may call."""
    found = [f"{PREFIX}lds_{verb}_{size}" for verb in ("load", "store") for size in SIZES]
    return found + [f"{PREFIX}lds_hosts_{size}" for size in HOST_SIZES]
