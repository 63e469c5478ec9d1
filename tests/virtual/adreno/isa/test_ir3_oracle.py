"""What our code for Adreno computes, by an oracle of ir3 in NumPy: the operation corpus."""

from __future__ import annotations

import numpy as np
import pytest

from lab.oracles.ir3 import Line, Machine, Memory, parse
from lab.oracles.ir3_operations import NotKnown
from lab.oracles.ir3_texels import Buffer
from tests.support.adreno import ir3_run
from tests.support.adreno.mesa import compiled, module, needs_mesa
from ugpu.qcom import chips
from ugpu.virtual.adreno.isa.decoder.decode import program
from ugpu.virtual.adreno.isa.decoder.table import table

SHARE = 60
# Their products of int64 spill registers; private memory is not in the oracle.
SPILL = ("matmul_int64_64x64x129", "matmul_int64_65x33x130")


@needs_mesa
@pytest.mark.parametrize(("chip", "turn"), [("a630", 3), ("a660", 13), ("a740", 23), ("a750", 33)])
def test_a_share_of_the_corpus(chip: str, turn: int) -> None:
    count = 0
    for made in ir3_run.runnable(chip, turn, SHARE, 1 << 12):
        ir3_run.check(made, chip)
        count += 1
    assert count >= 4


@needs_mesa
@pytest.mark.slow
@pytest.mark.parametrize(("chip", "turn"), [("a630", 0), ("a740", 1)])
def test_every_case_on_one_generation(chip: str, turn: int) -> None:
    for made in ir3_run.runnable(chip, turn, 2):
        if made.case.name not in SPILL:
            ir3_run.check(made, chip)


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_lanes_and_local_memory(chip: str) -> None:
    """Threads exchange words through the wave and through local memory, over two waves."""
    kernel = compiled(module("""
  %there = call i32 @adreno.exchange(i32 %i, i32 33)
  %mine = getelementptr i32, ptr addrspace(3) @k.m, i32 %thread
  store i32 %there, ptr addrspace(3) %mine, align 4
  call void @adreno.barrier()
  %turned = sub i32 127, %thread
  %theirs = getelementptr i32, ptr addrspace(3) @k.m, i32 %turned
  %x = load i32, ptr addrspace(3) %theirs, align 4
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %x, ptr addrspace(1) %to, align 4""", "ptr addrspace(1) %out", 128,
        "@k.m = internal addrspace(3) global [128 x i32] poison, align 64"), chip)  # fmt: skip
    (found,) = ir3_run.launch(kernel, chip, (3, 1, 1), [np.zeros(384, np.uint32)])
    number = np.arange(384)
    turned = number // 128 * 128 + 127 - number % 128
    np.testing.assert_array_equal(found, turned ^ 33)


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_divergent_loops(chip: str) -> None:
    """Each thread takes as many turns as its number says."""
    kernel = compiled(module("""
  br label %head
head:
  %n = phi i32 [ %thread, %entry ], [ %half, %even ], [ %more, %odd ]
  %turns = phi i32 [ 0, %entry ], [ %next, %even ], [ %next, %odd ]
  %test = icmp ugt i32 %n, 1
  br i1 %test, label %body, label %done
body:
  %next = add i32 %turns, 1
  %low = and i32 %n, 1
  %is = icmp eq i32 %low, 0
  br i1 %is, label %even, label %odd
even:
  %half = lshr i32 %n, 1
  br label %head
odd:
  %three = mul i32 %n, 3
  %more = add i32 %three, 1
  br label %head
done:
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %turns, ptr addrspace(1) %to, align 4""", "ptr addrspace(1) %out"), chip)  # fmt: skip
    (found,) = ir3_run.launch(kernel, chip, (1, 1, 1), [np.zeros(64, np.uint32)])

    def turns(number: int) -> int:
        count = 0
        while number > 1:
            number, count = (number // 2 if number % 2 == 0 else 3 * number + 1), count + 1
        return count

    assert list(found) == [turns(number) for number in range(64)]


@needs_mesa
def test_a_wrong_instruction_shows() -> None:
    """A sum in place of a difference gives another result, so that the corpus can fail."""
    kernel = compiled(module("""
  %x = sub i32 %i, 5
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %x, ptr addrspace(1) %to, align 4""", "ptr addrspace(1) %out"), "a630")  # fmt: skip
    words = np.frombuffer(kernel.code, np.uint64).copy()
    known = table(chips.facts("a630").gpu_id)
    lines = [one.text() for one in program(kernel.code, known)]
    (place,) = [n for n, line in enumerate(lines) if ", -5" in line]
    results = []
    for bits in (0, 1 << 54):  # add.u, sub.u
        words[place] ^= np.uint64(bits)
        changed = type(kernel)(**{**kernel.__dict__, "code": words.tobytes()})
        (found,) = ir3_run.launch(changed, "a630", (1, 1, 1), [np.zeros(64, np.uint32)])
        results.append(found)
    np.testing.assert_array_equal(results[0], np.arange(64, dtype=np.uint32) - np.uint32(5))
    assert (results[0] != results[1]).all()


def machine(*text: str, threads: int = 64) -> Machine:
    memory = Memory([np.zeros(4, np.uint32)])
    constants = np.zeros(64, np.uint32)
    return Machine(text, (1, 1, 1), threads, 0, constants, memory, 0xFC, 0)


def test_text_is_taken_apart() -> None:
    assert parse("(sy)(ss)(rpt2)(nop1) add.f r0.x, (neg)r1.y, c2.z") == Line(
        "add", ("f",), ("r0.x", "(neg)r1.y", "c2.z"), 2, False
    )


def test_an_access_outside_of_all_arrays_fails() -> None:
    with pytest.raises(AssertionError, match="page fault"):
        machine("mov.u32u32 r1.x, 16", "ldg.u32 r2.x, g[r1.x], 1", "end").run()


def test_a_thread_that_misses_a_barrier_shows() -> None:
    text = ("cmps.u.lt p0.x, r0.x, 8", "br p0.x, #2", "bar.g", "end")
    with pytest.raises(AssertionError, match="misses a barrier"):
        machine(*text).run()


def test_a_kernel_that_does_not_end_shows() -> None:
    with pytest.raises(AssertionError, match="does not end"):
        machine("jump #0", "end").run(limit=100)


def test_what_the_oracle_does_not_know_is_named() -> None:
    with pytest.raises(NotKnown, match="dp4acc"):
        machine("dp4acc.mixed.low r1.x, r0.x, r0.x, r0.x", "end").run()


def test_halves_are_parts_of_full_registers() -> None:
    made = machine("mov.u32u32 r1.x, 0x12345678", "mov.u16u16 hr2.y, 7", "end")
    made.run()
    assert (made.words[4] == 0x00075678).all()


def test_texels_and_what_stands_for_a_register() -> None:
    data = np.arange(100, 130, dtype=np.uint32)
    memory = Memory([data])
    text = (
        "alias.tex.b32.0 r0.y, (0x0)", "isaml (u32)(xy)r1.x, r0.x, r0.y, s#0, t#1",
        "alias.tex.b32.1 r0.y, 0", "alias.tex.b32.0 r0.x, c0.x",
        "isam (u32)(x)r2.x, r0.x, s#0, t#0", "end",
    )  # fmt: skip
    constants = np.full(4, 7, np.uint32)
    textures = [Buffer(memory.addresses[0], 32, 1, 30), Buffer(memory.addresses[0], 32, 2, 15)]
    made = Machine(text, (1, 1, 1), 64, 0, constants, memory, 0xFC, 0, textures)
    made.run()
    inside = np.arange(64) < 15
    assert (made.words[4] == np.where(inside, 100 + 2 * np.arange(64), 0)).all()
    assert (made.words[5] == np.where(inside, 101 + 2 * np.arange(64), 0)).all()
    assert (made.words[8] == 107).all()
