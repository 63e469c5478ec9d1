"""Split PTX text into tokens.

Source: PTX ISA 8.x, chapter "Syntax".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ugpu.hcq.errors import BadCodeObject

# A plain instruction on one line is one token: `@%p1 add.s32 %r1, %r2, 5;`, with operands that are
# names, numbers, addresses and vectors.
_PLAIN = (
    r"(?:@!?%?[\w$]+[ \t]+)?[a-z]\w*(?:\.[\w:]+)+[ \t]+"
    r"(?:[-%\w.$+\[\]]+|\{[-%\w.$+\[\], ]*\})(?:,[ \t]*(?:[-%\w.$+\[\]]+|\{[-%\w.$+\[\], ]*\}))*;"
)
_TOKEN = re.compile(
    rf"[ \t\r]*(?:(?P<plain>{_PLAIN})"
    r"|(?P<skip>\n\s*|//[^\n]*|/\*.*?\*/)"
    r"|(?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?"
    r"|[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|[0-9]+U?)"
    r"|(?P<name>%?[A-Za-z_$][A-Za-z0-9_$]*|%[0-9]+)"
    r"|(?P<dot>\.[A-Za-z_0-9]+(?:::[A-Za-z_0-9]+)*)"
    r'|(?P<string>"[^"\n]*")'
    r"|(?P<mark>[\[\]{}(),;:@!+\-|<>=*~])"
    r"|(?P<other>.)|$)",
    re.DOTALL | re.ASCII,
)


class Token(NamedTuple):
    """kind: "plain" (a whole instruction), "number", "name", "dot", "string", "mark" or "end"."""

    kind: str
    text: str
    line: int


def bad(line: int, message: str) -> BadCodeObject:
    """Return the error for text that is not PTX."""
    return BadCodeObject(f"PTX line {line}: {message}", line=line)


def tokens_of(text: str, line: int = 1) -> list[Token]:
    """Split `text`, which begins in a line. Raises BadCodeObject, which names the line."""
    found: list[Token] = []
    for m in _TOKEN.finditer(text):
        kind = m.lastgroup
        if kind == "skip":
            line += m["skip"].count("\n")
        elif kind == "other":
            raise bad(line, f"unexpected {m['other']!r}")
        elif kind is not None:
            found.append(Token(kind, m[kind], line))
    found.append(Token("end", "", line))
    return found
