"""Native functions for atomic operations of 128 bits at the host addresses of lanes.

Lanes go one after another, lowest first. For smaller sizes see `virtual.shader.atomics`.
Source: PTX ISA 8.x, "Parallel Synchronization and Communication Instructions": atom.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX, WIDE
from ugpu.virtual.shader.atomics import ATOMIC_DECLARATIONS

WIDE_OPERATIONS = ("load", "store", "exch", "cas")


def wide_ir() -> tuple[str, set[str]]:
    """Return the IR of atomic_128 and the declarations it needs. The words of a lane are in columns
    1 and 2 (new or expected) and 3 and 4."""
    columns = "".join(
        f"""
  %c{n} = getelementptr i8, ptr %context, i64 {layout.IO + n * layout.IO_COLUMN}
  %p{n} = getelementptr i64, ptr %c{n}, i32 %lane
  %w{n} = load i64, ptr %p{n}
  %x{n} = zext i64 %w{n} to i128
"""
        for n in range(1, 5)
    )
    cases = " ".join(f"i32 {n}, label %do.{name}" for n, name in enumerate(WIDE_OPERATIONS))
    text = f"""
define void @{PREFIX}atomic_128(ptr %context, {WIDE} %hosts, i32 %lanes, i32 %operation) noinline {{
entry:
  %hosts.at = getelementptr i8, ptr %context, i64 {layout.IO}
  store {WIDE} %hosts, ptr %hosts.at, align 64
  %none = icmp eq i32 %lanes, 0
  br i1 %none, label %done, label %loop
loop:
  %left = phi i32 [ %lanes, %entry ], [ %rest, %keep ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %host.at = getelementptr i64, ptr %hosts.at, i32 %lane
  %host = load i64, ptr %host.at
  %at = inttoptr i64 %host to ptr
{columns}
  %up1 = shl i128 %x2, 64
  %first = or i128 %x1, %up1
  %up2 = shl i128 %x4, 64
  %second = or i128 %x3, %up2
  switch i32 %operation, label %lost [ {cases} ]
lost:
  unreachable
do.load:
  %was.load = load atomic i128, ptr %at seq_cst, align 16
  br label %keep
do.store:
  store atomic i128 %first, ptr %at seq_cst, align 16
  br label %keep
do.exch:
  %was.exch = atomicrmw xchg ptr %at, i128 %first seq_cst
  br label %keep
do.cas:
  %pair = cmpxchg ptr %at, i128 %first, i128 %second seq_cst seq_cst
  %was.cas = extractvalue {{i128, i1}} %pair, 0
  br label %keep
keep:
  %was = phi i128 [ %was.load, %do.load ], [ %first, %do.store ], [ %was.exch, %do.exch ],
    [ %was.cas, %do.cas ]
  %low = trunc i128 %was to i64
  store i64 %low, ptr %p1
  %down = lshr i128 %was, 64
  %high = trunc i128 %down to i64
  store i64 %high, ptr %p2
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    return text, ATOMIC_DECLARATIONS


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}atomic_128"]
