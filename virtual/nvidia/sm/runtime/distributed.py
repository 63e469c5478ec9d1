"""Native functions for the shared memory of all groups of a cluster (distributed shared memory).

An address below 2**24 is in the group's own memory. The same range for each rank follows. All
groups of a cluster run on one worker, each with its own context and piece of shared memory.
Source: PTX ISA 8.x, "State Spaces: Shared State Space", mapa; CUDA C++ Programming Guide,
"Distributed Shared Memory": a group's memory exists while it runs.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.native import Native
from ugpu.virtual.nvidia.sm.runtime.resolve import MASK, PREFIX, WIDE
from ugpu.virtual.shader.native import Word, joined

_OFFSETS = layout.GENERIC_WINDOW_SIZE - 1
# Masks of groups by rank, the bit value of those whose memory exists, and the fault of others.
_PRESENT = (
    (layout.GROUPS_BEGUN, 1, layout.GROUP_NOT_BEGUN),
    (layout.GROUPS_ENDED, 0, layout.GROUP_ENDED),
)


def rank_of(f: Native, host: Word) -> Word:
    """Return the rank (i64) of the group whose shared memory holds a host address."""
    at = host - f.field(layout.CLUSTER_SHARED, "i64")
    return f.value(f"udiv i64 {at.text}, {f.field(layout.CLUSTER_STRIDE, 'i64').text}", "i64")


def context_of(f: Native, rank: Word) -> Word:
    """Return the context of a rank (i64)."""
    return f.field(layout.FIRST, "ptr").byte(rank * layout.CONTEXT_SIZE)


def owner(f: Native, host: Word) -> Word:
    """Return the context of the group whose shared memory contains a host address; for other
    memory the running group's own."""
    rank, count = rank_of(f, host), f.field(layout.CLUSTER_SIZE, "i32").to("i64")
    return f.choose(rank.below(count), context_of(f, rank), f.given[0])


def address_of(f: Native, host: Word) -> Word:
    """Return the address in the cluster of a host address; for own memory its offset."""
    at = host - f.field(layout.SHARED, "i64")
    rank = rank_of(f, host)
    base = f.field(layout.CLUSTER_SHARED, "i64") + rank * f.field(layout.CLUSTER_STRIDE, "i64")
    mapped = ((rank + 1) << layout.CLUSTER_SHIFT) | (host - base)
    return f.choose(at.below(f.field(layout.SHARED_SIZE, "i64")), at, mapped)


def missing(f: Native, rank: Word) -> Word:
    """Return the fault (i32) of accessing a rank's (i32) shared memory now; 0: none."""
    first = f.field(layout.FIRST, "ptr")
    code = f.variable("i32", 0)
    for offset, there, fault in _PRESENT:
        bit = (f.load("i32", first.byte(offset)) >> rank) & 1
        with f.when(bit.differs(there)):
            code.set(fault)
    with f.when(rank.above(f.field(layout.CLUSTER_SIZE, "i32") - 1)):
        code.set(layout.BAD_RANK)
    return code.get()


def _note(f: Native, code: int, lanes: Word, addresses: Word) -> None:
    with f.when(lanes.differs(0)):
        number = f.constant("i32", code)
        f.call("void", f"{PREFIX}note", f.given[0], number, lanes, addresses)


def _beyond(f: Native, offsets: Word, size: Word) -> Word:
    """Return the lanes (i32) whose access of `size` bytes ends beyond a group's memory."""
    limit, size64 = f.field(layout.SHARED_SIZE, "i64"), size.to("i64")
    lanes = offsets.above(f.spread(WIDE, limit - size64)).to("i32")
    return f.choose(size64.above(limit), f.constant("i32", -1), lanes)


def _cluster() -> Native:
    """resolve_cluster(context, addresses, lanes, size): resolve addresses in the cluster."""
    f = Native(f"{PREFIX}resolve_cluster", WIDE, ("ptr", "context"), (WIDE, "addresses"),
               ("i32", "lanes"), ("i32", "size"))  # fmt: skip
    context, addresses, lanes, size = f.given
    low = addresses & f.spread(WIDE, (size - 1).to("i64"))
    odd = low.differs(0).to("i32") & lanes
    _note(f, layout.MISALIGNED, odd, addresses)
    window = addresses >> layout.CLUSTER_SHIFT
    own = f.spread(WIDE, f.field(layout.RANK, "i32").to("i64"))
    ranks = f.choose(window.same(0), own, window - 1)
    count = f.field(layout.CLUSTER_SIZE, "i32").to("i64")
    good = f.variable("i32", lanes & (odd ^ -1))
    strange = ranks.above(f.spread(WIDE, count - 1)).to("i32") & good.get()
    _note(f, layout.BAD_RANK, strange, addresses)
    good.set(good.get() & (strange ^ -1))
    first = f.field(layout.FIRST, "ptr")
    for offset, there, fault in _PRESENT:
        groups = f.spread(WIDE, f.load("i32", first.byte(offset)).to("i64"))
        bits = (groups >> (ranks & 31)) & 1
        absent = bits.differs(there).to("i32") & good.get()
        _note(f, fault, absent, addresses)
        good.set(good.get() & (absent ^ -1))
    offsets = addresses & _OFFSETS
    beyond = _beyond(f, offsets, size) & good.get()
    _note(f, layout.BAD_ADDRESS, beyond, addresses)
    mask = (good.get() & (beyond ^ -1)).to(MASK)
    base = f.spread(WIDE, f.field(layout.CLUSTER_SHARED, "i64"))
    hosts = base + ranks * f.spread(WIDE, f.field(layout.CLUSTER_STRIDE, "i64")) + offsets
    spare = f.spread(WIDE, context.byte(layout.SPARE).to("i64"))
    f.give(f.choose(mask, hosts, spare))
    return f


def _own() -> Native:
    """resolve_own(context, addresses, lanes, size): own memory, addressed also by its rank."""
    f = Native(f"{PREFIX}resolve_own", WIDE, ("ptr", "context"), (WIDE, "addresses"),
               ("i32", "lanes"), ("i32", "size"))  # fmt: skip
    context, addresses, lanes, size = f.given
    window = f.spread(WIDE, (f.field(layout.RANK, "i32") + 1).to("i64"))
    mapped = (addresses >> layout.CLUSTER_SHIFT).same(window)
    offsets = f.choose(mapped, addresses & _OFFSETS, addresses)
    beyond = _beyond(f, offsets, size) & lanes
    _note(f, layout.BAD_ADDRESS, beyond, addresses)
    mask = (lanes & (beyond ^ -1)).to(MASK)
    base = f.spread(WIDE, f.field(layout.SHARED, "i64"))
    spare = f.spread(WIDE, context.byte(layout.SPARE).to("i64"))
    f.give(f.choose(mask, base + offsets, spare))
    return f


def distributed_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([_cluster(), _own()])


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}resolve_cluster"]
