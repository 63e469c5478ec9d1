"""Read isaspec XML (Mesa docs, "ISASPEC - XML Based ISA Specification") into rows of a table.

A row is a JSON array whose first item is its kind:

    ["enum", name, {value: text}]
    ["expr", name, expression]              in Python's syntax, with fields as names
    ["bitset", name, shown, root, least gpu, most gpu, match, dontcare, mask, cases]

The rows are the leaves of the bitset hierarchies, with everything that they inherit. Cases are in
the order of evaluation, each [expr or null, template or null, fields]. A field is [name, low, high,
type, expr or null, text or null, parameters], with parameters as [outer name, inner name]. Asserts
have the type "assert" and their value in place of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

Xml = ElementTree.Element
MOST = (1 << 32) - 1


@dataclass
class Bitset:
    """One <bitset>: a node of a hierarchy."""

    name: str
    shown: str
    extends: str | None
    least: int
    most: int
    match: int = 0
    dontcare: int = 0
    mask: int = 0
    cases: list[list[Any]] = field(default_factory=list)  # JSON


class Reader:
    """Read a file and its imports."""

    def __init__(self) -> None:
        self.enums: dict[str, dict[str, str]] = {}
        self.expressions: dict[str, str] = {}
        self.templates: dict[str, str] = {}
        self.bitsets: list[Bitset] = []

    def read(self, path: Path) -> None:
        root = ElementTree.parse(path).getroot()
        for item in root.findall("import"):
            self.read(path.parent / item.attrib["file"])
        for item in root.findall("expr"):
            self._expression(item, item.attrib["name"])
        for item in root.findall("template"):
            self.templates[item.attrib["name"]] = (item.text or "").strip()
        for item in root.findall("enum"):
            values = {v.attrib["val"]: v.attrib["display"] for v in item.findall("value")}
            self.enums[item.attrib["name"]] = values
        for item in root.findall("bitset"):
            self._bitset(item)

    def _expression(self, item: Xml, name: str) -> str:
        self.expressions[name] = python(item.text or "")
        return name

    def _inline(self, item: Xml) -> str:
        """Return the name of an element's expression, whether nested in the element or named by
        it."""
        if "expr" in item.attrib:
            return item.attrib["expr"]
        (expression,) = item.findall("expr")
        return self._expression(expression, f"anonymous-{len(self.expressions)}")

    def _bitset(self, item: Xml) -> None:
        name = item.attrib["name"]
        limits = [gen.attrib for gen in item.findall("gen")]
        bitset = Bitset(
            name, item.attrib.get("displayname", name), item.attrib.get("extends"),
            max((int(gen.get("min", 0)) for gen in limits), default=0),
            min((int(gen.get("max", MOST)) for gen in limits), default=MOST),
        )  # fmt: skip
        for override in item.findall("override"):
            bitset.cases.append([self._inline(override), *self._case(override)])
        bitset.cases.append([None, *self._case(item)])
        for pattern in item.findall("pattern"):
            low, bits = low_of(pattern), (pattern.text or "").strip()
            bitset.match |= int(bits.replace("x", "0"), 2) << low
            bitset.dontcare |= int(bits.replace("1", "0").replace("x", "1"), 2) << low
            bitset.mask |= ((1 << len(bits)) - 1) << low
        identities = [(b.name, b.least) for b in self.bitsets]
        if (name, bitset.least) in identities:  # an amendment
            self.bitsets[identities.index((name, bitset.least))] = bitset
        else:
            self.bitsets.append(bitset)

    def _case(self, item: Xml) -> tuple[str | None, list[list[Any]]]:
        fields: list[list[Any]] = []
        for element in item.findall("derived"):
            high = int(element.attrib.get("width", 1)) - 1
            fields.append(self._field(element, 0, high, self._inline(element)))
        for element in item.findall("assert"):
            low, bits = low_of(element), (element.text or "").strip()
            fields.append(["", low, low + len(bits) - 1, "assert", None, int(bits, 2), []])
        for element in item.findall("field"):
            low = low_of(element)
            fields.append(self._field(element, low, int(element.attrib.get("high", low)), None))
        shown = [template.text or "" for template in item.findall("display")]
        return (shown[-1].strip() if shown else None), fields

    def _field(self, element: Xml, low: int, high: int, expression: str | None) -> list[Any]:
        text = element.attrib.get("display")
        parameters = [
            [p.attrib["name"], p.attrib.get("as", p.attrib["name"])]
            for p in element.findall("param")
        ]
        kind = element.attrib["type"]
        return [
            element.attrib["name"],
            low,
            high,
            kind,
            expression,
            text and text.strip(),
            parameters,
        ]

    # ---- rows ----------------------------------------------------------------------------------

    def rows(self) -> Iterator[list[Any]]:
        """Yield the rows of the table."""
        for name, values in sorted(self.enums.items()):
            yield ["enum", name, values]
        for name, text in sorted(self.expressions.items()):
            yield ["expr", name, text]
        inner = {bitset.extends for bitset in self.bitsets}
        for bitset in self.bitsets:
            if bitset.name not in inner:
                yield self._leaf(bitset)

    def _leaf(self, leaf: Bitset) -> list[Any]:
        named = {bitset.name: bitset for bitset in self.bitsets}
        chain = [leaf]
        while chain[-1].extends is not None:
            chain.append(named[chain[-1].extends])
        cases = [[e, self._resolved(t), f] for bitset_of in chain for e, t, f in bitset_of.cases]
        return [
            "bitset", leaf.name, leaf.shown, chain[-1].name,
            max(bitset_of.least for bitset_of in chain), min(bitset_of.most for bitset_of in chain),
            *(hex(sum(getattr(bitset_of, part) for bitset_of in chain))
              for part in ("match", "dontcare", "mask")),
            cases,
        ]  # fmt: skip

    def _resolved(self, template: str | None) -> str | None:
        if template is None:
            return None
        for name, text in self.templates.items():
            template = template.replace("{" + name + "}", text)
        return template


def low_of(item: Xml) -> int:
    return int(item.attrib.get("pos", item.attrib.get("low", "0")))


def python(text: str) -> str:
    """Convert a C expression of fields to Python's syntax."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"\{(\w+)\}", r"\1", text)
    text = re.sub(r"(?<=\d)U?L*\b", "", text).replace("ISA_GPU_ID()", "GPU")
    text = text.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text)
    return " ".join(text.split())
