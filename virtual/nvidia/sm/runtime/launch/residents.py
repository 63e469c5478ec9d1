"""Clusters that run side by side on one worker, like those that a chip holds at the same time.

A worker runs one cluster (or group) after another as long as each one ends. If all warps of a
cluster wait in loops, perhaps for writes of other groups, the worker begins more clusters, each in
a slot with its own memory, and runs them in turn. All workers together run at most as many as the
chip holds. A grid with more groups than that begins the rest as others end. A group that waits for
a group which cannot begin waits forever, as on the chip.
Source: CUDA C++ Programming Guide, "Thread Hierarchy", "Cooperative Groups: Grid Synchronization";
the number of groups that a chip holds: `occupancy`.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.distributed import context_of
from ugpu.virtual.nvidia.sm.runtime.launch.clusters import cluster_count
from ugpu.virtual.nvidia.sm.runtime.native import FOR_EVER, Native
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.shader.native import Word, joined

_MOVED, _NOTHING = layout.AT_BARRIER, layout.YIELDED  # the result of a round of turns


def _pass_on(f: Native, code: Word) -> None:
    """Return `code` from the function if the cluster was aborted or has failed."""
    with f.when(code.same(layout.ABORTED) | code.same(layout.FAULTED)):
        f.give(code)


def _slot_turn() -> Native:
    """slot_turn(slot, kernel): run a slot's cluster for a turn. FINISHED: it has ended."""
    f = Native("slot_turn", "i32", ("ptr", "context"), ("ptr", "kernel"))
    slot, kernel = f.given
    code = f.call("i32", "cluster_turn", slot, kernel)
    _pass_on(f, code)
    with f.when(code.same(layout.FINISHED)):
        f.store(f.constant("i32", 0), slot.byte(layout.BUSY))
        with f.when(f.field(layout.WORKER, "i64").differs(slot.to("i64"))):
            f.value(f"atomicrmw sub ptr {f.field(layout.RESIDENT, 'ptr').text}, i64 1 monotonic",
                    "i64")  # fmt: skip
        f.give(layout.FINISHED)
    # Halve the next turn of a cluster that made no progress: it probably still waits.
    moved = f.field(layout.MOVED, "i32").differs(0)
    with f.count(f.field(layout.CLUSTER_SIZE, "i32").to("i64")) as rank:
        at = context_of(f, rank).byte(layout.BUDGET)
        old = f.load("i32", at)
        less = f.call("i32", "llvm.umax.i32", old >> 1, f.constant("i32", layout.BUDGET_LEAST))
        more = f.call("i32", "llvm.umin.i32", old << 1, f.constant("i32", layout.BUDGET_WHOLE))
        f.store(f.choose(moved, more, less), at)
    f.give(layout.YIELDED)
    return f


def _round() -> Native:
    """residents_round(worker, kernel): run each slot for a turn. FINISHED: no cluster is left."""
    f = Native("residents_round", "i32", ("ptr", "context"), ("ptr", "kernel"))
    slot = f.variable("ptr", f.given[0])
    found = f.variable("i32", layout.FINISHED)
    with f.count(FOR_EVER):
        here = slot.get()
        with f.when(f.load("i32", here.byte(layout.BUSY)).differs(0)):
            code = f.call("i32", "slot_turn", here, f.given[1])
            _pass_on(f, code)
            moved = f.load("i32", here.byte(layout.MOVED)).differs(0)
            waits = code.differs(layout.FINISHED)
            with f.when(waits & found.get().same(layout.FINISHED)):
                found.set(_NOTHING)
            with f.when(moved | code.same(layout.FINISHED)):
                found.set(_MOVED)
        following = f.load("ptr", here.byte(layout.NEXT_SLOT))
        with f.when(following.to("i64").same(0)):
            f.give(found.get())
        slot.set(following)
    return f


def _busy() -> Native:
    """residents_busy(worker): count the slots with a cluster."""
    f = Native("residents_busy", "i64", ("ptr", "context"))
    slot, count = f.variable("ptr", f.given[0]), f.variable("i64", 0)
    with f.count(FOR_EVER):
        here = slot.get()
        count.set(count.get() + f.load("i32", here.byte(layout.BUSY)).to("i64"))
        following = f.load("ptr", here.byte(layout.NEXT_SLOT))
        with f.when(following.to("i64").same(0)):
            f.give(count.get())
        slot.set(following)
    return f


def _idle() -> Native:
    """residents_idle(slot): return the next slot without a cluster, or a new one; 0: no memory."""
    f = Native("residents_idle", "i64", ("ptr", "context"))
    slot = f.variable("ptr", f.given[0])
    with f.count(FOR_EVER):
        here = slot.get()
        with f.when(f.load("i32", here.byte(layout.BUSY)).same(0)):
            f.give(here.to("i64"))
        following = f.load("ptr", here.byte(layout.NEXT_SLOT))
        with f.when(following.to("i64").same(0)):
            timer = f.field(layout.TIMER, "ptr")
            f.give(f.value(f"call i64 {timer.text}(i32 {layout.TIMER_SLOT})", "i64"))
        slot.set(following)
    return f


def _fill() -> Native:
    """residents_fill(worker, kernel): begin as many more clusters as there are waiting ones."""
    f = Native("residents_fill", "i32", ("ptr", "context"), ("ptr", "kernel"))
    worker, kernel = f.given
    counter, resident = f.field(layout.COUNTER, "ptr"), f.field(layout.RESIDENT, "ptr")
    total = cluster_count(f)
    found = f.variable("i32", _NOTHING)
    place = f.variable("ptr", worker)
    with f.count(f.call("i64", "residents_busy", worker)):
        with f.when(f.load("i64", counter).above(total - 1)):
            f.give(found.get())
        # The worker's first slot counts as resident for as long as the worker runs.
        with f.when(f.load("i32", worker.byte(layout.BUSY)).same(0)):
            f.value(f"atomicrmw sub ptr {resident.text}, i64 1 monotonic", "i64")
            place.set(worker)
        old = f.value(f"atomicrmw add ptr {resident.text}, i64 1 monotonic", "i64")
        slot = f.variable("i64", 0)
        with f.when(old.below(f.field(layout.MOST_RESIDENT, "i64"))):
            slot.set(f.call("i64", "residents_idle", place.get()))
        cluster = f.variable("i64", -1)
        with f.when(slot.get().differs(0)):
            cluster.set(f.value(f"atomicrmw add ptr {counter.text}, i64 1 monotonic", "i64"))
        with f.when(cluster.get().above(total - 1)):
            f.value(f"atomicrmw sub ptr {resident.text}, i64 1 monotonic", "i64")
            f.give(found.get())
        first = slot.get().to("ptr")
        place.set(first)
        f.call("void", "cluster_begin", first, cluster.get())
        _pass_on(f, f.call("i32", "slot_turn", first, kernel))
        found.set(_MOVED)
    f.give(found.get())
    return f


def _run() -> Native:
    """residents(worker, kernel): run the cluster in the first slot, and others beside it while it
    waits, until all clusters that have begun have ended."""
    f = Native(f"{PREFIX}residents", "i32", ("ptr", "context"), ("ptr", "kernel"))
    worker, kernel = f.given
    f.store(f.constant("i32", 1), worker.byte(layout.BUSY))
    with f.count(FOR_EVER):
        with f.when(f.call("i32", f"{PREFIX}attend", worker).differs(0)):
            f.give(layout.ABORTED)
        code = f.call("i32", "residents_round", worker, kernel)
        _pass_on(f, code)
        with f.when(code.same(layout.FINISHED)):
            f.store(f.constant("i32", layout.BUDGET_WHOLE), worker.byte(layout.BUDGET))
            f.store(worker, worker.byte(layout.RUNNING))
            f.give(layout.FINISHED)
        with f.when(code.same(_NOTHING)):
            more = f.call("i32", "residents_fill", worker, kernel)
            _pass_on(f, more)
            with f.when(more.same(_NOTHING)):
                f.value(f"call i64 {f.field(layout.TIMER, 'ptr').text}(i32 {layout.TIMER_REST})",
                        "i64")  # fmt: skip
    return f


def residents_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([
        _slot_turn(), _round(), _busy(), _idle(), _fill(), _run(),
    ])  # fmt: skip


def names() -> list[str]:
    """Return the function that a launcher calls when a group waits."""
    return [f"{PREFIX}residents"]
