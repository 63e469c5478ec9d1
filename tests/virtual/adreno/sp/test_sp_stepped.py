"""The version of a kernel's code that a debugger halts: same results, every register to see."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.support.adreno import ir3_text
from tests.support.adreno.ir3_machine import CODE
from tests.support.adreno.ir3_text import END, OUT, constants, i, k, mov, r, run, stored, words
from tests.support.shader_memory import ArrayMemory
from tests.virtual.adreno.sp import test_sp_flow as flow
from tests.virtual.adreno.sp.test_sp_random import check
from ugpu.hcq.device.debugging import Code, Halted
from ugpu.virtual.adreno.shader import Ending, Outcome
from ugpu.virtual.adreno.sp.processors import Processors

SS = 1 << 44


class Watching:
    """Halts at every instruction, or at some; tells `look` of each, which may end the wave."""

    active = True

    def __init__(
        self, look: Callable[[Halted], object] = lambda wave: None, at: set[int] | None = None
    ) -> None:
        self.look, self.at = look, at
        self.halts: list[tuple[int, int]] = []  # wave and instruction

    def opened(self, device: object) -> None: ...

    def stops(self, code: Code) -> Collection[int] | None:
        return None if self.at is None else {code.entry + 8 * index for index in self.at}

    def halted(self, wave: Halted) -> bool:
        self.halts.append((wave.wave, (wave.pc - CODE) // 8))
        return self.look(wave) is not False


def test_what_is_listed() -> None:
    listed: list[tuple[int, str, int]] = []

    class Listing(Watching):
        def stops(self, code: Code) -> Collection[int] | None:
            listed[:] = code.listing()
            assert (code.entry, code.kernel) == (CODE, "")
            return ()

    made = Processors(debugger=Listing())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ir3_text, "processors", lambda: made)
        launched([mov(r(5), 3), 1 << 44])
    assert listed[0] == (CODE, "mov.u32u32 r5.x, 3", 0)
    assert [pc for pc, _, _ in listed] == [CODE + 8 * k for k in range(len(listed))]
    assert listed[-1][1] == "end"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Watching], Watching]:
    """Have kernels of this test run under a debugger."""

    def under(watching: Watching) -> Watching:
        made = Processors(debugger=watching)
        monkeypatch.setattr(ir3_text, "processors", lambda: made)
        return watching

    return under


Use = Callable[[Watching], Watching]


@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_random_instructions_compute_the_same(use: Use, chip: str) -> None:
    watching = use(Watching())
    for seed in range(3):
        check(chip, seed)
    assert len(watching.halts) > 300


@pytest.mark.parametrize("at", [None, set()], ids=["every instruction", "none"])
def test_control_flow_is_the_same(use: Use, at: set[int] | None) -> None:
    watching = use(Watching(at=at))
    flow.test_any_branches_give_what_each_thread_alone_does()
    flow.test_a_wave_that_is_not_full(100, 128)
    flow.test_one_thread_is_elected()
    flow.test_predication()
    flow.test_registers_by_address("a630")
    flow.test_constants_by_address()
    flow.test_repetition()
    flow.test_broadcast_among_active()
    flow.test_a_barrier_that_lanes_miss()
    flow.test_the_preamble_runs_once()
    assert bool(watching.halts) == (at is None)


def launched(code: list[int], **more: Any) -> tuple[Outcome, list[int]]:
    """The outcome, and what each thread has in r5.x."""
    memory = ArrayMemory()
    out = memory.map(OUT, np.full(more.get("threads", (64, 1, 1))[0], 0xEE, np.uint32))
    outcome, _ = run(words(*code, *stored(r(5)), END), memory=memory, **more)
    return outcome, out.tolist()


def test_registers_are_read_and_set(use: Use) -> None:
    seen: dict[str, Any] = {}

    def look(wave: Halted) -> None:
        scalars, vectors = wave.names(wave.wave)
        assert {"p0.x", "a1.x", "r48.x"} <= set(scalars) and {"r0.x", "a0.x"} <= set(vectors)
        names = ("r5.x", "hr10.x", "hr10.y", "p0.x", "c1.x", "r5.y")
        seen.update({name: wave.read(name, 0) for name in names})
        assert [wave.bits(name) for name in ("r5.x", "hr10.x", "p0.x", "a0.x", "c0.x")] == [
            32, 16, 64, 16, 32,
        ]  # fmt: skip
        assert wave.execute == (1 << 64) - 1 and wave.lanes == 64 and wave.group == (0, 0, 0)
        wave.write("r5.x", 7, 0, lane=3)
        wave.write("hr10.y", 1, 0, lane=4)
        wave.write("p0.x", 5, 0)
        for name in ("r48", "r63.x", "x0.x", "r5.q", "c9999.x", "a2.x", "r.x", "p1.x", "r5.xy"):
            with pytest.raises(KeyError):
                wave.read(name, 0)
        with pytest.raises(KeyError):
            wave.write("p0.x", 1, 0, lane=1)
        with pytest.raises(KeyError):
            wave.read("r0.x", 1)
        assert wave.memory(OUT, 4) == b"\xee\0\0\0" and wave.memory(OUT + (1 << 30), 4) is None

    code = [mov(r(5), 0x30002), *flow.bit(0), 5 << 40]
    watching = use(Watching(look, at={3}))
    outcome, found = launched(code, constants=constants(77, 0, 99))
    assert outcome.ending is Ending.DONE and watching.halts == [(0, 3)]
    assert seen["r5.x"] == [0x30002] * 64 and seen["hr10.x"] == [2] * 64
    assert seen["hr10.y"] == [3] * 64 and seen["r5.y"] == [0xBAD0BAD1] * 64
    assert seen["p0.x"] == 0xAAAA_AAAA_AAAA_AAAA and seen["c1.x"] == 99 - 0
    assert found[:6] == [0x30002, 0x30002, 0x30002, 7, 0x10002, 0x30002]


def test_lanes_that_run_and_those_that_wait(use: Use) -> None:
    """Behind a branch that odd threads take, the others run."""
    masks: dict[int, int] = {}
    watching = use(Watching(lambda wave: masks.update({(wave.pc - CODE) // 8: wave.execute})))
    code = [mov(r(5), 1), *flow.bit(0), 5 << 40, flow.branch("br", 2), mov(r(5), 2), SS]
    outcome, found = launched(code)
    assert outcome.ending is Ending.DONE and found == [2, 1] * 32
    assert masks[5] == 0x5555_5555_5555_5555 and masks[6] == (1 << 64) - 1
    assert all(before < after for (_, before), (_, after) in pairwise(watching.halts))


def test_waves_of_a_group_and_its_barrier(use: Use) -> None:
    states: list[list[str]] = []

    def look(wave: Halted) -> None:
        states.append([f"{one.state} {(one.pc - CODE) // 8}" for one in wave.waves()])
        if wave.wave == 1:
            assert wave.read("r5.x", 0) == [9] * 64, "of the wave that waits"
            wave.write("r5.x", 8, 0)

    use(Watching(look, at={1}))
    code = [mov(r(5), 9), i("bar", G=1), SS]
    outcome, found = launched(code, threads=(128, 1, 1))
    assert outcome.ending is Ending.DONE and found == [8] * 64 + [9] * 64
    assert states == [
        ["halted 1", "not begun 0"], ["waits at a barrier 2", "halted 1"],
    ]  # fmt: skip


def test_local_memory(use: Use) -> None:
    found: list[bytes] = []
    code = [
        i("shl.b", DST=r(6), SRC1=0, SRC2=k(2), FULL=1), mov(r(5), 0x1234567), 5 << 40,
        i("stl", DST=r(6), SRC=r(5), SIZE=1, TYPE=3), 1 << 60 | SS,
    ]  # fmt: skip
    use(Watching(lambda wave: found.append(wave.shared()), at={4}))
    assert launched(code, local_size=256)[0].ending is Ending.DONE
    assert found == [b"\x67\x45\x23\x01" * 64]


def test_a_wave_that_is_ended_stores_nothing(use: Use) -> None:
    use(Watching(lambda wave: False, at={1}))
    outcome, found = launched([mov(r(5), 9), SS])
    assert outcome.ending is Ending.DONE and found == [0xEE] * 64


def test_an_error_of_the_debugger_is_raised_by_the_launch(use: Use) -> None:
    def look(wave: Halted) -> None:
        raise RuntimeError("no terminal")

    use(Watching(look))
    with pytest.raises(RuntimeError, match="no terminal"):
        launched([mov(r(5), 9), SS])
