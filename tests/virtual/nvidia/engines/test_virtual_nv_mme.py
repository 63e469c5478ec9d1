"""The macro method expander, with macros that are encoded here, from NVIDIA's document
(MME-MacroMethodExpander/tu104/MME64Group_init.cpp, op.h, pred.h, out.h, reg.h)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu.virtual.nvidia.engines.mme import Mme, decode
from ugpu.virtual.nvidia.host.errors import ChannelError

ZERO, IMMED, PAIR, IMMED32, LOAD0, LOAD1 = 24, 25, 26, 27, 28, 29
ADD, ADDC, SUB, SUBB, MUL, MULH, MULU = range(7)
CLZ, SLL, SRL, SRA, AND, NAND, OR, XOR, MERGE, SLT, SLTU, SLE, SLEU, SEQ = range(8, 22)
STATE, LOOP, JAL, BLT, BLTU, BLE, BLEU, BEQ, DREAD, DWRITE = range(22, 32)
NONE, FROM_ALU0, FROM_ALU1, FROM_LOAD0, FROM_LOAD1, FROM_IMMED0, FROM_IMMED1 = range(7)
EQUAL, LEAVE = 1 << 15, 0x1000  # of a branch: if it is so; and its distance that ends the macro
WORDS = st.integers(0, 0xFFFF_FFFF)
METHOD = 0x1000 >> 2 | 1 << 12  # with increments of one


def alu(op: int, to: int = ZERO, x: int = ZERO, y: int = ZERO, immediate: int = 0) -> int:
    return op | to << 5 | x << 10 | y << 15 | immediate << 20


NOTHING = alu(ADD)


def group(
    first: int = NOTHING, second: int = NOTHING, out: tuple[int, int] = (NONE, NONE),
    other: tuple[int, int] = (NONE, NONE), *, ends: int = 0, pred: tuple[int, int] = (0, 0),
) -> list[int]:  # fmt: skip
    bits = ends | pred[0] << 1 | pred[1] << 5 | first << 10 | second << 46
    bits |= out[0] << 82 | out[1] << 85 | other[0] << 89 | other[1] << 92
    return [bits >> 64, bits >> 32 & 0xFFFF_FFFF, bits & 0xFFFF_FFFF]


def sent(method: int, source: int) -> list[int]:
    """A group that sends a register to a method."""
    return group(alu(ADD, ZERO, source), alu(ADD, immediate=method), (FROM_IMMED1, FROM_ALU0))


END = group(ends=1) + group()


@dataclass
class Sink:
    """An engine that keeps what it gets."""

    methods: list[tuple[int, int]] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def state(self, address: int) -> int:
        return dict(self.methods).get(address, 0)

    def expanded(self, address: int, value: int) -> None:
        self.methods.append((address, value))

    def fetched(self) -> list[int]:
        words, self.memory = self.memory, []
        return words


def load(sink: Sink, *groups: list[int], at: int = 0) -> Mme:
    mme = Mme(sink)
    mme.point(at)
    for words in groups:
        for word in words:
            mme.load(word)
    mme.point_start(7)
    mme.load_start(at)
    return mme


def run(*groups: list[int], parameters: tuple[int, ...] = (0,), at: int = 0) -> Sink:
    sink = Sink()
    mme = load(sink, *groups, at=at)
    mme.call(7, parameters[0])
    for parameter in parameters[1:]:
        mme.parameter(parameter)
    assert not mme.waits
    return sink


def evaluate(op: int, x: int, y: int, immediate: int = 0) -> int:
    """One operation's result, through a method."""
    groups = (
        group(alu(ADD, 0, LOAD0), alu(ADD, 1, LOAD1)),
        group(alu(op, 2, 0, 1, immediate)),
        sent(METHOD, 2),
        END,
    )
    return run(*groups, parameters=(x, y)).methods[0][1]


def test_a_macro_takes_parameters_and_sends_methods_at_ascending_addresses() -> None:
    groups = (
        group(alu(ADD, 0, LOAD0), alu(ADD, 1, IMMED, immediate=METHOD), (FROM_ALU1, FROM_ALU0),
              (NONE, FROM_IMMED1)),
        group(alu(SUB, 2, 0, LOAD0), out=(NONE, FROM_ALU0), ends=1),
        group(alu(ADD, immediate=5), out=(NONE, FROM_IMMED0)),
        group(alu(ADD, immediate=9), out=(NONE, FROM_IMMED0)),
    )  # fmt: skip
    found = run(*groups, parameters=(40, 2), at=33).methods
    assert found == [(0x1000, 40), (0x1004, METHOD), (0x1008, 38), (0x100C, 5)], "one group after"


def test_a_macro_waits_for_its_parameters() -> None:
    sink = Sink()
    mme = load(sink, sent(METHOD, LOAD0), sent(METHOD, LOAD0), END)
    mme.call(7, 1)
    assert mme.waits and sink.methods == [(0x1000, 1)]
    mme.parameter(2)
    assert not mme.waits and sink.methods[1:] == [(0x1000, 2)]
    mme.parameter(3)  # nothing reads it
    assert len(sink.methods) == 2


@settings(max_examples=60, deadline=None)
@given(x=WORDS, y=WORDS, immediate=st.integers(0, 0xFFFF))
def test_operations(x: int, y: int, immediate: int) -> None:
    with np.errstate(over="ignore"):
        a, b = np.array(x, np.uint32), np.array(y, np.uint32)
        s, t = a.view(np.int32), b.view(np.int32)
        shift = b & np.uint32(31)
        results = {
            ADD: a + b, SUB: a - b, MULU: a * b, MUL: (s * t).view(np.uint32),
            SLL: a << shift, SRL: a >> shift, SRA: (s >> shift.view(np.int32)).view(np.uint32),
            AND: a & b, NAND: ~(a & b), OR: a | b, XOR: a ^ b,
        }  # fmt: skip
    truths = {SLT: s < t, SLTU: a < b, SLE: s <= t, SLEU: a <= b, SEQ: a == b}
    expected = {op: int(value) for op, value in results.items()}
    expected |= {op: 0xFFFF_FFFF if value else 0 for op, value in truths.items()}
    expected[CLZ] = f"{x:032b}".find("1") if x else 32
    for op, value in expected.items():
        assert evaluate(op, x, y) == value, op
    place, bits, source = immediate >> 10, immediate >> 5 & 31, immediate & 31
    digits = list(f"{x:032b}"[::-1])
    for i in range(bits):
        if place + i < 32:
            digits[place + i] = f"{y:032b}"[::-1][source + i] if source + i < 32 else "0"
    assert evaluate(MERGE, x, y, immediate) == int("".join(digits[::-1]), 2)


@pytest.mark.parametrize(
    ("low", "high", "python"),
    [
        (ADD, ADDC, lambda x, y: x + y), (SUB, SUBB, lambda x, y: x - y),
    ],
)  # fmt: skip
@settings(max_examples=20, deadline=None)
@given(x=st.integers(0, 2**64 - 1), y=st.integers(0, 2**64 - 1))
def test_carries_of_pairs(low: int, high: int, python: object, x: int, y: int) -> None:
    assert callable(python)
    groups = (
        group(alu(ADD, 0, LOAD0), alu(ADD, 1, LOAD1)),
        group(alu(ADD, 2, LOAD0), alu(ADD, 3, LOAD1)),
        group(alu(low, 4, 0, 2), alu(high, 5, 1, 3)), sent(METHOD, 4), sent(METHOD, 5), END,
    )  # fmt: skip
    words = (x & 0xFFFF_FFFF, x >> 32, y & 0xFFFF_FFFF, y >> 32)
    found = [value for _, value in run(*groups, parameters=words).methods]
    assert found[0] | found[1] << 32 == python(x, y) & (1 << 64) - 1


@given(x=WORDS, y=WORDS)
def test_the_high_half_of_a_product(x: int, y: int) -> None:
    groups = (
        group(alu(ADD, 0, LOAD0), alu(ADD, 1, LOAD1)),
        group(alu(MULU, 2, 0, 1), alu(MULH, 3)),
        sent(METHOD, 3),
        END,
    )
    assert run(*groups, parameters=(x, y)).methods == [(0x1000, x * y >> 32)]


@pytest.mark.parametrize(("times", "sent_words"), [(0, 1), (1, 1), (5, 5)])
def test_a_loop_runs_its_groups_so_often_and_once_at_least(times: int, sent_words: int) -> None:
    groups = (
        group(alu(LOOP, ZERO, LOAD0, immediate=3), alu(ADD, 0, ZERO)),
        group(alu(ADD, 0, 0, IMMED, 1)),
        sent(METHOD, 0),
        END,
    )
    found = [value for _, value in run(*groups, parameters=(times,)).methods]
    assert found == list(range(1, sent_words + 1))


def test_branches_and_predicates() -> None:
    groups = (
        group(alu(ADD, 0, LOAD0), alu(ADD, 1, ZERO)),
        group(alu(ADD, 1, 1, IMMED, 1)),
        group(alu(BLTU, ZERO, 1, 0, EQUAL | 0x1FFF)),  # one back, while below
        group(alu(ADD, ZERO, 1), alu(ADD, immediate=METHOD), (FROM_IMMED1, FROM_ALU0),
              pred=(9, 1)),  # UUTF: output 0 if register 1 is not 0
        group(alu(BEQ, ZERO, ZERO, ZERO, EQUAL | LEAVE)),
        sent(METHOD, 0),
    )  # fmt: skip
    assert run(*groups, parameters=(4,)).methods == [(0x1000, 4)]


def test_state_and_data_memory() -> None:
    groups = (
        sent(METHOD, LOAD0),
        group(alu(STATE, 0, IMMED, immediate=0x1000 >> 2)),
        group(alu(DWRITE, ZERO, IMMED, 0, 0xBFF)),
        group(alu(DREAD, 1, IMMED, immediate=0xBFF)),
        sent(METHOD, 1),
        END,
    )
    assert run(*groups, parameters=(77,)).methods == [(0x1000, 77), (0x1000, 77)]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([group()], "no instructions at word 0x3"),
        ([sent(METHOD, 3)], "register 3 is read before it is written"),
        ([group(alu(BEQ, ZERO, ZERO, ZERO, EQUAL))], "a macro ran 65536 groups"),
        ([group(alu(BEQ, ZERO, ZERO, ZERO, EQUAL | 0x1FFF))], "a branch to group -1"),
        ([group(alu(DREAD, 0, IMMED, immediate=0xC00))], "word 0xc00 of the data memory"),
        ([group(alu(7, ZERO, IMMED, IMMED, 3))], "EXTENDED 0x3, 0x3 is not modelled"),
        ([group(alu(ADD, 25))], "registers 25, 24, 24"),
        ([group(out=(7, 0))], "output 7, 0"),
    ],
)  # fmt: skip
def test_what_a_macro_may_not_do(groups: list[list[int]], words: str) -> None:
    sink = Sink()
    mme = load(sink, *groups)
    with pytest.raises(ChannelError, match=words):
        mme.call(7, 0)
    with pytest.raises(ChannelError, match="macro 8 has no start address"):
        mme.call(8, 0)


@given(words=st.tuples(WORDS, WORDS, WORDS))
def test_any_group_is_decoded_or_refused(words: tuple[int, int, int]) -> None:
    try:
        found = decode(words)
    except ChannelError:
        return
    assert 0 <= found.loads <= 2
