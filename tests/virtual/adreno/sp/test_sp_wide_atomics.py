"""Atomic operations on 64 bits: from LLVM IR to results, on GPUs that have them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.adreno.ir3_machine import launch
from tests.support.adreno.ir3_text import END, i, r, words
from tests.support.adreno.mesa import compiled, disassembly, module, needs_mesa
from ugpu.hcq.errors import CompileError
from ugpu.qcom import chips
from ugpu.virtual.adreno.isa.decoder.table import table
from ugpu.virtual.adreno.sp.hazards import violations
from ugpu.virtual.adreno.sp.program import load

Words = NDArray[np.uint64]
HAVING = ("a740", "a750")
PARAMETERS = "ptr addrspace(1) %cells, ptr addrspace(1) %old, ptr addrspace(1) %in"
_PLACES = """
  %from = getelementptr i64, ptr addrspace(1) %in, i64 %wide
  %value = load i64, ptr addrspace(1) %from, align 8
  %number = and i64 %wide, 3
  %cell = getelementptr i64, ptr addrspace(1) %cells, i64 %number
  %to = getelementptr i64, ptr addrspace(1) %old, i64 %wide"""
CHANGE = (
    _PLACES
    + """
  %was = atomicrmw {} ptr addrspace(1) %cell, i64 %value monotonic
  store i64 %was, ptr addrspace(1) %to, align 8"""
)
EXCHANGE = (
    _PLACES
    + """
  %pair = cmpxchg ptr addrspace(1) %cell, i64 %value, i64 %wide seq_cst seq_cst
  %was = extractvalue { i64, i1 } %pair, 0
  %done = extractvalue { i64, i1 } %pair, 1
  %one = zext i1 %done to i64
  %both = shl i64 %was, 1
  %told = or i64 %both, %one
  store i64 %told, ptr addrspace(1) %to, align 8"""
)


def signed(values: Words) -> NDArray[np.int64]:
    return values.view(np.int64)


JOINED = {
    "add": lambda v: np.add.reduce(v), "and": lambda v: np.bitwise_and.reduce(v),
    "or": lambda v: np.bitwise_or.reduce(v), "xor": lambda v: np.bitwise_xor.reduce(v),
    "umin": lambda v: v.min(), "umax": lambda v: v.max(),
    "min": lambda v: signed(v).min().view(np.uint64),
    "max": lambda v: signed(v).max().view(np.uint64),
}  # fmt: skip


def ran(body: str, chip: str, values: Words, cells: Words, groups: int) -> tuple[Words, Words]:
    """What the cells and the results are afterwards."""
    kernel = compiled(module(body, PARAMETERS), chip)
    old = np.zeros_like(values)
    found = launch(kernel, chip, (groups, 1, 1), [cells.copy(), old, values])
    return found[0], found[1]


def some(count: int, seed: int = 1) -> Words:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, np.uint64)


@needs_mesa
@pytest.mark.parametrize("chip", HAVING)
@pytest.mark.parametrize("operation", list(JOINED))
def test_what_all_threads_do_together(operation: str, chip: str) -> None:
    values, cells = some(192), some(4, 2)
    found, _ = ran(CHANGE.format(operation), chip, values, cells, 3)
    expected = [
        JOINED[operation](np.append(values[number::4], cells[number])) for number in range(4)
    ]
    np.testing.assert_array_equal(found, np.array(expected, np.uint64))


@needs_mesa
@pytest.mark.parametrize("chip", HAVING)
def test_old_values(chip: str) -> None:
    """Each sum on the way is seen by one thread; an exchange leaves every value to one."""
    ones = np.full(128, (1 << 32) + 1, np.uint64)
    cells = np.array([0, 5, 1 << 63, 7], np.uint64)
    found, old = ran(CHANGE.format("add"), chip, ones, cells, 2)
    for number in range(4):
        steps = cells[number] + np.arange(33, dtype=np.uint64) * ones[0]
        assert found[number] == steps[32]
        np.testing.assert_array_equal(np.sort(old[number::4]), np.sort(steps[:32]))
    values = some(128)
    found, old = ran(CHANGE.format("xchg"), chip, values, cells, 2)
    for number in range(4):
        seen = np.append(old[number::4], found[number])
        given = np.append(values[number::4], cells[number])
        np.testing.assert_array_equal(np.sort(seen), np.sort(given))


@needs_mesa
@pytest.mark.parametrize("chip", HAVING)
def test_compare_and_exchange(chip: str) -> None:
    """Thread 0 to 3 expect what is there, the others what differs in one half."""
    cells = some(4, 3) >> np.uint64(2)
    values = np.resize(cells, 64).copy()
    values[4:32] ^= np.uint64(1)
    values[32:] ^= np.uint64(1 << 40)
    found, old = ran(EXCHANGE, chip, values, cells, 1)
    np.testing.assert_array_equal(found, np.arange(4))
    np.testing.assert_array_equal(old[:4], cells * np.uint64(2) + np.uint64(1))
    assert not (old[4:] & np.uint64(1)).any()
    assert set((old[4:] >> np.uint64(1)).tolist()) <= {*cells.tolist(), 0, 1, 2, 3}


@needs_mesa
def test_exchanges_are_one_instruction() -> None:
    text = disassembly(compiled(module(CHANGE.format("xchg"), PARAMETERS), "a740"), "a740")
    assert text.count("atomic.g.xchg.untyped.1d.u64.1.g") == 1 and "cmpxchg" not in text
    text = disassembly(compiled(module(CHANGE.format("add"), PARAMETERS), "a740"), "a740")
    assert text.count("atomic.g.cmpxchg.untyped.1d.u64.1.g") == 1 and "jump" in text


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a690", "a730"])
@pytest.mark.parametrize("body", [CHANGE.format("add"), EXCHANGE])
def test_gpus_that_have_none(chip: str, body: str) -> None:
    with pytest.raises(CompileError, match="no 64-bit atomics; the 740, the 750 and the X1-85"):
        compiled(module(body, PARAMETERS), chip)


@needs_mesa
def test_none_in_local_memory() -> None:
    body = """
  %cell = getelementptr i64, ptr addrspace(3) @k.m, i32 %thread
  %was = atomicrmw add ptr addrspace(3) %cell, i64 1 monotonic
  store i64 %was, ptr addrspace(1) %cells, align 8"""
    extra = "@k.m = internal addrspace(3) global [64 x i64] poison, align 8"
    with pytest.raises(CompileError, match="no 64-bit atomics in local memory"):
        compiled(module(body, PARAMETERS, extra=extra), "a740")


def test_chips_that_have_them() -> None:
    having = {name for name in chips.names() if chips.facts(name).wide_atomics}
    assert having == {"a740", "a750", "x185"}
    kinds = {chips.facts(name).target().features.partition(",")[2] for name in having}
    assert kinds == {"atomics64"}


@pytest.mark.parametrize(
    ("name", "register", "late"),
    [("xchg", r(5, "y"), True), ("xchg", r(5, "z"), False), ("cmpxchg", r(5, "y"), True)],
)
def test_both_halves_come_late(name: str, register: int, late: bool) -> None:
    """The second register of the old value, too, must be waited for."""
    exchange = i(f"atomic.g.{name}", "a740", DST=r(5), SRC1=r(1), SRC2=r(2), TYPE=6)
    use = i("add.u", "a740", DST=r(6), SRC1=register, SRC2=0x2001, FULL=1)
    for flag, broken in ((0, late), (1 << 60, False)):
        program = load(words(exchange, use | flag, END), True, table(740))
        assert bool(violations(program, 7, True)) is broken


@pytest.mark.parametrize(("name", "read"), [("xchg", 2), ("cmpxchg", 4)])
def test_all_of_its_data_is_taken_late(name: str, read: int) -> None:
    exchange = i(f"atomic.g.{name}", "a740", DST=r(5), SRC1=r(1), SRC2=r(2), TYPE=6)
    for place in range(6):
        over = i("mov-immed", "a740", DST=r(2) + place, SRC_TYPE=3, DST_TYPE=3, SRC=1)
        program = load(words(exchange, over, END), True, table(740))
        assert bool(violations(program, 7, True)) is (place < read)
