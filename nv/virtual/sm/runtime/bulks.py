"""Copies in bulk in flight: cp.async.bulk, and their groups.

They are in a ring, and are carried out when a thread waits for them; until then the place of what
is to arrive in shared memory holds bytes of all ones.
Source: PTX ISA 8.x, "Data Movement and Conversion Instructions: Bulk copy".
"""

from __future__ import annotations

from hcq.emu.memory import PAGE_SHIFT
from nv.virtual.sm.runtime import async_layout as flight
from nv.virtual.sm.runtime import layout
from nv.virtual.sm.runtime.flights import own, ring
from nv.virtual.sm.runtime.native import Native, Word, joined
from nv.virtual.sm.runtime.proxies import check
from nv.virtual.sm.runtime.resolve import PREFIX, WIDE

_NUMBERS = "<32 x i32>"
_PAGE = 1 << PAGE_SHIFT
_MOST_BYTES = (1 << 20) - 1  # what the tx-count of an mbarrier object holds


def _bulk(f: Native, area: Word, number: Word) -> Word:
    return ring(area, flight.BULK, flight.BULK_SIZE, flight.BULK_ENTRIES, number)


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


def _bulk_drain() -> Native:
    """bulk_drain(context, barrier): carry out what a phase of an mbarrier object waits for."""
    f = Native(f"{PREFIX}bulk_drain", "void", ("ptr", "context"), ("i64", "barrier"))
    context, barrier = f.given
    area = f.field(layout.FLIGHT, "ptr")
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


def bulks_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    text, needed = joined([
        _bulk_move(), _bulk_run(), _bulk_issue(), _bulk_wait(), _bulk_forget(), _bulk_drain(),
        _end(),
    ])  # fmt: skip
    return text, needed | {  # of another part of the library
        f"declare i64 @{PREFIX}translate_{access}(ptr, i64)" for access in ("read", "write")
    }


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}bulk_issue", f"{PREFIX}bulk_wait"]
