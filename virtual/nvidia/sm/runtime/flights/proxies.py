"""Shared memory that the generic proxy has written and no proxy fence has ordered yet.

Bulk copies and wgmma access shared memory through the asynchronous proxy. They see a thread's
writes only after `fence.proxy.async`. For each granule of 16 bytes, one byte records the warp that
wrote it. Once that warp has synchronised with others (a barrier, an arrival), a fence by any thread
is sufficient. Kernels without such operations record nothing. A missing fence is a violation, not a
fault: boards do not trap on it, and NVIDIA's own cuda::memcpy_async has no fence between
mbarrier.init and its copy.
Source: PTX ISA 8.x, "Memory Consistency Model": proxies, proxy-preserved base causality order.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.distributed import address_of, context_of, owner
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout as flight
from ugpu.virtual.nvidia.sm.runtime.native import Native
from ugpu.virtual.nvidia.sm.runtime.resolve import MASK, PREFIX, WIDE
from ugpu.virtual.shader.native import Word, joined

_ROW = "<64 x i8>"


def _written() -> Native:
    """proxy_written(context, hosts, lanes, size): record writes of lanes to shared memory."""
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
        others = lanes & (inside.to("i32") ^ -1)
        with f.when(others.differs(0) & f.field(layout.CLUSTER_SIZE, "i32").above(1)):
            f.call("void", f"{PREFIX}proxy_written_far", f.given[0], hosts, others, size)
        f.give()
    with f.each_lane(lanes) as which:
        begin = hosts.lane(which) - shared
        with f.when(begin.below(limit)):
            end = (begin + size + 15) >> flight.MARK_SHIFT
            with f.count(end, begin >> flight.MARK_SHIFT) as granule:
                f.store(mark, marks.byte(granule))
    return f


def _written_far() -> Native:
    """proxy_written_far(context, hosts, lanes, size): record writes of lanes to other groups'
    memory, as if they had synchronised: a fence by any thread of the cluster is sufficient."""
    f = Native(f"{PREFIX}proxy_written_far", "void", ("ptr", "context"), (WIDE, "hosts"),
               ("i32", "lanes"), ("i64", "size"))  # fmt: skip
    _, hosts, lanes, size = f.given
    stride = f.field(layout.CLUSTER_STRIDE, "i64")
    count = f.field(layout.CLUSTER_SIZE, "i32").to("i64")
    first = f.field(layout.CLUSTER_SHARED, "i64")
    with f.each_lane(lanes) as lane:
        host = hosts.lane(lane)
        with f.when((host - first).below(stride * count)):
            marks, begin = _place(f, host)
            end = (begin + size + 15) >> flight.MARK_SHIFT
            with f.count(end, begin >> flight.MARK_SHIFT) as granule:
                f.store(f.constant("i8", -1), marks.byte(granule))
    return f


def _place(f: Native, host: Word) -> tuple[Word, Word]:
    """Return the marks of the group that a host address of shared memory belongs to, and its offset
    there."""
    marks = f.variable("ptr", f.field(layout.FLIGHT, "ptr"))
    begin = f.variable("i64", host - f.field(layout.SHARED, "i64"))
    with f.when(begin.get().above(f.field(layout.SHARED_SIZE, "i64") - 1)):
        group = owner(f, host)
        marks.set(f.load("ptr", group.byte(layout.FLIGHT)))
        begin.set(host - f.load("i64", group.byte(layout.SHARED)))
    return marks.get(), begin.get()


def _sweep(f: Native, marks: Word, own: Word | None, keep: bool) -> None:
    """Change marks of `own` to PUBLISHED (`keep`), or clear them and all published ones."""
    granules = (f.field(layout.SHARED_SIZE, "i64") + 15) >> flight.MARK_SHIFT
    new = f.constant(_ROW, -1 if keep else 0)
    with f.count(granules, 0, 64) as granule:
        at = marks.byte(granule)
        row = f.load(_ROW, at, 64)
        changed = row
        if own is not None:
            changed = f.choose(row.same(own), new, changed)
        if not keep:
            changed = f.choose(row.same(-1), new, changed)
        f.store(changed, at, 64)


def _swept(name: str, keep: bool) -> Native:
    """Change the marks of the running warp; a fence also clears published marks of other groups."""
    f = Native(f"{PREFIX}{name}", "void", ("ptr", "context"))
    own = f.spread(_ROW, (f.field(layout.WARP, "i32") + 1).to("i8"))
    _sweep(f, f.field(layout.FLIGHT, "ptr"), own, keep)
    if not keep:
        count = f.field(layout.CLUSTER_SIZE, "i32").to("i64")
        with f.when(count.above(1)), f.count(count) as rank:
            marks = f.load("ptr", context_of(f, rank).byte(layout.FLIGHT))
            _sweep(f, marks, None, keep)
    return f


def _checked() -> Native:
    """proxy_checked(context, host, bytes): count a violation if a proxy fence is missing."""
    f = Native(f"{PREFIX}proxy_checked", "void", ("ptr", "context"), ("i64", "host"),
               ("i64", "bytes"))  # fmt: skip
    _, host, size = f.given
    marks, where = _place(f, host)
    with f.when(size.same(16) & (host & 15).same(0)):
        mark = f.load("i8", marks.byte(where >> flight.MARK_SHIFT))
        with f.when(mark.same(0)):
            f.give()
    end = (where + size + 15) >> flight.MARK_SHIFT
    with f.count(end, where >> flight.MARK_SHIFT) as granule:
        mark = f.load("i8", marks.byte(granule))
        with f.when(mark.differs(0)):
            at = host + ((granule << flight.MARK_SHIFT) - where)
            f.violate(layout.NO_PROXY_FENCE, address_of(f, at))
            f.give()
    return f


def check(f: Native, host: Word, size: Word) -> None:
    """Emit a check of shared memory before the asynchronous proxy accesses it."""
    f.call("void", f"{PREFIX}proxy_checked", f.given[0], host, size)


def proxies_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([
        _written(), _written_far(), _checked(), _swept("proxy_published", True),
        _swept("proxy_fenced", False),
    ])  # fmt: skip


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}proxy_{name}" for name in ("written", "checked", "published", "fenced")]
