"""Step through tokens."""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.lexer import Token, bad


class Cursor:
    """A position in the tokens of a text."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def peek(self) -> Token:
        """Return the next token without taking it."""
        return self._tokens[self._at]

    def ahead(self, count: int) -> Token:
        """Return the token `count` further on."""
        return self._tokens[min(self._at + count, len(self._tokens) - 1)]

    def at_end(self) -> bool:
        """Return whether no token is left."""
        return self.peek.kind == "end"

    def next(self) -> Token:
        """Take the next token."""
        token = self._tokens[self._at]
        if token.kind == "end":
            raise bad(token.line, "unexpected end of the text")
        self._at += 1
        return token

    def take(self, text: str) -> bool:
        """Take the next token if it reads `text`."""
        token = self._tokens[self._at]
        if token.text == text and token.kind != "string":
            self._at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Take the next token, which must read `text`."""
        if not self.take(text):
            raise bad(self.peek.line, f"expected {text!r}, got {self.peek.text!r}")

    def name(self) -> str:
        """Take an identifier."""
        if self.peek.kind != "name":
            raise bad(self.peek.line, f"expected a name, got {self.peek.text!r}")
        return self.next().text

    def integer(self) -> int:
        """Take an integer constant, with signs before it."""
        sign = 1
        while self.peek.text in ("-", "+"):
            sign = -sign if self.next().text == "-" else sign
        token = self.peek
        if token.kind != "number":
            raise bad(token.line, f"expected a number, got {token.text!r}")
        value = integer_of(token)
        self.next()
        return sign * value

    def skip_past(self, text: str) -> None:
        """Take all tokens up to and including the next `text`."""
        while not self.take(text):
            self.next()


_MOST_DIGITS = 66  # "0b" and 64 bits


def integer_of(token: Token) -> int:
    """Return the value of an integer constant of at most 64 bits."""
    value = _value(token)
    if value >> 64:
        raise bad(token.line, "an integer of more than 64 bits")
    return value


def count_of(text: str, line: int) -> int:
    """Return the value of a decimal number within a word, such as 12 of %r12."""
    if len(text) > _MOST_DIGITS:
        raise bad(line, f"a number of {len(text)} digits")
    return int(text)


def _value(token: Token) -> int:
    text = token.text.rstrip("U")
    if len(text) > _MOST_DIGITS:
        raise bad(token.line, "an integer of more than 64 bits")
    if text[:2].lower() in ("0f", "0d") or not text.isalnum():
        raise bad(token.line, f"expected an integer, got {token.text!r}")
    if text[:2].lower() == "0x":
        return int(text, 16)
    if text[:2].lower() == "0b":
        return int(text, 2)
    if len(text) > 1 and text[0] == "0":
        if set(text) - set("01234567"):
            raise bad(token.line, f"expected an octal number, got {token.text!r}")
        return int(text, 8)
    if not text.isdigit():
        raise bad(token.line, f"expected an integer, got {token.text!r}")
    return int(text)
