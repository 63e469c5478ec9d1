"""Decode ir3 instructions: encoding, fields, text.

The fixed bits of an instruction determine its encoding. A field is looked up in the cases of the
encoding whose condition holds, then among the parameters that the enclosing encoding passes down. A
condition refers to fields; while it is evaluated, its own case counts as chosen. The text is that
of Mesa's disassembler. (Mesa docs, "ISASPEC - XML Based ISA Specification")
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

from ugpu.hcq.errors import BadCodeObject
from ugpu.virtual.adreno.isa.decoder.table import Encoding, Expression, Field, Table

_WORD = (1 << 64) - 1


class _State:
    """State shared by the scopes of one instruction. active: expressions being evaluated, innermost
    last. faults: irregularities in the bits."""

    __slots__ = ("active", "faults", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self.active: list[Expression] = []
        self.faults: list[str] = []


class Scope:
    """An encoding with its bits: an instruction, or one of its operands."""

    __slots__ = ("_known", "_state", "bits", "encoding", "parameters", "parent")

    def __init__(
        self,
        state: _State,
        encoding: Encoding,
        bits: int,
        parent: Scope | None = None,
        field: Field | None = None,
    ) -> None:
        self.encoding = encoding
        self.bits = bits
        self.parent = parent
        self.parameters = field.parameters if field is not None else {}
        self._state = state
        self._known: dict[Expression, int] = {}

    @property
    def name(self) -> str:
        return self.encoding.name

    # ---- fields --------------------------------------------------------------------------------

    def _holds(self, expression: Expression) -> int:
        known = self._known.get(expression)
        if known is not None:
            return known
        active = self._state.active
        if expression in active[1:]:
            return 0
        active.append(expression)
        found = int(eval(expression.code, {"__builtins__": {}}, _Names(self)))
        active.pop()
        self._known[expression] = found
        return found

    def _find(self, name: str) -> Field | None:
        for case in self.encoding.cases:
            expression = case.expression
            if expression is not None:
                active = self._state.active
                if not (active and active[-1] is expression) and not self._holds(expression):
                    continue
            field = case.fields.get(name)
            if field is not None:
                return field
        return None

    def _resolve(self, name: str) -> tuple[Field, int, Scope] | None:
        """Return a field, its bits, and the scope that contains it."""
        field = self._find(name)
        if field is None:
            outer = self.parameters.get(name)
            if outer is None or self.parent is None:
                return None
            return self.parent._resolve(outer)
        if field.expression is not None:
            return field, self._holds(field.expression) & _WORD, self
        return field, self.bits >> field.low & field.mask, self

    def has(self, name: str) -> bool:
        """Return whether the field exists in this scope."""
        return self._resolve(name) is not None

    def raw(self, name: str) -> int:
        """Return a field's bits as an unsigned number."""
        found = self._resolve(name)
        if found is None:
            raise KeyError(f"{self.name} has no field {name}")
        return found[1]

    def signed(self, name: str) -> int:
        """Return a field's bits as a signed number."""
        found = self._resolve(name)
        if found is None:
            raise KeyError(f"{self.name} has no field {name}")
        field, bits, _ = found
        return bits - (bits >> field.width - 1 << field.width)

    def inner(self, name: str) -> Scope:
        """Return the operand that a field holds."""
        found = self._resolve(name)
        if found is None or found[0].kind != "bitset":
            raise KeyError(f"{self.name} has no operand {name}")
        field, bits, _ = found
        encoding = match(self._state, self._state.table.encodings[field.root], bits)
        if encoding is None:
            raise BadCodeObject("unknown operand encoding", field=name, bits=hex(bits))
        return Scope(self._state, encoding, bits, self, field)

    # ---- text ----------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the text as Mesa's disassembler prints it."""
        template = self._template()
        if template is None:
            self._state.faults.append(f"{self.name}: no display template")
            return ""
        parts = list(template)
        for place in range(1, len(parts), 2):
            parts[place] = self._shown(parts[place])
        return "".join(parts)

    def _template(self) -> Sequence[str] | None:
        for case in self.encoding.cases:
            if case.expression is not None and not self._holds(case.expression):
                continue
            for low, mask, value in case.asserted:
                if self.bits >> low & mask != value:
                    self._state.faults.append(f"unexpected bits from {low} in {self.name}")
            if case.template is not None:
                return case.template
        return None

    def _shown(self, name: str) -> str:
        if name == "NAME":
            return self.encoding.shown
        found = self._resolve(name)
        if found is None:
            self._state.faults.append(f"no field {name}")
            return ""
        field, bits, _ = found
        kind = field.kind
        if kind == "bitset":
            encoding = match(self._state, self._state.table.encodings.get(field.root, []), bits)
            if encoding is None:
                self._state.faults.append(f"no operand is encoded like {bits:#x}")
                return ""
            return Scope(self._state, encoding, bits, self, field).text()
        if kind == "enum":
            return field.texts.get(bits, str(bits))
        if kind == "bool":
            return (field.text if bits else "") if field.text is not None else str(bits)
        if kind == "bool_inv":
            return ("" if bits else field.text) if field.text is not None else str(int(not bits))
        if kind in ("int", "branch", "absbranch", "offset"):
            number = bits - (bits >> field.width - 1 << field.width)
            if kind == "offset":
                return f"{number:+d}" if bits else ""
            return str(number)
        if kind == "uint":
            return str(bits)
        if kind == "uoffset":
            return f"+{bits}" if bits else ""
        if kind == "hex":
            return f"{bits:x}"
        assert kind == "float", kind
        form, size = ("<e", 2) if field.width == 16 else ("<f", 4)
        number = struct.unpack(form, bits.to_bytes(size, "little"))[0]
        return ("-nan" if bits >> field.width - 1 else "nan") if number != number else f"{number:f}"


class _Names(Mapping[str, object]):
    """The names of an expression: fields, and GPU."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def __getitem__(self, name: str) -> int:
        if name == "GPU":
            return self.scope._state.table.gpu
        found = self.scope._resolve(name)
        if found is None:
            self.scope._state.faults.append(f"no field {name}")
            return 0
        return found[1]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def match(state: _State, encodings: Sequence[Encoding], bits: int) -> Encoding | None:
    """Return the only encoding that matches these bits; None where there is none, or several."""
    found = None
    for encoding in encodings:
        if bits & encoding.mask == encoding.match:
            if found is not None:
                state.faults.append(f"both {found.name} and {encoding.name}")
                return None
            found = encoding
    if found is not None and bits & found.dontcare:
        state.faults.append(f"bits of {found.name} that mean nothing: {bits & found.dontcare:#x}")
    return found


class Instruction(Scope):
    """One decoded instruction."""

    __slots__ = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """Return the irregularities found in the bits that were decoded so far."""
        return tuple(self._state.faults)


def decode(word: int, table: Table) -> Instruction | None:
    """Return the instruction in 64 bits; None where there is none."""
    state = _State(table)
    encoding = match(state, table.categories[word >> 61], word)
    return Instruction(state, encoding, word) if encoding is not None else None


def disassemble(word: int, table: Table) -> str:
    """Return the instruction as text; "no match: " and the word where there is none."""
    found = decode(word, table)
    return found.text() if found is not None else f"no match: {word:016x}"


def program(code: bytes, table: Table) -> Iterator[Instruction]:
    """Yield the instructions of a program up to `end`, in order. BadCodeObject for a word that is
    not an instruction, for irregular bits, and for a program without `end`."""
    for place, (word,) in enumerate(struct.iter_unpack("<Q", code[: len(code) & ~7])):
        found = decode(word, table)
        text = found.text() if found is not None else ""
        if found is None or found.faults:
            why = found.faults[0] if found is not None else "no such instruction"
            raise BadCodeObject(
                "cannot decode an instruction", place=place, word=hex(word), reason=why, text=text
            )
        yield found
        if found.name == "end":
            return
    raise BadCodeObject("expected `end` in a program", size=len(code))
