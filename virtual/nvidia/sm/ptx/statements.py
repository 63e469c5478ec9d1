"""The body of a function: registers, variables, labels and instructions.

Source: PTX ISA 8.x, chapters "Syntax" and "Instruction Operands".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm.ptx.cursor import Cursor, count_of, integer_of
from ugpu.virtual.nvidia.sm.ptx.lexer import Token, bad, tokens_of
from ugpu.virtual.nvidia.sm.ptx.module import (
    SIZES,
    Address,
    Arguments,
    Function,
    Instruction,
    Integer,
    Inverted,
    Name,
    Operand,
    Pair,
    Real,
    Register,
    Selected,
    Sink,
    Special,
    Variable,
    Vector,
)
from ugpu.virtual.nvidia.sm.ptx.variables import variables

_MOST_REGISTERS = 1 << 20
_OPERAND = re.compile(r"\{[^}]*\}|[^,{}\s][^,{}]*")
_SPECIALS = frozenset((
    "tid", "ntid", "ctaid", "nctaid", "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid",
    "clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi",
    "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt",
    "dynamic_smem_size", "total_smem_size", "aggr_smem_size", "is_explicit_cluster", "clusterid",
    "nclusterid", "cluster_ctaid", "cluster_nctaid", "cluster_ctarank", "cluster_nctarank",
    *(f"envreg{number}" for number in range(32)),
    "current_graph_exec",
))  # fmt: skip


class Body:
    """Parse one body; the cursor is after its opening brace. shared: the module's variables."""

    def __init__(self, cursor: Cursor, function: Function, shared: Mapping[str, Variable]) -> None:
        self._cursor = cursor
        self._function = function
        self._shared = shared
        self._scopes: list[dict[str, Register | str]] = [{}]
        self._ranges: list[list[tuple[str, int, str]]] = [[]]
        self._pending: list[str] = []
        self._operands: dict[str, Operand] = {}  # by text, in these scopes

    def parse(self) -> None:
        """Read to the closing brace."""
        cursor = self._cursor
        while self._scopes:
            token = cursor.peek
            if token.kind == "plain":
                self._plain(cursor.next())
                continue
            if token.kind == "dot":
                self._operands.clear()
                self._directive()
            elif cursor.take("{"):
                self._operands.clear()
                self._scopes.append({})
                self._ranges.append([])
            elif cursor.take("}"):
                self._operands.clear()
                self._scopes.pop()
                self._ranges.pop()
            elif cursor.take(";"):
                continue
            elif token.kind == "name" and cursor.ahead(1).text == ":":
                self._label()
            else:
                self._instruction()
        for label in self._pending:
            self._function.labels[label] = len(self._function.body)

    def _directive(self) -> None:
        cursor = self._cursor
        word, line = cursor.peek.text, cursor.peek.line
        if word == ".reg":
            self._registers()
        elif word in (".local", ".shared", ".param", ".global", ".const"):
            for variable in variables(cursor, False):
                self._variable(variable)
        elif word == ".loc":
            while cursor.peek.line == line:
                cursor.next()
        elif word in (".pragma", ".callprototype", ".calltargets"):
            cursor.skip_past(";")
        else:
            raise bad(line, f"unexpected {word!r}")

    def _registers(self) -> None:
        cursor = self._cursor
        line = cursor.next().line
        kind = cursor.next().text[1:]
        if kind in ("v2", "v4"):
            raise NotSupported(f"PTX line {line}: registers of vectors")
        if kind not in SIZES and kind != "pred":
            raise bad(line, f"registers of type .{kind}")
        while True:
            name = cursor.name()
            if cursor.take("<"):
                count = cursor.integer()
                cursor.expect(">")
                if not 0 <= count <= _MOST_REGISTERS:
                    raise bad(line, f"{count} registers")
                self._ranges[-1].append((name, count, kind))
            else:
                self._declare(name, kind)
            if not cursor.take(","):
                break
        cursor.expect(";")

    def _declare(self, name: str, kind: str) -> Register:
        """Add a register. A register that hides one of an outer scope gets a unique name."""
        unique = name
        if unique in self._function.registers:
            unique = f"{name}.{len(self._function.registers)}"
        register = Register(unique, kind)
        self._function.registers[unique] = register
        self._scopes[-1][name] = register
        return register

    def _variable(self, variable: Variable) -> None:
        taken = {known.name for known in self._function.variables}
        name = variable.name
        if name in taken:
            name = f"{name}.{len(self._function.variables)}"
        self._scopes[-1][variable.name] = name
        self._function.variables.append(
            Variable(
                name, variable.space, variable.type, variable.align, variable.size, variable.line,
                variable.initial, variable.references,
            )
        )  # fmt: skip

    def _label(self) -> None:
        cursor = self._cursor
        token = cursor.next()
        cursor.expect(":")
        if cursor.peek.text == ".branchtargets":
            cursor.next()
            names = [cursor.name()]
            while cursor.take(","):
                names.append(cursor.name())
            cursor.expect(";")
            self._function.tables[token.text] = tuple(names)
            return
        if cursor.peek.text in (".callprototype", ".calltargets"):
            cursor.skip_past(";")
            return
        if token.text in self._function.labels:
            raise bad(token.line, f"label {token.text} is defined twice")
        self._function.labels[token.text] = len(self._function.body)

    def _plain(self, token: Token, guard: Register | None = None, negated: bool = False) -> None:
        """Read an instruction that is one token, whose guard may have been one of its own."""
        opcode, rest = token.text[:-1].split(None, 1)
        if opcode[0] == "@":
            if guard is not None:
                raise bad(token.line, f"unexpected {token.text!r}")
            negated = opcode[1] == "!"
            guard = self._guard(self._remembered(opcode[1 + negated :], token.line), token.line)
            opcode, rest = rest.split(None, 1)
        name, *modifiers = opcode.split(".")
        texts = _OPERAND.findall(rest) if "{" in rest else rest.split(",")
        operands = tuple([self._remembered(text.strip(), token.line) for text in texts])
        self._add(token.line, guard, negated, name, modifiers, operands)

    def _remembered(self, text: str, line: int) -> Operand:
        """Read an operand of a plain instruction."""
        operand = self._operands.get(text)
        if operand is None:
            if text.startswith("{"):
                items = text[1:-1].split(",")
                return Vector(tuple([self._remembered(item.strip(), line) for item in items]))
            end, plain = Token("end", "", line), text[:1] == "%" and text[1:].isalnum()
            outer, self._cursor = self._cursor, Cursor([end] if plain else tokens_of(text, line))
            operand = self._named(end, text) if plain else self._operand()
            self._operands[text] = operand
            if not self._cursor.at_end():
                raise bad(line, f"expected ';', got {self._cursor.peek.text!r}")
            self._cursor = outer
        return operand

    @staticmethod
    def _guard(operand: Operand, line: int) -> Register:
        if not isinstance(operand, Register) or operand.type != "pred":
            raise bad(line, "a guard must be a predicate")
        return operand

    def _add(
        self, line: int, guard: Register | None, negated: bool, name: str,
        modifiers: Sequence[str], operands: tuple[Operand, ...],
    ) -> None:  # fmt: skip
        body = self._function.body
        body.append(Instruction(len(body), line, guard, negated, name, tuple(modifiers), operands))

    def _instruction(self) -> None:
        cursor = self._cursor
        guard, negated = None, False
        if cursor.take("@"):
            negated = cursor.take("!")
            guard = self._guard(self._named(cursor.peek, cursor.name()), cursor.peek.line)
        token = cursor.next()
        if token.kind == "plain":
            self._plain(token, guard, negated)
            return
        if token.kind != "name" or token.text.startswith("%"):
            raise bad(token.line, f"unexpected {token.text!r}")
        modifiers = []
        while cursor.peek.kind == "dot":
            modifiers.append(cursor.next().text[1:])
        operands = [] if cursor.peek.text == ";" else [self._operand()]
        while cursor.take(","):
            operands.append(self._operand())
        cursor.expect(";")
        self._add(token.line, guard, negated, token.text, modifiers, tuple(operands))

    def _operand(self) -> Operand:
        first = self._single()
        if self._cursor.take("|"):
            return Pair(first, self._single())
        return first

    def _single(self) -> Operand:
        cursor = self._cursor
        token = cursor.peek
        if token.kind == "name":
            return self._mentioned()
        if cursor.take("["):
            return self._address()
        if cursor.take("{"):
            return Vector(self._items("}", False))
        if cursor.take("("):
            return Arguments(self._items(")", True))
        if cursor.take("!"):
            inner = self._named(cursor.peek, cursor.name())
            if not isinstance(inner, Register):
                raise bad(token.line, "'!' must precede a predicate")
            return Inverted(inner)
        if token.text == "-" and cursor.ahead(1).kind == "name":
            cursor.next()
            return self._negated(cursor.peek)
        return self._constant()

    def _mentioned(self) -> Operand:
        """Return the operand that begins with a name; the cursor is at it."""
        cursor = self._cursor
        token = cursor.next()
        named = self._named(token, token.text)
        if isinstance(named, Register):
            if cursor.peek.kind == "dot":
                return Selected(named, cursor.next().text[1:])
        elif isinstance(named, Name):
            if cursor.peek.text in ("+", "-"):
                return Address(named, cursor.integer())
            if cursor.take("["):
                return self._element(token, named)
        return named

    def _negated(self, token: Token) -> Operand:
        """Return the operand after a minus; the cursor is at its name."""
        operand = self._single()
        if isinstance(operand, Register):
            return Selected(operand, "", True)
        if isinstance(operand, Selected):
            return replace(operand, negated=True)
        raise bad(token.line, f"'-' must precede a register, got {token.text!r}")

    def _element(self, token: Token, array: Name) -> Address:
        """Return the address of `array[n]` ("Arrays as Operands"); the cursor is after `[`."""
        line = token.line
        place = self._cursor.integer()
        self._cursor.expect("]")
        own = (*self._function.variables, *self._function.parameters, *self._function.results)
        known = next((each for each in own if each.name == array.name), None)
        known = known or self._shared.get(array.name)
        if known is None or known.type not in SIZES:
            raise bad(line, f"{token.text} is not an array")
        size = SIZES[known.type]
        if place < 0 or (known.size is not None and (place + 1) * size > known.size):
            raise bad(line, f"{token.text}[{place}] lies outside of the array")
        return Address(array, place * size)

    def _items(self, end: str, may_be_empty: bool) -> tuple[Operand, ...]:
        cursor = self._cursor
        items = [] if may_be_empty and cursor.peek.text == end else [self._item()]
        while cursor.take(","):
            items.append(self._item())
        cursor.expect(end)
        return tuple(items)

    def _item(self) -> Operand:
        token = self._cursor.peek
        if token.text in ("{", "("):
            raise bad(token.line, f"unexpected {token.text!r} within a list of operands")
        return self._operand()

    def _constant(self) -> Operand:
        cursor = self._cursor
        token = cursor.peek
        sign = 1
        while cursor.peek.text in ("-", "+"):
            sign = -sign if cursor.next().text == "-" else sign
        inverse = cursor.take("~")
        number = cursor.peek
        if number.kind != "number":
            raise bad(token.line, f"expected an operand, got {number.text!r}")
        prefix = number.text[:2].lower()
        if prefix == "0f":
            cursor.next()
            bits = int(number.text[2:], 16) ^ (0x80000000 if sign < 0 else 0)
            return Real(struct.unpack("<f", bits.to_bytes(4, "little"))[0], bits)
        if prefix == "0d":
            cursor.next()
            raw = int(number.text[2:], 16) ^ (1 << 63 if sign < 0 else 0)
            return Real(struct.unpack("<d", raw.to_bytes(8, "little"))[0])
        if prefix != "0x" and ("." in number.text or "e" in number.text.lower()):
            cursor.next()
            return Real(sign * float(number.text))
        value = integer_of(number)
        cursor.next()
        value = sign * (~value if inverse else value)
        if not -(1 << 63) <= value < 1 << 64:
            raise bad(token.line, f"{number.text} does not fit in 64 bits")
        return Integer(value)

    def _address(self) -> Address:
        cursor = self._cursor
        token = cursor.peek
        base: Operand
        if token.kind == "name":
            base = self._named(token, cursor.name())
        else:
            base = Integer(cursor.integer())
        if not isinstance(base, Register | Name | Integer):
            raise bad(token.line, f"expected an address, got {token.text!r}")
        offset = cursor.integer() if cursor.peek.text in ("+", "-") else 0
        if cursor.peek.text == ",":
            raise NotSupported(f"PTX line {token.line}: an address of several coordinates")
        cursor.expect("]")
        return Address(base, offset)

    def _named(self, token: Token, text: str) -> Operand:
        """Return the operand that a name refers to."""
        for scope, ranges in zip(reversed(self._scopes), reversed(self._ranges), strict=True):
            known = scope.get(text)
            if isinstance(known, Register):
                return known
            if known is not None:
                return Name(known)
            for stem, count, kind in ranges:
                number = text[len(stem) :]
                if not (text.startswith(stem) and number.isdigit()):
                    continue
                if count_of(number, token.line) < count:
                    return self._declare_in(scope, text, kind)
        if text == "_":
            return Sink()
        if text == "WARP_SZ":
            return Integer(32)
        if text.startswith("%"):
            return self._special(token, text[1:])
        return Name(text)

    def _declare_in(self, scope: dict[str, Register | str], text: str, kind: str) -> Register:
        unique = text
        if unique in self._function.registers:
            unique = f"{text}.{len(self._function.registers)}"
        register = Register(unique, kind)
        self._function.registers[unique] = register
        scope[text] = register
        return register

    def _special(self, token: Token, name: str) -> Special:
        if name not in _SPECIALS:
            if name.startswith(("pm", "reserved")):
                raise NotSupported(f"PTX line {token.line}: the register %{name}")
            raise bad(token.line, f"%{name} is not declared")
        if self._cursor.peek.kind == "dot":
            axis = self._cursor.next().text
            if axis not in (".x", ".y", ".z", ".w"):
                raise bad(token.line, f"%{name} has no component {axis}")
            return Special(name + axis)
        return Special(name)
