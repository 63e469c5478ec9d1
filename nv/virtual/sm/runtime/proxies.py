"""Which shared memory the generic proxy has written and no proxy fence has ordered yet.

Bulk copies and wgmma reach shared memory through the asynchronous proxy; what a thread wrote before
is there for them only after `fence.proxy.async`. A byte a granule of 16 bytes notes the warp that
wrote; once it has synchronised with others (a barrier, an arrival), a fence of any thread will do.
Kernels without such operations keep no notes.
Source: PTX ISA 8.x, "Memory Consistency Model": proxies, proxy-preserved base causality order.
"""

from __future__ import annotations

from nv.virtual.sm.runtime import async_layout as flight
from nv.virtual.sm.runtime import layout
from nv.virtual.sm.runtime.native import Native, Word, joined
from nv.virtual.sm.runtime.resolve import MASK, PREFIX, WIDE

_ROW = "<64 x i8>"


def _written() -> Native:
    """proxy_written(context, hosts, lanes, size): note what lanes write to shared memory."""
    f = Native(f"{PREFIX}proxy_written", "void", ("ptr", "context"), (WIDE, "hosts"),
               ("i32", "lanes"), ("i64", "size"))  # fmt: skip
    _, hosts, lanes, size = f.given
    marks = f.field(layout.FLIGHT, "ptr")
    shared = f.field(layout.SHARED, "ptr").to("i64")
    limit = f.field(layout.SHARED_SIZE, "i64")
    mark = (f.field(layout.WARP, "i32") + 1).to("i8")
    with f.when(size.below(17)):  # naturally aligned: one granule a lane
        spare = f.given[0].byte(layout.SPARE).to("i64")
        at = hosts - f.spread(WIDE, shared)
        inside = at.below(f.spread(WIDE, limit)) & lanes.to(MASK)
        places = (at >> flight.MARK_SHIFT) + f.spread(WIDE, marks.to("i64"))
        places = f.choose(inside, places, f.spread(WIDE, spare))
        for lane in range(32):
            f.store(mark, places.lane(lane).to("ptr"))
        f.give()
    with f.each_lane(lanes) as which:
        begin = hosts.lane(which) - shared
        with f.when(begin.below(limit)):
            end = (begin + size + 15) >> flight.MARK_SHIFT
            with f.count(end, begin >> flight.MARK_SHIFT) as granule:
                f.store(mark, marks.byte(granule))
    return f


def _swept(name: str, keep: bool) -> Native:
    """Change the marks of the running warp: to PUBLISHED, or with all published ones to none."""
    f = Native(f"{PREFIX}{name}", "void", ("ptr", "context"))
    marks = f.field(layout.FLIGHT, "ptr")
    granules = (f.field(layout.SHARED_SIZE, "i64") + 15) >> flight.MARK_SHIFT
    own = (f.field(layout.WARP, "i32") + 1).to("i8")
    mine = f.spread(_ROW, own)
    with f.count(granules, 0, 64) as granule:
        at = marks.byte(granule)
        row = f.load(_ROW, at, 64)
        new = f.constant(_ROW, -1 if keep else 0)
        changed = f.choose(row.same(mine), new, row)
        if not keep:
            changed = f.choose(row.same(-1), new, changed)
        f.store(changed, at, 64)
    return f


def _checked() -> Native:
    """proxy_checked(context, host, bytes): note a fault where a proxy fence is missing."""
    f = Native(f"{PREFIX}proxy_checked", "void", ("ptr", "context"), ("i64", "host"),
               ("i64", "bytes"))  # fmt: skip
    _, host, size = f.given
    marks = f.field(layout.FLIGHT, "ptr")
    with f.when(size.same(16) & (host & 15).same(0)):
        where = host - f.field(layout.SHARED, "ptr").to("i64")
        mark = f.load("i8", marks.byte(where >> flight.MARK_SHIFT))
        with f.when(mark.same(0)):
            f.give()
    at = host - f.field(layout.SHARED, "ptr").to("i64")
    with f.when(at.below(f.field(layout.SHARED_SIZE, "i64"))):
        end = (at + size + 15) >> flight.MARK_SHIFT
        with f.count(end, at >> flight.MARK_SHIFT) as granule:
            mark = f.load("i8", marks.byte(granule))
            with f.when(mark.differs(0)):
                f.note(layout.NO_PROXY_FENCE, f.constant("i32", 0), granule << flight.MARK_SHIFT)
                f.give()
    return f


def check(f: Native, host: Word, size: Word) -> None:
    """Emit a look at shared memory before the asynchronous proxy touches it."""
    f.call("void", f"{PREFIX}proxy_checked", f.given[0], host, size)


def proxies_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([
        _written(), _checked(), _swept("proxy_published", True), _swept("proxy_fenced", False),
    ])  # fmt: skip


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}proxy_{name}" for name in ("written", "checked", "published", "fenced")]
