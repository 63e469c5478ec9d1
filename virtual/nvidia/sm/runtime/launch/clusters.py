"""The native loop over clusters: the groups of a cluster run together on one worker.

Each warp of each group runs in turn until it waits, yields or ends. Groups that wait for each other
therefore make progress, and a launch runs the same way every time. A cluster whose warps all wait
makes way for others, see `residents`. A grid without clusters has clusters of one group. The
cluster's barrier opens when all lanes that have not ended have arrived. It is checked whenever a
warp stops running.
Source: PTX ISA 8.x, "Cluster of Cooperative Thread Arrays", barrier.cluster.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.distributed import context_of
from ugpu.virtual.nvidia.sm.runtime.native import FOR_EVER, Native
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.shader.native import Word, joined


def _state(f: Native, warp: Word) -> Word:
    """Return the state of a warp (i64) of the context's group."""
    return f.field(layout.STATES, "ptr").byte(warp * f.field(layout.STATE_STRIDE, "i64"))


def _group_begin() -> Native:
    """group_begin(context, cluster, rank): initialise a group."""
    f = Native("group_begin", "void", ("ptr", "context"), ("i64", "cluster"), ("i64", "rank"))
    context, cluster, rank = f.given
    place, rest, in_cluster = [], cluster, rank
    for axis in range(3):
        size, count = (f.wide(at + 4 * axis) for at in (layout.CLUSTER_X, layout.CLUSTERS_X))
        identity = rest % count
        rest = f.value(f"udiv i64 {rest.text}, {count.text}", "i64")
        own = in_cluster % size
        in_cluster = f.value(f"udiv i64 {in_cluster.text}, {size.text}", "i64")
        place.append(identity * size + own)
        for offset, value in (
            (layout.CLUSTER_ID_X, identity), (layout.RANK_X, own), (layout.GROUP_X, place[axis]),
        ):  # fmt: skip
            f.store(value.to("i32"), context.byte(offset + 4 * axis))
    width, height = (f.wide(at) for at in (layout.GRID_X, layout.GRID_Y))
    f.store((place[2] * height + place[1]) * width + place[0], context.byte(layout.GROUP))
    zero, never = f.constant("i8", 0), Word(f, "false", "i1")
    f.call("void", "llvm.memset.p0.i64", context.byte(layout.BARRIERS), zero,
           f.word(8 * layout.BARRIER_COUNT), never)  # fmt: skip
    # Clear the mbarrier objects of an earlier cluster.
    with f.when(f.field(layout.EXPLICIT, "i32").differs(0)):
        f.call("void", "llvm.memset.p0.i64", f.field(layout.SHARED, "ptr"), zero,
               f.field(layout.SHARED_SIZE, "i64"), never)  # fmt: skip
    f.store(f.constant("i32", layout.BUDGET_WHOLE), context.byte(layout.BUDGET))
    masks = f.field(layout.MASKS, "ptr")
    with f.count(f.wide(layout.WARPS)) as warp:
        state = _state(f, warp)
        f.call("void", "llvm.memset.p0.i64", state, zero, f.word(layout.STATE_PLACES), never)
        lanes = f.load("i32", masks.byte(warp << 2))
        f.store(lanes, state.byte(layout.STATE_ACTIVE))
        f.store(warp.to("i32"), state.byte(layout.STATE_NUMBER))
    with f.when(f.has_flights()):
        f.hook(context, "flights_begin")
    return f


def _group_end() -> Native:
    """group_end(context): end the group if all its warps have."""
    f = Native("group_end", "void", ("ptr", "context"))
    context = f.given[0]
    with f.count(f.wide(layout.WARPS)) as warp:
        done = f.load("i32", _state(f, warp).byte(layout.STATE_DONE))
        with f.when(done.same(0)):
            f.give()
    with f.when(f.has_flights()):
        f.hook(context, "flights_end")
        f.hook(context, "products_missing", f.constant("i32", 1))
    ended = f.field(layout.FIRST, "ptr").byte(layout.GROUPS_ENDED)
    bit = f.constant("i32", 1) << f.field(layout.RANK, "i32")
    f.store(f.load("i32", ended) | bit, ended)
    return f


def _each_warp(f: Native) -> tuple[Word, Word]:
    """Return the number of warps of the cluster, and of a group."""
    warps = f.wide(layout.WARPS)
    return warps * f.wide(layout.CLUSTER_SIZE), warps


def _place_of(f: Native, number: Word, warps: Word) -> tuple[Word, Word, Word]:
    """Return the context, number and state of the cluster's warp `number`."""
    rank = f.value(f"udiv i64 {number.text}, {warps.text}", "i64")
    context, warp = context_of(f, rank), number - rank * warps
    states = f.load("ptr", context.byte(layout.STATES))
    return context, warp, states.byte(warp * f.field(layout.STATE_STRIDE, "i64"))


def _barrier() -> Native:
    """cluster_barrier(context): open the cluster's barrier if all lanes have arrived."""
    f = Native("cluster_barrier", "void", ("ptr", "context"))
    arrivals = f.given[0].byte(layout.CLUSTER_ARRIVALS)
    with f.when(f.load("i32", arrivals).same(0)):
        f.give()
    total, warps = _each_warp(f)
    with f.count(total) as number:
        state = _place_of(f, number, warps)[2]
        alive = f.load("i32", state.byte(layout.STATE_ACTIVE))
        arrived = f.load("i32", state.byte(layout.STATE_CLUSTER_ARRIVED))
        done = f.load("i32", state.byte(layout.STATE_DONE))
        with f.when((alive & (arrived ^ -1)).differs(0) & done.same(0)):
            f.give()
    f.store(f.constant("i32", 0), arrivals)
    with f.count(total) as number:
        state = _place_of(f, number, warps)[2]
        arrived, waits, passes = (f.load("i32", state.byte(at)) for at in (
            layout.STATE_CLUSTER_ARRIVED, layout.STATE_CLUSTER_WAITS, layout.STATE_CLUSTER_PASS,
        ))  # fmt: skip
        f.store(passes | (arrived & (waits ^ -1)), state.byte(layout.STATE_CLUSTER_PASS))
        for at in (layout.STATE_CLUSTER_ARRIVED, layout.STATE_CLUSTER_WAITS):
            f.store(f.constant("i32", 0), state.byte(at))
        _wake(f, state)
    return f


def _wake(f: Native, state: Word) -> None:
    """Resume a warp that waits at the cluster's barrier for a phase that has completed."""
    barrier, waits = (f.load("i32", state.byte(at)) for at in (
        layout.STATE_BARRIER, layout.STATE_CLUSTER_WAITS))  # fmt: skip
    with f.when(barrier.same(layout.OF_CLUSTER) & waits.same(0)):
        f.store(f.constant("i32", 0), state.byte(layout.STATE_WAITING))


def _turn() -> Native:
    """cluster_turn(first, kernel): run the groups of a cluster until all have ended (FINISHED) or
    all their warps wait (YIELDED)."""
    f = Native("cluster_turn", "i32", ("ptr", "context"), ("ptr", "kernel"))
    first, kernel = f.given
    total, warps = _each_warp(f)
    f.store(f.constant("i32", 0), first.byte(layout.MOVED))
    with f.count(FOR_EVER):
        ran, left, moved = (f.variable("i32", 0) for _ in range(3))
        with f.count(total) as number:
            context, warp, state = _place_of(f, number, warps)
            done, waiting = (f.load("i32", state.byte(at)) for at in (
                layout.STATE_DONE, layout.STATE_WAITING))  # fmt: skip
            with f.when(done.same(0)):
                left.set(1)
            with f.when((done | waiting).same(0)):
                ran.set(1)
                code = _one(f, first, kernel, context, warp, state)
                with f.when(code.differs(layout.YIELDED)):
                    moved.set(1)
        with f.when(left.get().same(0)):
            f.give(layout.FINISHED)
        with f.when(ran.get().same(0)):
            _stuck(f, first)
        with f.when(moved.get().same(0)):
            f.give(layout.YIELDED)
        f.store(f.constant("i32", 1), first.byte(layout.MOVED))
    return f


def _run_as(f: Native, first: Word, context: Word) -> None:
    """Record the group that runs or is at fault."""
    f.store(context, f.load("ptr", first.byte(layout.WORKER)).byte(layout.RUNNING))


def _one(
    f: Native, first: Word, kernel: Word, context: Word, warp: Word, state: Word
) -> Word:  # fmt: skip
    """Run a warp, then process the changes that it made; return the kernel's code."""
    rank = f.load("i32", context.byte(layout.RANK))
    _run_as(f, first, context)
    begun = first.byte(layout.GROUPS_BEGUN)
    f.store(f.load("i32", begun) | (f.constant("i32", 1) << rank), begun)
    f.store(warp.to("i32"), context.byte(layout.WARP))
    code = f.value(f"call i32 {kernel.text}(ptr {context.text}, ptr {state.text})", "i32")
    with f.when(code.same(layout.ABORTED)):
        f.give(layout.ABORTED)
    with f.when(code.same(layout.YIELDED)):
        stop = f.call("i32", f"{PREFIX}attend", context)
        with f.when(stop.differs(0)):
            f.give(layout.ABORTED)
    with f.when(code.same(layout.FINISHED)):
        f.store(f.constant("i32", 1), state.byte(layout.STATE_DONE))
        f.call("void", "barriers_opened", context)
        f.call("void", "group_end", context)
    fault = f.load("i32", context.byte(layout.FAULT_CODE))
    with f.when(code.same(layout.FAULTED) | fault.differs(0)):
        f.store(warp.to("i32"), context.byte(layout.FAULT_WARP))
        f.give(layout.FAULTED)
    f.call("void", "cluster_barrier", first)
    _wake(f, state)
    return code


def _stuck(f: Native, first: Word) -> None:
    """Handle a cluster whose remaining warps all wait at barriers, which may never open: as on the
    chip, they wait until the grid is ended."""
    with f.when(f.has_flights()), f.count(f.wide(layout.CLUSTER_SIZE)) as rank:
        context = context_of(f, rank)
        f.hook(context, "products_missing", f.constant("i32", 0))
        with f.when(f.load("i32", context.byte(layout.FAULT_CODE)).differs(0)):
            _run_as(f, first, context)
            f.give(layout.FAULTED)
    f.give(layout.YIELDED)


def _begin() -> Native:
    """cluster_begin(first, cluster): initialise a cluster."""
    f = Native("cluster_begin", "void", ("ptr", "context"), ("i64", "cluster"))
    first, cluster = f.given
    for offset in (layout.GROUPS_ENDED, layout.GROUPS_BEGUN, layout.CLUSTER_ARRIVALS):
        f.store(f.constant("i32", 0), first.byte(offset))
    f.store(f.constant("i32", 1), first.byte(layout.BUSY))
    with f.count(f.wide(layout.CLUSTER_SIZE)) as rank:
        f.call("void", "group_begin", context_of(f, rank), cluster, rank)
    return f


def cluster_count(f: Native) -> Word:
    """Return the number of clusters of the grid."""
    count = f.word(1)
    for axis in range(3):
        count = count * f.wide(layout.CLUSTERS_X + 4 * axis)
    return count


def _launch() -> Native:
    """launch_clusters(first, kernel): run clusters until none is left or one fails."""
    f = Native(f"{PREFIX}launch_clusters", "i32", ("ptr", "context"), ("ptr", "kernel"))
    first, kernel = f.given
    counter = f.field(layout.COUNTER, "ptr")
    with f.count(FOR_EVER):
        stop = f.call("i32", f"{PREFIX}attend", first)
        with f.when(stop.differs(0)):
            f.give(layout.ABORTED)
        cluster = f.value(f"atomicrmw add ptr {counter.text}, i64 1 monotonic", "i64")
        with f.when(cluster.above(cluster_count(f) - 1)):
            f.give(layout.FINISHED)
        f.call("void", "cluster_begin", first, cluster)
        code = f.call("i32", f"{PREFIX}residents", first, kernel)
        with f.when(code.differs(layout.FINISHED)):
            f.give(code)
    return f


def clusters_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([
        _group_begin(), _group_end(), _barrier(), _turn(), _begin(), _launch(),
    ])  # fmt: skip


def names() -> list[str]:
    """Return the functions that Python calls."""
    return [f"{PREFIX}launch_clusters"]
