"""Mesa's register database: a small one that holds every trap."""

from __future__ import annotations

from pathlib import Path

import pytest

from ugpu.hcq.errors import UsageError

pytest.importorskip("clang.cindex", reason="libclang is not installed (pip install libclang)")

from ugpu.hcq.registers.fields import Field, Register
from ugpu.tools.clang2py.adreno import regen
from ugpu.tools.clang2py.adreno.rnn import Database, RnnError
from ugpu.tools.clang2py.adreno.sources import mesa_tree

TEXT = """<?xml version="1.0"?>
<database xmlns="http://nouveau.freedesktop.org/">
<enum name="event" varset="chip">
  <value name="FLUSH" value="6" variants="A2XX-A4XX"/>
  <value name="CLEAN" value="0x31" variants="A7XX-"/>
  <value name="BOTH" value="4"/>
</enum>
<bitset name="shared" inline="yes">
  <bitfield name="SIZE" low="0" high="7" shr="9"/>
  <bitfield name="ON" pos="31" type="boolean"/>
</bitset>
<domain name="D" varset="chip">
  <reg32 offset="0x10" name="ONE" type="shared">
    <bitfield name="MORE" low="8" high="9"/>
  </reg32>
  <reg32 offset="0x20" name="MOVED" variants="A6XX"/>
  <reg32 offset="0x30" name="MOVED" variants="A7XX-"/>
  <reg64 offset="0x40" name="ADDRESS"/>
  <array offset="0x50" name="BASE" stride="2" length="2" variants="A6XX">
    <reg64 offset="0" name="DESCRIPTOR"/>
  </array>
  <array offset="0x60" name="IMM" stride="1" length="2"/>
  <stripe varset="what" variants="RAM">
    <reg32 offset="1" name="1"><bitfield name="A" low="0" high="31"/></reg32>
  </stripe>
  <stripe varset="what" variants="CHIP">
    <reg32 offset="1" name="1"><bitfield name="B" low="0" high="31"/></reg32>
  </stripe>
</domain>
<domain name="TWICE">
  <reg32 offset="1" name="X"/>
  <reg32 offset="2" name="X"/>
</domain>
</database>
"""


@pytest.fixture
def database(tmp_path: Path) -> Database:
    path = tmp_path / "d.xml"
    path.write_text(TEXT, encoding="utf-8")
    return Database([path])


def test_registers_of_generation_6(database: Database) -> None:
    registers, shifts = database.registers("D", 6)
    assert [repr(register) for register in registers] == [
        "1 0x1 0 A:0:32 B:0:32",
        "ADDRESS_HI 0x41 0",
        "ADDRESS_LO 0x40 0",
        "BASE_0_DESCRIPTOR_HI 0x51 0",
        "BASE_0_DESCRIPTOR_LO 0x50 0",
        "BASE_1_DESCRIPTOR_HI 0x53 0",
        "BASE_1_DESCRIPTOR_LO 0x52 0",
        "IMM_0 0x60 0",
        "IMM_1 0x61 0",
        "MOVED 0x20 0",
        "ONE 0x10 0 SIZE:0:8 MORE:8:2 ON:31:1",
    ]
    assert shifts == {"ONE__SIZE__SHR": 9}


def test_registers_of_generation_7(database: Database) -> None:
    registers, _ = database.registers("D", 7, keep=lambda name: name[:4] in ("MOVE", "BASE"))
    assert [repr(register) for register in registers] == ["MOVED 0x30 0"]


def test_values_of_a_generation(database: Database) -> None:
    assert database.enumerators("event", 6) == {"BOTH": 4}
    assert database.enumerators("event", 7) == {"BOTH": 4, "CLEAN": 0x31}


def test_a_name_of_two_places_stops_the_generator(database: Database) -> None:
    with pytest.raises(RnnError, match=r"TWICE\.X is at 0x1 and 0x2"):
        database.registers("TWICE", 6)


def test_a_tree_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a usable tree of Mesa"):
        mesa_tree(tmp_path / "cache", tmp_path)


def test_registers_that_a_release_places_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    field = Field("A", 0, 4)
    registers = [Register("X_LO", 4, 0, [field]), Register("Y", 5, 0)]
    monkeypatch.setattr(regen, "MOVED", {(7, "X_LO"): 8})
    assert [repr(one) for one in regen.corrected(registers, 7)] == ["X_LO 0x8 0 A:0:4", "Y 0x5 0"]
    assert [one.offset for one in regen.corrected(registers, 6)] == [4, 5]
    monkeypatch.setattr(regen, "MOVED", {(7, "X_LO"): 4})
    with pytest.raises(RnnError, match="X_LO is at 0x4"):
        regen.corrected(registers, 7)
    monkeypatch.setattr(regen, "MOVED", {(7, "Z"): 4})
    with pytest.raises(RnnError, match="missing"):
        regen.corrected(registers, 7)
