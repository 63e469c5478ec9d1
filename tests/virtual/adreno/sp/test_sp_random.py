"""Random instructions with random operands: the shader processors against the oracle in NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lab.oracles.ir3 import Machine, Memory
from tests.support.adreno.ir3_text import (
    END,
    OUT,
    c,
    constants,
    gpu,
    i,
    k,
    r,
    run,
    spaced,
    stored,
    words,
)
from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.adreno.isa.decoder.decode import disassemble
from ugpu.virtual.adreno.isa.decoder.table import table
from ugpu.virtual.adreno.shader import Ending

Words = NDArray[np.uint32]
IN = 0x5000_0000
INPUTS, FIRST, RESULTS = 8, 4, 48  # registers r1.x to r2.w; results from r12.x on
TWO_F = ("add.f", "mul.f", "min.f", "max.f")
ONE_F = ("absneg.f", "floor.f", "ceil.f", "rndne.f", "trunc.f", "sign.f")
TWO_I = (
    "add.u", "add.s", "sub.u", "sub.s", "min.u", "min.s", "max.u", "max.s", "and.b", "or.b",
    "xor.b", "mull.u", "shl.b", "shr.b", "ashr.b",
)  # fmt: skip
COMPARES = ("cmps.f", "cmps.u", "cmps.s")
THREE = ("mad.f32", "mad.f16", "sel.b32", "sel.b16", "sad.s32", "madsh.m16", "mad.u16")
ALT = ("shrm", "shlm", "shrg", "shlg", "andg")
SFU = ("rcp", "rsq", "sqrt")
MOVES = [("f32", "f16"), ("f16", "f32"), ("u32", "f32"), ("s32", "f32"), ("f32", "s32"),
         ("f32", "u32"), ("u32", "u16"), ("u16", "u32"), ("s16", "s32"), ("f16", "s16"),
         ("u32", "u32"), ("s16", "f32")]  # fmt: skip
NAMES = ("f16", "f32", "u16", "u32", "s16", "s32")


def operand(rng: random.Random, full: bool, floating: bool, bitwise: bool) -> int:
    """A source of category 2 or 4: a register, a constant or an immediate, with modifiers."""
    choice = rng.randrange(8)
    if choice == 0 and not floating:
        return 0x2000 | rng.randrange(1 << 11)
    bits = c(2 + rng.randrange(4)) if choice == 1 else register(rng, full)
    modifiers = 0 if bitwise else rng.randrange(4)
    return bits | modifiers << 14


def register(rng: random.Random, full: bool) -> int:
    return FIRST + rng.randrange(INPUTS) if full else 2 * FIRST + rng.randrange(2 * INPUTS)


def instruction(rng: random.Random, chip: str, target: int) -> tuple[int, bool]:
    """One that writes the register `target`, or its lower half; whether that is a float."""
    full = bool(rng.randrange(2))
    kind = rng.choice(("two.f", "one.f", "two", "compare", "three", "alt", "sfu", "move"))
    to = target if full else 2 * target
    if kind == "move":
        source, wanted = rng.choice(MOVES)
        half = wanted.endswith("16")
        bits = i(
            "mov-gpr", chip, DST=2 * target if half else target, SRC_TYPE=NAMES.index(source),
            DST_TYPE=NAMES.index(wanted), SRC=register(rng, not source.endswith("16")),
        )  # fmt: skip
        return bits, wanted[0] == "f"
    if kind in ("three", "alt"):
        name = rng.choice(THREE if kind == "three" else ALT)
        wide = full if kind == "alt" else name not in ("mad.f16", "sel.b16", "mad.u16")
        sources = {f"SRC{n}": register(rng, wide) for n in (1, 2, 3)}
        if name.startswith("mad.f"):
            sources |= {f"SRC{n}_NEG": rng.randrange(2) for n in (1, 2, 3)}
        if kind == "alt":
            sources["FULL"] = wide
        return i(name, chip, DST=target if wide else 2 * target, **sources), ".f" in name
    if kind == "sfu":
        source = operand(rng, full, True, False)
        return i(rng.choice(SFU), chip, DST=to, FULL=full, SRC=source), True
    floating = kind.endswith("f")
    name = rng.choice({"two.f": TWO_F, "one.f": ONE_F, "two": TWO_I, "compare": COMPARES}[kind])
    floating = floating or name == "cmps.f"
    fields = {"SRC1": operand(rng, full, floating, name.endswith(".b"))}
    if kind != "one.f":
        fields["SRC2"] = operand(rng, full, floating, name.endswith(".b"))
    if kind == "compare":
        fields["COND"] = rng.randrange(6)
        return i(name, chip, DST=to, FULL=full, **fields), False
    return i(name, chip, DST=to, FULL=full, **fields), floating


def values(rng: np.random.Generator) -> Words:
    """Words for every register and thread: any bits, small numbers, floats of common sizes."""
    found = rng.integers(0, 1 << 32, (INPUTS, 64), np.uint32)
    found[1] = rng.integers(0, 64, 64)
    found[2] = (rng.standard_normal(64) * 100).astype(np.float32).view(np.uint32)
    pairs = (rng.standard_normal(128) * 10).astype(np.float16).view(np.uint16)
    found[3] = pairs.view(np.uint32)
    found[4] = rng.standard_normal(64).astype(np.float32).view(np.uint32)
    found[5, ::8] = (0, 1 << 31, 0x7F800000, 0xFF800000, 0x3F800000, 0x10001, 0xFFFFFFFF, 1)
    return found


def same(found: Words, expected: Words, floating: bool, half: bool) -> bool:
    """Equal bits; of floats, any NaN is as good as another."""
    if half:
        found, expected = (x.astype(np.uint16) for x in (found, expected))
    if floating:
        kind = np.float16 if half else np.float32
        found, expected = found.view(kind), expected.view(kind)
    return bool(np.array_equal(found, expected, equal_nan=floating))


def is_half(text: str) -> bool:
    return text.partition(" ")[2].removeprefix("(even)").startswith("h")


@pytest.mark.parametrize("chip", ["a630", "a740"])
@settings(max_examples=5)
@given(seed=st.integers(0, 1 << 32))
def test_random_instructions(chip: str, seed: int) -> None:
    check(chip, seed)


def moved(target: int, source: int, chip: str, kind: int, to: int) -> int:
    """A move between registers of two types, by their numbers."""
    return i("mov-gpr", chip, DST=target, SRC_TYPE=kind, DST_TYPE=to, SRC=source)


def split(number: int, chip: str) -> list[int]:
    """Copy the halves of a full register to two separate half registers."""
    upper = i("shr.b", chip, DST=r(44), SRC1=number, SRC2=k(16), FULL=1)
    low, high = (moved(2 * number, number, chip, 3, 2), moved(2 * number + 1, r(44), chip, 3, 2))
    return [low, upper, high]


@pytest.mark.parametrize("chip", ["a630", "a740"])
@settings(max_examples=5)
@given(seed=st.integers(0, 1 << 32))
def test_separate_half_registers(chip: str, seed: int) -> None:
    """MERGEDREGS off: what half registers hold is not part of any full register."""
    check(chip, seed, merged=False)


def check(chip: str, seed: int, count: int = 24, merged: bool = True) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    given_values = values(numbers)
    extra = [int(x) for x in numbers.integers(0, 1 << 32, 4, np.uint32)]
    extra[1] = 0x3F800000
    made = [instruction(rng, chip, RESULTS + n) for n in range(count)]
    texts = [disassemble(word, table(gpu(chip))) for word, _ in made]
    machine = Machine((*texts, "end"), (1, 1, 1), 64, 0, constants(*extra), Memory([]), 0xFC, 0,
                      merged=merged)  # fmt: skip
    machine.words[FIRST : FIRST + INPUTS] = given_values
    if machine.halves is not None:
        machine.halves[2 * FIRST : 2 * (FIRST + INPUTS) : 2] = given_values
        machine.halves[2 * FIRST + 1 : 2 * (FIRST + INPUTS) : 2] = given_values >> 16
    machine.run()
    memory = ArrayMemory()
    memory.map(IN, given_values)
    out = memory.map(OUT, np.zeros((count, 64), np.uint32))
    code = [i("shl.b", chip, DST=r(3), SRC1=0, SRC2=0x2002, FULL=1)]
    code += [i("mov-immed", chip, DST=r(3, "z"), SRC_TYPE=3, DST_TYPE=3, SRC=0)]
    for n in range(INPUTS):
        place = i("mov-immed", chip, DST=r(3, "y"), SRC_TYPE=3, DST_TYPE=3, SRC=IN + 256 * n)
        add = i("add.u", chip, DST=r(3, "y"), SRC1=r(3), SRC2=r(3, "y"), FULL=1, SS=1)
        code += [place | 1 << 44, add]
        code.append(i("ldg", chip, SRC1=r(3, "y"), SIZE=1, DST=FIRST + n, TYPE=3, OFF=0))
    code.append(1 << 60 | 1 << 44)
    if not merged:
        code += [word for n in range(FIRST, FIRST + INPUTS) for word in split(n, chip)]
    code += [*(word for word, _ in made), 1 << 44]
    if not merged:
        code += [moved(n, 2 * n, chip, 2, 3) for n in range(RESULTS, RESULTS + count)
                 if is_half(texts[n - RESULTS])]  # fmt: skip
    for n in range(count):
        code += [1 << 44, *stored(RESULTS + n, chip)]
        code[-4] |= 1 << 44
        code.insert(-1, i("add.u", chip, DST=r(41), SRC1=r(41), SRC2=r(43), FULL=1))
        code.insert(-5, i("mov-immed", chip, DST=r(43), SRC_TYPE=3, DST_TYPE=3, SRC=256 * n, SS=1))
    outcome, _ = run(words(*spaced(code), END), chip, memory, constants=constants(*extra),
                     merged_registers=merged, half_registers=48)  # fmt: skip
    assert outcome.ending is Ending.DONE, outcome
    assert not outcome.violations and not memory.faults
    for n, (text, (_, floating)) in enumerate(zip(texts, made, strict=True)):
        separate = machine.halves is not None and is_half(text)
        expected = machine.halves[2 * (RESULTS + n)] if separate else machine.words[RESULTS + n]
        assert same(out[n], expected, floating, is_half(text)), (
            f"{text}: {out[n][:8]} instead of {expected[:8]}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_many_random_instructions(chip: str) -> None:
    for seed in range(100):
        check(chip, seed)


def test_the_comparison_can_fail() -> None:
    """An instruction that computes something else is told apart."""
    words_of = np.array([1, 2], np.uint32)
    assert same(words_of, words_of.copy(), False, False)
    assert not same(words_of, words_of + np.uint32(1), False, False)
    nan = np.array([0x7FC00000, 0x7FC00001], np.uint32)
    assert same(nan, nan[::-1], True, False) and not same(nan, nan[::-1], False, False)
