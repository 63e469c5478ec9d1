"""The macros that a header's text defines, as a compiler would see them: nothing in a comment and
nothing in a block whose condition is false counts, and no name has two meanings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ugpu.hcq.errors import UsageError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|(\Z))", re.S)
_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(?:define[ \t]+(\w+)(?:\(([^)\n]*)\))?([^\n]*)"
    r"|(undef|if|ifdef|ifndef|elif|else|endif)\b([^\n]*))",
    re.M,
)
_LITERAL = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*")
_DEFINED = re.compile(r"defined[ \t]*(?:\([ \t]*(\w+)[ \t]*\)|(\w+))")


class VendorError(UsageError):
    """A header contains a contradiction that the catalogue does not list."""


@dataclass(frozen=True)
class Macro:
    """A definition; argument: the text between the parentheses of NAME(); None without
    parentheses."""

    argument: str | None
    body: str


def literal(text: str) -> int | None:
    """Return the value of one integer literal of C, None for anything else."""
    match = _LITERAL.fullmatch(text)
    if match is None:
        return None
    digits = match[1]
    if digits[0] == "0" and digits.isdigit():
        return int(digits, 8) if digits.strip("01234567") == "" else None
    return int(digits, 0)


@dataclass
class _Block:
    """One `#if` that is open. outer: whether the text around it counts; taken: whether one of its
    parts did."""

    outer: bool
    live: bool
    taken: bool


@dataclass
class _Reading:
    macros: dict[str, Macro] = field(default_factory=dict)
    blocks: list[_Block] = field(default_factory=list)

    @property
    def live(self) -> bool:
        return not self.blocks or self.blocks[-1].live

    def define(self, name: str, macro: Macro) -> None:
        earlier = self.macros.setdefault(name, macro)
        if earlier == macro:
            return
        values = literal(earlier.body), literal(macro.body)
        if earlier.argument != macro.argument or values[0] != values[1] or values[0] is None:
            raise VendorError(f"{name} is both {earlier.body!r} and {macro.body!r}")

    def condition(self, word: str, text: str) -> bool:
        """Compute the condition of `#if` and its kind; VendorError for one that is neither a number
        nor a question whether a name is defined."""
        if word in ("ifdef", "ifndef"):
            return (text in self.macros) == (word == "ifdef")
        plain = text.lstrip("!").strip()
        asked = _DEFINED.fullmatch(plain)
        value = int((asked[1] or asked[2]) in self.macros) if asked else literal(plain)
        if value is None:
            raise VendorError(f"#{word} {text}: expected a number or defined(NAME)")
        return bool(value) != (text.count("!") % 2 == 1)

    def branch(self, word: str, text: str) -> None:
        """Follow one directive of conditions."""
        if word in ("if", "ifdef", "ifndef"):
            live = self.live and self.condition(word, text)
            self.blocks.append(_Block(self.live, live, live))
            return
        if not self.blocks:
            raise VendorError(f"#{word} without #if")
        block = self.blocks[-1]
        if word == "endif":
            self.blocks.pop()
        else:
            can = block.outer and not block.taken
            block.live = can and (word == "else" or self.condition(word, text))
            block.taken = block.taken or block.live


def _without_comments(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        if match[1] is not None:
            raise VendorError(f"a comment has no end: {match[0][:40]!r}")
        return " "

    return _COMMENT.sub(blank if "/*" in text else " ", text)


def macros(text: str) -> Mapping[str, Macro]:
    """Return the macros that are defined at the end of a header, in order of their definition;
    VendorError where the header gives one name two meanings."""
    text = text.replace("\r\n", "\n").replace("\\\n", " ")
    reading = _Reading()
    for name, argument, body, word, rest in _parts(_without_comments(text)):
        if name:
            if reading.live:
                reading.define(name, Macro(argument, body))
        elif word != "undef":
            reading.branch(word, rest)
        elif reading.live:
            reading.macros.pop(rest, None)
    if reading.blocks:
        raise VendorError(f"expected an #endif for each #if, found {len(reading.blocks)} too few")
    return reading.macros


def _parts(text: str) -> list[tuple[str, str | None, str, str, str]]:
    return [
        (
            match[1] or "",
            match[2],
            (match[3] or "").strip(),
            match[4] or "",
            (match[5] or "").strip(),
        )
        for match in _DIRECTIVE.finditer(text)
    ]
