"""What ends a grid early: bad addresses, traps, aborts, launches that cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from tests.support.shader_memory import ArrayMemory
from tests.support.waiting import when
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.virtual.nvidia.sm_contract import SmEnding, SmOutcome
from ugpu.virtual.shader.memory import INVALID_TAG, Access

SHARED = ".shared .align 16 .b8 part[256];"


def outcome(text: str, *arguments: object, head: str = "", **options: object) -> SmOutcome:
    bench = Bench()
    address, _ = bench.array(np.zeros(1024, np.uint32))
    return bench.launch(body(1, text, head), address, *arguments, **options)


@pytest.mark.parametrize(
    ("text", "ending", "lanes"),
    [
        ("mov.u32 %r1, 256; st.shared.u32 [%r1], %t;", SmEnding.ILLEGAL_ADDRESS, 0xFFFFFFFF),
        ("shl.b32 %r1, %t, 4; ld.shared.u32 %r2, [%r1];", SmEnding.ILLEGAL_ADDRESS, 0xFFFF0000),
        ("mov.u32 %r1, -4; ld.shared.u32 %r2, [%r1];", SmEnding.ILLEGAL_ADDRESS, 0xFFFFFFFF),
        ("add.u32 %r1, %t, 1; ld.shared.u16 %h1, [%r1];", SmEnding.MISALIGNED_ADDRESS, 0x55555555),
        ("ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [8];", SmEnding.MISALIGNED_ADDRESS, 0xFFFFFFFF),
        ("add.s64 %at, %rd0, 2; ld.global.u32 %r1, [%at];", SmEnding.MISALIGNED_ADDRESS, None),
        ("atom.shared.add.u32 %r1, [1024], 1;", SmEnding.ILLEGAL_ADDRESS, 0xFFFFFFFF),
        ("setp.eq.u32 %p1, %t, 7; @%p1 trap;", SmEnding.ILLEGAL_INSTRUCTION, 0x80),
        ("setp.eq.u32 %p1, %t, 7; @!%p1 bra ON; trap; ON:", SmEnding.ILLEGAL_INSTRUCTION, 0x80),
        ("brkpt;", SmEnding.ASSERT, 0xFFFFFFFF),
        ("mov.u32 %r1, 16; bar.sync %r1;", SmEnding.ILLEGAL_INSTRUCTION, None),
        ("ld.local.u32 %r1, [0];", SmEnding.ILLEGAL_ADDRESS, 0xFFFFFFFF),
    ],
)
def test_faults_are_told_with_their_lanes(text: str, ending: SmEnding, lanes: int | None) -> None:
    found = outcome(text, head=SHARED, shared=256)
    assert found.ending is ending, found
    assert found.line == 11 and found.program_counter > 0
    if lanes is not None:
        assert found.lane_mask == lanes


def test_the_group_and_the_warp_are_named() -> None:
    text = """
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r1, %r2, 3, %r1;
    setp.eq.u32 %p1, %r1, 5; setp.gt.u32 %p2, %t, 39; and.pred %p1, %p1, %p2;
    @%p1 trap;
    """
    found = outcome(text, grid=(3, 2), block=(64,))
    assert found.ending is SmEnding.ILLEGAL_INSTRUCTION
    assert (found.group, found.warp, found.lane_mask) == ((2, 1, 0), 1, 0xFFFFFF00)


@pytest.mark.parametrize("access", ["ld", "st", "atom"])
@pytest.mark.parametrize("scattered", [False, True])
def test_an_address_without_a_page_stops_the_grid(access: str, scattered: bool) -> None:
    text = {
        "ld": "ld.global.u32 %r1, [%at];", "st": "st.global.u32 [%at], %t;",
        "atom": "atom.global.add.u32 %r1, [%at], 1;",
    }[access]  # fmt: skip
    step = 4096 * 3 if scattered else 4
    bench = Bench()
    address, _ = bench.array(np.zeros(1024, np.uint32))
    found = bench.launch(
        body(1, f"mul.wide.u32 %at, %t, {step}; add.s64 %at, %at, %rd0;\n{text}"), address + 4096,
        grid=(50,),
    )  # fmt: skip
    assert found.ending is SmEnding.MMU_FAULT
    wanted = {"ld": Access.READ, "st": Access.WRITE, "atom": Access.ATOMIC_LOCAL}[access]
    assert bench.memory.faults[0] == (address + 4096, wanted)
    assert hex(address + 4096) in found.detail


def test_a_page_that_may_not_be_written() -> None:
    bench = Bench()
    address, content = bench.array(np.full(1024, 7, np.uint32), writable=False)
    text = "mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; ld.global.u32 %r1, [%at];\n"
    bench.good(body(1, text), address)
    found = bench.launch(body(1, text + "st.global.u32 [%at], %t;"), address)
    assert found.ending is SmEnding.MMU_FAULT and "write" in found.detail
    assert (content == 7).all()


def test_after_a_fault_the_next_grid_runs() -> None:
    bench = Bench()
    address, out = bench.array(np.zeros(32, np.uint32))
    text = "mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %t;"
    assert bench.launch(body(1, text), 0x1234000).ending is SmEnding.MMU_FAULT
    bench.good(body(1, text), address)
    assert out.tolist() == list(range(32))


class _Forgetful(ArrayMemory):
    """Its translations are invalidated right after each refill."""

    def refill(self, tlb, address: int, access: Access) -> int:
        host = super().refill(tlb, address, access)
        tlb[:, :2] = INVALID_TAG
        return host


def test_an_invalidation_in_between_is_no_fault() -> None:
    bench = Bench(memory=_Forgetful())
    address, out = bench.array(np.zeros(4096, np.uint32))
    text = "mul.wide.u32 %at, %t, 128; add.s64 %at, %at, %rd0; st.global.u32 [%at], %t;"
    bench.good(body(1, text), address, block=(96,))
    assert out[::32][:96].tolist() == list(range(96))


class _Broken(ArrayMemory):
    def refill(self, tlb, address: int, access: Access) -> int:
        raise KeyError("the model's own bug")


def test_an_error_of_the_memory_comes_out_of_the_run() -> None:
    bench = Bench(memory=_Broken())
    with pytest.raises(KeyError, match="own bug"):
        bench.launch(body(1, "ld.global.u32 %r1, [%rd0];"), 0x1000)


@pytest.mark.parametrize(
    "text",
    [
        "LOOP: bra LOOP;",
        "LOOP: setp.gt.u32 %p1, %t, 5; @%p1 bra LOOP; bra LOOP;",
        "LOOP: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra LOOP;",
        "setp.lt.u32 %p1, %t, 32; @%p1 bar.sync 0, 64; ",
    ],
)
@pytest.mark.parametrize("block", [32, 64])
def test_an_endless_grid_can_be_aborted(text: str, block: int) -> None:
    if "bar" in text:
        text = "bar.sync 0, 96;"  # more threads than there are
    bench = Bench(workers=2)
    address, view = bench.array(np.zeros(4, np.uint32))
    ending = when(lambda: view[1], bench.abort.set)
    started = "st.volatile.global.u32 [%rd0+4], 1;"
    found = bench.launch(body(1, started + text), address, grid=(6,), block=(block,))
    ending.join()
    assert found.ending is SmEnding.ABORTED


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"block": (1025,)}, "block"), ({"block": (32, 64)}, "threads"), ({"block": (0,)}, "block"),
        ({"block": (1, 1, 65)}, "block"), ({"grid": (1, 70000)}, "grid"),
        ({"shared": 100}, "shared memory"), ({"shared": 300 << 10}, "shared memory"),
        ({"entry": "other"}, "entry"), ({"target": "sm_80"}, "sm_90"),
    ],
)  # fmt: skip
def test_launches_that_cannot_be(options: dict[str, object], what: str) -> None:
    bench = Bench()
    text = HEAD.format(target="sm_90") + body(1, "mov.u32 %r1, part;", SHARED)
    given = {"shared": 256, **options}
    found = bench.launch(text, 0x1000, **given)
    assert found.ending is SmEnding.BAD_LAUNCH
    assert what in found.detail


def test_a_launch_without_all_parameters() -> None:
    found = Bench().launch(body(2, ""), 0x1000)
    assert found.ending is SmEnding.BAD_LAUNCH and "parameters" in found.detail


def test_a_required_block() -> None:
    text = body(1, "").replace(") {", ") .reqntid 64, 1, 1 {", 1)
    assert Bench().launch(text, 0x1000).ending is SmEnding.BAD_LAUNCH
    assert Bench().launch(text, 0x1000, block=(64,)).ending is SmEnding.DONE


@pytest.mark.parametrize(
    "instruction",
    [
        "tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [tex, {%f5,%f6}];", "frobnicate.u32 %r1, %r2;",
        "add.q32 %r1, %r2, %r3;", "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1}, {%r1},"
        " {%r2}, {%f2};", "st.async.shared::cluster.b32 [%r2], %r1, [%r3];",
        "tcgen05.fence::before_thread_sync;", "mov.u32 %r1, %pm0;",
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd0], [0];",
        "call (%r1), %rd0, (%r2);", "red.async.relaxed.cluster.global.mbarrier::complete_tx::bytes"
        ".shared::cluster.add.u32 [%r2], %r1, [%r3];",
    ],
)  # fmt: skip
def test_what_is_not_there_is_said_before_anything_runs(instruction: str) -> None:
    bench = Bench()
    address, out = bench.array(np.zeros(4, np.uint32))
    text = body(1, f"st.global.u32 [%rd0], 1;\n{instruction}")
    with pytest.raises((NotSupported, BadCodeObject), match=r"PTX line 1[0-9]"):
        bench.launch(text, address)
    assert not out.any()


def test_generic_addresses_reach_shared_and_local_memory() -> None:
    text = """
    .local .align 8 .b8 own[16];
    shl.b32 %r1, %t, 2; cvt.u64.u32 %rd1, %r1;
    cvta.shared.u64 %rd2, 0; add.s64 %rd2, %rd2, %rd1;
    mov.u64 %rd3, own; cvta.local.u64 %rd4, %rd3;
    setp.lt.u32 %p1, %t, 10; selp.b64 %rd5, %rd2, %rd4, %p1;
    mul.lo.u32 %r2, %t, 3; st.u32 [%rd5], %r2;
    ld.u32 %r3, [%rd5];
    cvta.to.local.u64 %rd6, %rd4; ld.local.u32 %r4, [%rd6];
    isspacep.shared %p2, %rd5; selp.u32 %r5, 1000, 0, %p2; add.u32 %r3, %r3, %r5;
    add.s64 %at, %rd1, %rd0; st.global.u32 [%at], %r3;
    """
    bench = Bench()
    address, out = bench.array(np.zeros(64, np.uint32))
    bench.good(body(1, text, SHARED), address, block=(64,), shared=256)
    assert out.tolist() == [3 * n + (1000 if n < 10 else 0) for n in range(64)]


def test_variables_of_the_module() -> None:
    head = """
    .const .align 4 .u32 table[4] = {10, 20, 30, 40};
    .global .align 8 .u64 pointer = generic(table) + 8;
    .global .align 4 .u32 counter;
    """
    text = """
    and.b32 %r1, %t, 3; mul.wide.u32 %rd1, %r1, 4; mov.u64 %rd2, table; add.s64 %rd2, %rd2, %rd1;
    ld.const.u32 %r2, [%rd2];
    ld.global.u64 %rd3, [pointer]; ld.u32 %r3, [%rd3];
    add.u32 %r2, %r2, %r3;
    red.global.add.u32 [counter], 1;
    mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r2;
    ld.global.u32 %r4, [counter]; st.global.u32 [%rd0+128], %r4;
    """
    bench = Bench()
    address, out = bench.array(np.zeros(64, np.uint32))
    for round_ in (1, 2):  # what a kernel leaves in its variables is there the next time
        bench.good(body(1, text, head), address)
        assert out[:32].tolist() == [10 * (n % 4 + 1) + 30 for n in range(32)]
        assert out[32] == 32 * round_


def test_asynchronous_copies() -> None:
    text = """
    shl.b32 %r1, %t, 4; cvt.u64.u32 %rd2, %r1; add.s64 %rd2, %rd2, %rd0;
    cp.async.ca.shared.global [%r1], [%rd2], 16, 12;
    cp.async.commit_group; cp.async.wait_group 0;
    ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1];
    add.s64 %rd2, %rd2, 2048; st.global.v4.u32 [%rd2], {%r2, %r3, %r4, %r5};
    """
    bench = Bench()
    address, out = bench.array(np.arange(1024, dtype=np.uint32))
    bench.good(body(1, text, ".shared .align 16 .b8 part[512];"), address, shared=512)
    wanted = np.arange(128, dtype=np.uint32)
    wanted[3::4] = 0
    assert np.array_equal(out[512 : 512 + 128], wanted)
