"""Compile the pseudocode of AMD's ISA documents to Python closures.

The grammar is what the texts of RDNA3 and RDNA4 use: assignments to typed parts of registers,
if/elsif/else, for, declare, lambda, and C's operators with `<>`, `**`, slices and concatenations.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.support.pcode import numbers
from tests.support.pcode.functions import function
from tests.support.pcode.machine import Expression, Place, State, Statement, Step
from tests.support.pcode.numbers import FORMATS, NEAREST, TO_ZERO
from tests.support.pcode.operators import BINARY, LEVELS, Unsupported, invert, negate
from tests.support.pcode.values import Value, cast, seen, truth

_TOKENS = re.compile(
    r"\s+|//[^\n]*|(?P<cast>\d+'[UIFB])(?![\w.])|(?P<sized>\d+'(?:0x[0-9a-fA-F]+|\d+\.\d+|\d+)[UL]*)"
    r"|(?P<number>0x[0-9a-fA-F]+[UL]*|\d+\.\d+F?|\d+[UL]*)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<mark>\+:|\*\*|<<|>>|<=|>=|<>|==|!=|&&|\|\||\+=|-=|[-+*/&|^~!?:;,.=<>(){}\[\]])"
)
_TYPE = re.compile(r"(bf|fp|[uifb])(\d+)$")
_ENDS = {"endif", "else", "elsif", "endfor", ")", ""}


class _Break(Exception):
    """`break`."""


class _Return(Exception):
    """`return`, or a lambda's expression."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


def _tokens(text: str) -> list[str]:
    found, place = [], 0
    while place < len(text):
        match = _TOKENS.match(text, place)
        if match is None:
            raise Unsupported(f"{text[place : place + 20]!r}")
        place = match.end()
        if match.lastgroup:
            found.append(match[0])
    return [*found, ""]


def parse(text: str) -> Statement:
    """Compile a text."""
    reader = _Reader(_tokens(text))
    body = reader.block()
    if reader.next:
        raise Unsupported(f"{reader.next!r} after the end")
    return body


def literal(text: str) -> Value:
    """Return a number as written: 32 bits, or as its width or suffix says."""
    width, _, digits = text.rpartition("'")
    suffix = re.search(r"(?<!0x)[UL]*$", digits)
    ending = suffix[0] if suffix else ""
    digits = digits.removesuffix(ending)
    if "." in digits:
        size = int(width) if width else 32 if digits.endswith("F") else 64
        bits = numbers.from_float(FORMATS["f", size], float(digits.removesuffix("F")))
        return Value("f", size, bits)
    size = int(width) if width else 64 if "LL" in ending else 32
    return Value("u" if "U" in ending or "0x" in digits else "i", size, int(digits, 0))


class _Reader:
    """A position in the tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.place = tokens, 0

    @property
    def next(self) -> str:
        return self.tokens[self.place]

    def take(self, wanted: str = "") -> str:
        token = self.next
        if wanted and token != wanted:
            raise Unsupported(f"{wanted!r} expected, {token!r} found")
        self.place += 1
        return token

    def accept(self, token: str) -> bool:
        if self.next != token:
            return False
        self.place += 1
        return True

    # Statements

    def block(self) -> Statement:
        parts: list[Statement] = []
        while True:
            while self.accept(";"):
                pass
            if self.next in _ENDS:
                break
            parts.append(self.statement())

        def run(state: State) -> None:
            for part in parts:
                part(state)

        return run

    def statement(self) -> Statement:
        special = {
            "if": self._if, "for": self._for, "declare": self._declare,
            "break": self._break, "return": self._return,
        }.get(self.next)  # fmt: skip
        if special:
            self.take()
            return special()
        if self.next == "{":
            return self._split()
        if self.tokens[self.place + 1] == "(":
            called = self.expression()
            return lambda state: void(called(state))
        place = self._place(self.take())
        operator = self.take()
        if operator not in ("=", "+=", "-="):
            raise Unsupported(f"{operator!r} after a place")
        if self.next == "lambda":
            return self._lambda(place.name)
        value = self.expression()
        if operator == "=":
            return lambda state: place.write(state, value(state))
        apply = BINARY[operator[0]]
        return lambda state: place.write(state, apply(place.read(state), value(state), state.mode))

    def _break(self) -> Statement:
        def leave(state: State) -> None:
            raise _Break

        return leave

    def _return(self) -> Statement:
        value = self.expression()

        def leave(state: State) -> None:
            raise _Return(value(state))

        return leave

    def _if(self) -> Statement:
        arms = [(self.expression(), self._then())]
        other: Statement | None = None
        while not self.accept("endif"):
            if self.accept("elsif"):
                arms.append((self.expression(), self._then()))
            else:
                self.take("else")
                other = self.block()

        def run(state: State) -> None:
            for condition, body in arms:
                if condition(state).number:
                    body(state)
                    return
            if other is not None:
                other(state)

        return run

    def _then(self) -> Statement:
        self.take("then")
        return self.block()

    def _for(self) -> Statement:
        name = self.take()
        self.take("in")
        first = self.expression()
        self.take(":")
        last = self.expression()
        self.take("do")
        body = self.block()
        self.take("endfor")

        def run(state: State) -> None:
            start = first(state)
            try:
                for number in range(start.number, last(state).number + 1):
                    state.names[name] = Value(start.kind, start.width, number)
                    body(state)
            except _Break:
                pass

        return run

    def _declare(self) -> Statement:
        name = self.take()
        self.take(":")
        width, _, kind = self.take().partition("'")
        count: Expression | None = None
        if self.accept("["):
            count = self.expression()
            self.take("]")
        blank = Value(kind.lower(), int(width), 0)

        def run(state: State) -> None:
            if count is None:
                state.names[name] = blank
            elif name not in state.names:  # the arrays of sources and constants are given
                state.names[name] = [blank] * count(state).number

        return run

    def _split(self) -> Statement:
        """`{ a, b } = value`: the last one takes the lowest bits."""
        self.take("{")
        places = [self._place(self.take())]
        while self.accept(","):
            places.append(self._place(self.take()))
        self.take("}")
        self.take("=")
        value = self.expression()

        def run(state: State) -> None:
            number = value(state).number
            for place in reversed(places):
                width = place.steps[-1][2]
                place.write(state, Value("b", width, number & ((1 << width) - 1)))
                number >>= width

        return run

    def _lambda(self, name: str) -> Statement:
        self.take("lambda")
        self.take("(")
        formal = [self.take()]
        while self.accept(","):
            formal.append(self.take())
        self.take(")")
        self.take("(")
        if self.next in ("if", "declare"):
            body = self.block()
        else:
            value = self.expression()

            def body(state: State) -> None:
                raise _Return(value(state))

        self.accept(";")
        self.take(")")

        def call(state: State, *given: Value) -> Value:
            kept = dict(state.names)
            state.names.update(zip(formal, given, strict=True))
            try:
                body(state)
            except _Return as result:
                return result.value
            finally:
                state.names.clear()
                state.names.update(kept)
            raise Unsupported(f"{name} returns nothing")

        def run(state: State) -> None:
            state.names[name] = call

        return run

    # Expressions

    def expression(self) -> Expression:
        condition = self._binary(0)
        if not self.accept("?"):
            return condition
        first = self.expression()
        self.take(":")
        second = self.expression()
        return lambda state: first(state) if condition(state).number else second(state)

    def _binary(self, level: int) -> Expression:
        if level == len(LEVELS):
            return self._power()
        left = self._binary(level + 1)
        while self.next in LEVELS[level]:
            left = _joined(self.take(), left, self._binary(level + 1))
        return left

    def _power(self) -> Expression:
        left = self._unary()
        if self.accept("**"):
            return _joined("**", left, self._unary())
        return left

    def _unary(self) -> Expression:
        if self.accept("-"):
            value = self._unary()
            return lambda state: negate(value(state))
        if self.accept("+"):
            return self._unary()
        if self.accept("~"):
            inverted = self._unary()
            return lambda state: invert(inverted(state))
        if self.accept("!"):
            flag = self._unary()
            return lambda state: truth(not flag(state).number)
        return self._primary()

    def _primary(self) -> Expression:
        token = self.take()
        if token == "(":
            inner = self.expression()
            self.take(")")
            return inner
        if token == "{":
            return self._joint()
        if re.fullmatch(r"\d+'[UIFB]", token):
            return self._cast(token)
        if token[0].isdigit():
            value = literal(token)
            return lambda state: value
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            raise Unsupported(f"{token!r} in an expression")
        if self.next == "(":
            return self._call(token)
        if token in ("ROUND_NEAREST_EVEN", "ROUND_TOWARD_ZERO"):
            return lambda state: Value("u", 1, int(token == "ROUND_TOWARD_ZERO"))
        return self._place(token).read

    def _joint(self) -> Expression:
        parts = self._list("}")

        def join(state: State) -> Value:
            number = width = 0
            marks: list[tuple[int, int, int]] = []
            for part in reversed([part(state) for part in parts]):
                number |= part.raw(part.width) << width
                marks += [(low + width, size, mark) for low, size, mark in part.marks]
                width += part.width
            return Value("u", width, number, tuple(marks))

        return join

    def _list(self, end: str) -> list[Expression]:
        parts = [] if self.next == end else [self.expression()]
        while self.accept(","):
            parts.append(self.expression())
        self.take(end)
        return parts

    def _cast(self, token: str) -> Expression:
        width, kind = int(token[:-2]), token[-1].lower()
        self.take("(")
        hexadecimal = self.next.startswith("0x")
        (inner,) = self._list(")")
        steps = self._steps()

        def of(state: State) -> Value:
            value = inner(state)
            if value.kind == "two over pi":
                value = Value("u", width, numbers.two_over_pi(width))
            elif kind == "b" or (kind == "f" and hexadecimal):
                value = seen(value, kind, width)
            else:
                value = cast(value, kind, width, state.mode)
            return Place("", steps).read(State({"": value})) if steps else value

        return of

    def _call(self, name: str) -> Expression:
        self.take("(")
        arguments = self._list(")")
        known = function(name)

        def of(state: State) -> Value:
            given = [argument(state) for argument in arguments]
            if known is not None:
                return known(state, *given)
            if name in state.names:
                result: Value = state.names[name](state, *given)
                return result
            if state.call is None or not name.startswith("v_"):
                raise Unsupported(f"the function {name}")
            return state.call(name, given, state)

        return of

    def _place(self, name: str) -> Place:
        if name == "ROUND_MODE":
            return _RoundMode(name, [])
        return Place(name, self._steps())

    def _steps(self) -> list[Step]:
        steps: list[Step] = []
        while True:
            if self.accept("."):
                name = self.take()
                match = _TYPE.match(name)
                steps.append(("type", match[1], int(match[2])) if match else ("field", name, None))
            elif self.accept("["):
                first = self.expression()
                if self.accept(":"):
                    steps.append(("bits", first, self.expression()))
                elif self.accept("+:"):
                    steps.append(("from", first, self.expression()))
                else:
                    steps.append(("bit", first, None))
                self.take("]")
            else:
                return steps


class _RoundMode(Place):
    """The rounding, as a number: 1 toward zero."""

    def read(self, state: State) -> Value:
        return Value("u", 1, int(state.mode == TO_ZERO))

    def write(self, state: State, value: Value) -> None:
        state.mode = TO_ZERO if value.number else NEAREST


def _joined(operator: str, left: Expression, right: Expression) -> Expression:
    if operator == "&&":
        return lambda state: truth(bool(left(state).number and right(state).number))
    if operator == "||":
        return lambda state: truth(bool(left(state).number or right(state).number))
    apply: Callable[[Value, Value, str], Value] = BINARY[operator]
    return lambda state: apply(left(state), right(state), state.mode)


def void(value: Any) -> None:
    """Drop a value: of a call for what it does."""
