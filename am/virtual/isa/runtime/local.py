"""Native functions for local memory (LDS) and for atomic operations on any memory.

Local addresses beyond the workgroup's allocation read zero and are not written, as on the chip.
Atomics on local memory come in as flat addresses in the shared aperture.
"""

from __future__ import annotations

from am.virtual.isa.runtime import layout
from am.virtual.isa.runtime.calls import LDS_SPACE, PREFIX
from am.virtual.isa.runtime.rows import (
    HALF,
    Rows,
    load_block,
    load_rows,
    numbers,
    store_apart,
    store_block,
    store_rows,
)
from am.virtual.isa.runtime.runs import RUN, run_starts
from hcq.emu.text import constant, field, lanes, splat

VECTOR = "<32 x i32>"
SIZES = (1, 2, 4, 8, 12, 16)
# Numbers of the atomic operations, as passed to the native function.
ATOMICS = (
    "swap", "cmpswap", "add", "sub", "rsub", "csub", "min_i", "min_u", "max_i", "max_u", "and",
    "or", "xor", "inc", "dec", "mskor", "fcmpswap", "fmin", "fmax", "fadd", "wrap",
)  # fmt: skip


def _safe_offsets(size: int) -> str:
    """Return lines giving %safe: each lane's offset into the buffer, or of spare space behind;
    %in.a.row: whether all lanes follow the first, at %start; %low and %high: halves of %safe."""
    return f"""
{field("lds", layout.LDS, "ptr")}{field("lds.size", layout.LDS_SIZE, "i64")}
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
  %list = getelementptr i8, ptr %context, i64 {layout.ADDRESSES}
"""


def _pointers(e: Rows, halves: tuple[int, ...]) -> list[str]:
    """Return where the lanes of some halves make their access, by the offsets in %list."""
    found = []
    for lane in (16 * half + k for half in halves for k in range(16)):
        place = e.value(f"getelementptr i32, ptr %list, i64 {lane}")
        offset = e.value(f"zext i32 {e.value(f'load i32, ptr {place}')} to i64")
        found.append(e.value(f"getelementptr i8, ptr %lds, i64 {offset}"))
    return found


def _load_wide(size: int) -> str:
    """Define the load of more than four bytes a lane, into the columns at %data.

    Lanes 16..31 often read what lanes 0..15 do: operands of matrix instructions are so.
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

    Tiles are stored in pieces of a row: by each four lanes side by side, or (turned tiles) by each
    four lanes that are eight apart. Those pieces are stored at once.
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
    """Return lines giving %piece.good: lanes that are enabled and inside, and follow the first of
    their run. Runs may overlap: they are stored in the order of their lanes."""
    return f"""
  %piece.first = shufflevector {VECTOR} %addresses, {VECTOR} poison, {VECTOR} {run_starts()}
  %piece.steps = add {VECTOR} %piece.first, {lanes([lane % RUN * size for lane in range(32)])}
  %piece.follows = icmp eq {VECTOR} %piece.steps, %addresses
  %piece.good = and <32 x i1> %piece.follows, %good
"""


def _lanes_apart(size: int) -> str:
    """Return lines giving %piece.good: lanes that are enabled and inside, and follow the one eight
    lanes before, where no piece reaches into the next: among these no order can be seen."""
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


def _combine(operation: str, ty: str) -> str:
    """Return lines computing %new.<operation> from %old, %data and %other."""
    new = f"%new.{operation}"
    real = "float" if ty == "i32" else "double"
    plain = {"add": "add", "sub": "sub", "and": "and", "or": "or", "xor": "xor"}
    if operation == "swap":
        return f"  {new} = or {ty} %data, 0"
    if operation == "cmpswap":
        return (
            f"  %same = icmp eq {ty} %old, %other\n  {new} = select i1 %same, {ty} %data, {ty} %old"
        )
    if operation in plain:
        return f"  {new} = {plain[operation]} {ty} %old, %data"
    if operation == "rsub":
        return f"  {new} = sub {ty} %data, %old"
    if operation == "csub":
        return f"  {new} = call {ty} @llvm.usub.sat.{ty}({ty} %old, {ty} %data)"
    if operation[:3] in ("min", "max"):
        sign = "s" if operation.endswith("i") else "u"
        name = f"llvm.{sign}{operation[:3]}.{ty}"
        return f"  {new} = call {ty} @{name}({ty} %old, {ty} %data)"
    if operation == "inc":
        return (
            f"  %full = icmp uge {ty} %old, %data\n  %more.one = add {ty} %old, 1\n"
            f"  {new} = select i1 %full, {ty} 0, {ty} %more.one"
        )
    if operation == "dec":
        return (
            f"  %over = icmp ugt {ty} %old, %data\n  %none.left = icmp eq {ty} %old, 0\n"
            f"  %wraps = or i1 %over, %none.left\n  %less.one = sub {ty} %old, 1\n"
            f"  {new} = select i1 %wraps, {ty} %data, {ty} %less.one"
        )
    if operation == "mskor":
        return (
            f"  %inverse = xor {ty} %data, -1\n  %kept = and {ty} %old, %inverse\n"
            f"  {new} = or {ty} %kept, %other"
        )
    if operation == "wrap":
        return (
            f"  %enough = icmp uge {ty} %old, %data\n  %lower = sub {ty} %old, %data\n"
            f"  %upper = add {ty} %old, %other\n"
            f"  {new} = select i1 %enough, {ty} %lower, {ty} %upper"
        )
    prefix = f"%{operation}"
    floats = (
        f"  {prefix}.old = bitcast {ty} %old to {real}\n"
        f"  {prefix}.data = bitcast {ty} %data to {real}\n"
        f"  {prefix}.other = bitcast {ty} %other to {real}\n"
    )
    if operation == "fcmpswap":
        return floats + (
            f"  %fsame = fcmp oeq {real} {prefix}.old, {prefix}.other\n"
            f"  {new} = select i1 %fsame, {ty} %data, {ty} %old"
        )
    if operation == "fadd":
        total = f"fadd {real} {prefix}.old, {prefix}.data"
    else:
        name = "maxnum" if operation == "fmax" else "minnum"
        bits = "f32" if ty == "i32" else "f64"
        total = f"call {real} @llvm.{name}.{bits}({real} {prefix}.old, {real} {prefix}.data)"
    return floats + f"  {prefix}.new = {total}\n  {new} = bitcast {real} {prefix}.new to {ty}"


def _lane_value(name: str, column: int, ty: str) -> str:
    """Return lines reading %name of the lane from one column (i32) or two (i64)."""
    low = layout.IO + column * layout.IO_COLUMN
    text = (
        f"  %{name}.o = add i64 %lane4, {low}\n"
        f"  %{name}.p = getelementptr i8, ptr %context, i64 %{name}.o\n"
    )
    if ty == "i32":
        return text + f"  %{name} = load i32, ptr %{name}.p\n"
    return text + (
        f"  %{name}.q = getelementptr i8, ptr %{name}.p, i64 {layout.IO_COLUMN}\n"
        f"  %{name}.l = load i32, ptr %{name}.p\n  %{name}.h = load i32, ptr %{name}.q\n"
        f"  %{name}.lw = zext i32 %{name}.l to i64\n  %{name}.hw = zext i32 %{name}.h to i64\n"
        f"  %{name}.hs = shl i64 %{name}.hw, 32\n  %{name} = or i64 %{name}.hs, %{name}.lw\n"
    )


def _atomic(bits: int) -> str:
    """Define atomic_<bits>(context, addresses, lanes, operation, flat); old values to columns."""
    ty = f"i{bits}"
    words = bits // 32
    cases = " ".join(f"i32 {k}, label %do.{name}" for k, name in enumerate(ATOMICS))
    bodies = "\n".join(
        f"do.{name}:\n{_combine(name, ty)}\n  br label %exchange" for name in ATOMICS
    )
    values = ", ".join(f"[ %new.{name}, %do.{name} ]" for name in ATOMICS)
    if bits == 32:
        result = "  store i32 %old, ptr %data.p\n"
    else:
        result = (
            "  %r.low = trunc i64 %old to i32\n  %r.shift = lshr i64 %old, 32\n"
            "  %r.high = trunc i64 %r.shift to i32\n  store i32 %r.low, ptr %data.p\n"
            "  store i32 %r.high, ptr %data.q\n"
        )
    return f"""
define void @{PREFIX}atomic_{bits}(ptr %context, <32 x i64> %addresses, i32 %lanes, i32 %operation,
    i1 %flat) noinline {{
entry:
{field("lds", layout.LDS, "ptr")}{field("lds.size", layout.LDS_SIZE, "i64")}
{field("shared", layout.SHARED_HIGH, "i64")}
  %dummy = alloca i64, align 8
  %list = getelementptr i8, ptr %context, i64 {layout.ADDRESSES}
  store <32 x i64> %addresses, ptr %list, align 64
  %none = icmp eq i32 %lanes, 0
  br i1 %none, label %done, label %loop
loop:
  %left = phi i32 [ %lanes, %entry ], [ %rest, %next ]
  %lane32 = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %lane = zext i32 %lane32 to i64
  %lane4 = shl i64 %lane, 2
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %va.p = getelementptr i64, ptr %list, i64 %lane
  %va.raw = load i64, ptr %va.p
  %va = and i64 %va.raw, {-(bits // 8)}
{_lane_value("data", 0, ty)}{_lane_value("other", words, ty)}
  %high = lshr i64 %va, 32
  %in.shared = icmp eq i64 %high, %shared
  %local.one = and i1 %in.shared, %flat
  br i1 %local.one, label %local, label %global
local:
  %low = and i64 %va, 4294967295
  %end = add i64 %low, {bits // 8}
  %inside = icmp ule i64 %end, %lds.size
  %local.at = getelementptr i8, ptr %lds, i64 %low
  store i64 0, ptr %dummy
  %local.safe = select i1 %inside, ptr %local.at, ptr %dummy
  br label %read
global:
  %host = call i64 @{PREFIX}translate_write(ptr %context, i64 %va)
  %global.at = inttoptr i64 %host to ptr
  br label %read
read:
  %at = phi ptr [ %local.safe, %local ], [ %global.at, %global ]
  %before = load atomic {ty}, ptr %at monotonic, align {bits // 8}
  br label %try
try:
  %old = phi {ty} [ %before, %read ], [ %seen, %exchange ]
  switch i32 %operation, label %next [ {cases} ]
{bodies}
exchange:
  %new = phi {ty} {values}
  %pair = cmpxchg ptr %at, {ty} %old, {ty} %new seq_cst monotonic
  %seen = extractvalue {{{ty}, i1}} %pair, 0
  %won = extractvalue {{{ty}, i1}} %pair, 1
  br i1 %won, label %keep, label %try
keep:
{result}  br label %next
next:
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def local_ir() -> str:
    """Return the IR of the functions for local memory and atomics."""
    parts = [(_load_wide if size > 4 else _load_narrow)(size) for size in SIZES]
    parts += [(_store_wide if size > 4 else _store_narrow)(size) for size in SIZES]
    parts += [_atomic(32), _atomic(64)]
    for ty, real in (("i32", "f32"), ("i64", "f64")):
        kind = {"f32": "float", "f64": "double"}[real]
        for name in ("usub.sat", "smin", "smax", "umin", "umax"):
            if (name, ty) != ("usub.sat", "i32"):  # already declared by runtime_lanes
                parts.append(f"declare {ty} @llvm.{name}.{ty}({ty}, {ty})")
        for name in ("minnum", "maxnum"):
            parts.append(f"declare {kind} @llvm.{name}.{real}({kind}, {kind})")
    return "\n".join(parts)


def names() -> list[str]:
    """Return the functions that kernels may call."""
    found = [f"{PREFIX}atomic_{bits}" for bits in (32, 64)]
    for size in SIZES:
        found += [f"{PREFIX}lds_load_{size}", f"{PREFIX}lds_store_{size}"]
    return found
