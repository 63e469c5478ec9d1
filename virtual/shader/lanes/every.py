"""Memory access of any kind: a loop over the lanes, byte by byte where an access splits.

Data of accesses of more than four bytes a lane passes through columns, whose address the caller
gives: column c holds dword c of every lane. Narrower data is in the first IO column of the worker
context (see `virtual.shader.context`). Every access uses the worker's TLB. A miss calls the refill
function of the address space, which returns a host address even for a fault, so that no access can
leave mapped memory.
"""

from __future__ import annotations

from ugpu.virtual.shader import context
from ugpu.virtual.shader.memory import Access
from ugpu.virtual.shader.text import Text, field
from ugpu.virtual.shader.tlb import NAMES, PAGE, pages_of, row_at, translate_ir

SIZES = (1, 2, 4, 8, 12, 16)
PREFIX = "ugpu_"
LDS_SPACE = 65536  # bytes of the buffer for every workgroup's local memory


def _lane_host(access: Access, size: int) -> str:
    """Define host_<access>_<size>: the host address of a lane's access, or 0 if the access
    splits."""
    e, name = Text(), NAMES[access]
    page, offset = pages_of(e, "%address")
    tag, delta = row_at(e, "%tlb", offset, access)
    inside = e.value(f"and i64 %address, {PAGE - 1}")
    crosses = e.value(f"icmp ugt i64 {inside}, {PAGE - size}")
    known = e.value(f"icmp eq i64 {tag}, {page}")
    fast = e.value(f"and i1 {known}, {e.value(f'xor i1 {crosses}, true')}")
    return f"""
define internal i64 @host_{name}_{size}(ptr %context, ptr %tlb, i64 %address) alwaysinline {{
{e.text()}
  br i1 {fast}, label %found, label %miss, !prof !0
found:
  %host = add i64 %address, {delta}
  ret i64 %host
miss:
  br i1 {crosses}, label %split, label %walk
split:
  ret i64 0
walk:
  %answer = call i64 @{PREFIX}translate_{name}(ptr %context, i64 %address)
  ret i64 %answer
}}
"""


def move(store: bool, size: int, suffix: str = "") -> str:
    """Return the lines that move one lane between %at (host) and its row %row."""
    row, at = f"%row{suffix}", f"%at{suffix}"
    source, target = (row, at) if store else (at, row)
    x = f"%x{suffix}"
    if size < 4 and not store:
        kind = f"i{8 * size}"
        return (
            f"  {x} = load {kind}, ptr {source}, align 1\n  {x}.wide = zext {kind} {x} to i32\n"
            f"  store i32 {x}.wide, ptr {target}, align 4"
        )
    kind = {12: "<3 x i32>", 16: "<4 x i32>"}.get(size, f"i{8 * size}")
    return f"  {x} = load {kind}, ptr {source}, align 1\n  store {kind} {x}, ptr {target}, align 1"


def columns(size: int, into_rows: bool) -> str:
    """Return the lines that transpose columns into rows of 16 bytes, or back."""
    if size <= 4:
        return ""
    count = size // 4
    lines = []
    for column in range(count):
        lines.append(
            f"  %io{column} = getelementptr i8, ptr %data, i64 {column * context.IO_COLUMN}"
        )
    lines.append(f"  %rows = getelementptr i8, ptr %context, i64 {context.ROWS}")
    if into_rows:
        for column in range(count):
            lines.append(f"  %c{column} = load <32 x i32>, ptr %io{column}, align 64")
        for column in range(count, 4):
            lines.append(f"  %c{column} = freeze <32 x i32> poison")
        pairs = ", ".join(f"i32 {k}" for k in range(64))
        lines.append(f"  %p0 = shufflevector <32 x i32> %c0, <32 x i32> %c1, <64 x i32> <{pairs}>")
        lines.append(f"  %p1 = shufflevector <32 x i32> %c2, <32 x i32> %c3, <64 x i32> <{pairs}>")
        order = ", ".join(f"i32 {32 * c + lane}" for lane in range(32) for c in range(4))
        lines.append(
            f"  %all = shufflevector <64 x i32> %p0, <64 x i32> %p1, <128 x i32> <{order}>"
        )
        lines.append("  store <128 x i32> %all, ptr %rows, align 64")
    else:
        lines.append("  %all = load <128 x i32>, ptr %rows, align 64")
        for column in range(count):
            order = ", ".join(f"i32 {4 * lane + column}" for lane in range(32))
            lines.append(
                f"  %c{column} = shufflevector <128 x i32> %all, <128 x i32> poison,"
                f" <32 x i32> <{order}>"
            )
            lines.append(f"  store <32 x i32> %c{column}, ptr %io{column}, align 64")
    return "\n".join(lines)


def rows_of(size: int) -> tuple[int, int]:
    """Return the offset of an access's rows in the context, and the bytes from one row to the
    next."""
    return (context.IO, 4) if size <= 4 else (context.ROWS, 16)


def data_parameter(size: int) -> str:
    """Return the parameter for the address of the columns, for accesses that do not use the first
    one."""
    return "" if size <= 4 else ", ptr %data"


def _lanes_access(store: bool, size: int) -> str:
    """Define the loop over lanes that loads or stores `size` bytes each at 64-bit addresses."""
    verb = "store" if store else "load"
    kind = "write" if store else "read"
    rows, stride = rows_of(size)
    before = columns(size, True) if store else ""
    after = "" if store else columns(size, False)
    return f"""
define internal void @slow_{verb}_{size}(ptr %context, <32 x i64> %addresses,
    i32 %lanes{data_parameter(size)}) noinline {{
entry:
{field("tlb", context.TLB, "ptr")}{before}
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
  %va = load i64, ptr %va.p
  %row.offset = mul i64 %lane, {stride}
  %row.base = add i64 %row.offset, {rows}
  %row = getelementptr i8, ptr %context, i64 %row.base
  %host = call i64 @host_{kind}_{size}(ptr %context, ptr %tlb, i64 %va)
  %split = icmp eq i64 %host, 0
  br i1 %split, label %crossing, label %whole, !prof !1
whole:
  %at = inttoptr i64 %host to ptr
{move(store, size)}
  br label %next
crossing:
  call void @{PREFIX}cross_{verb}(ptr %context, ptr %row, i64 %va, i64 {size})
  br label %next
next:
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %loop, label %done
done:
{after}
  ret void
}}
"""


def _crossing(store: bool) -> str:
    """Define the byte-by-byte access used if an access lies in two pages."""
    verb = "store" if store else "load"
    kind = "write" if store else "read"
    widen = "" if store else "  store i8 0, ptr %b2\n  store i8 0, ptr %b3\n"
    # A narrow load fills its dword: the bytes above the loaded ones are cleared first.
    clear = (
        ""
        if store
        else f"""
  %narrow = icmp ult i64 %size, 4
  br i1 %narrow, label %clear, label %loop
clear:
  %b1 = getelementptr i8, ptr %row, i64 1
  %b2 = getelementptr i8, ptr %row, i64 2
  %b3 = getelementptr i8, ptr %row, i64 3
  store i8 0, ptr %b1
{widen}  br label %loop
"""
    )
    start = "  br label %loop\n" if store else clear
    incoming = "[ 0, %entry ], " if store else "[ 0, %entry ], [ 0, %clear ], "
    source, target = ("%mine", "%at") if store else ("%at", "%mine")
    return f"""
define void @{PREFIX}cross_{verb}(ptr %context, ptr %row, i64 %address, i64 %size) noinline {{
entry:
{start}
loop:
  %k = phi i64 {incoming}[ %next, %loop ]
  %va = add i64 %address, %k
  %host = call i64 @{PREFIX}translate_{kind}(ptr %context, i64 %va)
  %at = inttoptr i64 %host to ptr
  %mine = getelementptr i8, ptr %row, i64 %k
  %x = load i8, ptr {source}
  store i8 %x, ptr {target}
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %size
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def _scalar_load() -> str:
    """Define scalar_load: copy dwords of scalar memory to the first IO column."""
    return f"""
define void @{PREFIX}scalar_load(ptr %context, i64 %address, i64 %count) noinline {{
entry:
  %start = and i64 %address, -4
  %inside = and i64 %start, {PAGE - 1}
  %bytes = shl i64 %count, 2
  %end = add i64 %inside, %bytes
  %fits = icmp ule i64 %end, {PAGE}
  %io = getelementptr i8, ptr %context, i64 {context.IO}
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %some
some:
  br i1 %fits, label %whole, label %loop
whole:
  %first = call i64 @{PREFIX}translate_read(ptr %context, i64 %start)
  %source = inttoptr i64 %first to ptr
  br label %copy
copy:
  %c = phi i64 [ 0, %whole ], [ %c.next, %copy ]
  %cs = getelementptr i32, ptr %source, i64 %c
  %cd = getelementptr i32, ptr %io, i64 %c
  %cx = load i32, ptr %cs, align 1
  store i32 %cx, ptr %cd, align 4
  %c.next = add i64 %c, 1
  %c.more = icmp ult i64 %c.next, %count
  br i1 %c.more, label %copy, label %done
loop:
  %k = phi i64 [ 0, %some ], [ %next, %loop ]
  %offset = shl i64 %k, 2
  %va = add i64 %start, %offset
  %host = call i64 @{PREFIX}translate_read(ptr %context, i64 %va)
  %at = inttoptr i64 %host to ptr
  %x = load i32, ptr %at, align 1
  %to = getelementptr i32, ptr %io, i64 %k
  store i32 %x, ptr %to, align 4
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def every_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    parts = [translate_ir(PREFIX)]
    for access in NAMES:
        parts.extend(_lane_host(access, size) for size in SIZES)
    for store in (False, True):
        parts.append(_crossing(store))
        for size in SIZES:
            parts.append(_lanes_access(store, size))
    parts.append(_scalar_load())
    return "\n".join(parts), {"declare i32 @llvm.cttz.i32(i32, i1)"}


def names() -> list[str]:
    """Return the functions that kernels may call."""
    found = [f"{PREFIX}translate_{name}" for name in NAMES.values()]
    return [PREFIX + "scalar_load", *found, PREFIX + "cross_load", PREFIX + "cross_store"]
