"""Tables of registers, structures, constants and methods: any damage is BadArgument."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.fields import RegisterMap
from ugpu.hcq.registers.layout import Layouts
from ugpu.nv import abi
from ugpu.nv.abi.bits import BitTable

REGISTERS = "A 1f 0 LOW:0:4 HIGH:4:28\nB 20 1\n"
STRUCTURES = "a 8 x:u32:0 y:u8[2][2]:4\nb 16 inner:@a:0 flag:u32:8:3:2\nc = b\n"
CONSTANTS = "ONE 1\nTWO 0x2 kind\nPLACE() 3 4\n"
METHODS = "M 0x100+4 F:0:8 G:8:4=X:1,Y:2\nD :64 H:0:32+32*2\n"


def read_all(kind: str, text: str) -> None:
    """Parse every line of a table, as its users do."""
    if kind == "registers":
        table = RegisterMap(text, "t")
        for name in table:
            table.get(name)
        table.find(0x1F, 0)
    elif kind == "structures":
        layouts = Layouts(text, "t")
        for name in layouts:
            layouts.get(name)
    elif kind == "constants":
        constants = Constants(text, "t")
        for name in constants:
            constants[name]
        list(constants.fields())
        with contextlib.suppress(KeyError):
            constants.enumeration("kind")
    else:
        table_ = BitTable(text, "t")
        for name in table_:
            with contextlib.suppress(BadArgument):
                table_.method(name)
        table_.find(0x104)


TABLES = {
    "registers": REGISTERS, "structures": STRUCTURES, "constants": CONSTANTS, "methods": METHODS,
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_whole_tables_are_read(kind: str) -> None:
    read_all(kind, TABLES[kind])


@pytest.mark.parametrize(
    ("kind", "text", "entry"),
    [
        ("registers", "A 1f\n", "A"),
        ("registers", "A xyz 0\n", "A"),
        ("registers", "A 1f 0 LOW:-1:4\n", "A"),
        ("structures", "a 8 x:@a:0\n", "a"),
        ("structures", "a = a\n", "a"),
        ("structures", "a = missing\n", "a"),
        ("structures", "a\n", "a"),
        ("structures", "a 8 x:u32\n", "a"),
        ("constants", "ONE\n", "ONE"),
        ("constants", f"ONE {'9' * 5000}\n", "ONE"),
        ("constants", "PLACE() 3\n", "PLACE"),
        ("methods", "M\n", "M"),
    ],
)
def test_a_malformed_line_is_named(kind: str, text: str, entry: str) -> None:
    with pytest.raises(BadArgument, match=f"t: malformed line for {entry}"):
        read_all(kind, text)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(TABLES)), st.data())
def test_any_damage_is_an_error_of_ours(kind: str, data: st.DataObject) -> None:
    text = TABLES[kind]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        part = data.draw(
            st.sampled_from((":", " ", "=", "@", "[", "]", "+", "*", ",", "\n", "-", "a", "b", "0",
                             "99999999999", "()", "")) | st.text(max_size=2)
        )  # fmt: skip
        text = text[:at] + part + text[at + data.draw(st.integers(0, 3)) :]
    with contextlib.suppress(BadArgument):
        read_all(kind, text)


def test_every_table_of_a_driver_is_read() -> None:
    """Macros of NVIDIA's headers name some ranges backwards: their width is negative there."""
    table = abi.select("580.142")
    assert any(field.width < 0 for field in table.constants.fields())
    assert all(table.structs[name] for name in table.structs)
