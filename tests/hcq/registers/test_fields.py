"""Registers by name: maps, fields, values, and accesses counted on a bus that records them."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.fields import Field, Register, RegisterBlock, RegisterMap

TABLE = """\
# a remark
# another
ALPHA 0x10 0
BETA 0x1fba 1 SIZE:0:6 BUSY:6:1 BLOCK:8:6 KIND:30:2
BETA_LONGER 0x3 0 WHOLE:0:32
GAMMA 0x10 1 lower_Case:4:4
ZETA 0x5 2
"""


class RecordingBus:
    """Memory of one word per index, and a list of what was done to it."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.accesses: list[tuple[str, int, int]] = []

    def read32(self, index: int) -> int:
        value = self.words.get(index, 0)
        self.accesses.append(("read", index, value))
        return value

    current32 = read32

    def write32(self, index: int, value: int) -> None:
        assert type(value) is int
        self.words[index] = value
        self.accesses.append(("write", index, value))


@pytest.fixture
def registers() -> RegisterMap:
    return RegisterMap(TABLE, "sample")


@pytest.fixture
def bus() -> RecordingBus:
    return RecordingBus()


@pytest.fixture
def block(registers: RegisterMap, bus: RecordingBus) -> RegisterBlock:
    return RegisterBlock(registers, (0x1000, 0x2000), bus)


words = st.integers(0, 2**32 - 1)


@st.composite
def disjoint_registers(draw: st.DrawFn) -> Register:
    """A register whose fields do not overlap."""
    edges = sorted(draw(st.sets(st.integers(0, 32), min_size=2, max_size=10)))
    fields = [Field(f"F{i}", a, b - a) for i, (a, b) in enumerate(itertools.pairwise(edges))]
    return Register("R", draw(st.integers(0, 0xFFFF)), draw(st.integers(0, 5)), fields)


@given(disjoint_registers(), words)
def test_decoding_and_encoding_are_inverse(register: Register, word: int) -> None:
    covered = sum(field.mask for field in register.fields.values())
    assert register.encode(**register.decode(word).fields()) == word & covered


@given(disjoint_registers(), words, st.data())
def test_replacing_a_field_leaves_the_others(
    register: Register, word: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(register.fields)))
    content = data.draw(st.integers(0, register.fields[name].maximum))
    before = register.decode(word)
    after = before.replace(**{name: content})
    assert after.fields() == {**before.fields(), name: content}
    assert (after ^ before) & ~register.fields[name].mask == 0


@given(disjoint_registers())
def test_a_line_survives_parsing(register: Register) -> None:
    again = Register.parse(repr(register))
    assert repr(again) == repr(register)
    assert again.fields == register.fields


@given(
    st.sets(st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,12}", fullmatch=True), max_size=40), st.text()
)
def test_bisection_finds_what_is_there_and_nothing_else(names: set[str], other: str) -> None:
    text = "# top\n" + "".join(f"{name} 0x1 0\n" for name in sorted(names))
    found = RegisterMap(text, "any")
    assert list(found) == sorted(names)
    assert all(found[name].name == name for name in names)
    assert (other in found) == (other in names)


def test_an_empty_table() -> None:
    empty = RegisterMap("", "empty")
    assert len(empty) == 0
    assert "A" not in empty
    assert empty.find(0, 0) is None


def test_lookup_by_attribute_item_and_place(registers: RegisterMap) -> None:
    assert registers.BETA is registers["BETA"]
    assert (registers.BETA.offset, registers.BETA.segment) == (0x1FBA, 1)
    assert registers.BETA.fields["BLOCK"] == Field("BLOCK", 8, 6)
    assert registers.find(0x10, 1) is registers.GAMMA
    assert registers.find(0x10, 0) is registers.ALPHA
    assert registers.find(0x11, 0) is None
    assert len(registers) == 5
    assert "ALPHA" in registers
    assert "#" not in registers
    assert "ALPH" not in registers
    assert 7 not in registers
    assert {"BETA", "find"} <= set(dir(registers))


def test_unknown_names_are_answered_with_near_ones(registers: RegisterMap) -> None:
    with pytest.raises(AttributeError, match="near: BETA"):
        _ = registers.BETTA
    with pytest.raises(KeyError, match="near: BETA_LONGER"):
        _ = registers["BETA_LONG"]
    assert not hasattr(registers, "_repr_html_")


def test_a_value_reads_like_a_register_dump(registers: RegisterMap) -> None:
    value = registers.BETA.decode(0x4000_0549)
    assert repr(value) == "BETA 0x40000549 SIZE=9 BUSY=1 BLOCK=5 KIND=1"
    assert repr(registers.BETA.decode(0x3F)) == "BETA 0x0000003f SIZE=0x3f"
    assert repr(registers.ALPHA.decode(0xDEAD)) == "ALPHA 0x0000dead"
    assert (value.SIZE, value["BLOCK"], value.KIND) == (9, 5, 1)
    assert registers.GAMMA.decode(0x70).lower_Case == 7
    assert value == 0x4000_0549
    assert f"{value:#x}" == "0x40000549"
    assert "BLOCK" in dir(value)
    with pytest.raises(AttributeError, match="BETA has no field SIZZE"):
        _ = value.SIZZE
    with pytest.raises(BadArgument, match="it has SIZE, BUSY, BLOCK, KIND"):
        _ = value["SIZZE"]


def test_values_can_be_copied_and_pickled(registers: RegisterMap) -> None:
    value = registers.BETA.decode(0x549)
    for twin in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert twin == value
        assert repr(twin) == repr(value)


@pytest.mark.parametrize(
    "fields", [{"SIZE": 64}, {"SIZE": -1}, {"BUSY": 2}, {"NO_SUCH": 0}], ids=str
)
def test_bad_fields_are_refused_before_the_bus_is_touched(
    block: RegisterBlock, bus: RecordingBus, fields: dict[str, int]
) -> None:
    for act in (block.BETA.write, block.BETA.update, block.BETA.register.encode):
        with pytest.raises(BadArgument):
            act(**fields)
    assert bus.accesses == []


def test_a_value_of_more_than_32_bits_is_refused(block: RegisterBlock, bus: RecordingBus) -> None:
    for value in (-1, 2**32):
        with pytest.raises(BadArgument):
            block.ALPHA.write(value)
    assert bus.accesses == []


def test_one_access_is_one_bus_access(block: RegisterBlock, bus: RecordingBus) -> None:
    beta = 0x2000 + 0x1FBA
    block.BETA.write(SIZE=3)
    assert bus.accesses == [("write", beta, 3)]
    block.BETA.write(0x4000_0000, BLOCK=1)
    assert bus.accesses[1:] == [("write", beta, 0x4000_0100)]
    bus.accesses.clear()
    value = block.BETA.read()
    assert bus.accesses == [("read", beta, 0x4000_0100)]
    assert (value.KIND, value.BLOCK, value.SIZE) == (1, 1, 0)
    bus.accesses.clear()
    written = block.BETA.update(SIZE=5, KIND=0)
    assert bus.accesses == [("read", beta, 0x4000_0100), ("write", beta, 0x105)]
    assert written == 0x105
    assert written.SIZE == 5


def test_a_read_value_can_be_written_back(block: RegisterBlock, bus: RecordingBus) -> None:
    bus.words[0x2000 + 0x1FBA] = 0x8000_0040
    block.BETA.write(block.BETA.read(), BUSY=0)
    assert bus.words[0x2000 + 0x1FBA] == 0x8000_0000


def test_numpy_integers_do_not_wrap_around(block: RegisterBlock, bus: RecordingBus) -> None:
    block.BETA.write(numpy.uint32(1), KIND=numpy.uint8(2))
    assert bus.accesses == [("write", 0x2000 + 0x1FBA, 0x8000_0001)]


def test_computed_names_and_finding_by_index(block: RegisterBlock) -> None:
    assert block.at("BET" + "A") is block.BETA is block["BETA"]
    found = block.find(0x2010)
    assert found is not None
    assert found.register.name == "GAMMA"
    assert repr(found) == "<GAMMA at dword 0x2010>"
    assert block.find(0x2011) is None
    assert "BETA" in dir(block)
    with pytest.raises(AttributeError, match="near"):
        _ = block.BETTA
    with pytest.raises(KeyError, match="near"):
        block.at("BETTA")


def test_a_segment_without_a_base_is_refused(block: RegisterBlock) -> None:
    with pytest.raises(BadArgument, match="segment 2"):
        _ = block.ZETA
