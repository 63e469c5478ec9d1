"""Text of a line of PTX, and its line of source.

Source: PTX ISA 8.x, "Debugging Directives": .file, .loc.
"""

from __future__ import annotations

import re

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FUNCTION = re.compile(r"(?:\s*\.(?:visible|extern|weak|common))*\s*\.(?:entry|func)\b")


def instruction_in(ptx: str, line: int) -> tuple[str, str]:
    """Return the text of the instruction that begins in a line, counted from 1, and the
    "file:line" of its source, or "" if the PTX does not state it."""
    lines = ptx.split("\n")
    if not 1 <= line <= len(lines):
        return "", ""
    text = " ".join(lines[line - 1].split())
    for before in reversed(lines[: line - 1]):
        found = _LOC.match(before)
        if found is not None:
            names = dict(_FILE.findall(ptx))
            return text, f"{names.get(found[1], 'file ' + found[1])}:{found[2]}"
        if _FUNCTION.match(before):
            break
    return text, ""
