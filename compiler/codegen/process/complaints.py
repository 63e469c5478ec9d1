"""Find the line of a module that an LLVM error is about: its parser gives one, its verifier prints
the instruction, and its back ends, before they end the process, an intrinsic or a function."""

from __future__ import annotations

import re
from collections.abc import Callable

_PLACE = re.compile(r"<string>:(\d+):\d+: (?:error: )?(.*)")
_INTRINSIC = re.compile(r"llvm\.[\w.]+")
_QUOTED = re.compile(r"(?<!\w)'([^']+)'")
_FUNCTION = re.compile(r"(?:In function:? |@)([\w.$-]+)")
_LONGEST = 200  # maximum letters of a line that are shown


def locate(text: str, said: str) -> dict[str, object]:
    """Return `line`, from 1, and `code`, its text; nothing if LLVM's message gives no place."""
    lines = text.splitlines()
    place = _PLACE.search(said)
    if place is not None and 1 <= int(place[1]) <= len(lines):
        return _fact(lines, int(place[1]) - 1)
    shown = {line.strip() for line in said.splitlines()[1:]} - {""}
    for number, line in enumerate(lines):
        if line.split(";")[0].strip() in shown:
            return _fact(lines, number)
    for words in (*_QUOTED.findall(said), *([" asm "] if "asm" in said else [])):
        for number, line in enumerate(lines):
            if words in line:
                return _fact(lines, number)
    for pattern, declared in ((_INTRINSIC, False), (_FUNCTION, True)):
        for name in pattern.findall(said):
            found = _named(lines, name, declared)
            if found is not None:
                return _fact(lines, found)
    return {}


def brief(said: str) -> str:
    """Return the complaint in one line."""
    place = _PLACE.search(said)
    if place is not None:
        return place[2].strip()
    return next(
        (line.strip() for line in said.splitlines() if line.strip()), "it printed no message"
    )


def _named(lines: list[str], name: str, declared: bool) -> int | None:
    """Return where an intrinsic is called, or a function begins."""
    begins: Callable[[str], bool] = (
        (lambda line: line.startswith("define"))
        if declared
        else (lambda line: not line.startswith("declare"))
    )
    name = name.rstrip(".")
    for number, line in enumerate(lines):
        if f"@{name}" in line and begins(line):
            return number
    return None


def _fact(lines: list[str], number: int) -> dict[str, object]:
    return {"line": number + 1, "code": lines[number].strip()[:_LONGEST]}
