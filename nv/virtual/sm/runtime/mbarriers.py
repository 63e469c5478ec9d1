"""The native function of mbarrier objects in shared memory.

The word of an object is opaque to programs; here it holds: bits 0..19 the arrivals still pending,
20..39 those expected in a phase, 40..62 the bytes still to come, biased, 63 the phase. Groups have
their shared memory to themselves, so that nothing needs to be atomic.
Source: PTX ISA 8.x, "mbarrier".
"""

from __future__ import annotations

from nv.virtual.sm.runtime import layout
from nv.virtual.sm.runtime.resolve import PREFIX, WIDE

OPERATIONS = (
    "init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "arrive.expect_tx",
    "test", "test.parity",
)  # fmt: skip
_BIAS = 1 << 21
_COUNT = (1 << 20) - 1


def mbarriers_ir() -> tuple[str, set[str]]:
    """Return the IR of `mbarrier(context, hosts, lanes, operation, values)`: old words, or for
    tests whether the phase is over."""
    cases = " ".join(f"i32 {n}, label %do.{name}" for n, name in enumerate(OPERATIONS))
    return (
        f"""
define {WIDE} @{PREFIX}mbarrier(ptr %context, {WIDE} %hosts, i32 %lanes, i32 %operation,
    {WIDE} %values) noinline {{
entry:
  %hosts.at = getelementptr i8, ptr %context, i64 {layout.IO}
  store {WIDE} %hosts, ptr %hosts.at, align 64
  %values.at = getelementptr i8, ptr %context, i64 {layout.IO + layout.IO_COLUMN}
  store {WIDE} %values, ptr %values.at, align 64
  %none = icmp eq i32 %lanes, 0
  br i1 %none, label %done, label %loop
loop:
  %left = phi i32 [ %lanes, %entry ], [ %rest, %next ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %host.at = getelementptr i64, ptr %hosts.at, i32 %lane
  %host = load i64, ptr %host.at
  %at = inttoptr i64 %host to ptr
  %value.at = getelementptr i64, ptr %values.at, i32 %lane
  %value = load i64, ptr %value.at
  %old = load i64, ptr %at
  %phase = lshr i64 %old, 63
  switch i32 %operation, label %lost [ {cases} ]
lost:
  unreachable
do.init:
  %up = shl i64 %value, 20
  %both = or i64 %value, %up
  %fresh = or i64 %both, {_BIAS << 40}
  store i64 %fresh, ptr %at
  br label %next
do.inval:
  store i64 0, ptr %at
  br label %next
do.arrive:
  %arrived = sub i64 %old, %value
  br label %check
do.arrive_drop:
  %fewer = shl i64 %value, 20
  %dropped.1 = sub i64 %old, %fewer
  %dropped = sub i64 %dropped.1, %value
  br label %check
do.expect_tx:
  %more.tx = shl i64 %value, 40
  %expecting = add i64 %old, %more.tx
  store i64 %expecting, ptr %at
  br label %next
do.complete_tx:
  %less.tx = shl i64 %value, 40
  %completed = sub i64 %old, %less.tx
  br label %check
do.arrive.expect_tx:
  %and.tx = shl i64 %value, 40
  %expected.1 = add i64 %old, %and.tx
  %expected.2 = sub i64 %expected.1, 1
  br label %check
check:
  %new = phi i64 [ %arrived, %do.arrive ], [ %dropped, %do.arrive_drop ],
    [ %completed, %do.complete_tx ], [ %expected.2, %do.arrive.expect_tx ]
  %pending = and i64 %new, {_COUNT}
  %nobody = icmp eq i64 %pending, 0
  %tx.up = shl i64 %new, 1
  %tx = lshr i64 %tx.up, 41
  %nothing = icmp eq i64 %tx, {_BIAS}
  %over = and i1 %nobody, %nothing
  %count.up = lshr i64 %new, 20
  %count = and i64 %count.up, {_COUNT}
  %again = or i64 %new, %count
  %flipped = xor i64 %again, {1 << 63}
  %kept = select i1 %over, i64 %flipped, i64 %new
  store i64 %kept, ptr %at
  store i64 %old, ptr %value.at
  br label %next
do.test:
  %known = lshr i64 %value, 63
  %passed = xor i64 %known, %phase
  store i64 %passed, ptr %value.at
  br label %next
do.test.parity:
  %parity = and i64 %value, 1
  %differs = xor i64 %parity, %phase
  store i64 %differs, ptr %value.at
  br label %next
next:
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %loop, label %done
done:
  %result = load {WIDE}, ptr %values.at, align 64
  ret {WIDE} %result
}}
""",
        {"declare i32 @llvm.cttz.i32(i32, i1)"},
    )


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}mbarrier"]
