"""Split PTX text into tokens.

Source: PTX ISA 8.x, chapter "Syntax".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ugpu.hcq.errors import BadCodeObject

_TOKEN = re.compile(
    r"(?P<skip>[ \t\r\n]+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?"
    r"|[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|[0-9]+U?)"
    r"|(?P<name>%?[A-Za-z_$][A-Za-z0-9_$]*|%[0-9]+)"
    r"|(?P<dot>\.[A-Za-z_0-9]+(?:::[A-Za-z_0-9]+)*)"
    r'|(?P<string>"[^"\n]*")'
    r"|(?P<mark>[\[\]{}(),;:@!+\-|<>=*~])",
    re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """kind: "number", "name", "dot", "string", "mark" or "end"."""

    kind: str
    text: str
    line: int


def bad(line: int, message: str) -> BadCodeObject:
    """Return the error for text that is not PTX."""
    return BadCodeObject(f"PTX line {line}: {message}", line=line)


def tokens_of(text: str) -> list[Token]:
    """Split `text`. Raises BadCodeObject, which names the line."""
    found: list[Token] = []
    at, line = 0, 1
    match = _TOKEN.match
    while at < len(text):
        m = match(text, at)
        if m is None or m.lastgroup is None:
            raise bad(line, f"unexpected {text[at]!r}")
        kind, part = m.lastgroup, m.group()
        if kind == "skip":
            line += part.count("\n")
        else:
            found.append(Token(kind, part, line))
        at = m.end()
    found.append(Token("end", "", line))
    return found
