"""Asynchronous copies of lanes in flight (cp.async), and a group's operations in flight.

Data arrives as late as possible: when a thread waits for it. Until then its destination in shared
memory contains bytes of all ones (NaN in every floating-point type), so that a read that comes too
early shows. Waiting for an mbarrier object makes that object's copies arrive, and no others.
Source: PTX ISA 8.x, "Data Movement and Conversion Instructions: Asynchronous copy".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout as flight
from ugpu.virtual.nvidia.sm.runtime.native import Native
from ugpu.virtual.nvidia.sm.runtime.resolve import MASK, PREFIX, WIDE
from ugpu.virtual.shader.native import Word, joined

_NUMBERS = "<32 x i32>"


def own(f: Native) -> Word:
    """Return the running warp's part of the area."""
    warp = f.field(layout.WARP, "i32").to("i64")
    return f.field(layout.FLIGHT, "ptr").byte(warp * flight.WARP_STRIDE + flight.WARP)


def ring(base: Word, start: int, size: int, entries: int, number: Word) -> Word:
    """Return the address of an entry in a ring."""
    return base.byte((number & (entries - 1)) * size + start)


def _entry(f: Native, warp: Word, number: Word) -> Word:
    return ring(warp, flight.COPIES, flight.COPY_SIZE, flight.COPY_ENTRIES, number)


# -- copies of lanes -----------------------------------------------------------------------------


def _scatter(f: Native, hosts: Word, lanes: Word, size: Word, column: Word | None) -> None:
    """Write 4, 8 or 16 bytes a lane, from columns of 64 bits; without columns, all ones."""
    mask = lanes.to(MASK)
    with f.when(size.same(4)):
        narrow = f.constant(_NUMBERS, -1)
        if column is not None:
            narrow = f.load(WIDE, column, 64).to(_NUMBERS)
        f.call("void", "llvm.masked.scatter.v32i32.v32p0", narrow, hosts.to("<32 x ptr>"), mask)
    with f.when(size.above(4)), f.count(size.to("i64") >> 3) as part:
        wide = f.constant(WIDE, -1)
        if column is not None:
            wide = f.load(WIDE, column.byte(part * layout.IO_COLUMN), 64)
        step = f.spread(WIDE, part * 8)
        f.call(
            "void", "llvm.masked.scatter.v32i64.v32p0", wide, (hosts + step).to("<32 x ptr>"), mask
        )


def _copy_complete() -> Native:
    """copy_complete(context, entry, lanes): carry out an entry for some of its lanes."""
    f = Native(f"{PREFIX}copy_complete", "void", ("ptr", "context"), ("ptr", "entry"),
               ("i32", "lanes"))  # fmt: skip
    context, entry, lanes = f.given
    pending = f.load("i32", entry.byte(flight.COPY_LANES))
    due = pending & lanes
    f.store(pending & (lanes ^ -1), entry.byte(flight.COPY_LANES))
    size = f.load("i32", entry.byte(flight.COPY_BYTES))
    hosts = f.load(WIDE, entry.byte(flight.COPY_HOSTS), 64)
    with f.when(size.same(0)):
        with f.each_lane(due) as lane:
            f.call("void", f"{PREFIX}mbarrier_arrive", context, hosts.lane(lane))
        f.give()
    _scatter(f, hosts, due, size, entry.byte(flight.COPY_DATA))
    return f


def _copy_issue() -> Native:
    """copy_issue(context, hosts, lanes, size): data in the first IO columns; size 0: arrive."""
    f = Native(f"{PREFIX}copy_issue", "void", ("ptr", "context"), (WIDE, "hosts"),
               ("i32", "lanes"), ("i32", "size"))  # fmt: skip
    context, hosts, lanes, size = f.given
    warp = own(f)
    tail = f.change(warp.byte(flight.COPY_TAIL), "i64", 1)
    head = f.load("i64", warp.byte(flight.COPY_HEAD))
    entry = _entry(f, warp, tail)
    with f.when((tail - head).same(flight.COPY_ENTRIES)):
        f.call("void", f"{PREFIX}copy_complete", context, entry, f.constant("i32", -1))
        f.store(head + 1, warp.byte(flight.COPY_HEAD))
    f.store(lanes, entry.byte(flight.COPY_LANES))
    f.store(size, entry.byte(flight.COPY_BYTES))
    f.store(f.load(_NUMBERS, warp.byte(flight.COPY_GROUP), 64), entry.byte(flight.COPY_NUMBERS), 64)
    f.store(hosts, entry.byte(flight.COPY_HOSTS), 64)
    for part in range(2):
        f.store(f.load(WIDE, context.byte(layout.IO + part * layout.IO_COLUMN), 64),
                entry.byte(flight.COPY_DATA + part * layout.IO_COLUMN), 64)  # fmt: skip
    with f.when(size.differs(0)):
        _scatter(f, hosts, lanes, size, None)
    return f


def _copy_commit(name: str, offset: int) -> Native:
    """Count one more committed group for lanes."""
    f = Native(f"{PREFIX}{name}", "void", ("ptr", "context"), ("i32", "lanes"))
    at = own(f).byte(offset)
    step = f.value(f"zext {MASK} {f.given[1].to(MASK).text} to {_NUMBERS}", _NUMBERS)
    f.store(f.load(_NUMBERS, at, 64) + step, at, 64)
    return f


def _due(f: Native, committed: Word, numbers: Word, left: Word) -> Word:
    """Return, as i32, the lanes whose group is not one of the `left` newest committed ones."""
    return committed.above(numbers + f.spread(_NUMBERS, left)).to("i32")


def _copy_wait() -> Native:
    """copy_wait(context, lanes, left, all): complete all but the `left` newest groups of lanes."""
    f = Native(f"{PREFIX}copy_wait", "void", ("ptr", "context"), ("i32", "lanes"),
               ("i32", "left"), ("i32", "all"))  # fmt: skip
    context, lanes, left, everything = f.given
    warp = own(f)
    tail = f.load("i64", warp.byte(flight.COPY_TAIL))
    committed = f.load(_NUMBERS, warp.byte(flight.COPY_GROUP), 64)
    held = f.variable("i32", 0)  # lanes with an older copy that has not arrived yet
    first = f.variable("i32", 1)
    with f.count(tail, f.load("i64", warp.byte(flight.COPY_HEAD))) as number:
        entry = _entry(f, warp, number)
        numbers = f.load(_NUMBERS, entry.byte(flight.COPY_NUMBERS), 64)
        arrives = f.load("i32", entry.byte(flight.COPY_BYTES)).same(0)
        due = _due(f, committed, numbers, left) | everything
        free = held.get() ^ -1
        due = f.choose(arrives, free, due) & lanes
        f.call("void", f"{PREFIX}copy_complete", context, entry, due)
        rest = f.load("i32", entry.byte(flight.COPY_LANES))
        held.set(held.get() | rest)
        with f.when(rest.differs(0)):
            first.set(0)
        with f.when(first.get().differs(0)):
            f.store(number + 1, warp.byte(flight.COPY_HEAD))
    return f


# -- for the group -------------------------------------------------------------------------------


def _drain() -> Native:
    """flights_drain(context, barrier): complete what a phase of an mbarrier object waits for."""
    f = Native(f"{PREFIX}flights_drain", "void", ("ptr", "context"), ("i64", "barrier"))
    context, barrier = f.given
    area = f.field(layout.FLIGHT, "ptr")
    with f.count(f.field(layout.WARPS, "i32").to("i64")) as number:
        warp = area.byte(number * flight.WARP_STRIDE + flight.WARP)
        head = f.load("i64", warp.byte(flight.COPY_HEAD))
        end = f.variable("i64", head)
        with f.count(f.load("i64", warp.byte(flight.COPY_TAIL)), head) as place:
            entry = _entry(f, warp, place)
            with f.when(f.load("i32", entry.byte(flight.COPY_BYTES)).same(0)):
                hosts = f.load(WIDE, entry.byte(flight.COPY_HOSTS), 64)
                lanes = f.load("i32", entry.byte(flight.COPY_LANES))
                with f.each_lane(lanes) as lane, f.when(hosts.lane(lane).same(barrier)):
                    end.set(place + 1)
        with f.count(end.get(), head) as place:
            f.call("void", f"{PREFIX}copy_complete", context, _entry(f, warp, place),
                   f.constant("i32", -1))  # fmt: skip
            f.store(place + 1, warp.byte(flight.COPY_HEAD))
    f.call("void", f"{PREFIX}bulk_drain", context, barrier)
    return f


def _begin() -> Native:
    """flights_begin(context): start with nothing in flight."""
    f = Native(f"{PREFIX}flights_begin", "void", ("ptr", "context"))
    area = f.field(layout.FLIGHT, "ptr")
    zero, never = f.constant("i8", 0), Word(f, "false", "i1")
    f.call("void", "llvm.memset.p0.i64", area, zero, f.word(flight.BULK), never)
    with f.count(f.field(layout.WARPS, "i32").to("i64")) as number:
        warp = area.byte(number * flight.WARP_STRIDE + flight.WARP)
        f.call("void", "llvm.memset.p0.i64", warp, zero, f.word(flight.WARP_HEADER), never)
    with f.count(flight.WARP_GROUPS) as number:
        group = area.byte(number * flight.GROUP_STRIDE + flight.GROUPS)
        f.call("void", "llvm.memset.p0.i64", group, zero, f.word(flight.GROUP_HEADER), never)
    return f


def flights_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([
        _copy_complete(), _copy_issue(), _copy_commit("copy_commit", flight.COPY_GROUP),
        _copy_wait(), _copy_commit("bulk_commit", flight.BULK_COMMITTED), _drain(), _begin(),
    ])  # fmt: skip


def names() -> list[str]:
    """Return the functions that kernels may call."""
    found = ("copy_issue", "copy_commit", "copy_wait", "bulk_commit")
    return [f"{PREFIX}{name}" for name in found]
