"""Line tables of kernels: each instruction names the line of its statement in the printed kernel
(compiler.kernel.text), so that a fault names it too.

Source: LLVM Language Reference, "Metadata" (DICompileUnit, DISubprogram, DILocation).
"""

from __future__ import annotations

import re

FILE = "kernel-ir"  # the file that line tables name
_FIRST = 1000  # metadata nodes below are the kernel's own
_LINE = re.compile(r", !dbg !(\d+)$", re.MULTILINE)
_DEFINE = re.compile(r"^(define .*@([\w.$-]+)\(.*\) #0) \{$", re.MULTILINE)


def located(text: list[str], start: int, line: int) -> None:
    """Give the instructions of text[start:] that have no line yet this one."""
    mark = f", !dbg !{_FIRST + line}"
    for place in range(start, len(text)):
        instruction = text[place]
        if instruction.startswith("  ") and ", !dbg !" not in instruction:
            text[place] = instruction + mark


def with_lines(module: str, printed: str) -> str:
    """Complete a module of one function whose instructions are marked by `located`. The printed
    kernel comes first, as comments: see `statement_of`."""
    lines = sorted({int(found) - _FIRST for found in _LINE.findall(module)})
    unit, file, function, kind = (f"!{_FIRST - number}" for number in (1, 2, 3, 4))
    module = _DEFINE.sub(rf"\1 !dbg {function} {{", module)
    found = _DEFINE.search(module.replace(f" !dbg {function}", ""))
    name = found[2] if found else "kernel"
    return (
        "\n".join(
            [
                *(f"; {line}" for line in printed.splitlines()),
                module.rstrip("\n"),
                f"!llvm.dbg.cu = !{{{unit}}}",
                f"!llvm.module.flags = !{{!{_FIRST - 5}, !{_FIRST - 6}}}",
                f"{unit} = distinct !DICompileUnit(language: DW_LANG_C, file: {file}, "
                'producer: "ugpu", isOptimized: true, runtimeVersion: 0, '
                "emissionKind: LineTablesOnly)",
                f'{file} = !DIFile(filename: "{FILE}", directory: "")',
                f'{function} = distinct !DISubprogram(name: "{name}", file: {file}, line: 1, '
                f"type: {kind}, unit: {unit}, spFlags: DISPFlagDefinition)",
                f"{kind} = !DISubroutineType(types: !{{}})",
                f'!{_FIRST - 5} = !{{i32 2, !"Debug Info Version", i32 3}}',
                f'!{_FIRST - 6} = !{{i32 2, !"Dwarf Version", i32 5}}',
                *(
                    f"!{_FIRST + line} = !DILocation(line: {line}, scope: {function})"
                    for line in lines
                ),
            ]
        )
        + "\n"
    )


def statement_of(module: str, line: int) -> str:
    """Return a line of the printed kernel in a module made by `with_lines`, or ""."""
    lines = module.splitlines()
    found = lines[line - 1] if 0 < line <= len(lines) else ""
    return found.removeprefix(";").strip() if found.startswith(";") else ""
