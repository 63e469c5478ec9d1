"""Lanes that go different ways, predication, relative registers, barriers, repetition."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.adreno.ir3_text import END, OUT, constants, i, k, mov, r, run, stored, words
from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.adreno.shader import Ending

SS = 1 << 44
P0 = 62 * 4
MASK = (1 << 32) - 1


def results(code: list[int], chip: str = "a630", source: int = r(5), **more: object) -> list[int]:
    """What every thread has in a register at the end."""
    x, y, z = more.get("threads", (64, 1, 1))  # type: ignore[misc]
    memory = ArrayMemory()
    out = memory.map(OUT, np.full(x * y * z, 0xEE, np.uint32))
    outcome, _ = run(words(*code, *stored(source, chip), END), chip, memory, **more)
    assert outcome.ending is Ending.DONE, outcome
    assert not memory.faults
    return [int(word) for word in out]


def branch(name: str, offset: int, **fields: int) -> int:
    return i(name, IMMED=offset, **fields)


def bit(number: int) -> list[int]:
    """p0.x: whether a bit of the thread's number is set."""
    return [
        i("and.b", DST=r(6), SRC1=0, SRC2=k(1 << number), FULL=1),
        i("cmps.u", DST=P0, SRC1=r(6), SRC2=k(0), COND=5, FULL=1),
    ]


@dataclass
class Step:
    """A block: what it adds, and where it goes if a bit of the thread's number is set; back only
    while the thread has fuel."""

    value: int
    bit: int
    target: int


SIZE = 8  # instructions of a block


def block(place: int, step: Step) -> list[int]:
    """acc = acc * 3 + value; fuel -= 1; branch where bit & fuel is not 0."""
    return [
        i("mul.u24", DST=r(5), SRC1=r(5), SRC2=k(3), FULL=1),
        i("add.u", DST=r(5), SRC1=r(5), SRC2=k(step.value), FULL=1),
        i("max.s", DST=r(7), SRC1=r(7), SRC2=k(1), FULL=1),
        i("sub.u", DST=r(7), SRC1=r(7), SRC2=k(1), FULL=1),
        i("and.b", DST=r(6), SRC1=0, SRC2=k(1 << step.bit), FULL=1),
        i("sel.b32", DST=r(6), SRC1=r(7), SRC2=r(6), SRC3=r(6)),
        i("cmps.u", DST=P0, SRC1=r(6), SRC2=k(0), COND=5, FULL=1),
        branch("br", SIZE * step.target - SIZE * place - 7, COMP1=0),
    ]


def expected(steps: list[Step], lane: int, fuel: int) -> int:
    total, place = 0, 0
    while place < len(steps):
        step = steps[place]
        total = ((total & 0xFFFFFF) * 3 + step.value) & MASK
        fuel = max(fuel, 1) - 1
        taken = lane >> step.bit & 1 and fuel
        place = step.target if taken else place + 1
    return total


@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 32), chip=st.sampled_from(["a630", "a740"]))
def test_any_branches_give_what_each_thread_alone_does(seed: int, chip: str) -> None:
    rng = random.Random(seed)
    count = rng.randrange(2, 8)
    steps = [
        Step(rng.randrange(100), rng.randrange(6), rng.randrange(count + 1)) for _ in range(count)
    ]
    fuel = rng.randrange(2, 9)
    # programs of many instructions are translated in other ways
    code = [*[0] * rng.choice((0, 260, 620)), mov(r(5), 0), mov(r(7), fuel)]
    for place, step in enumerate(steps):
        code += block(place, step)
    assert results(code, chip) == [expected(steps, lane, fuel) for lane in range(64)]


@pytest.mark.parametrize(("threads", "lanes"), [(1, 64), (40, 64), (100, 64), (100, 128)])
def test_a_wave_that_is_not_full(threads: int, lanes: int) -> None:
    code = [mov(r(5), 9), *bit(0), branch("br", 2), mov(r(5), 4)]
    found = results(code, threads=(threads, 1, 1), thread_size=lanes)
    assert found == [9 if lane & 1 else 4 for lane in range(threads)]


def test_numbers_of_threads_in_three_dimensions() -> None:
    code = [
        i("shl.b", DST=r(5), SRC1=r(0, "z"), SRC2=k(4), FULL=1),
        i("add.u", DST=r(5), SRC1=r(5), SRC2=r(0, "y"), FULL=1),
        i("shl.b", DST=r(5), SRC1=r(5), SRC2=k(4), FULL=1),
        i("add.u", DST=r(5), SRC1=r(5), SRC2=r(0, "x"), FULL=1),
        i("mov-gpr", DST=r(0), SRC_TYPE=3, DST_TYPE=3, SRC=r(1)),
    ]
    found = results(code, threads=(5, 4, 3), linear_register=r(1))
    assert found == [z << 8 | y << 4 | x for z in range(3) for y in range(4) for x in range(5)]


def test_one_thread_is_elected() -> None:
    code = [mov(r(5), 0), *bit(2), branch("br", 3), branch("getone", 2), mov(r(5), 1)]
    assert results(code) == [int(lane == 0) for lane in range(64)]


@pytest.mark.parametrize(("name", "wanted"), [("bany", 1), ("ball", 0)])
def test_votes(name: str, wanted: int) -> None:
    code = [mov(r(5), 1), *bit(3), branch(name, 2), mov(r(5), 0)]
    assert results(code) == [wanted] * 64


@pytest.mark.parametrize(
    ("name", "truth"), [("brao", lambda a, b: a or b), ("braa", lambda a, b: a and b)]
)
def test_branches_on_two_predicates(name: str, truth: object) -> None:
    second = i("cmps.u", DST=P0 + 1, SRC1=0, SRC2=k(9), COND=0, FULL=1)
    code = [mov(r(5), 1), *bit(1), second, branch(name, 2, COMP1=0, INV2=1, COMP2=1), mov(r(5), 0)]
    assert callable(truth)
    assert results(code) == [int(truth(lane & 2, lane >= 9) != 0) for lane in range(64)]


def test_predication() -> None:
    """Both sides of an if without a branch."""
    code = [mov(r(5), 7), *bit(4), i("predt"), mov(r(5), 1), i("predf"), mov(r(5), 2), i("prede")]
    code += [i("add.u", DST=r(5), SRC1=r(5), SRC2=k(10), FULL=1)]
    assert results(code) == [11 if lane & 16 else 12 for lane in range(64)]


@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_registers_by_address(chip: str) -> None:
    """Each thread reads one of eight registers, and writes one of eight."""
    move = i("mov-gpr", chip, DST=244, SRC_TYPE=4, DST_TYPE=4, SRC=2 * r(6))
    low = i("and.b", chip, DST=r(6), SRC1=0, SRC2=k(7), FULL=1)
    code = [*(mov(r(8) + n, 100 + n) for n in range(8)), *(mov(r(12) + n, 0) for n in range(8))]
    code += [low, move, i("mov-relgpr", chip, DST=r(5), SRC_TYPE=3, DST_TYPE=3, SRC=r(8))]
    code += [i("mov-gpr", chip, DST=r(12), DST_REL=1, SRC_TYPE=3, DST_TYPE=3, SRC=r(5))]
    code += [i("add.u", chip, DST=r(5), SRC1=r(12), SRC2=r(13), FULL=1)]
    expected_words = [{0: 100, 4: 104}.get(lane % 8, 0) for lane in range(64)]
    assert results(code, chip) == expected_words


def test_constants_by_address() -> None:
    move = i("mov-gpr", DST=244, SRC_TYPE=4, DST_TYPE=4, SRC=0)
    load = i("mov-relconst", DST=r(5), SRC_TYPE=3, DST_TYPE=3, SRC=2)
    given_words = list(range(500, 564))
    assert results([move, load], constants=constants(*given_words)) == given_words


def test_repetition() -> None:
    """(rpt3): the destination moves on, and so does the source with (r)."""
    code = [*(mov(r(8) + n, 10 * n) for n in range(4))]
    code += [i("add.u", DST=r(12), REPEAT=3, SRC1=r(8), SRC1_R=1, SRC2=k(1), FULL=1)]
    code += [i("add.u", DST=r(5), SRC1=r(12, "x"), SRC2=r(12, "w"), FULL=1)]
    assert results(code) == [32] * 64
    # without (rpt) the same flags count nops
    code[4] = i("add.u", DST=r(12), SRC1=r(9), SRC1_R=1, SRC2=k(1), FULL=1)
    code[3] = mov(r(9), 50)
    code[5] = i("mov-gpr", DST=r(5), SRC_TYPE=3, DST_TYPE=3, SRC=r(12))
    assert results(code) == [51] * 64


@pytest.mark.parametrize(
    ("mode", "amount", "source"),
    [(1, 5, lambda n: n ^ 5), (7, 3, lambda n: (n + 3) % 64), (6, 3, lambda n: (n - 3) % 64)],
)
def test_shuffles(mode: int, amount: int, source: object) -> None:
    code = [i("shfl", DST=r(5), SRC1=0, SRC2=amount, SRC2_IM=1, MODE=mode, TYPE=3), SS]
    assert callable(source)
    assert results(code) == [source(lane) for lane in range(64)]


@pytest.mark.parametrize(("name", "turn"), [("horiz", 1), ("vert", 2), ("diag", 3)])
def test_quads(name: str, turn: int) -> None:
    code = [i(f"quad_shuffle.{name}", DST=r(5), SRC1=0, WRMASK=1, TYPE=3, FULL=1), 1 << 60]
    assert results(code) == [lane ^ turn for lane in range(64)]


def test_broadcast_among_active() -> None:
    """Clusters of eight: the upper four get what the last active of the lower four has."""
    code = [mov(r(5), 99), *bit(1), branch("br", 2)]
    code += [i("brcst.active", DST=r(5), SRC1=0, WRMASK=1, TYPE=3, FULL=1, W=2), 1 << 60]
    wanted: NDArray[np.int64] = np.full(64, 99)
    for lane in range(64):
        if not lane & 2 and lane % 8 >= 4:
            wanted[lane] = lane // 8 * 8 + 1
    assert results(code) == wanted.tolist()


def test_a_barrier_that_lanes_miss() -> None:
    code = [*bit(0), branch("br", 2), i("bar", G=1), mov(r(5), 1)]
    memory = ArrayMemory()
    outcome, _ = run(words(*code, END), "a630", memory, threads=(128, 1, 1))
    assert outcome.ending is Ending.BARRIER
    assert (outcome.text, outcome.lane, outcome.wave) == ("bar.g", 0, 0)


def test_the_preamble_runs_once() -> None:
    """A constant that it doubles is doubled once, however many waves come."""
    double = i("add.u", DST=r(6), SRC1=0x1002, SRC2=0x1002, FULL=1)
    code = [branch("shps", 4), SS | double]
    code += [i("stc", DST=2, SRC=r(6), SIZE=1, TYPE=3), i("shpe")]
    code += [SS | i("mov-const", DST=r(5), SRC_TYPE=3, DST_TYPE=3, SRC=2)]
    assert results(code, constants=constants(21), threads=(256, 1, 1)) == [42] * 256
