"""Line tables of kernels: each instruction has the line of its statement in the printed kernel
(compiler.kernel.text), so that a fault reports it too.

Sources: LLVM Language Reference, "Metadata" (DICompileUnit, DISubprogram, DILocation); PTX ISA,
"Debugging Directives"; LLVM's NVPTXAsmPrinter (labels around functions with locations).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FILE = "kernel-ir"  # the file that line tables name
_FIRST = 1000  # metadata nodes below this number are the kernel's own
_DEFINE = re.compile(r"^(define .*@([\w.$-]+)\(.*\) #0) \{$", re.MULTILINE)
_MARK = ", !dbg !"
_LOC = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")
_LABEL = r"\$L__(?:func_begin|func_end|tmp)\d+:"
_ADDED = re.compile(rf'\s*\.file\s+\d+\s+"|\s*\.section\s+\.debug_|{_LABEL}')


@dataclass(frozen=True)
class Emitted:
    """A module of one function. spans: for each statement, first and end line of the text with its
    instructions, where `above` is line 0, and its id; the innermost statements first."""

    text: str
    above: int
    spans: Sequence[tuple[int, int, int]]

    def lines(self, places: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """Return spans of the whole text with the line of each statement in place of its id.
        places: see compiler.kernel.text.statement_lines."""
        above = self.above
        return [(first + above, end + above, places[which]) for first, end, which in self.spans]


def with_lines(module: str, spans: Sequence[Sequence[int]], *, directives: bool = False) -> str:
    """Return a module with a line table. spans: see Emitted.lines. directives: only as directives
    in the generated text (PTX)."""
    text, seen = module.rstrip("\n").split("\n"), set()
    for first, end, line in spans:
        seen.add(line)
        for place in range(first, end):
            if text[place].startswith("  ") and _MARK not in text[place]:
                text[place] += f"{_MARK}{_FIRST + line}"
    unit, file, function, kind = (f"!{_FIRST - number}" for number in (1, 2, 3, 4))
    found = _DEFINE.search(module)
    name = found[2] if found else "kernel"
    emission = "DebugDirectivesOnly" if directives else "LineTablesOnly"
    return (
        "\n".join(
            [
                _DEFINE.sub(rf"\1 !dbg {function} {{", "\n".join(text)),
                f"!llvm.dbg.cu = !{{{unit}}}",
                f"!llvm.module.flags = !{{!{_FIRST - 5}, !{_FIRST - 6}}}",
                f"{unit} = distinct !DICompileUnit(language: DW_LANG_C, file: {file}, "
                'producer: "ugpu", isOptimized: true, runtimeVersion: 0, '
                f"emissionKind: {emission})",
                f'{file} = !DIFile(filename: "{FILE}", directory: "")',
                f'{function} = distinct !DISubprogram(name: "{name}", file: {file}, line: 1, '
                f"type: {kind}, unit: {unit}, spFlags: DISPFlagDefinition)",
                f"{kind} = !DISubroutineType(types: !{{}})",
                f'!{_FIRST - 5} = !{{i32 2, !"Debug Info Version", i32 3}}',
                f'!{_FIRST - 6} = !{{i32 2, !"Dwarf Version", i32 5}}',
                *(
                    f"!{_FIRST + line} = !DILocation(line: {line}, scope: {function})"
                    for line in sorted(seen)
                ),
            ]
        )
        + "\n"
    )


def lines_of_ptx(located: str) -> list[tuple[str, int]]:
    """Return the lines of PTX without line directives, each with the line of kernel IR that they
    give, 0 without one."""
    found, line = [], 0
    for text in located.splitlines():
        directive = _LOC.match(text)
        if directive is not None:
            line = int(directive[1])
        elif not _ADDED.match(text):
            found.append((text, line))
    return found
