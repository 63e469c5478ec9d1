"""Asynchronous copies in flight: what lanes copy (cp.async) and copies in bulk.

Data arrive as late as they may: when a thread waits for them. Until then their place in shared
memory holds bytes of all ones (NaN in every type of real numbers), so that a read that comes too
early is seen. What waits for an mbarrier object makes that object's copies arrive, no others.
Source: PTX ISA 8.x, "Data Movement and Conversion Instructions: Asynchronous copy".
"""

from __future__ import annotations

from hcq.emu.memory import PAGE_SHIFT
from nv.virtual.sm.runtime import async_layout as flight
from nv.virtual.sm.runtime import layout
from nv.virtual.sm.runtime.native import Native, Word, joined
from nv.virtual.sm.runtime.proxies import check
from nv.virtual.sm.runtime.resolve import MASK, PREFIX, WIDE

_NUMBERS = "<32 x i32>"
_PAGE = 1 << PAGE_SHIFT
_MOST_BYTES = (1 << 20) - 1  # what the tx-count of an mbarrier object holds


def own(f: Native) -> Word:
    """Return the running warp's part of the area."""
    warp = f.field(layout.WARP, "i32").to("i64")
    return f.field(layout.FLIGHT, "ptr").byte(warp * flight.WARP_STRIDE + flight.WARP)


def _ring(f: Native, base: Word, start: int, size: int, entries: int, number: Word) -> Word:
    return base.byte((number & (entries - 1)) * size + start)


def _entry(f: Native, warp: Word, number: Word) -> Word:
    return _ring(f, warp, flight.COPIES, flight.COPY_SIZE, flight.COPY_ENTRIES, number)


def _bulk(f: Native, area: Word, number: Word) -> Word:
    return _ring(f, area, flight.BULK, flight.BULK_SIZE, flight.BULK_ENTRIES, number)


# -- copies of lanes -----------------------------------------------------------------------------


def _scatter(f: Native, hosts: Word, lanes: Word, size: Word, column: Word | None) -> None:
    """Write 4, 8 or 16 bytes a lane from columns of 64 bits; without them bytes of all ones."""
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
    """copy_issue(context, hosts, lanes, size): data in the first IO columns; 0 bytes: arrive."""
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
    """Count one more group for lanes."""
    f = Native(f"{PREFIX}{name}", "void", ("ptr", "context"), ("i32", "lanes"))
    at = own(f).byte(offset)
    step = f.value(f"zext {MASK} {f.given[1].to(MASK).text} to {_NUMBERS}", _NUMBERS)
    f.store(f.load(_NUMBERS, at, 64) + step, at, 64)
    return f


def _due(f: Native, committed: Word, numbers: Word, left: Word) -> Word:
    """Return the lanes whose group is none of the `left` newest committed ones, as i32."""
    return committed.above(numbers + f.spread(_NUMBERS, left)).to("i32")


def _copy_wait() -> Native:
    """copy_wait(context, lanes, left, all): let the groups of lanes arrive but the newest."""
    f = Native(f"{PREFIX}copy_wait", "void", ("ptr", "context"), ("i32", "lanes"),
               ("i32", "left"), ("i32", "all"))  # fmt: skip
    context, lanes, left, everything = f.given
    warp = own(f)
    tail = f.load("i64", warp.byte(flight.COPY_TAIL))
    committed = f.load(_NUMBERS, warp.byte(flight.COPY_GROUP), 64)
    held = f.variable("i32", 0)  # lanes that have an older copy still to come
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


# -- copies in bulk ------------------------------------------------------------------------------


def _bulk_move() -> Native:
    """bulk_move(context, global, host, bytes, out): copy page by page."""
    f = Native(f"{PREFIX}bulk_move", "void", ("ptr", "context"), ("i64", "address"),
               ("i64", "host"), ("i64", "bytes"), ("i32", "out"))  # fmt: skip
    context, address, host, size, out = f.given
    pages = ((address & (_PAGE - 1)) + size + (_PAGE - 1)) >> PAGE_SHIFT
    done = f.variable("i64", 0)
    with f.count(pages):
        at = address + done.get()
        room = f.word(_PAGE) - (at & (_PAGE - 1))
        part = f.call("i64", "llvm.umin.i64", room, size - done.get())
        here = (host + done.get()).to("ptr")
        volatile = Word(f, "false", "i1")
        with f.when(out.same(0)):
            there = f.call("i64", f"{PREFIX}translate_read", context, at).to("ptr")
            f.call("void", "llvm.memcpy.p0.p0.i64", here, there, part, volatile)
        with f.when(out.differs(0)):
            there = f.call("i64", f"{PREFIX}translate_write", context, at).to("ptr")
            f.call("void", "llvm.memcpy.p0.p0.i64", there, here, part, volatile)
        done.set(done.get() + part)
    return f


def _bulk_run() -> Native:
    """bulk_run(context, entry): carry out an entry if that has not been done."""
    f = Native(f"{PREFIX}bulk_run", "void", ("ptr", "context"), ("ptr", "entry"))
    context, entry = f.given
    kind = f.load("i64", entry.byte(flight.BULK_KIND))
    f.store(f.word(flight.DONE), entry.byte(flight.BULK_KIND))
    address, host, size, barrier = (
        f.load("i64", entry.byte(offset)) for offset in (
            flight.BULK_GLOBAL, flight.BULK_SHARED, flight.BULK_BYTES, flight.BULK_BARRIER)
    )  # fmt: skip
    with f.when(kind.same(flight.STORE)):
        f.call("void", f"{PREFIX}bulk_move", context, address, host, size, f.constant("i32", 1))
    with f.when(kind.same(flight.LOAD)):
        f.call("void", f"{PREFIX}bulk_move", context, address, host, size, f.constant("i32", 0))
        f.call("void", f"{PREFIX}mbarrier_complete", context, barrier, size)
    return f


def _bulk_issue() -> Native:
    """bulk_issue(context, kind, addresses, hosts, sizes, barriers, lanes): begin copies.

    hosts: of shared memory; barriers: host addresses, of loads. What is wrong is noted.
    """
    f = Native(
        f"{PREFIX}bulk_issue", "void", ("ptr", "context"), ("i64", "kind"), (WIDE, "addresses"),
        (WIDE, "hosts"), (_NUMBERS, "sizes"), (WIDE, "barriers"), ("i32", "lanes"),
    )  # fmt: skip
    context, kind, addresses, hosts, sizes, barriers, lanes = f.given
    area = f.field(layout.FLIGHT, "ptr")
    warp = f.field(layout.WARP, "i32").to("i64")
    top = f.field(layout.SHARED, "ptr").to("i64") + f.field(layout.SHARED_SIZE, "i64")
    groups = own(f).byte(flight.BULK_COMMITTED)
    is_load = kind.same(flight.LOAD)
    with f.each_lane(lanes) as lane:
        bit = f.constant("i32", 1) << lane
        address, host, barrier = addresses.lane(lane), hosts.lane(lane), barriers.lane(lane)
        size = sizes.lane(lane).to("i64")
        with f.when(((address | size) & 15).differs(0)):
            f.note(layout.MISALIGNED, bit, address)
        with f.when((host + size).above(top)):
            f.note(layout.BAD_ADDRESS, bit, host - f.field(layout.SHARED, "ptr").to("i64"))
        with f.when(size.above(_MOST_BYTES)):
            f.note(layout.BAD_COUNT, bit, size)
        with f.when(f.field(layout.FAULT_CODE, "i32").differs(0)):
            f.give()
        check(f, host, size)
        pages = ((address & (_PAGE - 1)) + size + (_PAGE - 1)) >> PAGE_SHIFT
        first = address & -_PAGE
        with f.count(pages) as page:  # so that a fault is that of this instruction
            at = f.choose(page.same(0), address, first + (page << PAGE_SHIFT))
            with f.when(is_load):
                f.call("i64", f"{PREFIX}translate_read", context, at)
            with f.when(kind.same(flight.STORE)):
                f.call("i64", f"{PREFIX}translate_write", context, at)
        with f.when(is_load):
            check(f, barrier, f.word(8))
            f.call("void", f"{PREFIX}mbarrier_known", context, barrier)
        with f.when(f.field(layout.FAULT_CODE, "i32").differs(0)):
            f.give()
        with f.when(is_load):
            f.call("void", "llvm.memset.p0.i64", host.to("ptr"), f.constant("i8", -1), size,
                   Word(f, "false", "i1"))  # fmt: skip
        tail = f.change(area.byte(flight.BULK_TAIL), "i64", 1)
        entry = _bulk(f, area, tail)
        with f.when((tail - f.load("i64", area.byte(flight.BULK_HEAD))).same(flight.BULK_ENTRIES)):
            f.call("void", f"{PREFIX}bulk_run", context, entry)
            f.change(area.byte(flight.BULK_HEAD), "i64", 1)
        lane64 = lane.to("i64")
        for offset, value in (
            (flight.BULK_KIND, kind), (flight.BULK_GLOBAL, address), (flight.BULK_SHARED, host),
            (flight.BULK_BYTES, size), (flight.BULK_BARRIER, barrier),
            (flight.BULK_OWNER, (warp << 5) | lane64),
            (flight.BULK_GROUP, f.load("i32", groups.byte(lane64 << 2)).to("i64")),
        ):  # fmt: skip
            f.store(value, entry.byte(offset))
    return f


def _bulk_wait() -> Native:
    """bulk_wait(context, lanes, left): carry out the stores of lanes' groups but the newest."""
    f = Native(f"{PREFIX}bulk_wait", "void", ("ptr", "context"), ("i32", "lanes"),
               ("i32", "left"))  # fmt: skip
    context, lanes, left = f.given
    area = f.field(layout.FLIGHT, "ptr")
    warp = f.field(layout.WARP, "i32").to("i64")
    groups = own(f).byte(flight.BULK_COMMITTED)
    tail = f.load("i64", area.byte(flight.BULK_TAIL))
    with f.count(tail, f.load("i64", area.byte(flight.BULK_HEAD))) as number:
        entry = _bulk(f, area, number)
        owner = f.load("i64", entry.byte(flight.BULK_OWNER))
        lane = owner & 31
        mine = (owner >> 5).same(warp) & (lanes.to("i64") >> lane).to("i1")
        stores = f.load("i64", entry.byte(flight.BULK_KIND)).same(flight.STORE)
        committed = f.load("i32", groups.byte(lane << 2)).to("i64")
        group = f.load("i64", entry.byte(flight.BULK_GROUP))
        with f.when(mine & stores & (group + left.to("i64")).below(committed)):
            f.call("void", f"{PREFIX}bulk_run", context, entry)
    f.call("void", f"{PREFIX}bulk_forget", context)
    return f


def _bulk_forget() -> Native:
    """bulk_forget(context): drop the entries at the head that are done."""
    f = Native(f"{PREFIX}bulk_forget", "void", ("ptr", "context"))
    area = f.field(layout.FLIGHT, "ptr")
    tail = f.load("i64", area.byte(flight.BULK_TAIL))
    with f.count(tail, f.load("i64", area.byte(flight.BULK_HEAD))) as number:
        kind = f.load("i64", _bulk(f, area, number).byte(flight.BULK_KIND))
        with f.when(kind.differs(flight.DONE)):
            f.give()
        f.store(number + 1, area.byte(flight.BULK_HEAD))
    return f


# -- for the group -------------------------------------------------------------------------------


def _drain() -> Native:
    """flights_drain(context, barrier): let arrive what a phase of an mbarrier object waits for."""
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
    before = f.load("i64", barrier.to("ptr")) >> 63
    tail = f.load("i64", area.byte(flight.BULK_TAIL))
    with f.count(tail, f.load("i64", area.byte(flight.BULK_HEAD))) as number:
        entry = _bulk(f, area, number)
        waited = f.load("i64", entry.byte(flight.BULK_BARRIER)).same(barrier)
        kind = f.load("i64", entry.byte(flight.BULK_KIND))
        with f.when(waited & (kind.same(flight.LOAD) | kind.same(flight.MOVE))):
            f.call("void", f"{PREFIX}bulk_run", context, entry)
            with f.when((f.load("i64", barrier.to("ptr")) >> 63).differs(before)):
                f.call("void", f"{PREFIX}bulk_forget", context)
                f.give()
    f.call("void", f"{PREFIX}bulk_forget", context)
    return f


def _begin() -> Native:
    """flights_begin(context): nothing is in flight."""
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


def _end() -> Native:
    """flights_end(context): carry out the stores that nobody waited for; loads are lost."""
    f = Native(f"{PREFIX}flights_end", "void", ("ptr", "context"))
    area = f.field(layout.FLIGHT, "ptr")
    tail = f.load("i64", area.byte(flight.BULK_TAIL))
    with f.count(tail, f.load("i64", area.byte(flight.BULK_HEAD))) as number:
        entry = _bulk(f, area, number)
        with f.when(f.load("i64", entry.byte(flight.BULK_KIND)).same(flight.STORE)):
            f.call("void", f"{PREFIX}bulk_run", f.given[0], entry)
    return f


def flights_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    text, needed = joined([
        _copy_complete(), _copy_issue(), _copy_commit("copy_commit", flight.COPY_GROUP),
        _copy_wait(), _bulk_move(), _bulk_run(), _bulk_issue(),
        _copy_commit("bulk_commit", flight.BULK_COMMITTED), _bulk_wait(), _bulk_forget(),
        _drain(), _begin(), _end(),
    ])  # fmt: skip
    return text, needed | {  # of another part of the library
        f"declare i64 @{PREFIX}translate_{access}(ptr, i64)" for access in ("read", "write")
    }


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [
        f"{PREFIX}{name}" for name in (
            "copy_issue", "copy_commit", "copy_wait", "bulk_issue", "bulk_commit", "bulk_wait")
    ]  # fmt: skip
