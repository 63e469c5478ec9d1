"""Read rules-ng-ng (rnn) files: the XML in which freedreno describes registers and packets.

    <database> holds <domain> (an address space: registers, or the words of a packet),
    <bitset> (fields that several registers share) and <enum>.
    `variants` names the generations that have an element: A6XX, A7XX-, A2XX-A6XX.

A register of 64 bits becomes two: NAME_LO and NAME_HI. Element I of an array is NAME_I, and its
registers are NAME_I_REGISTER. Registers of a packet are its words: CP_EXEC_CS_1 is the second. A
stripe describes one of several meanings of a word; all of them are merged into one register.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from ugpu.hcq.errors import UsageError
from ugpu.hcq.registers.fields import REGISTER_BITS, Field, Register

_SPACE = "{http://nouveau.freedesktop.org/}"
_VARIANT = re.compile(r"A(\d)XX(-?)(?:A(\d)XX)?")
_PLACED = ("reg32", "reg64", "array", "stripe")


class RnnError(UsageError):
    """A database contains something that the tables cannot express."""


def _number(text: str | None, missing: int = 0) -> int:
    return missing if text is None else int(text, 0)


def stands(element: ElementTree.Element, generation: int) -> bool:
    """Return whether an element applies to a generation; variants of things other than chips always
    apply."""
    variants = element.get("variants")
    if variants is None or element.get("varset", "chip") != "chip":
        return True
    for part in variants.split(","):
        match = _VARIANT.fullmatch(part.strip())
        if match is None:
            return True  # of a set that an element above names
        first = int(match[1])
        last = int(match[3]) if match[3] else 99 if match[2] else first
        if first <= generation <= last:
            return True
    return False


class Database:
    """The elements of several files, by name. If several of a kind have the same name, the first
    one counts."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.domains: dict[str, ElementTree.Element] = {}
        self.bitsets: dict[str, ElementTree.Element] = {}
        self.enums: dict[str, ElementTree.Element] = {}
        kinds = {"domain": self.domains, "bitset": self.bitsets, "enum": self.enums}
        for path in paths:
            root = ElementTree.parse(path).getroot()
            for element in root.iter():
                element.tag = element.tag.removeprefix(_SPACE)
                elements = kinds.get(element.tag)
                if elements is not None:
                    elements.setdefault(element.attrib["name"], element)

    def _bitfields(
        self, element: ElementTree.Element, generation: int
    ) -> Iterator[ElementTree.Element]:
        kind = self.bitsets.get(element.get("type", ""))
        if kind is not None:
            yield from self._bitfields(kind, generation)
        for child in element:
            if child.tag == "bitfield" and stands(child, generation):
                yield child

    def fields(self, element: ElementTree.Element, generation: int) -> list[tuple[Field, int]]:
        """Return the fields of a register with their shift: the number of low bits that a field
        omits."""
        placed: dict[str, tuple[Field, int]] = {}
        for child in self._bitfields(element, generation):
            low = _number(child.get("low", child.get("pos")), -1)
            high = _number(child.get("high", child.get("pos")), -1)
            name = child.attrib["name"]
            if not 0 <= low <= high < REGISTER_BITS:
                raise RnnError(f"{element.get('name')}.{name} is not in {REGISTER_BITS} bits")
            field = Field(name, low, high - low + 1)
            placed.setdefault(name, (field, _number(child.get("shr"))))
        return sorted(placed.values(), key=lambda item: (item[0].lsb, item[0].width, item[0].name))

    def _walk(
        self, element: ElementTree.Element, generation: int, prefix: str, base: int
    ) -> Iterator[tuple[str, int, list[tuple[Field, int]]]]:
        for child in element:
            if child.tag not in _PLACED or not stands(child, generation):
                continue
            offset = base + _number(child.get("offset"))
            name = prefix + child.get("name", "")
            if child.tag == "stripe":
                yield from self._walk(child, generation, prefix, offset)
            elif child.tag == "array":
                stride, length = _number(child.get("stride")), _number(child.get("length"), 1)
                for index in range(length):
                    at, numbered = offset + index * stride, f"{name}_{index}"
                    if len(child) and any(inner.tag in _PLACED for inner in child):
                        yield from self._walk(child, generation, f"{numbered}_", at)
                    else:
                        yield numbered, at, []
            elif child.tag == "reg64":
                yield f"{name}_LO", offset, []
                yield f"{name}_HI", offset + 1, []
            else:
                yield name, offset, self.fields(child, generation)

    def registers(
        self,
        domain: str,
        generation: int,
        prefix: str = "",
        keep: Callable[[str], bool] = lambda name: True,
    ) -> tuple[list[Register], dict[str, int]]:
        """Return the registers of a domain that `keep` selects, by name, and the shifts of their
        fields. A shift is named REGISTER__FIELD__SHR. RnnError if a name has two places."""
        places: dict[str, int] = {}
        fields: dict[str, dict[str, Field]] = {}
        shifts: dict[str, int] = {}
        for name, offset, own in self._walk(self.domains[domain], generation, prefix, 0):
            if not keep(name):
                continue
            if places.setdefault(name, offset) != offset:
                raise RnnError(f"{domain}.{name} is at {places[name]:#x} and {offset:#x}")
            own_fields = fields.setdefault(name, {})
            for field, shift in own:
                own_fields.setdefault(field.name, field)
                if shift:
                    shifts[f"{name}__{field.name}__SHR"] = shift
        registers = [
            Register(name, places[name], 0, sorted(fields[name].values(), key=lambda f: f.lsb))
            for name in sorted(places)
        ]
        return registers, shifts

    def enumerators(self, enum: str, generation: int) -> dict[str, int]:
        """Return the values of an enumeration."""
        return {
            value.attrib["name"]: _number(value.attrib["value"])
            for value in self.enums[enum]
            if value.tag == "value" and stands(value, generation) and "value" in value.attrib
        }
