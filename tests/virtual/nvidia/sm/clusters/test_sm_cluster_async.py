"""What groups of a cluster send each other: arrivals, st.async, red.async, copies in bulk.

References are written from the PTX ISA: "mbarrier", "st.async", "red.async", "cp.async.bulk",
"cp.reduce.async.bulk". Every kernel has been taken by NVIDIA's assembler, where that is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.sm.sm_clusters import SYNC, legal
from tests.support.nvidia.sm.sm_run import Bench, body
from ugpu.virtual.nvidia.sm_contract import SmEnding, SmOutcome

HEAD = """.shared .align 128 .b8 part[4096]; .shared .align 128 .b8 from_here[4096];
.shared .align 8 .b64 gate; .shared .align 8 .b64 other_gate;"""
# %own: `part`; %near: word %t of it; %gate: the mbarrier object; %next: the next group's rank.
PLACES = """
.reg .b32 %rank, %size, %near, %far, %own, %gate, %there, %next, %group; .reg .b64 %out;
.reg .pred %first, %over;
mov.u32 %rank, %cluster_ctarank; mov.u32 %size, %cluster_nctarank; mov.u32 %group, %ctaid.x;
mov.u32 %own, part; mov.u32 %gate, gate; shl.b32 %r60, %t, 2; add.u32 %near, %own, %r60;
add.u32 %next, %rank, 1; rem.u32 %next, %next, %size;
mul.lo.u32 %r60, %group, 1024; mad.lo.u32 %r60, %t, 4, %r60; cvt.u64.u32 %out, %r60;
add.s64 %out, %out, %rd1; setp.eq.u32 %first, %t, 0;
"""
NEXT = """mapa.shared::cluster.u32 %far, %near, %next;
mapa.shared::cluster.u32 %there, %gate, %next;"""
ROW = 256  # numbers that a group may write


def init(count: int | str, name: str = "%gate") -> str:
    """Make the mbarrier object; all groups know of it."""
    return f"""@%first mbarrier.init.shared::cta.b64 [{name}], {count};
    @%first fence.mbarrier_init.release.cluster; fence.proxy.async; {SYNC}"""


def expect(size: int | str) -> str:
    return f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%gate], {size};"


def wait(parity: int = 0, label: str = "WAIT", name: str = "%gate") -> str:
    return f"""{label}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %over, [{name}],
    {parity}; @!%over bra {label};"""


def launch(text: str, source: np.ndarray | None = None, size: int = 2, groups: int | None = None,
           **options: Any) -> tuple[SmOutcome, np.ndarray]:  # fmt: skip
    """Run a kernel; return how it ended and the row of numbers that each group wrote."""
    bench = Bench(workers=options.pop("workers", 1))
    groups = groups or size
    data, _ = bench.array(np.zeros(1, np.uint32) if source is None else source)
    target, out = bench.array(np.zeros((groups, ROW), np.uint32))
    head = options.pop("head", HEAD)
    options.setdefault("shared", 8192 + 16)
    outcome = bench.launch(legal(body(2, PLACES + text, head)), data, target, grid=(groups,),
                           cluster=(size,), **options)  # fmt: skip
    return outcome, out


def rows(text: str, *arguments: Any, **options: Any) -> np.ndarray:
    outcome, out = launch(text, *arguments, **options)
    assert outcome.ending is SmEnding.DONE, outcome
    return out


# -- mbarrier objects of other groups ------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4, 7])
def test_arrivals_from_all_groups(size: int) -> None:
    """Each group waits for all threads of all others, and then finds what they have written."""
    out = rows(f"""
    {init(32 * (size - 1))} mov.u32 %r1, 1;
    NEXT: add.u32 %r2, %rank, %r1; rem.u32 %r2, %r2, %size;
    shl.b32 %r3, %rank, 7; add.u32 %r3, %near, %r3; mapa.shared::cluster.u32 %far, %r3, %r2;
    mad.lo.u32 %r4, %rank, 100, %t; st.shared::cluster.u32 [%far], %r4;
    mapa.shared::cluster.u32 %there, %gate, %r2;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there];
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %size; @%p1 bra NEXT;
    {wait()} mov.u32 %r5, 0; mov.u32 %r6, 0; mov.u32 %r7, %near;
    SUM: ld.shared.u32 %r8, [%r7]; setp.ne.u32 %p2, %r5, %rank; @%p2 add.u32 %r6, %r6, %r8;
    add.u32 %r7, %r7, 128; add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, %size; @%p1 bra SUM;
    st.global.u32 [%out], %r6; {SYNC}
    """, size=size, groups=2 * size)  # fmt: skip
    rank = np.arange(2 * size)[:, None] % size
    total = 100 * (size * (size - 1) // 2 - rank) + (size - 1) * np.arange(32)
    assert np.array_equal(out[:, :32], total)


def test_bytes_and_drops_of_another_group() -> None:
    """expect_tx, complete_tx, arrive.expect_tx, arrive with a count, arrive_drop: all from away."""
    out = rows(f"""
    {init(4)} setp.ne.u32 %p1, %rank, 1; @%p1 bra OWN; @!%first bra OWN;
    mapa.shared::cluster.u32 %there, %gate, 0;
    mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%there], 24;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there], 2;
    mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%there], 8;
    mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [%there];
    OWN: {SYNC}
    mbarrier.test_wait.parity.shared::cta.b64 %over, [%gate], 0; selp.u32 %r1, 1, 0, %over;
    {SYNC} @%first setp.eq.u32 %p2, %rank, 1; @!%first setp.ne.u32 %p2, 0, 0;
    mapa.shared::cluster.u32 %there, %gate, 0;
    @%p2 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%there], 32; {SYNC}
    mbarrier.test_wait.parity.shared::cta.b64 %over, [%gate], 0; selp.u32 %r2, 2, 0, %over;
    @%p2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there], 3; {SYNC}
    mbarrier.test_wait.parity.shared::cta.b64 %over, [%gate], 1; selp.u32 %r3, 4, 0, %over;
    or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3; st.global.u32 [%out], %r1;
    """)  # fmt: skip
    assert (out[0, :32] == 6).all()  # phase 0 over with its bytes, phase 1 with one thread less
    assert (out[1, :32] == 4).all()  # nobody came: phase -1 is over, phase 0 is not


# -- st.async and red.async ----------------------------------------------------------------------

STORES = {
    "b32": ("%r1", 4), "u64": ("%rd9", 8), "f32": ("%f1", 4), "v2.b32": ("{%r1, %r2}", 8),
    "v4.s32": ("{%r1, %r2, %r3, %r4}", 16), "v2.b64": ("{%rd9, %rd10}", 16), "f64": ("%d1", 8),
}  # fmt: skip


@pytest.mark.parametrize("kind", STORES)
def test_stores_to_the_next_group(kind: str) -> None:
    """They are there when the other's mbarrier object says so, and not before."""
    value, unit = STORES[kind]
    loads = "\n".join(
        f"ld.shared.u32 %r2{n}, [%r10+{4 * n}]; st.global.u32 [%rd12+{4 * n}], %r2{n};"
        for n in range(unit // 4)
    )
    text = f"""
    mad.lo.u32 %r1, %group, 1000, %t; add.u32 %r2, %r1, 100; add.u32 %r3, %r1, 200;
    add.u32 %r4, %r1, 300; mov.b64 %rd9, {{%r1, %r2}}; mov.b64 %rd10, {{%r3, %r4}};
    mov.b32 %f1, %r1; mov.b64 %d1, %rd9; mad.lo.u32 %r10, %t, {unit}, %own;
    mad.lo.u32 %r11, %t, {unit - 4}, 0; cvt.u64.u32 %rd12, %r11; add.s64 %rd12, %rd12, %out;
    {init(1)} {expect(32 * unit)} {SYNC}
    mapa.shared::cluster.u32 %far, %r10, %next; mapa.shared::cluster.u32 %there, %gate, %next;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{kind} [%far], {value}, [%there];
    {SYNC} ld.shared.u32 %r12, [%r10]; st.global.u32 [%rd12+512], %r12;
    {wait()} {loads} {SYNC}
    """
    out = rows(text, size=3)
    base = (np.arange(3)[:, None, None] - 1) % 3 * 1000 + np.arange(32)[:, None]
    wanted = base + 100 * np.arange(unit // 4)
    assert np.array_equal(out[:, : 8 * unit].reshape(wanted.shape), wanted)
    assert (out[:, 128] == 0xFFFFFFFF).all()


OPERATIONS = {
    "add.u32": np.add, "add.s32": np.add, "min.u32": np.minimum, "max.s32": np.maximum,
    "min.s32": np.minimum, "max.u32": np.maximum, "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or, "xor.b32": np.bitwise_xor, "inc.u32": None, "dec.u32": None,
    "add.u64": np.add,
}  # fmt: skip


def stepped(operation: str, old: int, limit: int) -> int:
    if operation == "inc.u32":
        return 0 if old >= limit else old + 1
    return limit if old == 0 or old > limit else old - 1


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_in_the_next_group(operation: str) -> None:
    """All lanes operate on 8 words of the next group, four lanes on each."""
    wide = operation.endswith("64")
    kind = {"u": np.uint32, "s": np.int32, "b": np.uint32}[operation[-3]]
    kind = np.dtype(np.uint64) if wide else np.dtype(kind)
    unit = kind.itemsize
    data = np.random.default_rng(3).integers(0, 2**32, (2, 32, 2), np.uint32)
    if operation in ("inc.u32", "dec.u32"):
        data %= 5
    value = "%rd9" if wide else "%r1"
    text = f"""
    mad.lo.u32 %r5, %rank, 32, %t; mul.wide.u32 %rd8, %r5, 8; add.s64 %rd8, %rd8, %rd0;
    ld.global.v2.u32 {{%r1, %r2}}, [%rd8]; mov.b64 %rd9, {{%r1, %r2}};
    and.b32 %r3, %t, 7; mad.lo.u32 %r3, %r3, {unit}, %own; mov.u32 %r4, 3; mov.u64 %rd10, 3;
    setp.lt.u32 %p1, %t, 8; @%p1 st.shared.b{8 * unit} [%r3], {"%rd10" if wide else "%r4"};
    {init(1)} {expect(32 * unit)} {SYNC}
    mapa.shared::cluster.u32 %far, %r3, %next; mapa.shared::cluster.u32 %there, %gate, %next;
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}
        [%far], {value}, [%there];
    {wait()} ld.shared.u32 %r6, [%near]; st.global.u32 [%out], %r6; {SYNC}
    """
    out = rows(text, data)
    for rank in range(2):
        values = data[1 - rank].copy().view(np.uint64)[:, 0] if wide else data[1 - rank, :, 0]
        values = values.view(kind)
        found = out[rank, : 2 * unit].view(kind)
        for n in range(8):
            wanted = kind.type(3)
            for value_ in values[n::8]:
                function = OPERATIONS[operation]
                with np.errstate(over="ignore"):
                    wanted = (kind.type(stepped(operation, int(wanted), int(value_)))
                              if function is None else function(wanted, value_))  # fmt: skip
            assert found[n] == wanted


# -- copies in bulk ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5])
def test_copies_to_the_next_group(size: int) -> None:
    out = rows(f"""
    .reg .b32 %mine; mov.u32 %mine, from_here; mad.lo.u32 %r1, %group, 500, %t;
    shl.b32 %r2, %t, 2; add.u32 %r2, %r2, %mine; st.shared.u32 [%r2], %r1; fence.proxy.async;
    {init(1)} {expect(128)} {SYNC} {NEXT}
    mapa.shared::cluster.u32 %far, %own, %next;
    @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%far], [%mine], 128, [%there];
    {SYNC} ld.shared.u32 %r3, [%near]; st.global.u32 [%out+512], %r3;
    {wait()} ld.shared.u32 %r4, [%near]; st.global.u32 [%out], %r4; {SYNC}
    """, size=size)  # fmt: skip
    before = (np.arange(size)[:, None] - 1) % size
    assert np.array_equal(out[:, :32], before * 500 + np.arange(32))
    assert (out[:, 128:160] == 0xFFFFFFFF).all()


def test_what_a_group_that_ends_has_sent_arrives() -> None:
    """Its shared memory is read at the latest when it ends."""
    out = rows(f"""
    .reg .b32 %mine; mov.u32 %mine, from_here;
    shl.b32 %r2, %t, 2; add.u32 %r2, %r2, %mine; st.shared.u32 [%r2], %t; fence.proxy.async;
    {init(1)} {expect(128)} {SYNC} mapa.shared::cluster.u32 %far, %own, 1;
    mapa.shared::cluster.u32 %there, %gate, 1; setp.eq.u32 %p1, %rank, 0; @!%p1 bra OTHER;
    @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%far], [%mine], 128, [%there]; bra END;
    OTHER: {wait()} ld.shared.u32 %r4, [%near]; st.global.u32 [%out], %r4; END:
    """)  # fmt: skip
    assert np.array_equal(out[1, :32], np.arange(32))


@settings(max_examples=12, deadline=None)
@given(size=st.integers(1, 8), data=st.data())
def test_one_copy_to_several_groups(size: int, data: st.DataObject) -> None:
    """The leader sends its part to the groups that a mask names, at the same place in each."""
    mask = data.draw(st.integers(1, 2**size - 1))
    sender = data.draw(st.integers(0, size - 1))
    hint = data.draw(st.booleans())
    source = np.arange(1000, 1000 + 64, dtype=np.uint32)
    out = rows(f"""
    mov.u32 %r1, 77; st.shared.u32 [%near+256], %r1; fence.proxy.async; {init(1)}
    shl.b32 %r2, 1, %rank; and.b32 %r2, %r2, {mask}; setp.ne.u32 %p1, %r2, 0;
    .reg .pred %named; and.pred %named, %first, %p1;
    @%named mbarrier.arrive.expect_tx.shared::cta.b64 _, [%gate], 128; {SYNC}
    .reg .b16 %mask; mov.u16 %mask, {mask}; setp.eq.u32 %p2, %rank, {sender};
    and.pred %p2, %p2, %first; mov.u64 %rd9, 0; add.u32 %r3, %own, 256;
    @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        {".L2::cache_hint" if hint else ""} [%r3], [%rd0], 128, [%gate], %mask
        {", %rd9" if hint else ""};
    {SYNC} @!%p1 bra SHOW; {wait()}
    SHOW: ld.shared.u32 %r4, [%near+256]; st.global.u32 [%out], %r4; {SYNC}
    """, source, size=size)  # fmt: skip
    for rank in range(size):
        wanted = source[:32] if mask >> rank & 1 else np.full(32, 77)
        assert np.array_equal(out[rank, :32], wanted)


REDUCED = {
    "add.u32": np.add, "min.s32": np.minimum, "max.u32": np.maximum, "and.b32": np.bitwise_and,
    "xor.b64": np.bitwise_xor, "add.u64": np.add, "add.f32": np.add, "add.f64": np.add,
    "add.noftz.f16": np.add, "max.s64": np.maximum, "or.b32": np.bitwise_or,
    "max.f16": np.maximum, "min.f16": np.minimum,
}  # fmt: skip
KINDS = {"u32": np.uint32, "s32": np.int32, "b32": np.uint32, "b64": np.uint64, "u64": np.uint64,
         "f32": np.float32, "f64": np.float64, "f16": np.float16, "s64": np.int64}  # fmt: skip


@pytest.mark.parametrize("operation", REDUCED)
def test_copies_that_combine_with_global_memory(operation: str) -> None:
    """Four clusters on three threads add up what each group has, across a page's end."""
    kind = np.dtype(KINDS[operation.rsplit(".", 1)[1]])
    bench = Bench(workers=3)
    random = np.random.default_rng(5)
    numbers = random.integers(0, 40, (8, 4096 // kind.itemsize)).astype(kind)
    start = np.zeros(8192 // kind.itemsize, kind) + kind.type(17)
    source, _ = bench.array(numbers)
    target, out = bench.array(start)
    text = f"""
    mov.u32 %r1, 0; mul.wide.u32 %rd8, %group, 4096; add.s64 %rd8, %rd8, %rd0;
    mul.wide.u32 %rd9, %t, 4; add.s64 %rd8, %rd8, %rd9;
    FILL: ld.global.u32 %r2, [%rd8]; st.shared.u32 [%near], %r2; add.s64 %rd8, %rd8, 128;
    add.u32 %near, %near, 128; add.u32 %r1, %r1, 128; setp.lt.u32 %p1, %r1, 4096; @%p1 bra FILL;
    fence.proxy.async; bar.warp.sync -1; add.s64 %rd10, %rd1, 2048;
    @%first cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation} [%rd10], [%own], 4096;
    @%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0;
    """
    bench.good(legal(body(2, PLACES + text, HEAD)), source, target, grid=(8,), cluster=(2,),
               shared=8192 + 16)  # fmt: skip
    first = 2048 // kind.itemsize
    wanted = start.copy()
    for row in numbers:
        wanted[first : first + len(row)] = REDUCED[operation](
            wanted[first : first + len(row)], row)  # fmt: skip
    assert np.array_equal(out, wanted)


def test_copies_that_combine_with_another_groups_memory() -> None:
    out = rows(f"""
    .reg .b32 %mine; mov.u32 %mine, from_here; st.shared.u32 [%near], 1000;
    shl.b32 %r2, %t, 2; add.u32 %r2, %r2, %mine; add.u32 %r3, %t, %rank;
    st.shared.u32 [%r2], %r3; fence.proxy.async;
    {init(4)} @%first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%gate], 512; {SYNC}
    mapa.shared::cluster.u32 %far, %own, 2; mapa.shared::cluster.u32 %there, %gate, 2;
    @%first cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32
        [%far], [%mine], 128, [%there];
    @%first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there];
    {SYNC} setp.ne.u32 %p1, %rank, 2; @%p1 bra END; {wait()}
    ld.shared.u32 %r4, [%near]; st.global.u32 [%out], %r4; END: {SYNC}
    """, size=4)  # fmt: skip
    assert np.array_equal(out[2, :32], 1000 + 4 * np.arange(32) + 6)


def test_a_ring_that_is_loaded_once_for_the_whole_cluster() -> None:
    """Two groups each load half of every slice for both; a slice is loaded again when all threads
    of both have given it back: as kernels on Hopper share the factors of a product."""
    slices = 9
    data = np.random.default_rng(1).integers(0, 1 << 20, (slices, 2, 32), np.uint32)
    text = f"""
    .reg .b32 %i, %stage, %turn, %full, %empty, %half, %sum, %place; .reg .b16 %both;
    mov.u32 %full, full; mov.u32 %empty, empty; mov.u16 %both, 3; mov.u32 %sum, 0;
    @%first mbarrier.init.shared::cta.b64 [%full], 1;
    @%first mbarrier.init.shared::cta.b64 [%full+8], 1;
    @%first mbarrier.init.shared::cta.b64 [%empty], 64;
    @%first mbarrier.init.shared::cta.b64 [%empty+8], 64;
    @%first fence.mbarrier_init.release.cluster; fence.proxy.async; {SYNC} mov.u32 %i, 0;
    mul.wide.u32 %rd8, %rank, 128; add.s64 %rd8, %rd8, %rd0; shl.b32 %half, %rank, 7;
    setp.ge.u32 %p1, %t, 32; @%p1 bra LOAD;
    NEXT: and.b32 %stage, %i, 1; shr.u32 %turn, %i, 1; and.b32 %turn, %turn, 1;
    mad.lo.u32 %r1, %stage, 8, %full; {wait(0, "FULL", "%r1").replace(" 0;", " %turn;")}
    mad.lo.u32 %r2, %stage, 256, %near; ld.shared.u32 %r3, [%r2]; ld.shared.u32 %r4, [%r2+128];
    mad.lo.u32 %sum, %sum, 3, %r3; mad.lo.u32 %sum, %sum, 5, %r4;
    mad.lo.u32 %r5, %stage, 8, %empty; mapa.shared::cluster.u32 %r6, %r5, 0;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
    mapa.shared::cluster.u32 %r6, %r5, 1;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
    add.u32 %i, %i, 1; setp.lt.u32 %p2, %i, {slices}; @%p2 bra NEXT;
    st.global.u32 [%out], %sum; bra END;
    LOAD: setp.ne.u32 %p3, %t, 32; @%p3 bra END;
    MORE: and.b32 %stage, %i, 1; shr.u32 %turn, %i, 1; and.b32 %turn, %turn, 1;
    xor.b32 %turn, %turn, 1; mad.lo.u32 %r1, %stage, 8, %empty;
    {wait(0, "EMPTY", "%r1").replace(" 0;", " %turn;")}
    mad.lo.u32 %r2, %stage, 8, %full;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
    mad.lo.u32 %place, %stage, 256, %own; add.u32 %place, %place, %half;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%place], [%rd8], 128, [%r2], %both;
    add.s64 %rd8, %rd8, 256; add.u32 %i, %i, 1; setp.lt.u32 %p2, %i, {slices}; @%p2 bra MORE;
    END: {SYNC}
    """
    head = HEAD + ".shared .align 8 .b8 full[16]; .shared .align 8 .b8 empty[16];"
    text = text.replace(SYNC + '\n    "', SYNC)
    out = rows(text, data, block=(64,), head=head, shared=8192 + 64)
    wanted = np.zeros(32, np.uint32)
    for row in data:
        wanted = (wanted * np.uint32(3) + row[0]) * np.uint32(5) + row[1]
    assert np.array_equal(out[0, :32], wanted)
    assert np.array_equal(out[1, :32], wanted)


# -- what is wrong -------------------------------------------------------------------------------

SEND = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32"
COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
MANY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
ILLEGAL, ADDRESS = SmEnding.ILLEGAL_INSTRUCTION, SmEnding.ILLEGAL_ADDRESS
WRONG = {
    "a store to the own group": (
        f"{init(1)} mapa.shared::cluster.u32 %far, %near, %rank;"
        f"mapa.shared::cluster.u32 %there, %gate, %rank; {SEND} [%far], %t, [%there];",
        ILLEGAL, "data and mbarrier object are not where they must be",
    ),
    "its mbarrier object elsewhere": (
        f"{init(1)} {NEXT} {SEND} [%far], %t, [%gate];", ILLEGAL, "are not where they must be",
    ),
    "no mbarrier object": (
        f"{SYNC} {NEXT} {SEND} [%far], %t, [%there];", ILLEGAL,
        "shared memory at 0x2001000: holds no mbarrier object",
    ),
    "a remote arrival without an object": (
        f"{SYNC} {NEXT} mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there];",
        ILLEGAL, "shared memory at 0x2001000: holds no mbarrier object",
    ),
    "too many arrivals": (
        f"{init(3)} {NEXT} mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there], 4;",
        ILLEGAL, "a count of 4 is more than",
    ),
    "a copy whose object is elsewhere": (
        f"{init(1)} {NEXT} mapa.shared::cluster.u32 %far, %own, %next;"
        f"@%first {COPY} [%far], [%own], 128, [%gate];", ILLEGAL, "are not where they must be",
    ),
    "a source without a fence": (
        f"{init(1)} {NEXT} mov.u32 %r1, from_here; mapa.shared::cluster.u32 %far, %own, %next;"
        f"@%first st.shared.u32 [%r1], 5; @%first {COPY} [%far], [%r1], 128, [%there];"
        f"{SYNC}",
        SmEnding.DONE, "written there without fence.proxy.async",
    ),
    "a target that was written without a fence": (
        f"{init(1)} {NEXT} st.shared::cluster.u32 [%far], 5; mov.u32 %r1, from_here;"
        f"mapa.shared::cluster.u32 %far, %own, %next; @%first {COPY} [%far], [%r1], 128, [%there];"
        f"{SYNC}",
        SmEnding.DONE, "shared memory at 0x2000000: written there without fence.proxy.async",
    ),
    "a copy beyond the other's memory": (
        f"{init(1)} {NEXT} mapa.shared::cluster.u32 %far, %own, %next;"
        f"@%first {COPY} [%far+8064], [%own], 256, [%there];", ADDRESS, "is out of range",
    ),
    "a rank that is not there": (
        f"{init(1)} .reg .b16 %m; mov.u16 %m, 5; @%first {MANY} [%own], [%rd0], 16, [%gate], %m;",
        ADDRESS, "in no group of the cluster",
    ),
    "no rank at all": (
        f"{init(1)} .reg .b16 %m; mov.u16 %m, 0; @%first {MANY} [%own], [%rd0], 16, [%gate], %m;",
        ADDRESS, "in no group of the cluster",
    ),
    "a page that is not there": (
        f"{init(1)} .reg .b16 %m; mov.u16 %m, 3; mov.u64 %rd9, 0x990000000;"
        f"@%first {MANY} [%own], [%rd9], 16, [%gate], %m;",
        SmEnding.MMU_FAULT, "read of 0x990000000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors_have_names(name: str) -> None:
    text, ending, detail = WRONG[name]
    outcome, _ = launch(text, np.zeros(64, np.uint32))
    assert outcome.ending is ending, outcome
    assert detail in " ".join((outcome.detail, *outcome.violations))
