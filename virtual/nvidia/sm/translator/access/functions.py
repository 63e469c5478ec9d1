"""Memory accesses as functions that kernels call, for code that is compiled fast or is very long.

An access of its own takes 30 to 150 lines of IR, its call 10. The functions are compiled once a
process (virtual.shader.library). They record a fault in the context and return any value then; the
caller ends the grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ugpu.virtual import shader as emu
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.resolve import WIDE
from ugpu.virtual.nvidia.sm.translator.access import memory
from ugpu.virtual.nvidia.sm.translator.access.variables import Places
from ugpu.virtual.nvidia.sm.translator.control.analysis import Facts
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value
from ugpu.virtual.shader.library import Library

_SOURCES = (Path(__file__).parents[2], emu.PACKAGE)
_WHERE = Value("%where", "i64", False)


@cache
def offer(folder: Path | None) -> Library:
    """Make the functions available to code that is loaded later. folder: of cached code."""
    return Library(_SOURCES, folder, "accesses", ((_accesses_ir, names()),))


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [name for name, _, _ in _functions()]


def _accesses_ir() -> tuple[str, set[str]]:
    parts, declarations = [], set()
    for name, head, lines in _functions():
        parts.append("\n".join([f"define {head} noinline {{", *lines.lines, "}"]))
        declarations |= lines.declarations
        assert f"@{name}(" in head
    return "\n".join(parts), declarations


def _emitter() -> Kernel:
    e = Kernel(Facts(), Places(), full=True, rows=False)
    e.quiet = True
    e.do(f"%tlb.at = getelementptr i8, ptr %context, i64 {layout.TLB}")
    e.do("%tlb = load ptr, ptr %tlb.at")
    return e


def _functions() -> Iterator[tuple[str, str, Kernel]]:
    """Yield name, head and emitter, with the lines of the body, of each function."""
    lanes = f"ptr %context, {WIDE} %where, i32 %lanes"
    for space in memory.OUTLINED_SPACES:
        for size in memory.OUTLINED_SIZES:
            element = "i64" if size == 8 else "i32"
            kind = f"<32 x {element}>"
            e, name = _emitter(), memory.name_of("load", space, size)
            (value,) = memory.load_quickly(e, space, _WHERE, size, "%lanes")
            e.do(f"ret {kind} {value.text}")
            yield name, f"{kind} @{name}({lanes})", e
            e, name = _emitter(), memory.name_of("store", space, size)
            memory.store_quickly(e, space, _WHERE, size, "%lanes", [Value("%data", element, False)])
            e.do("ret void")
            yield name, f"void @{name}({lanes}, {kind} %data)", e
    for unit, count in memory.HALVES:
        e, name = _emitter(), memory.halves_name(unit, count)
        values = memory.load_halves(e, _WHERE, unit, count, "%lanes")
        for number, value in enumerate(values):
            e.do(f"store <32 x i{8 * unit}> {value.text}, ptr {memory.column(e, number)}")
        e.do("ret void")
        yield name, f"void @{name}({lanes})", e
    for size in memory.UNIFORM_SIZES:
        e, name = _emitter(), memory.name_of("host", "global", size)
        host = memory.host_quickly(e, "global", Value("%where", "i64", True), size)
        e.do(f"ret ptr {host}")
        yield name, f"ptr @{name}(ptr %context, i64 %where)", e
