"""The version of a kernel's code that a debugger halts: same results, every register to see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.corpus.corpus_ptx import program
from tests.support.corpus.operation_corpus import corpus
from tests.support.nvidia.sm.sm_run import Bench, body, f32
from tests.virtual.nvidia.sm.runtime.test_sm_corpus import run_case
from ugpu import hcq
from ugpu.hcq.device.debugging import Code, Debugger, Halted
from ugpu.hcq.errors import UsageError
from ugpu.hcq.state.target import ptx_target
from ugpu.virtual.nvidia.sm.multiprocessors import VirtualMultiprocessors
from ugpu.virtual.nvidia.sm_contract import SmEnding, SmOutcome

EXCHANGE = body(1, """
mov.u32 %r1, %ntid.x;
mul.lo.u32 %r2, %t, 3;
shl.b32 %r3, %t, 2;
st.shared.b32 [%r3], %r2;
bar.sync 0;
sub.u32 %r4, 63, %t;
shl.b32 %r4, %r4, 2;
ld.shared.b32 %r5, [%r4];
mul.wide.u32 %at, %t, 4;
add.u64 %at, %at, %rd0;
st.global.b32 [%at], %r5;
""", ".shared .align 4 .b8 part[256];")  # fmt: skip
INSTRUCTIONS = 15  # with those of `body`
# Lanes part, loop for different times, call a function, meet, vote, and store; half of them leave.
PARTING = body(1, """
mul.wide.u32 %at, %t, 8;
add.u64 %at, %at, %rd0;
mov.u32 %r1, 0;
and.b32 %r2, %t, 7;
LOOP:
.param .b32 given; .param .b32 got;
st.param.b32 [given], %r1;
call (got), twice, (given);
ld.param.b32 %r3, [got];
add.u32 %r1, %r3, 1;
add.u32 %r2, %r2, -1;
setp.gt.s32 %p1, %r2, 0;
@%p1 bra LOOP;
vote.sync.ballot.b32 %r4, %p2, -1;
shfl.sync.bfly.b32 %r5|%p3, %r1, 3, 31, -1;
and.b32 %r6, %t, 1;
setp.eq.u32 %p4, %r6, 1;
cvt.rn.f64.u32 %d1, %r5;
@%p4 bra ODD;
st.global.f64 [%at], %d1;
ret;
ODD:
mov.b64 %rd5, {%r4, %r5};
st.global.b64 [%at], %rd5;
""", """.func (.param .b32 out) twice(.param .b32 in)
{ .reg .b32 %x; ld.param.b32 %x, [in]; add.u32 %x, %x, %x; st.param.b32 [out], %x;
ret; }""")  # fmt: skip
# Warp 1 waits in a loop for what warp 0 stores behind another one.
TURNS = body(1, """
setp.gt.u32 %p1, %t, 31;
@%p1 bra SECOND;
FIRST: ld.volatile.global.b32 %r1, [%rd0+4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra FIRST;
st.volatile.global.b32 [%rd0], 7;
ret;
SECOND: st.volatile.global.b32 [%rd0+4], 1;
AGAIN: ld.volatile.global.b32 %r1, [%rd0]; setp.eq.u32 %p2, %r1, 0; @%p2 bra AGAIN;
""")  # fmt: skip
CLUSTER = body(1, """
mov.u32 %r1, %ctaid.x;
mul.wide.u32 %at, %r1, 4;
add.u64 %at, %at, %rd0;
add.u32 %r1, %r1, 5;
st.global.b32 [%at], %r1;
""")  # fmt: skip


class Everywhere:
    """Halts in front of each instruction, and looks at all registers."""

    active = True

    def __init__(self) -> None:
        self.seen: list[tuple[int, tuple[int, int, int], int, tuple[str, ...]]] = []
        self.texts: dict[int, str] = {}
        self.shared = b""

    def opened(self, device: object) -> None: ...

    def stops(self, code: Code) -> Collection[int] | None:
        assert code.kernel == "k"
        self.texts = {pc: text for pc, text, _ in code.listing()}
        return None

    def halted(self, wave: Halted) -> bool:
        uniform, varying = wave.names(wave.wave)
        assert all(isinstance(wave.read(name, wave.wave), int) for name in uniform)
        assert all(isinstance(wave.read(name, wave.wave), list) for name in varying)
        states = tuple(one.state for one in wave.waves())
        self.seen.append((wave.pc, wave.group, wave.wave, states))
        self.shared = wave.shared()
        return True


def stepped(debugger: Debugger) -> Bench:
    bench = Bench()
    bench.units = VirtualMultiprocessors(workers=3, debugger=debugger)
    return bench


def run(
    bench: Bench, ptx: str, block: int = 64, size: int = 64, **options: Any
) -> tuple[SmOutcome, NDArray[np.uint64]]:
    address, out = bench.array(np.zeros(size, np.uint64))
    outcome = bench.launch(ptx, address, block=(block,), **options)
    bench.units.close()
    return outcome, out


def halts(bench_of: type[Everywhere], ptx: str = EXCHANGE) -> tuple[Any, NDArray[np.uint32]]:
    debugger = bench_of()
    outcome, out = run(stepped(debugger), ptx, shared=256)
    assert outcome.ending is SmEnding.DONE, outcome
    return debugger, out.view(np.uint32)


@pytest.mark.parametrize(("ptx", "block"), [(EXCHANGE, 64), (PARTING, 64), (PARTING, 50)])
def test_results_are_those_of_ordinary_code(ptx: str, block: int) -> None:
    (one, expected), (two, found) = (
        run(bench, ptx, block, shared=256) for bench in (Bench(), stepped(Everywhere()))
    )
    assert one == two and one.ending is SmEnding.DONE
    assert found.tolist() == expected.tolist() and expected.any()


def compare(names: Sequence[str], cpu: str) -> None:
    with hcq.open("cpu", threads=1) as host:
        for name in names:
            made = program(corpus()[name], ptx_target(cpu), host)
            bench = stepped(Never())
            assert np.array_equal(run_case(bench, made, cpu), run_case(Bench(), made, cpu)), name
            bench.units.close()


class Never(Everywhere):
    """Halts nowhere: the code is stepped all the same."""

    def stops(self, code: Code) -> Collection[int] | None:
        return ()


def test_some_of_the_corpus() -> None:
    compare(sorted(corpus())[7::200], "sm_90")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_part_of_the_corpus() -> None:
    compare(sorted(corpus())[::8], "sm_90")


def test_every_instruction_of_every_warp_halts_once() -> None:
    debugger, out = halts(Everywhere)
    assert out[:64].tolist() == [3 * (63 - n) for n in range(64)]
    assert len(debugger.texts) == INSTRUCTIONS
    counts = Counter((pc, wave) for pc, _, wave, _ in debugger.seen)
    assert counts == Counter((pc, wave) for pc in debugger.texts for wave in (0, 1))
    assert debugger.shared[:256] == np.arange(0, 192, 3, dtype=np.uint32).tobytes()
    assert {states for *_, states in debugger.seen} == {
        ("halted", "not begun"), ("waits at a barrier", "halted"),
        ("halted", "ready"), ("ended", "halted"),
    }  # fmt: skip


def test_lanes_that_have_parted_show_who_runs() -> None:
    class Executes(Everywhere):
        def __init__(self) -> None:
            super().__init__()
            self.masks: dict[str, set[int]] = {}

        def halted(self, wave: Halted) -> bool:
            self.masks.setdefault(self.texts[wave.pc], set()).add(wave.execute)
            return super().halted(wave)

    debugger, _ = halts(Executes, PARTING)
    assert debugger.masks["st.global.f64 [%at], %d1;"] == {0x5555_5555}
    assert debugger.masks["st.global.b64 [%at], %rd5;"] == {0xAAAA_AAAA}
    assert 0x8080_8080 in debugger.masks["add.u32 %r1, %r3, 1;"]  # lanes 7, 15 ... loop longest


def test_a_warp_that_waits_in_a_loop_lets_others_run() -> None:
    class Stores(Everywhere):
        def stops(self, code: Code) -> Collection[int] | None:
            super().stops(code)
            return {pc for pc, text in self.texts.items() if "st.volatile" in text}

    debugger, out = halts(Stores, TURNS)
    assert out[:2].tolist() == [7, 1]
    assert [states for *_, states in debugger.seen] == [("ready", "halted"), ("halted", "ready")]


def test_groups_of_a_cluster_are_told_apart() -> None:
    debugger = Everywhere()
    _, out = run(stepped(debugger), CLUSTER, block=32, grid=(4,), cluster=(2,))
    assert out.view(np.uint32)[:4].tolist() == [5, 6, 7, 8]
    assert {group for _, group, *_ in debugger.seen} == {(n, 0, 0) for n in range(4)}


class Changes(Everywhere):
    """Changes %r2, a lane's product, and the predicate and the uniform register where there are."""

    def halted(self, wave: Halted) -> bool:
        if self.texts[wave.pc].startswith("shl.b32 %r3"):
            lanes = wave.read("%r2", wave.wave)
            assert lanes == [3 * (n + 32 * wave.wave) for n in range(32)]
            assert wave.bits("%r2") == 32 and wave.bits("%at") == 64
            wave.write("%r2", 0x1_0000_1234, wave.wave, lane=5)
            assert wave.read("%r1", wave.wave) == 64
            wave.write("%r1", 9, wave.wave)
            assert wave.read("%r1", wave.wave) == 9
        if self.texts[wave.pc].startswith("st.global"):
            wave.write("%r5", 77, wave.wave, lane=1)
            if wave.wave:
                wave.write("%r5", 78, wave.wave)
        return True


def test_registers_can_be_changed() -> None:
    _, out = halts(Changes)
    first = [3 * (63 - n) for n in range(32)]
    first[63 - 37] = 0x1234  # lane 5 of warp 1 stored it for thread 26
    first[1] = 77
    assert out[:64].tolist() == first + [78] * 32


def test_predicates_are_one_bit_a_lane() -> None:
    class Flips(Everywhere):
        def halted(self, wave: Halted) -> bool:
            if self.texts[wave.pc].startswith("@%p4"):
                assert wave.bits("%p4") == 1
                assert wave.read("%p4", wave.wave) == [0, 1] * 16
                wave.write("%p4", 0, wave.wave, lane=3)
            return True

    plain = run(Bench(), PARTING)[1]
    _, out = halts(Flips, PARTING)
    # Lane 3 stores its number as floating point too.
    assert [n for n in range(64) if out.view(np.uint64)[n] != plain[n]] == [3, 35]
    assert out.view(np.float64)[3] == plain[3] >> np.uint64(32)


def test_a_debugger_that_raises_ends_the_launch() -> None:
    class Broken(Everywhere):
        def halted(self, wave: Halted) -> bool:
            raise LookupError("of the debugger")

    bench = stepped(Broken())
    with pytest.raises(LookupError, match="of the debugger"):
        run(bench, EXCHANGE, shared=256, grid=(3,))
    assert bench.abort.debugged is None


def test_warps_can_be_ended() -> None:
    class Ends(Everywhere):
        def halted(self, wave: Halted) -> bool:
            return wave.wave == 1

    _, out = halts(Ends)
    assert not out[32:64].any() or not out[:32].any()  # warp 0 stored nothing
    assert not out[:32].any()


def test_registers_that_are_not_there() -> None:
    class Asks(Everywhere):
        def halted(self, wave: Halted) -> bool:
            for name in ("%r63", "v0", "", "r1"):
                with pytest.raises(KeyError):
                    wave.read(name, wave.wave)
            for lane in (-1, 32):
                with pytest.raises(KeyError):
                    wave.write("%t", 1, wave.wave, lane)
            with pytest.raises(KeyError):
                wave.write("%r1", 1, wave.wave, lane=0)  # the same in all lanes
            with pytest.raises(KeyError):
                wave.read("%t", 2)
            if wave.waves()[1].state == "not begun":
                with pytest.raises(UsageError, match="expected a warp that has begun, got 1"):
                    wave.read("%t", 1)
            assert wave.memory(1, 4) is None
            return super().halted(wave)

    debugger, _ = halts(Asks)
    assert debugger.seen


def test_stops_at_some_instructions_only() -> None:
    class Some(Everywhere):
        def stops(self, code: Code) -> Collection[int] | None:
            super().stops(code)
            wanted = {pc for pc, text in self.texts.items() if "bar.sync" in text}
            assert len(wanted) == 1
            return {*wanted, code.entry - 16, code.entry + (1 << 20)}

    debugger, _ = halts(Some)
    assert [wave for _, _, wave, _ in debugger.seen] == [0, 1]


def test_memory_is_read_as_it_is() -> None:
    class Reads(Everywhere):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[bytes | None] = []

        def halted(self, wave: Halted) -> bool:
            base = wave.read("%rd0", wave.wave)
            assert isinstance(base, int)
            if self.texts[wave.pc].startswith("ret"):
                self.found.append(wave.memory(base, 8))
            return True

    debugger, out = halts(Reads)
    assert debugger.found == [out[:2].tobytes()] * 2


def test_wide_and_narrow_registers() -> None:
    ptx = body(2, """
mul.wide.u32 %at, %t, 4; add.u64 %rd3, %at, %rd1; add.u64 %rd4, %at, %rd0;
ld.global.f32 %f1, [%rd3]; cvt.rn.f16.f32 %h1, %f1; cvt.f64.f32 %d1, %f1;
st.global.f32 [%rd4], %f1;
""")  # fmt: skip
    given = f32(32)

    class Looks(Everywhere):
        def halted(self, wave: Halted) -> bool:
            if self.texts[wave.pc].startswith("ret"):
                kinds = (("%h1", np.uint16, np.float16), ("%d1", np.uint64, np.float64))
                for name, bits, kind in kinds:
                    lanes = np.array(wave.read(name, 0), bits).view(kind)
                    assert lanes.tolist() == given.astype(kind).tolist()
                self.seen.append((wave.pc, wave.group, 0, ()))
            return True

    debugger = Looks()
    bench = stepped(debugger)
    out, view = bench.array(np.zeros(32, np.float32))
    bench.good(ptx, out, bench.array(given)[0])
    bench.units.close()
    assert view.tolist() == given.tolist() and len(debugger.seen) == 1
