"""Asynchronous products of a warp group (wgmma): issued, committed, and computed when waited for.

Each warp counts the products it issues. The first warp of a warp group to issue a product records
it, and the others must issue the same. At `wait_group` the four warps meet and the products are
computed from the contents of shared memory and registers at that time.
Source: PTX ISA 8.x, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout as flight
from ugpu.virtual.nvidia.sm.runtime.flights.flights import own
from ugpu.virtual.nvidia.sm.runtime.native import Native
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.shader.native import Word, joined

_RESERVED = 0x3FF1_C000_C000_C000  # reserved bits of a matrix descriptor


def _group(f: Native, warp: Word) -> Word:
    """Return the part of the area that belongs to a warp's warp group."""
    area = f.field(layout.FLIGHT, "ptr")
    return area.byte((warp >> 2) * flight.GROUP_STRIDE + flight.GROUPS)


def _entry(group: Word, number: Word) -> Word:
    slot = (number & (flight.PRODUCT_ENTRIES - 1)) * flight.PRODUCT_SIZE
    return group.byte(slot + flight.PRODUCTS)


def _issue() -> Native:
    """product_issue(context, tables, what, a, b, adds): issue wgmma.mma_async from one warp.

    tables: of its held registers. what: the description. a, b: descriptors. Errors are noted.
    """
    f = Native(
        f"{PREFIX}product_issue", "void", ("ptr", "context"), ("ptr", "tables"), ("ptr", "what"),
        ("i64", "a"), ("i64", "b"), ("i64", "adds"),
    )  # fmt: skip
    context, tables, what, a, b, adds = f.given
    warp = f.field(layout.WARP, "i32").to("i64")
    none = f.constant("i32", 0)
    with f.when((warp | 3).above(f.field(layout.WARPS, "i32").to("i64") - 1)):
        f.note(layout.WARP_GROUP, none, warp)
        f.give()
    number = f.change(own(f).byte(flight.PRODUCTS_ISSUED), "i64", 1) + 1
    group = _group(f, warp)
    entry = _entry(group, number)
    fields = (what.to("i64"), a, b, adds)
    newest = f.load("i64", group.byte(flight.NEWEST))
    with f.when(number.above(newest)):
        finished = f.load("i64", group.byte(flight.FINISHED))
        with f.when((number - finished).above(flight.PRODUCT_ENTRIES - 1)):
            f.note(layout.BAD_COUNT, none, number - finished)
            f.give()
        f.store(number, group.byte(flight.NEWEST))
        for place, value in enumerate(fields):
            f.store(value, entry.byte(8 * place))
        with f.when(f.load("i64", what.byte(flight.A_HELD)).same(0)):
            f.call("void", f"{PREFIX}product_reads", context, what, a, f.word(0))
        f.call("void", f"{PREFIX}product_reads", context, what, b, f.word(1))
    for place, value in enumerate(fields):
        with f.when(f.load("i64", entry.byte(8 * place)).differs(value)):
            f.note(layout.WARP_GROUP, none, warp)
    for table in (flight.D_TABLE, flight.A_TABLE):
        which = f.load("i64", what.byte(table))
        with f.when(which.differs(-1)):
            at = tables.byte(which * flight.TABLE_SIZE)
            touched = f.load("i64", at.byte(8))
            with f.when(touched.differs(0)):
                f.violate(layout.NO_REGISTER_FENCE, touched)
            f.store(number, at)
    return f


def _reads() -> Native:
    """product_reads(context, what, descriptor, second): check the memory that a factor covers."""
    f = Native(f"{PREFIX}product_reads", "void", ("ptr", "context"), ("ptr", "what"),
               ("i64", "descriptor"), ("i64", "second"))  # fmt: skip
    context, what, descriptor, second = f.given
    none = f.constant("i32", 0)
    swizzle = descriptor >> 62
    # The pattern starts at the base offset: 128, 64 or 32 bytes repeat after 8 rows.
    period = f.choose(swizzle.same(0), f.word(0), f.word(7) >> (swizzle - 1))
    start = (descriptor & 0x3FFF) << 4
    base = (descriptor >> 49) & 7
    with f.when((((start >> 7) ^ base) & period).differs(0)):
        f.note(layout.BAD_DESCRIPTOR, none, descriptor)
        f.give()
    with f.when((descriptor & _RESERVED).differs(0)):
        f.note(layout.BAD_DESCRIPTOR, none, descriptor)
        f.give()
    outer, inner = factor_extent(f, what, second)
    limit = f.field(layout.SHARED_SIZE, "i64")
    shared = f.field(layout.SHARED, "ptr").to("i64")
    turned = factor_turned(f, what, second)
    with f.count(outer) as row, f.count(inner) as chunk:
        at = f.call("i64", f"{PREFIX}product_chunk", descriptor, turned, row, chunk)
        with f.when((at + 16).above(limit)):
            f.note(layout.BAD_ADDRESS, none, at)
            f.give()
        f.call("void", f"{PREFIX}proxy_checked", context, shared + at, f.word(16))
    return f


def factor_turned(f: Native, what: Word, second: Word) -> Word:
    """Return whether a factor is stored with its rows (columns of B) along memory, as i64."""
    return f.choose(
        second.same(0), f.load("i64", what.byte(flight.TURN_A)),
        f.load("i64", what.byte(flight.TURN_B)),
    )  # fmt: skip


def factor_extent(f: Native, what: Word, second: Word) -> tuple[Word, Word]:
    """Return how many rows a factor has in shared memory, and chunks of 16 bytes in each."""
    across = f.choose(second.same(0), f.word(64), f.load("i64", what.byte(flight.COLUMNS)))
    turned = factor_turned(f, what, second).differs(0)
    return f.choose(turned, f.word(16), across), f.choose(turned, across >> 3, f.word(2))


def _chunk() -> Native:
    """product_chunk(descriptor, turned, row, chunk): return the address of 16 bytes of a factor.

    The address is in shared memory. A row is one of A or a column of B. If the factor is turned, a
    row is one value of k, and chunks follow each other along the rows of A or columns of B.
    """
    f = Native(f"{PREFIX}product_chunk", "i64", ("i64", "descriptor"), ("i64", "turned"),
               ("i64", "row"), ("i64", "chunk"), part=True)  # fmt: skip
    descriptor, turned, row, chunk = f.given
    start = (descriptor & 0x3FFF) << 4
    leading = ((descriptor >> 16) & 0x3FFF) << 4
    stride = ((descriptor >> 32) & 0x3FFF) << 4
    swizzle = descriptor >> 62
    plain = swizzle.same(0)
    # 16-byte chunks in a row of the pattern, as a shift: 8, 4 or 2; 1 without swizzling.
    wide = f.choose(plain, f.word(0), f.word(4) - swizzle)
    swapped = plain & turned.differs(0)
    rows_on = f.choose(swapped, leading, stride)
    chunks_on = f.choose(swapped, stride, leading)
    inner = chunk & ((f.word(1) << wide) - 1)
    at = start + (row >> 3) * rows_on + ((row & 7) << (wide + 4))
    at = at + (chunk >> wide) * chunks_on + (inner << 4)
    base = (descriptor >> 49) & 7
    mixed = ((at >> 7) - base) & ((f.word(1) << wide) - 1)
    f.give(at ^ (mixed << 4))
    return f


def _commit() -> Native:
    """product_commit(context): make a group of the products issued since the last commit."""
    f = Native(f"{PREFIX}product_commit", "void", ("ptr", "context"))
    warp = own(f)
    count = f.change(warp.byte(flight.PRODUCT_GROUPS), "i64", 1)
    place = (count & (flight.GROUP_ENTRIES - 1)) << 3
    f.store(f.load("i64", warp.byte(flight.PRODUCTS_ISSUED)), warp.byte(place + flight.GROUP_ENDS))
    return f


def _wait() -> Native:
    """product_wait(context, left): record that the warp waits for all but `left` newest groups."""
    f = Native(f"{PREFIX}product_wait", "void", ("ptr", "context"), ("i64", "left"))
    _, left = f.given
    warp = own(f)
    count = f.load("i64", warp.byte(flight.PRODUCT_GROUPS))
    f.store(f.word(0), warp.byte(flight.PRODUCTS_WANTED))
    with f.when(count.above(left)):
        place = ((count - left - 1) & (flight.GROUP_ENTRIES - 1)) << 3
        f.store(f.load("i64", warp.byte(place + flight.GROUP_ENDS)),
                warp.byte(flight.PRODUCTS_WANTED))  # fmt: skip
    return f


def _run() -> Native:
    """products_run(context, group): compute the products that four waiting warps wait for."""
    f = Native(f"{PREFIX}products_run", "void", ("ptr", "context"), ("i64", "group"))
    context, which = f.given
    area = f.field(layout.FLIGHT, "ptr")
    first = area.byte((which << 2) * flight.WARP_STRIDE + flight.WARP)
    wanted = f.load("i64", first.byte(flight.PRODUCTS_WANTED))
    for warp in range(1, 4):
        at = first.byte(warp * flight.WARP_STRIDE + flight.PRODUCTS_WANTED)
        with f.when(f.load("i64", at).differs(wanted)):
            f.note(layout.WARP_GROUP, f.constant("i32", 0), (which << 2) + warp)
            f.give()
    group = _group(f, which << 2)
    finished = f.load("i64", group.byte(flight.FINISHED))
    with f.when(wanted.above(finished)):
        f.store(wanted, group.byte(flight.FINISHED))
        stride = f.field(layout.STATE_STRIDE, "i64")
        state = f.field(layout.STATES, "ptr").byte((which << 2) * stride)
        for warp in range(4):
            f.store(wanted, state.byte(stride * warp + layout.STATE_PRODUCTS))
        # Keep the sums in one place while products add to the same registers.
        places = f.variable("i64", 0)
        columns = f.variable("i64", 0)
        result = f.variable("i64", 0)
        with f.count(wanted + 1, finished + 1) as number:
            entry = _entry(group, number)
            what = f.load("ptr", entry)
            target = f.load("i64", what.byte(flight.D_PLACES))
            kind = f.load("i64", what.byte(flight.RESULT))
            adds = f.load("i64", entry.byte(24))
            moved = target.differs(places.get()) | kind.same(flight.RESULTS.index("f16"))
            with f.when(moved & places.get().differs(0)):
                f.call("void", f"{PREFIX}sums_out", context, state, places.get(), columns.get(),
                       result.get())  # fmt: skip
            places_before = places.get()
            places.set(target)
            columns.set(f.load("i64", what.byte(flight.COLUMNS)))
            result.set(kind)
            with f.when(adds.same(0)):
                f.call("void", "llvm.memset.p0.i64", area.byte(flight.SUMS), f.constant("i8", 0),
                       f.word(64 * flight.ROW * 4), Word(f, "false", "i1"))  # fmt: skip
            fresh = target.differs(places_before) | kind.same(flight.RESULTS.index("f16"))
            with f.when(adds.differs(0) & fresh):
                f.call("void", f"{PREFIX}sums_in", context, state, target, columns.get(), kind)
            f.call("void", f"{PREFIX}product", context, state, what, f.load("i64", entry.byte(8)),
                   f.load("i64", entry.byte(16)))  # fmt: skip
        f.call("void", f"{PREFIX}sums_out", context, state, places.get(), columns.get(),
               result.get())  # fmt: skip
    return f


def _missing() -> Native:
    """products_missing(context, ended): note a warp group whose warps do not execute the same.

    ended: whether all warps have ended; else none of them can continue.
    """
    f = Native(f"{PREFIX}products_missing", "void", ("ptr", "context"), ("i32", "ended"))
    context, ended = f.given
    area = f.field(layout.FLIGHT, "ptr")
    with f.when(area.to("i64").same(0)):
        f.give()
    none = f.constant("i32", 0)
    with f.when(ended.same(0)), f.count(flight.WARP_GROUPS) as group:
        slot = context.byte((group << 3) + (layout.BARRIERS + 8 * layout.NAMED))
        with f.when(f.load("i32", slot).differs(0)):
            f.note(layout.WARP_GROUP, none, group << 2)
    with f.when(ended.differs(0)), f.count(f.field(layout.WARPS, "i32").to("i64")) as number:
        newest = f.load("i64", _group(f, number).byte(flight.NEWEST))
        warp = area.byte(number * flight.WARP_STRIDE + flight.WARP)
        with f.when(f.load("i64", warp.byte(flight.PRODUCTS_ISSUED)).differs(newest)):
            what = f.load("ptr", _entry(_group(f, number), newest))
            index = f.load("i64", what.byte(flight.INDEX)).to("i32")
            f.store(index, context.byte(layout.FAULT_INDEX))
            f.note(layout.WARP_GROUP, none, number)
    return f


def products_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([
        _issue(), _reads(), _chunk(), _commit(), _wait(), _run(), _missing(),
    ])  # fmt: skip


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}product_{name}" for name in ("issue", "commit", "wait")]
