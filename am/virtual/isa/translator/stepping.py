"""Code that a debugger can halt: at each instruction it looks at a byte of a table.

The scalar registers and SCC are no stack slots then but lie in the wave state, as do the vector
registers, all of which are pinned; so a debugger sees them and may change them.
"""

from __future__ import annotations

from collections.abc import Sequence

from am.virtual.isa.runtime import layout
from am.virtual.isa.translator.registers import Registers
from hcq.emu import context, waves


def in_place(scalars: Sequence[int]) -> list[str]:
    """Return the lines that place the scalar registers and find the table and the function."""
    lines = [f"  %s{k} = getelementptr i32, ptr %wave, i32 {k}" for k in scalars]
    lines.append(f"  %scc = getelementptr i8, ptr %wave, i64 {layout.STATE_SCC}")
    for name, field in (("steps", context.STEPS), ("step", context.STEP)):
        lines.append(f"  %{name}.p = getelementptr i8, ptr %context, i64 {field}")
        lines.append(f"  %{name} = load ptr, ptr %{name}.p")
    return lines


def look(e: Registers, pc: int) -> None:
    """Halt in front of the instruction at byte offset `pc` where the table has its byte set. The
    wave ends there where the function returns 0."""
    at = e.value(f"getelementptr i8, ptr %steps, i64 {pc // 4}")
    asked = e.value(f"icmp ne i8 {e.value(f'load volatile i8, ptr {at}')}, 0")
    halt, on = e.new_label("halt"), e.new_label("on")
    e.do(f"br i1 {asked}, label %{halt}, label %{on}, !prof !1")
    e.begin(halt)
    goes_on = e.value(f"call i32 %step(ptr %context, ptr %wave, i32 {pc})")
    end = e.new_label("end")
    e.do(f"br i1 {e.value(f'icmp ne i32 {goes_on}, 0')}, label %{on}, label %{end}")
    e.begin(end)
    e.do(f"ret i32 {waves.FINISHED}")
    e.begin(on)
    e.forget_mask()
