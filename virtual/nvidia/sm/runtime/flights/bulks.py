"""Bulk copies in flight (cp.async.bulk), their groups, and stores to other groups (st.async).

Each group has a ring of these operations. An operation is carried out when a thread waits for it.
Until then its destination in shared memory contains bytes of all ones.
Source: PTX ISA 8.x, "Data Movement and Conversion Instructions: Bulk copy".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.distributed import (
    address_of,
    context_of,
    missing,
    owner,
    rank_of,
)
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout as flight
from ugpu.virtual.nvidia.sm.runtime.flights.flights import own, ring
from ugpu.virtual.nvidia.sm.runtime.flights.proxies import check
from ugpu.virtual.nvidia.sm.runtime.native import Native
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX, WIDE
from ugpu.virtual.shader.memory import PAGE_SHIFT
from ugpu.virtual.shader.native import Word, joined
from ugpu.virtual.shader.text import lanes

_NUMBERS = "<32 x i32>"
_PAGE = 1 << PAGE_SHIFT
_SCRATCH = 8  # IO columns from here on are unused while a copy is carried out
_MOST_BYTES = (1 << 20) - 1  # the largest tx-count of an mbarrier object


def _bulk(area: Word, number: Word) -> Word:
    return ring(area, flight.BULK, flight.BULK_SIZE, flight.BULK_ENTRIES, number)


def _bulk_move() -> Native:
    """bulk_move(context, global, host, bytes, out, how): copy by page, or combine as `how` says."""
    f = Native(f"{PREFIX}bulk_move", "void", ("ptr", "context"), ("i64", "address"),
               ("i64", "host"), ("i64", "bytes"), ("i32", "out"), ("i64", "how"))  # fmt: skip
    context, address, host, size, out, how = f.given
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
            there = f.call("i64", f"{PREFIX}translate_write", context, at)
            with f.when(how.same(0)):
                f.call("void", "llvm.memcpy.p0.p0.i64", there.to("ptr"), here, part, volatile)
            with f.when(how.differs(0)):
                f.call("void", f"{PREFIX}bulk_combine", context, how, there, here.to("i64"), part)
        done.set(done.get() + part)
    return f


def _combine() -> Native:
    """bulk_combine(context, how, host, data, bytes): combine elements with those in shared or
    global memory, 32 at a time."""
    f = Native(f"{PREFIX}bulk_combine", "void", ("ptr", "context"), ("i64", "how"),
               ("i64", "host"), ("i64", "data"), ("i64", "bytes"))  # fmt: skip
    context, how, host, data, size = f.given
    spare = context.byte(layout.IO + _SCRATCH * layout.IO_COLUMN)
    scratch = context.byte((_SCRATCH + 1) * layout.IO_COLUMN)  # `atomics` uses its IO columns
    never = Word(f, "false", "i1")
    with f.count(size, 0, 32) as start:
        part = f.call("i64", "llvm.umin.i64", f.word(32), size - start)
        f.call("void", "llvm.memcpy.p0.p0.i64", spare, (data + start).to("ptr"), part, never)
        for width in (2, 4, 8):
            with f.when((how >> 8).same(width)):
                bits = 8 * width
                elements = f"<32 x i{bits}>"
                first = f.spread(WIDE, host + start)
                hosts = first + Word(f, lanes([width * n for n in range(32)], "i64"), WIDE)
                count = f.value(f"udiv i64 {part.text}, {width}", "i64").to("i32")
                mask = (f.constant("i32", 1) << count) - 1
                values = f.load(elements, spare, 64)
                f.call(elements, f"{PREFIX}atomic_{bits}", scratch, hosts, mask,
                       (how & 0xFF).to("i32"), values, f.constant(elements, 0))  # fmt: skip
    return f


def _bulk_run() -> Native:
    """bulk_run(context, entry): carry out an entry, once."""
    f = Native(f"{PREFIX}bulk_run", "void", ("ptr", "context"), ("ptr", "entry"))
    context, entry = f.given
    kind = f.load("i64", entry.byte(flight.BULK_KIND))
    f.store(f.word(flight.DONE), entry.byte(flight.BULK_KIND))
    address, host, size, barrier, extra = (
        f.load("i64", entry.byte(offset)) for offset in (
            flight.BULK_GLOBAL, flight.BULK_SHARED, flight.BULK_BYTES, flight.BULK_BARRIER,
            flight.BULK_EXTRA)
    )  # fmt: skip
    never = Word(f, "false", "i1")
    with f.when(kind.same(flight.STORE)):
        f.call("void", f"{PREFIX}bulk_move", context, address, host, size, f.constant("i32", 1),
               extra)  # fmt: skip
    with f.when(kind.same(flight.LOAD)):
        f.call("void", f"{PREFIX}bulk_move", context, address, host, size, f.constant("i32", 0),
               extra)  # fmt: skip
    with f.when(kind.same(flight.MOVE) & extra.same(0)):
        f.call("void", "llvm.memcpy.p0.p0.i64", host.to("ptr"), address.to("ptr"), size, never)
    with f.when(kind.same(flight.MOVE) & extra.differs(0)):
        f.call("void", f"{PREFIX}bulk_combine", context, extra, host, address, size)
    with f.when(kind.same(flight.WORDS)):
        f.store(extra, entry.byte(flight.BULK_GLOBAL + 8))  # this field is no longer needed
        f.call("void", "llvm.memcpy.p0.p0.i64", host.to("ptr"), entry.byte(flight.BULK_GLOBAL),
               size, never)  # fmt: skip
    with f.when(kind.same(flight.WORD)):
        data = entry.byte(flight.BULK_GLOBAL).to("i64")
        f.call("void", f"{PREFIX}bulk_combine", context, extra, host, data, size)
    with f.when(kind.differs(flight.DONE) & barrier.differs(0)):
        f.call("void", f"{PREFIX}mbarrier_complete", context, barrier, size)
    return f


def _enqueue() -> Native:
    """bulk_enqueue(context, kind, global, host, bytes, barrier, lane, extra): put one entry into
    the ring of the group that has its mbarrier object, or of the own group without one."""
    f = Native(
        f"{PREFIX}bulk_enqueue", "void", ("ptr", "context"), ("i64", "kind"), ("i64", "global"),
        ("i64", "host"), ("i64", "bytes"), ("i64", "barrier"), ("i32", "lane"), ("i64", "extra"),
    )  # fmt: skip
    context, kind, address, host, size, barrier, lane, extra = f.given
    group = f.variable("ptr", context)
    with f.when(barrier.differs(0)):
        group.set(owner(f, barrier))
    area = f.load("ptr", group.get().byte(layout.FLIGHT))
    tail = f.change(area.byte(flight.BULK_TAIL), "i64", 1)
    entry = _bulk(area, tail)
    with f.when((tail - f.load("i64", area.byte(flight.BULK_HEAD))).same(flight.BULK_ENTRIES)):
        f.call("void", f"{PREFIX}bulk_run", context, entry)
        f.change(area.byte(flight.BULK_HEAD), "i64", 1)
    warp, lane64 = f.field(layout.WARP, "i32").to("i64"), lane.to("i64")
    groups = own(f).byte(flight.BULK_COMMITTED)
    for offset, value in (
        (flight.BULK_KIND, kind), (flight.BULK_GLOBAL, address), (flight.BULK_SHARED, host),
        (flight.BULK_BYTES, size), (flight.BULK_BARRIER, barrier),
        (flight.BULK_OWNER, (warp << 5) | lane64),
        (flight.BULK_GROUP, f.load("i32", groups.byte(lane64 << 2)).to("i64")),
        (flight.BULK_EXTRA, extra),
    ):  # fmt: skip
        f.store(value, entry.byte(offset))
    return f


def _bulk_one() -> Native:
    """bulk_one(context, kind, global, host, bytes, barrier, lane, extra): begin a copy. Errors are
    noted."""
    f = Native(
        f"{PREFIX}bulk_one", "void", ("ptr", "context"), ("i64", "kind"), ("i64", "global"),
        ("i64", "host"), ("i64", "bytes"), ("i64", "barrier"), ("i32", "lane"), ("i64", "extra"),
    )  # fmt: skip
    context, kind, address, host, size, barrier, lane, extra = f.given
    bit = f.constant("i32", 1) << lane
    limit = f.field(layout.SHARED_SIZE, "i64")
    with f.when(((address | size) & 15).differs(0)):
        f.note(layout.MISALIGNED, bit, address)
    for place, of in ((host, f.constant("i1", 1)), (address, kind.same(flight.MOVE))):
        with f.when(of):
            offset = place - f.load("i64", owner(f, place).byte(layout.SHARED))
            with f.when((offset + size).above(limit)):
                f.note(layout.BAD_ADDRESS, bit, address_of(f, place))
    with f.when(size.above(_MOST_BYTES)):
        f.note(layout.BAD_COUNT, bit, size)
    with f.when(f.field(layout.FAULT_CODE, "i32").differs(0)):
        f.give()
    check(f, host, size)
    with f.when(kind.same(flight.MOVE)):
        check(f, address, size)
    with f.when(kind.differs(flight.MOVE)):
        pages = ((address & (_PAGE - 1)) + size + (_PAGE - 1)) >> PAGE_SHIFT
        first = address & -_PAGE
        with f.count(pages) as page:  # to attribute a fault to this instruction
            at = f.choose(page.same(0), address, first + (page << PAGE_SHIFT))
            with f.when(kind.same(flight.LOAD)):
                f.call("i64", f"{PREFIX}translate_read", context, at)
            with f.when(kind.same(flight.STORE)):
                f.call("i64", f"{PREFIX}translate_write", context, at)
    with f.when(barrier.differs(0)):
        with f.when(rank_of(f, barrier).differs(rank_of(f, host))):
            f.note(layout.NOT_ONE_GROUP, bit, address_of(f, barrier))
            f.give()
        check(f, barrier, f.word(8))
        f.call("void", f"{PREFIX}mbarrier_known", context, barrier)
    with f.when(f.field(layout.FAULT_CODE, "i32").differs(0)):
        f.give()
    with f.when(barrier.differs(0) & extra.same(0)):
        f.call("void", "llvm.memset.p0.i64", host.to("ptr"), f.constant("i8", -1), size,
               Word(f, "false", "i1"))  # fmt: skip
    f.call("void", f"{PREFIX}bulk_enqueue", *f.given)
    return f


def _bulk_issue() -> Native:
    """bulk_issue(context, kind, addresses, hosts, sizes, barriers, targets, lanes, extra): begin
    the copies of lanes.

    addresses: global; for MOVE, host addresses of the source. hosts: in shared memory. barriers:
    host addresses; 0 for stores. targets: ranks of the destinations, one bit each; 0: the ranks
    that hosts and barriers imply.
    """
    f = Native(
        f"{PREFIX}bulk_issue", "void", ("ptr", "context"), ("i64", "kind"), (WIDE, "addresses"),
        (WIDE, "hosts"), (_NUMBERS, "sizes"), (WIDE, "barriers"), (_NUMBERS, "targets"),
        ("i32", "lanes"), ("i64", "extra"),
    )  # fmt: skip
    context, kind, addresses, hosts, sizes, barriers, targets, lanes_, extra = f.given
    one = f"{PREFIX}bulk_one"
    stride = f.field(layout.CLUSTER_STRIDE, "i64")
    with f.each_lane(lanes_) as lane:
        address, host, barrier = addresses.lane(lane), hosts.lane(lane), barriers.lane(lane)
        size, ranks = sizes.lane(lane).to("i64"), targets.lane(lane)
        with f.when(ranks.same(0)):
            f.call("void", one, context, kind, address, host, size, barrier, lane, extra)
        here, signal = rank_of(f, host), rank_of(f, barrier)
        with f.each_lane(ranks) as rank:
            absent = missing(f, rank)
            with f.when(absent.differs(0)):
                f.note(absent, f.constant("i32", 1) << lane, rank.to("i64"))
                f.give()
            far = rank.to("i64")
            f.call("void", one, context, kind, address, host + (far - here) * stride, size,
                   barrier + (far - signal) * stride, lane, extra)  # fmt: skip
        with f.when(f.field(layout.FAULT_CODE, "i32").differs(0)):
            f.give()
    return f


def _words_issue() -> Native:
    """words_issue(context, hosts, barriers, lanes, bytes, extra): begin stores (st.async) or
    operations (red.async, selected by extra) with the data in the first two IO columns."""
    f = Native(
        f"{PREFIX}words_issue", "void", ("ptr", "context"), (WIDE, "hosts"), (WIDE, "barriers"),
        ("i32", "lanes"), ("i64", "bytes"), ("i64", "extra"),
    )  # fmt: skip
    context, hosts, barriers, lanes_, size, how = f.given
    with f.each_lane(lanes_) as lane:
        host, barrier, bit = hosts.lane(lane), barriers.lane(lane), f.constant("i32", 1) << lane
        own_rank, rank = f.field(layout.RANK, "i32").to("i64"), rank_of(f, host)
        count = f.field(layout.CLUSTER_SIZE, "i32").to("i64")
        elsewhere = rank.differs(rank_of(f, barrier)) | rank.above(count - 1)
        with f.when(elsewhere | rank.same(own_rank)):
            f.note(layout.NOT_ONE_GROUP, bit, address_of(f, barrier))
            f.give()
        f.call("void", f"{PREFIX}mbarrier_known", context, barrier)
        with f.when(f.field(layout.FAULT_CODE, "i32").differs(0)):
            f.give()
        with f.when(how.same(0)):
            f.call("void", "llvm.memset.p0.i64", host.to("ptr"), f.constant("i8", -1), size,
                   Word(f, "false", "i1"))  # fmt: skip
        at = context.byte(layout.IO).byte(lane.to("i64") << 3)
        low, high = (f.load("i64", at.byte(column * layout.IO_COLUMN)) for column in range(2))
        kind = f.choose(how.same(0), f.word(flight.WORDS), f.word(flight.WORD))
        extra = f.choose(how.same(0), high, how)
        f.call("void", f"{PREFIX}bulk_enqueue", context, kind, low, host, size, barrier, lane,
               extra)  # fmt: skip
    return f


def _bulk_wait() -> Native:
    """bulk_wait(context, lanes, left): carry out the stores of all but `left` groups of lanes."""
    f = Native(f"{PREFIX}bulk_wait", "void", ("ptr", "context"), ("i32", "lanes"),
               ("i32", "left"))  # fmt: skip
    context, lanes, left = f.given
    area = f.field(layout.FLIGHT, "ptr")
    warp = f.field(layout.WARP, "i32").to("i64")
    groups = own(f).byte(flight.BULK_COMMITTED)
    tail = f.load("i64", area.byte(flight.BULK_TAIL))
    with f.count(tail, f.load("i64", area.byte(flight.BULK_HEAD))) as number:
        entry = _bulk(area, number)
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
    """bulk_forget(context): drop completed entries at the head."""
    f = Native(f"{PREFIX}bulk_forget", "void", ("ptr", "context"))
    area = f.field(layout.FLIGHT, "ptr")
    tail = f.load("i64", area.byte(flight.BULK_TAIL))
    with f.count(tail, f.load("i64", area.byte(flight.BULK_HEAD))) as number:
        kind = f.load("i64", _bulk(area, number).byte(flight.BULK_KIND))
        with f.when(kind.differs(flight.DONE)):
            f.give()
        f.store(number + 1, area.byte(flight.BULK_HEAD))
    return f


def _bulk_drain() -> Native:
    """bulk_drain(context, barrier): carry out the entries for which a phase of an mbarrier object
    waits."""
    f = Native(f"{PREFIX}bulk_drain", "void", ("ptr", "context"), ("i64", "barrier"))
    context, barrier = f.given
    area = f.field(layout.FLIGHT, "ptr")
    before = f.load("i64", barrier.to("ptr")) >> 63
    tail = f.load("i64", area.byte(flight.BULK_TAIL))
    with f.count(tail, f.load("i64", area.byte(flight.BULK_HEAD))) as number:
        entry = _bulk(area, number)
        waited = f.load("i64", entry.byte(flight.BULK_BARRIER)).same(barrier)
        kind = f.load("i64", entry.byte(flight.BULK_KIND))
        with f.when(waited & kind.differs(flight.DONE)):
            f.call("void", f"{PREFIX}bulk_run", context, entry)
            with f.when((f.load("i64", barrier.to("ptr")) >> 63).differs(before)):
                f.call("void", f"{PREFIX}bulk_forget", context)
                f.give()
    f.call("void", f"{PREFIX}bulk_forget", context)
    return f


def _end() -> Native:
    """flights_end(context): carry out the stores that were not waited for, and the copies out of
    this group's memory that other groups wait for. Data on its way to this group is lost."""
    f = Native(f"{PREFIX}flights_end", "void", ("ptr", "context"))
    area = f.field(layout.FLIGHT, "ptr")
    tail = f.load("i64", area.byte(flight.BULK_TAIL))
    with f.count(tail, f.load("i64", area.byte(flight.BULK_HEAD))) as number:
        entry = _bulk(area, number)
        with f.when(f.load("i64", entry.byte(flight.BULK_KIND)).same(flight.STORE)):
            f.call("void", f"{PREFIX}bulk_run", f.given[0], entry)
    own_rank = f.field(layout.RANK, "i32").to("i64")
    with f.count(f.field(layout.CLUSTER_SIZE, "i32").to("i64")) as rank:
        other = f.load("ptr", context_of(f, rank).byte(layout.FLIGHT))
        head = f.load("i64", other.byte(flight.BULK_HEAD))
        with f.count(f.load("i64", other.byte(flight.BULK_TAIL)), head) as number:
            entry = _bulk(other, number)
            source = f.load("i64", entry.byte(flight.BULK_GLOBAL))
            moves = f.load("i64", entry.byte(flight.BULK_KIND)).same(flight.MOVE)
            with f.when(moves & rank.differs(own_rank) & rank_of(f, source).same(own_rank)):
                f.call("void", f"{PREFIX}bulk_run", f.given[0], entry)
    return f


def bulks_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    text, needed = joined([
        _bulk_move(), _combine(), _bulk_run(), _enqueue(), _bulk_one(), _bulk_issue(),
        _words_issue(), _bulk_wait(), _bulk_forget(), _bulk_drain(),
        _end(),
    ])  # fmt: skip
    return text, needed | {  # functions in another part of the library
        f"declare i64 @{PREFIX}translate_{access}(ptr, i64)" for access in ("read", "write")
    } | {
        f"declare <32 x i{bits}> @{PREFIX}atomic_{bits}(ptr, {WIDE}, i32, i32, <32 x i{bits}>,"
        f" <32 x i{bits}>)" for bits in (16, 32, 64)
    }  # fmt: skip


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}{name}" for name in ("bulk_issue", "words_issue", "bulk_wait")]
