"""Flag words explained by the headers' names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.nv import abi
from ugpu.tools.debug.sniff.flags import PREFIXES, Flags

FLAGS = Flags(abi.select("580.142").constants)


@pytest.mark.parametrize(
    ("struct", "member", "value", "told"),
    [
        ("NVOS46_PARAMETERS", "flags", 1, "ACCESS=READ_ONLY"),
        ("NVOS46_PARAMETERS", "flags", 0, ""),
        ("NVOS33_PARAMETERS", "flags", 0x8000, "MAPPING=DIRECT"),
        (
            "NV_MEMORY_ALLOCATION_PARAMS",
            "attr",
            0x11800000,
            "PAGE_SIZE=HUGE PHYSICALITY=CONTIGUOUS",
        ),
        ("NV_MEMORY_ALLOCATION_PARAMS", "type", 0, ""),
        ("NVOS46_PARAMETERS", "hClient", 7, ""),
        ("SOMETHING_ELSE", "flags", 7, ""),
    ],
)
def test_words_are_explained(struct: str, member: str, value: int, told: str) -> None:
    assert FLAGS.explain(struct, member, value) == told


@pytest.mark.parametrize("branch", abi.branches())
def test_every_word_has_a_block_and_a_member(branch: str) -> None:
    table = abi.select(f"{branch}.100")
    for struct, member in PREFIXES:
        assert table.structs[struct].offset_of(member) >= 0
        assert any(name.startswith(PREFIXES[struct, member]) for name in table.constants)


@given(st.sampled_from(sorted(PREFIXES)), st.integers(1, 0xFFFF_FFFF))
def test_nothing_that_is_set_goes_untold(word: tuple[str, str], value: int) -> None:
    told = FLAGS.explain(*word, value)
    if word[1] != "type":
        assert told
