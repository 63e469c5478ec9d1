"""The native loop over groups and warps, with the barriers of a group.

The warps of a group run one after another, each until it waits, yields or ends. Groups run one
after another too, unless all warps of one group wait in loops. In that case `residents` takes over
until no group waits any more. A barrier opens when all threads it expects have arrived. Threads
that have ended count as arrived if the barrier expects all threads.
Source: PTX ISA 8.x, "bar, barrier".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.shader.text import field
from ugpu.virtual.shader.threads.crew import TAKE_GROUP


def _context(name: str, offset: int, kind: str, value: str) -> str:
    return (
        f"  %to.{name} = getelementptr i8, ptr %context, i64 {offset}\n"
        f"  store {kind} {value}, ptr %to.{name}\n"
    )


def _state(name: str, state: str, offset: int) -> str:
    return f"  %{name} = getelementptr i8, ptr {state}, i64 {offset}\n"


def _hook(name: str) -> str:
    return field(name, layout.HOOKS + 8 * layout.HOOKED.index(name), "ptr")


def launcher_ir() -> tuple[str, set[str]]:
    """Return the IR of `launch(context, kernel)`: run groups until none is left or one fails."""
    text = f"""
define i32 @{PREFIX}launch(ptr %context, ptr %kernel) noinline {{
entry:
{field("abort", layout.ABORT, "ptr")}{field("stop", layout.STOP, "ptr")}
{field("counter", layout.COUNTER, "ptr")}{field("total", layout.TOTAL, "i64")}
{field("nx", layout.GRID_X, "i32")}{field("ny", layout.GRID_Y, "i32")}
{field("warps", layout.WARPS, "i32")}{field("threads", layout.THREADS, "i32")}
{field("states", layout.STATES, "ptr")}{field("stride", layout.STATE_STRIDE, "i64")}
{field("masks", layout.MASKS, "ptr")}{field("in.flight", layout.FLIGHT, "i64")}
  %fault.code = getelementptr i8, ptr %context, i64 {layout.FAULT_CODE}
  %no.flights = icmp eq i64 %in.flight, 0
  %barriers = getelementptr i8, ptr %context, i64 {layout.BARRIERS}
  %nx64 = zext i32 %nx to i64
  %ny64 = zext i32 %ny to i64
  br label %next.group
next.group:
  %asked = load atomic i32, ptr %abort monotonic, align 4
  %halted = load atomic i32, ptr %stop monotonic, align 4
  %either = or i32 %asked, %halted
  %wanted = icmp ne i32 %either, 0
  br i1 %wanted, label %attend, label %take
attend:
  %told = call i32 @{PREFIX}attend(ptr %context)
  %stopped = icmp ne i32 %told, 0
  br i1 %stopped, label %aborted, label %take
{TAKE_GROUP}{_context("x", layout.GROUP_X, "i32", "%x")}{_context("y", layout.GROUP_Y, "i32", "%y")}
{_context("z", layout.GROUP_Z, "i32", "%z")}{_context("g", layout.GROUP, "i64", "%g")}
{_context("cx", layout.CLUSTER_ID_X, "i32", "%x")}{_context("cy", layout.CLUSTER_ID_Y, "i32", "%y")}
{_context("cz", layout.CLUSTER_ID_Z, "i32", "%z")}
{_context("ended", layout.GROUPS_ENDED, "i32", "0")}  ; `residents` reports the one before
  call void @llvm.memset.p0.i64(ptr %barriers, i8 0, i64 {8 * layout.BARRIER_COUNT}, i1 false)
  br i1 %no.flights, label %init, label %flights
flights:
{_hook("flights_begin")}
  call void %flights_begin(ptr %context)
  br label %init
init:
  %w = phi i32 [ 0, %begin ], [ 0, %flights ], [ %w.next, %init ]
  %w64 = zext i32 %w to i64
  %w.offset = mul i64 %w64, %stride
  %w.state = getelementptr i8, ptr %states, i64 %w.offset
  call void @llvm.memset.p0.i64(ptr %w.state, i8 0, i64 64, i1 false)
  %w.mask.p = getelementptr i32, ptr %masks, i64 %w64
  %w.mask = load i32, ptr %w.mask.p
{_state("w.active", "%w.state", layout.STATE_ACTIVE)}
  store i32 %w.mask, ptr %w.active
{_state("w.number", "%w.state", layout.STATE_NUMBER)}
  store i32 %w, ptr %w.number
  %w.next = add i32 %w, 1
  %w.more = icmp ult i32 %w.next, %warps
  br i1 %w.more, label %init, label %pass
pass:
  br label %warp
warp:
  %k = phi i32 [ 0, %pass ], [ %k.next, %warp.end ]
  %ran = phi i32 [ 0, %pass ], [ %ran.next, %warp.end ]
  %left = phi i32 [ 0, %pass ], [ %left.next, %warp.end ]
  %moved = phi i32 [ 0, %pass ], [ %moved.next, %warp.end ]
  %k64 = zext i32 %k to i64
  %k.offset = mul i64 %k64, %stride
  %k.state = getelementptr i8, ptr %states, i64 %k.offset
{_state("k.done.p", "%k.state", layout.STATE_DONE)}
{_state("k.waiting.p", "%k.state", layout.STATE_WAITING)}
  %k.done = load i32, ptr %k.done.p
  %is.done = icmp ne i32 %k.done, 0
  br i1 %is.done, label %warp.end, label %alive
alive:
  %k.waiting = load i32, ptr %k.waiting.p
  %is.waiting = icmp ne i32 %k.waiting, 0
  br i1 %is.waiting, label %warp.end, label %run
run:
{_context("warp", layout.WARP, "i32", "%k")}
  %code = call i32 %kernel(ptr %context, ptr %k.state)
  switch i32 %code, label %warp.end [
    i32 {layout.FINISHED}, label %ended
    i32 {layout.AT_BARRIER}, label %parked
    i32 {layout.YIELDED}, label %poll
    i32 {layout.ABORTED}, label %aborted
    i32 {layout.FAULTED}, label %fault
  ]
parked:
  %k.code = load i32, ptr %fault.code
  %k.bad = icmp ne i32 %k.code, 0
  br i1 %k.bad, label %fault, label %warp.end
poll:
  %p.told = call i32 @{PREFIX}attend(ptr %context)
  %p.stopped = icmp ne i32 %p.told, 0
  br i1 %p.stopped, label %aborted, label %warp.end
ended:
  store i32 1, ptr %k.done.p
  call void @barriers_opened(ptr %context)
  br label %warp.end
warp.end:
  %here = phi i32 [ 0, %warp ], [ 0, %alive ], [ 1, %run ], [ 1, %parked ],
    [ 1, %poll ], [ 1, %ended ]
  %gone = phi i32 [ 0, %warp ], [ 1, %alive ], [ 1, %run ], [ 1, %parked ],
    [ 1, %poll ], [ 0, %ended ]
  %step = phi i32 [ 0, %warp ], [ 0, %alive ], [ 1, %run ], [ 1, %parked ],
    [ 0, %poll ], [ 1, %ended ]
  %ran.next = or i32 %ran, %here
  %moved.next = or i32 %moved, %step
  %left.next = or i32 %left, %gone
  %k.next = add i32 %k, 1
  %k.more = icmp ult i32 %k.next, %warps
  br i1 %k.more, label %warp, label %pass.end
pass.end:
  %again = icmp ne i32 %left.next, 0
  br i1 %again, label %progress, label %over
over:
  br i1 %no.flights, label %next.group, label %landing
landing:
{_hook("flights_end")}{_hook("products_missing")}
  call void %flights_end(ptr %context)
  call void %products_missing(ptr %context, i32 1)
  %l.code = load i32, ptr %fault.code
  %l.bad = icmp ne i32 %l.code, 0
  br i1 %l.bad, label %fault, label %next.group
progress:
  %active = icmp ne i32 %ran.next, 0
  br i1 %active, label %forward, label %stuck
forward:
  %advanced = icmp ne i32 %moved.next, 0
  br i1 %advanced, label %pass, label %share
share:
  ; All that ran wait in loops, perhaps for other groups: these run beside this one.
  %shared.code = call i32 @residents_run(ptr %context, ptr %kernel)
  %shared.over = icmp eq i32 %shared.code, 0
  br i1 %shared.over, label %next.group, label %share.end
share.end:
  ret i32 %shared.code
stuck:
  ; All that are left wait at barriers that never open: as on the chip, until it is ended.
  %s.told = call i32 @{PREFIX}attend(ptr %context)
  %s.stopped = icmp ne i32 %s.told, 0
  br i1 %no.flights, label %stay, label %look
look:
{field("missing", layout.HOOKS + 8 * layout.HOOKED.index("products_missing"), "ptr")}
  call void %missing(ptr %context, i32 0)
  %s.code = load i32, ptr %fault.code
  %s.bad = icmp ne i32 %s.code, 0
  br i1 %s.bad, label %fault, label %stay
stay:
  call void @{PREFIX}pause(ptr %context)
  br i1 %s.stopped, label %aborted, label %stuck
fault:
{_context("fault.warp", layout.FAULT_WARP, "i32", "%k")}
  ret i32 {layout.FAULTED}
aborted:
  ret i32 {layout.ABORTED}
finished:
  ret i32 {layout.FINISHED}
}}

define void @{PREFIX}pause(ptr %context) noinline {{
{field("timer", layout.TIMER, "ptr")}
  %t = call i64 %timer(i32 {layout.TIMER_PAUSE})
  ret void
}}

; Look at the flags: 1 to end, else 0, after yielding while another group has its time slice.
define i32 @{PREFIX}attend(ptr %context) noinline cold {{
entry:
{field("abort", layout.ABORT, "ptr")}{field("stop", layout.STOP, "ptr")}
{field("timer", layout.TIMER, "ptr")}
  br label %look
look:
  %asked = load atomic i32, ptr %abort monotonic, align 4
  %halted = load atomic i32, ptr %stop monotonic, align 4
  %ending = and i32 %asked, {layout.ABORT_END}
  %either = or i32 %ending, %halted
  %over = icmp ne i32 %either, 0
  br i1 %over, label %end, label %on
on:
  %aside = icmp ne i32 %asked, 0
  br i1 %aside, label %wait, label %go
wait:
  %t = call i64 %timer(i32 {layout.TIMER_ASIDE})
  br label %look
go:
  ret i32 0
end:
  ret i32 1
}}

; Count the threads of a warp in at barrier %id; open it when those it expects are there.
define void @{PREFIX}arrive(ptr %context, i32 %id, i32 %count, i32 %expected) noinline {{
entry:
  %of.cluster = icmp eq i32 %id, {layout.OF_CLUSTER}  ; `clusters` looks after that one
  br i1 %of.cluster, label %done, label %mine
done:
  ret void
mine:
  %at = getelementptr i8, ptr %context, i64 {layout.BARRIERS}
  %index = zext i32 %id to i64
  %slot = getelementptr i64, ptr %at, i64 %index
  %old = load i32, ptr %slot
  %new = add i32 %old, %count
  store i32 %new, ptr %slot
  call void @barriers_opened(ptr %context)
  ret void
}}

define internal void @barriers_opened(ptr %context) noinline {{
entry:
{field("warps", layout.WARPS, "i32")}{field("threads", layout.THREADS, "i32")}
{field("states", layout.STATES, "ptr")}{field("stride", layout.STATE_STRIDE, "i64")}
  %barriers = getelementptr i8, ptr %context, i64 {layout.BARRIERS}
  br label %barrier
barrier:
  %b = phi i32 [ 0, %entry ], [ %b.next, %barrier.end ]
  %b64 = zext i32 %b to i64
  %slot = getelementptr i64, ptr %barriers, i64 %b64
  %arrived = load i32, ptr %slot
  %used = icmp ne i32 %arrived, 0
  br i1 %used, label %count, label %barrier.end
count:
  ; With all threads expected: warps that neither wait here nor ended keep it closed.
  %k = phi i32 [ 0, %barrier ], [ %k.next, %count ]
  %missing = phi i32 [ 0, %barrier ], [ %missing.next, %count ]
  %wanted = phi i32 [ 0, %barrier ], [ %wanted.next, %count ]
  %k64 = zext i32 %k to i64
  %offset = mul i64 %k64, %stride
  %state = getelementptr i8, ptr %states, i64 %offset
{_state("done.p", "%state", layout.STATE_DONE)}{_state("waiting.p", "%state", layout.STATE_WAITING)}
{_state("id.p", "%state", layout.STATE_BARRIER)}
{_state("expected.p", "%state", layout.STATE_EXPECTED)}
  %done = load i32, ptr %done.p
  %waiting = load i32, ptr %waiting.p
  %id = load i32, ptr %id.p
  %expected = load i32, ptr %expected.p
  %is.waiting = icmp ne i32 %waiting, 0
  %same = icmp eq i32 %id, %b
  %is.here = and i1 %is.waiting, %same
  %is.done = icmp ne i32 %done, 0
  %counts = or i1 %is.here, %is.done
  %absent = select i1 %counts, i32 0, i32 1
  %missing.next = or i32 %missing, %absent
  %mine = select i1 %is.here, i32 %expected, i32 0
  %wanted.next = or i32 %wanted, %mine
  %k.next = add i32 %k, 1
  %k.more = icmp ult i32 %k.next, %warps
  br i1 %k.more, label %count, label %decide
decide:
  %of.all = icmp eq i32 %wanted.next, 0
  %all.here = icmp eq i32 %missing.next, 0
  %enough = icmp uge i32 %arrived, %wanted.next
  %open = select i1 %of.all, i1 %all.here, i1 %enough
  br i1 %open, label %release, label %barrier.end
release:
  %result.p = getelementptr i8, ptr %slot, i64 4
  %result = load i32, ptr %result.p
  store i64 0, ptr %slot
  %of.products = icmp uge i32 %b, {layout.NAMED}
  br i1 %of.products, label %compute, label %wake
compute:
  %warp.group = sub i64 %b64, {layout.NAMED}
{_hook("products_run")}
  call void %products_run(ptr %context, i64 %warp.group)
  br label %wake
wake:
  %j = phi i32 [ 0, %release ], [ 0, %compute ], [ %j.next, %wake ]
  %j64 = zext i32 %j to i64
  %j.offset = mul i64 %j64, %stride
  %j.state = getelementptr i8, ptr %states, i64 %j.offset
{_state("j.waiting.p", "%j.state", layout.STATE_WAITING)}
{_state("j.id.p", "%j.state", layout.STATE_BARRIER)}
  %j.waiting = load i32, ptr %j.waiting.p
  %j.id = load i32, ptr %j.id.p
  %j.same = icmp eq i32 %j.id, %b
  %j.new = select i1 %j.same, i32 0, i32 %j.waiting
{_state("j.reduced.p", "%j.state", layout.STATE_REDUCED)}
  %j.before = load i32, ptr %j.reduced.p
  %j.waits = icmp ne i32 %j.waiting, 0
  %j.wakes = and i1 %j.same, %j.waits
  %j.reduced = select i1 %j.wakes, i32 %result, i32 %j.before
  store i32 %j.reduced, ptr %j.reduced.p
  store i32 %j.new, ptr %j.waiting.p
  %j.next = add i32 %j, 1
  %j.more = icmp ult i32 %j.next, %warps
  br i1 %j.more, label %wake, label %barrier.end
barrier.end:
  %b.next = add i32 %b, 1
  %b.more = icmp ult i32 %b.next, {layout.BARRIER_COUNT}
  br i1 %b.more, label %barrier, label %all.looked
all.looked:
  ret void
}}
"""
    return text, {"declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"}


def names() -> list[str]:
    """Return the functions that Python and kernels may call."""
    return [f"{PREFIX}launch", f"{PREFIX}arrive", f"{PREFIX}attend"]
