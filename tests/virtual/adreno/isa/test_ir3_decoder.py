"""The decoder of ir3: against Mesa's disassembler on random words, and words written by hand."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.adreno.mesa import compiled, module, needs_mesa
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.tools.clang2py.isaspec.read import python
from ugpu.virtual.adreno.isa.decoder.decode import decode, disassemble, program
from ugpu.virtual.adreno.isa.decoder.table import table

GPUS = (630, 660, 740, 750)
END = struct.pack("<Q", 0x0300000000000000)


def differences(gpu: int, words: list[int]) -> list[tuple[str, str, str]]:
    """Words that Mesa's disassembler prints otherwise: the word, its text, ours."""
    from ugpu.compiler.codegen.adreno.mesa import library

    code = struct.pack(f"<{len(words)}Q", *words)
    expected = library().disassembly(code, gpu).split("\n")[:-1]
    assert len(expected) == len(words)
    known = table(gpu)
    found = ((f"{w:#018x}", e, disassemble(w, known)) for w, e in zip(words, expected, strict=True))
    return [one for one in found if one[1] != one[2]]


def random_words(count: int, seed: int) -> list[int]:
    """Half of them any bits, half of them few bits apart from zero or one another."""
    rng = random.Random(seed)
    words = [rng.getrandbits(64) for _ in range(count // 2)]
    sparse = (rng.getrandbits(64) & rng.getrandbits(64) & rng.getrandbits(64) for _ in words)
    return words + [word & ~(7 << 61) | rng.randrange(8) << 61 for word in sparse]


@needs_mesa
@pytest.mark.parametrize("gpu", GPUS)
def test_text_is_that_of_mesa(gpu: int) -> None:
    assert not differences(gpu, random_words(1500, gpu))


@needs_mesa
@pytest.mark.slow
@pytest.mark.parametrize("gpu", (630, 740))
@pytest.mark.parametrize("part", range(3))
def test_many_words(gpu: int, part: int) -> None:
    assert not differences(gpu, random_words(100_000, gpu * 1000 + part))


@needs_mesa
def test_the_comparison_can_fail() -> None:
    """Words that gen 7 has and gen 6 has not are told apart."""
    assert disassemble(0xFBC2100000000000, table(630)).startswith("no match")
    assert disassemble(0xFBC2100000000000, table(740)) == "(sy)(ss)(jp)lock"


# Written by hand from Mesa's ir3-cat*.xml: category in bits 63..61.
BY_HAND = [
    (0x0000000000000000, "nop"),
    (0x0000050000000000, "(rpt5)nop"),
    (0x0300000000000000, "end"),
    (0x204CC00012345678, "mov.u32u32 r0.x, 0x12345678"),
    (0x4010000000010002 | 5 << 32, "add.f r1.y, r0.z, r0.y"),
    (0x4010400000010002 | 5 << 32, "add.f hr1.y, r0.z, r0.y"),
    (0x4210000000012004 | 0 << 32, "add.u r0.x, 4, r0.y"),
    (0xC0060000_01000001 | 2 << 14 | 0x0300000000 * 0 | 3 << 32, "ldg.u32 r0.w, g[r0.z], 1"),
]


@pytest.mark.parametrize(("word", "text"), BY_HAND, ids=[text for _, text in BY_HAND])
def test_words_written_by_hand(word: int, text: str) -> None:
    assert disassemble(word | (1 << 23 if "ldg" in text else 0), table(630)) == text


def test_fields_and_operands() -> None:
    found = decode(0x4010000080010002 | 5 << 32, table(630))
    assert found is not None and found.name == "add.f"
    assert found.raw("DST") == 5 and found.inner("DST").raw("GPR") == 1
    first, second = found.inner("SRC1"), found.inner("SRC2")
    assert first.name == second.name == "#multisrc-gpr"
    assert (first.inner("SRC").raw("GPR"), first.inner("SRC").raw("SWIZ")) == (0, 2)
    assert second.raw("ABSNEG") == 2 and not first.raw("ABSNEG")
    assert not found.has("OFFSET")
    with pytest.raises(KeyError, match=r"add\.f has no field OFFSET"):
        found.raw("OFFSET")


def test_signed_fields() -> None:
    found = decode(0x00800000FFFFFFF9, table(630))  # br p0.x, #-7
    assert found is not None and found.signed("IMMED") == -7


@given(word=st.integers(0, (1 << 64) - 1), gpu=st.sampled_from(GPUS))
def test_any_word_is_decoded_or_none(word: int, gpu: int) -> None:
    found = decode(word, table(gpu))
    if found is not None:
        assert found.text() and found.bits == word


def test_programs_end() -> None:
    nop = bytes(8)
    assert [one.name for one in program(nop + END + b"\xff" * 8, table(630))] == ["nop", "end"]
    with pytest.raises(BadCodeObject, match="expected `end`"):
        list(program(nop, table(630)))
    with pytest.raises(BadCodeObject, match="cannot decode an instruction"):
        list(program(b"\xff" * 8 + END, table(630)))


@needs_mesa
@pytest.mark.parametrize(("chip", "gpu"), [("a630", 630), ("a750", 750)])
def test_what_the_compiler_makes_is_decoded(chip: str, gpu: int) -> None:
    body = """
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  %q = urem i32 %i, 7
  store i32 %q, ptr addrspace(1) %to, align 4"""
    made = compiled(module(body, "ptr addrspace(1) %out"), chip)
    names = [one.name for one in program(made.code, table(gpu))]
    assert names[-1] == "end" and {"madsh.m16", "mull.u", "stg"} <= set(names)


def test_other_gpus_are_refused() -> None:
    with pytest.raises(NotSupported, match="600 to 799"):
        table(540)


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("2ULL << {W}", "2 << W"),
        ("{GPR} == 61 /* a0.* */", "GPR == 61"),
        ("!{FULL} && ({A} != 7 || ISA_GPU_ID() >= 700)", "not FULL and (A != 7 or GPU >= 700)"),
    ],
)
def test_expressions_of_the_generator(given_text: str, expected: str) -> None:
    assert python(given_text) == expected
