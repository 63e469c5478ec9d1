"""Faults of a virtual card by name, for names of devices such as `virtual:<chip>?smu_silent`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find.planting import number
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.options import FaultPlan

_AT = "_at_access"  # these faults strike at a number of register accesses
_YES, _NO = ("", "1", "true"), ("0", "false")
_TAKES = {
    "bool": "",
    "int": "a number",
    "int | None": "the number of register accesses from now, 1 if none is given",
    "set[str]": "names with commas",
    "dict[int, int]": "pairs such as 0x19:0xff with commas",
}


def faults() -> Mapping[str, str]:
    """Return the faults of FaultPlan with what their values are."""
    return {field.name: _TAKES[str(field.type)] for field in fields(FaultPlan)}


def plant(chip: Chip, fault: str, value: str) -> None:
    """Plant one fault: set a field of the chip's FaultPlan. BadArgument for a wrong value."""
    kind = {field.name: str(field.type) for field in fields(FaultPlan)}[fault]
    setattr(chip.faults, fault, _value(chip, fault, kind, value))


def _value(chip: Chip, fault: str, kind: str, value: str) -> object:
    if kind == "bool":
        if value.lower() not in (*_YES, *_NO):
            raise BadArgument(f"{fault} takes no value, or true or false, got {value!r}")
        return value.lower() in _YES
    if kind == "int":
        return number(fault, value)
    if fault.endswith(_AT):
        return chip.accesses + (number(fault, value, 1) if value else 1)
    if kind == "set[str]":
        return set(_words(fault, kind, value))
    pairs = [word.partition(":") for word in _words(fault, kind, value)]
    return {number(fault, key): number(fault, answer) for key, _, answer in pairs}


def _words(fault: str, kind: str, value: str) -> list[str]:
    words = [word for word in value.split(",") if word]
    if not words:
        raise BadArgument(f"{fault} takes {_TAKES[kind]}, got {value!r}")
    return words
