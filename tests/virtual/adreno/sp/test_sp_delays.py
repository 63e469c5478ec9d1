"""Results that come after a number of cycles: code that reads them too early is named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.adreno import ir3_run
from tests.support.adreno.ir3_text import END, NOPS, OUT, c, constants, i, k, r, run, stored, words
from tests.support.adreno.mesa import kernel_of, needs_mesa, target
from tests.support.shader_memory import ArrayMemory
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.qcom import chips
from ugpu.virtual.adreno.isa.decoder.table import table
from ugpu.virtual.adreno.shader import Ending
from ugpu.virtual.adreno.sp.hazards import violations
from ugpu.virtual.adreno.sp.program import Program, load

P0, A0, SHARED = 62 * 4, 61 * 4, 48 * 4
SS, SY, JP = 1 << 44, 1 << 60, 1 << 59
FLAGS = SS | SY | JP
PREDICATED = (i("predf"), i("prede"))
REPEAT = 1 << 40
R1, R2 = 1 << 43, 1 << 51  # (r) of the sources of category 2, or the bits of (nopN)
ADD = i("add.u", DST=r(5), SRC1=r(3), SRC2=k(1), FULL=1)
USE = i("add.u", DST=r(6), SRC1=r(5), SRC2=k(1), FULL=1)
OF_HALF = i("add.u", DST=2 * r(6), SRC1=2 * r(5) + 1, SRC2=k(1), FULL=0)
RCP = i("rcp", DST=r(6), SRC=r(5), FULL=1)
LOAD = i("ldg", SRC1=r(5), SIZE=1, DST=r(6), TYPE=3, OFF=0)
CMPS = i("cmps.u", DST=P0 + 1, SRC1=r(3), SRC2=k(5), COND=0, FULL=1)
BRANCH = i("br", COMP1=1, IMMED=2)
MOVA = i("mov-gpr", DST=A0, SRC_TYPE=4, DST_TYPE=4, SRC=2 * r(3))
BY_A0 = i("mov-relconst", DST=r(6), SRC_TYPE=3, DST_TYPE=3, SRC=4)
MAD = i("mad.f32", DST=r(6), SRC1=r(3), SRC2=r(3), SRC3=r(5))
MAD_EARLY = i("mad.f32", DST=r(6), SRC1=r(5), SRC2=r(3), SRC3=r(3))
SEL = i("sel.b32", DST=r(6), SRC1=r(3), SRC2=r(3), SRC3=r(5))


def nops(count: int) -> list[int]:
    return [REPEAT * (count - 1)] if count else []


def program(chip: str, code: list[int]) -> Program:
    return load(words(*code, END), True, table(chips.facts(chip).gpu_id))


def rules(code: list[int], chip: str = "a630") -> tuple[str, ...]:
    facts = chips.facts(chip)
    return violations(program(chip, code), facts.generation, facts.scalar_unit)


MOVA1 = i("mov-immed", DST=A0 + 1, SRC_TYPE=2, DST_TYPE=2, SRC=16)
TO_CONSTANTS = i("ldc.k", SRC1=1, SRC1_IM=1, SRC2=0, MODE=0, BINDLESS=1, LOAD_SIZE_MINUS_ONE=1)
CASES = [
    ("arithmetic", ADD, USE, 3, 2), ("half of a whole", ADD, OF_HALF, 6, 5),
    ("category 4", ADD, RCP, 6, 5), ("memory", ADD, LOAD, 6, 5),
    ("a predicate", CMPS, BRANCH, 6, 5), ("a0.x", MOVA, BY_A0, 6, 5),
    ("a1.x", MOVA1, TO_CONSTANTS, 6, 5),
    ("the third source of mad", ADD, MAD, 1, 1), ("another of its sources", ADD, MAD_EARLY, 3, 2),
    ("the third source of sel", ADD, SEL, 3, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "first", "second", "six", "seven"), CASES)
def test_cycles_that_must_lie_between(
    name: str, first: int, second: int, six: int, seven: int
) -> None:
    for chip, count in (("a630", six), ("a740", seven)):
        assert rules([first, *nops(count), second, END], chip) == (), (name, chip)
        (found,) = rules([first, *nops(count - 1), second, END], chip)
        assert "at 1: " in found or "at 2: " in found
        assert "expected 1 more nop: " in found and " may still be writing " in found


def test_what_reads_a1_may_wait_with_a_flag() -> None:
    """As Mesa's early preambles do (ir3_legalize.c): no nops between."""
    assert "may still be writing a1.x" in rules([MOVA1, TO_CONSTANTS, END])[0]
    assert rules([MOVA1, SS, TO_CONSTANTS, END]) == ()
    assert rules([ADD, SS, LOAD, END]), "other registers are not waited for so"


def test_the_text_names_both_instructions_and_the_register() -> None:
    assert rules([ADD, USE]) == (
        "add.u r6.x, r5.x, 1 at 1: expected 3 more nops: add.u r5.x, r3.x, 1 at 0 "
        "may still be writing r5.x",
    )
    assert "writing p0.y" in rules([CMPS, BRANCH, END])[0]
    assert "writing a0.x" in rules([MOVA, BY_A0])[0]


def test_the_outcome_of_a_dispatch_has_it() -> None:
    memory = ArrayMemory()
    memory.map(OUT, np.zeros(64, np.uint32))
    outcome, _ = run(words(ADD, *nops(2), USE, END), memory=memory)
    assert outcome.ending is Ending.DONE and "1 more nop" in outcome.violations[0]


def test_repetitions_are_a_cycle_apart() -> None:
    """The fourth of four results is the last; what reads it first needs most."""
    four = i("add.u", DST=r(5), SRC1=r(3), SRC2=k(1), FULL=1) | 3 * REPEAT | R1
    last = i("add.u", DST=r(6), SRC1=r(5, "w"), SRC2=k(1), FULL=1)
    assert rules([four, USE]) == () and "3 more" in rules([four, last])[0]
    fours = i("add.u", DST=r(6), SRC1=r(5), SRC2=k(1), FULL=1) | 3 * REPEAT | R1
    assert rules([four, fours]) == ()
    three = i("add.u", DST=r(5), SRC1=r(3), SRC2=k(1), FULL=1) | 2 * REPEAT | R1
    assert "expected 1 more nop" in rules([three, fours])[0]


def test_nops_that_an_instruction_counts() -> None:
    assert rules([ADD | R1 | R2, USE]) == ()  # (nop3)
    assert "1 more" in rules([ADD | R2, USE])[0]  # (nop2)
    assert "2 more" in rules([ADD | R1, USE])[0]  # (nop1)


def test_what_the_scalar_unit_executes_takes_no_cycle() -> None:
    scalar = i("add.u", DST=SHARED, SRC1=c(4), SRC2=k(1), FULL=1)
    assert "2 more" in rules([ADD, scalar, USE], "a740")[0]
    assert rules([ADD, scalar | R2, USE], "a740") == ()  # (nop2)
    assert "2 more" in rules([ADD, scalar, USE], "a630")[0]  # no scalar unit: a cycle of three


def test_a_result_that_is_waited_for_comes_after_earlier_ones() -> None:
    late = i("rcp", DST=r(5), SRC=r(3), FULL=1)
    for use in (USE, OF_HALF, RCP):
        assert rules([ADD, late, use | SS]) == ()
    assert rules([ADD, i("rcp", DST=r(7), SRC=r(3), FULL=1), USE | SS]) != ()


def test_cycles_pass_from_block_to_block() -> None:
    jump = i("jump", IMMED=1)
    assert "3 more" in rules([ADD, jump, USE])[0]
    assert "1 more" in rules([ADD, *nops(2), jump, USE])[0]
    assert rules([ADD, *nops(3), jump, USE]) == ()
    # A loop: its first instruction reads what its last one writes.
    back = i("br", COMP1=1, IMMED=-3)
    turn = [CMPS, NOPS, NOPS, USE, *nops(1), ADD, i("br", COMP1=1, IMMED=-3)]
    assert [text.partition(" at ")[0] for text in rules(turn)] == ["add.u r6.x, r5.x, 1"]
    assert rules([CMPS, NOPS, USE, ADD, *nops(3), back]) == ()


def test_the_worse_of_two_ways_counts() -> None:
    """One way writes just before the ways meet."""
    start = [CMPS, NOPS, NOPS]
    assert "3 more" in rules([*start, i("br", COMP1=1, IMMED=2), ADD, USE])[0]
    assert rules([*start, ADD, i("br", COMP1=1, IMMED=2), *nops(3), USE]) != ()
    assert rules([*start, ADD, *nops(3), i("br", COMP1=1, IMMED=2), ADD, *nops(3), USE]) == ()


def test_sides_of_predicated_code_are_for_different_threads() -> None:
    code = [i("cmps.u", DST=P0, SRC1=r(3), SRC2=k(5), COND=0, FULL=1), NOPS]
    code += [i("predt"), ADD, i("predf"), USE, i("prede")]
    assert rules([*code, *nops(2), USE]) == ()
    assert "1 more" in rules([*code[:-2], i("prede"), *nops(1), USE])[0]


@pytest.mark.parametrize(
    ("second", "end", "lacking"),
    [(4, 6, []), (5, 7, []), (3, 6, ["4"]), (4, 5, ["6"]), (0, 0, ["4", "6"])],
)
def test_nops_behind_predicated_code(second: int, end: int, lacking: list[str]) -> None:
    """From the a660 on."""
    test = i("cmps.u", DST=P0, SRC1=r(3), SRC2=k(5), COND=0, FULL=1)
    code = [test, NOPS, i("predt"), ADD, i("predf"), *nops(second), ADD, i("prede"), *nops(end)]
    for chip in ("a630", "a660", "a740"):
        outcome, _ = run(words(*code, END), chip)
        found = [text.partition("expected ")[2] for text in outcome.violations]
        expected = [] if chip == "a630" else lacking
        assert [text.partition(" ")[0] for text in found] == expected, chip
    joined = [test, NOPS, i("br", IMMED=4), i("predt"), ADD, i("prede"), *nops(6)]  # to the nops
    assert not run(words(*joined, END), "a740")[0].violations
    one_side = [test, NOPS, i("predt"), ADD, i("prede"), *nops(6)]
    assert not run(words(*one_side, END), "a740")[0].violations
    again = [*one_side, i("predt"), ADD, i("predf"), ADD, i("prede"), *nops(6)]
    (found,) = run(words(*again, END), "a740")[0].violations
    assert "predf" in found and "expected 4 nops behind it, found 0" in found


def test_special_registers_and_those_of_the_wave_have_other_rules() -> None:
    shared = i("add.u", DST=SHARED, SRC1=c(4), SRC2=k(1), FULL=1)
    use = i("add.u", DST=r(6), SRC1=SHARED, SRC2=k(1), FULL=1)
    assert rules([shared, use | SS]) == ()


# ---- constants beyond CONSTLEN -------------------------------------------------------------------


def test_constants_beyond_what_the_dispatch_has() -> None:
    take = i("add.u", DST=r(5), SRC1=c(16), SRC2=k(0), FULL=1)
    memory = ArrayMemory()
    out = memory.map(OUT, np.zeros(64, np.uint32))
    code = words(take, NOPS, *(word for one in stored(r(5)) for word in (one, NOPS)), END)
    values = constants(*range(2, 32))
    outcome, _ = run(code, memory=memory, constants=values, constant_limit=20)
    assert outcome.violations == () and set(out.tolist()) == {16}
    outcome, _ = run(code, memory=memory, constants=values, constant_limit=16)
    (found,) = outcome.violations
    assert found == "add.u r5.x, c4.x, 0 at 0: constant c4.x lies beyond CONSTLEN"
    assert set(out.tolist()) == {0xBAD0BAD1}


def test_repetitions_and_addresses_in_constants_count() -> None:
    memory = ArrayMemory()
    memory.map(OUT, np.zeros(64, np.uint32))
    four = i("mov-const", DST=r(5), SRC_TYPE=3, DST_TYPE=3, SRC=12, SRC_R=1, REPEAT=3)
    assert run(words(four, END), constant_limit=16)[0].violations == ()
    (found,) = run(words(four, END), constant_limit=12)[0].violations
    assert "c3.x" in found
    (found,) = run(words(four, END), constant_limit=15)[0].violations
    assert "c3.w" in found


def test_shared_constants_of_generation_6_lie_beyond() -> None:
    take = words(i("mov-const", DST=r(5), SRC_TYPE=3, DST_TYPE=3, SRC=504 * 4), END)
    assert run(take, constant_limit=16, shared_constants=True)[0].violations == ()
    assert run(take, constant_limit=16)[0].violations != ()


# ---- judged by Mesa ------------------------------------------------------------------------------


def shortened(code: bytes) -> Iterator[tuple[int, bytes]]:
    """Code of Mesa with one cycle less in one place; where. What follows `prede` and `predf` stays:
    Mesa makes one nop more there than it says GPUs need."""
    values, before = np.frombuffer(code, "<u8").tolist(), 0
    for at, word in enumerate(values):
        category, repeat = word >> 61, word >> 40 & 7
        second = R2 if category == 2 else 1 << 15
        changed = word
        if word & ~FLAGS == END:
            return
        if category == 0 and word >> 55 & 63 == 0 and repeat:
            if not word & FLAGS and before & ~FLAGS not in PREDICATED:
                changed = word - REPEAT
        elif category in (2, 3) and word >> 40 & 3 == 0 and word & (R1 | second):
            changed = word ^ R1 if word & R1 else word ^ R1 ^ second
        before = word
        if changed != word:
            yield at, words(*values[:at], changed, *values[at + 1 :])


@needs_mesa
@pytest.mark.parametrize(("chip", "turn"), [("a630", 7), ("a740", 29)])
def test_each_nop_of_mesa_is_needed_and_enough(chip: str, turn: int) -> None:
    facts = chips.facts(chip)
    known, tried, missed = table(facts.gpu_id), 0, []
    kernels = {
        step.kernel.name: step.kernel
        for made in ir3_run.programs(chip, turn, 48)
        for step in made.launches
    }
    for name, kernel in kernels.items():
        image = compile_text(emit(kernel, target(chip)), target(chip))
        code = kernel_of(image).code
        whole = load(code, True, known)
        assert violations(whole, facts.generation, facts.scalar_unit) == (), name
        if len(whole.by_index) > 150:
            continue
        for at, changed in shortened(code):
            tried += 1
            mutant = load(changed, True, known)
            if not violations(mutant, facts.generation, facts.scalar_unit):
                missed.append((name, at, whole.by_index[at].text))
    assert tried > 60
    assert not missed
