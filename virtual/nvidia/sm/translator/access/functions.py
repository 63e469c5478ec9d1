"""Memory accesses as functions that kernels call, for code that is compiled fast or is very long.

An access of its own takes 30 to 150 lines of IR, its call 10. The functions are compiled once a
process (virtual.shader.library). They record a fault with its instruction in the context, and do
nothing once there is one; the caller ends the grid before it does anything else that shows.
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
from ugpu.virtual.shader import text
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


def _emitter(kind: str) -> Kernel:
    """Return an emitter of a function of an LLVM type, which does nothing after a fault."""
    e = Kernel(Facts(), Places(), full=True, rows=False)
    e.ending = "ret void" if kind == "void" else f"ret {kind} zeroinitializer"
    if kind == "ptr":
        e.do(f"%spare = getelementptr i8, ptr %context, i64 {layout.SPARE}")
        e.ending = "ret ptr %spare"
    found = e.value(f"icmp ne i32 {e.context(layout.FAULT_CODE, 'i32')}, 0")
    e.do(f"br i1 {found}, label %faulted, label %sound, !prof !1")
    e.lines += ["faulted:", f"  {e.ending}", "sound:"]
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
            e, name = _emitter(kind), memory.name_of("load", space, size)
            (value,) = memory.load_quickly(e, space, _WHERE, size, "%lanes")
            e.do(f"ret {kind} {value.text}")
            yield name, f"{kind} @{name}({lanes}, i32 %index)", e
            e, name = _emitter("void"), memory.name_of("store", space, size)
            memory.store_quickly(e, space, _WHERE, size, "%lanes", [Value("%data", element, False)])
            e.do("ret void")
            yield name, f"void @{name}({lanes}, {kind} %data, i32 %index)", e
        for unit, count in memory.HALVES if space == "shared" else memory.UNITS:
            yield _load_units(space, unit, count, lanes)
        for unit, count in memory.UNITS:
            e, name = _emitter("void"), memory.units_name("store", space, unit, count)
            rows = memory.row_texts(e, unit, count)
            values = [Value(row, f"i{8 * unit}", False) for row in rows]
            words = memory.join(e, values, unit)
            memory.store_lanes(e, space, _WHERE, unit * count, "%lanes", words)
            e.do("ret void")
            yield name, f"void @{name}({lanes}, i32 %index)", e
    for size in memory.UNIFORM_SIZES:
        for space in memory.OUTLINED_SPACES:
            e, name = _emitter("ptr"), memory.name_of("host", space, size)
            host = memory.host_quickly(e, space, Value("%where", "i64", True), size, "%lanes")
            e.do(f"ret ptr {host}")
            yield name, f"ptr @{name}(ptr %context, i64 %where, i32 %lanes, i32 %index)", e


def _load_units(space: str, unit: int, count: int, lanes: str) -> tuple[str, str, Kernel]:
    kind = f"<32 x i{8 * unit}>" if count == 1 else "void"
    e, name = _emitter(kind), memory.units_name("load", space, unit, count)
    load = memory.load_halves if space == "shared" else _load_rows
    values = load(e, _WHERE, unit, count, "%lanes")
    if count > 1:
        memory.write_rows(e, values)
    e.do(e.ending if count > 1 else f"ret {kind} {values[0].text}")
    return name, f"{kind} @{name}({lanes}, i32 %index)", e


def _load_rows(k: Kernel, where: Value, unit: int, count: int, mask: str) -> list[Value]:
    """Load `count` units a lane from global memory, as one vector where lanes are consecutive."""
    size, kind = unit * count, f"i{8 * unit}"
    fast, slow, done = k.new_label("fast"), k.new_label("slow"), k.new_label("done")
    good, host = memory.as_vector(k, "global", where, size, mask, False)
    k.do(f"br i1 {good}, label %{fast}, label %{slow}, !prof !0")
    k.lines.append(f"{fast}:")
    whole = f"<{32 * count} x {kind}>"
    data = k.value(f"load {whole}, ptr {host}, align {unit}")
    rows = [
        k.value(f"shufflevector {whole} {data}, {whole} poison, <32 x i32>"
                f" {text.lanes(list(range(n, 32 * count, count)))}") for n in range(count)
    ]  # fmt: skip
    k.do(f"br label %{done}")
    k.lines.append(f"{slow}:")
    others = memory.split(k, memory.load_lanes(k, "global", where, size, mask), unit, count)
    last = memory.last_label(k)
    k.do(f"br label %{done}")
    k.lines.append(f"{done}:")
    return [
        Value(k.value(f"phi <32 x {kind}> [ {row}, %{fast} ], [ {other.text}, %{last} ]"), kind,
              False) for row, other in zip(rows, others, strict=True)
    ]  # fmt: skip
