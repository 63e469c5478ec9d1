"""Which memory belongs to an ioctl: the same answer whatever the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.nv import abi
from ugpu.tools.debug.sniff import rules as rules_module
from ugpu.tools.debug.sniff.rules import LIMIT, Rules, word

TABLE = abi.select("580.142")
RULES = Rules.of(TABLE)
_KEYS = sorted(RULES.pointing)


def _request(key: int) -> int:
    return 3 << 30 | (key >> 16) << 16 | ord("F") << 8 | key & 0xFF


@given(
    st.sampled_from([_request(key) for key in _KEYS]) | st.integers(0, 2**32 - 1),
    st.binary(max_size=64),
    st.booleans(),
)
def test_any_bytes_have_blocks_or_none(request: int, own: bytes, readable: bool) -> None:
    def read(address: int, size: int) -> bytes | None:
        assert size <= LIMIT
        return bytes(size) if readable else None

    for block in RULES.blocks(request, own, read):
        assert block.address > 0 and block.size > 0
        assert block.inside in (-1, 0)
    assert RULES.own_size(request) >= 0


@pytest.mark.parametrize("branch", abi.branches())
def test_rules_of_every_branch_as_text(branch: str) -> None:
    rules = Rules.of(abi.select(f"{branch}.100"))
    text = rules.text()
    kinds = [line.split()[0] for line in text.splitlines()]
    assert {kind: kinds.count(kind) for kind in "upcn"} == {
        "u": len(rules.uvm),
        "p": 4,
        "c": len(rules.classes),
        "n": sum(map(len, rules.lists.values())),
    }
    assert len(kinds) < 4096  # what the preload library holds
    for line in text.splitlines():
        assert all(int(number, 0) >= -1 for number in line.split()[1:])


def test_the_size_of_a_class_stands_in_for_none() -> None:
    block = TABLE.structs.NVOS64_PARAMETERS.new(hClass=0x80, pAllocParms=0x1000)
    (found,) = RULES.blocks(0xC030462B, bytes(block), lambda address, size: None)
    assert (found.address, found.size) == (0x1000, 56)
    block.paramsSize = 8
    (found,) = RULES.blocks(0xC030462B, bytes(block), lambda address, size: None)
    assert found.size == 8


def test_lists_within_a_control_are_followed() -> None:
    inner = TABLE.structs.NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS.new(numClasses=5, classList=0x9000)
    block = TABLE.structs.NVOS54_PARAMETERS.new(cmd=0x800201, params=0x2000, paramsSize=16)
    found = list(RULES.blocks(0xC020462A, bytes(block), lambda address, size: bytes(inner)))
    assert [(each.inside, each.address, each.size) for each in found] == [
        (-1, 0x2000, 16),
        (0, 0x9000, 20),
    ]


def test_numbers_outside_are_zero() -> None:
    assert word(b"\1\2\3\4", 0, 4) == 0x04030201
    assert word(b"\1\2\3\4", 1, 4) == 0
    assert word(b"\1\2\3\4", -1, 4) == 0


def test_every_list_that_is_followed_is_one_of_the_tables() -> None:
    """Where the headers name a control's block, pointer and count are members of it."""
    known = 0
    for control, pointer, count, item in rules_module._LISTS:
        block = TABLE.structs.get(TABLE.parameters_of_control(TABLE.constants[control]) or "")
        if block is not None:
            assert block.fields[pointer].kind == "u64" and block.fields[count].kind == "u32"
            assert item in (1, 4, 8, 32)
            known += 1
    assert known == sum(map(len, RULES.lists.values())) >= 17


def test_the_preload_library_is_told_where_doorbells_are() -> None:
    kinds = [line.split()[0] for line in RULES.text().splitlines()]
    assert (kinds.count("d"), kinds.count("o"), kinds.count("m")) == (5, 1, 1)
