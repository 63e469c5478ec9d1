"""Code that a debugger can halt: at each instruction it checks a byte of a table.

The scalar registers and SCC are then in the wave state instead of stack slots, as are the vector
registers, all of which are pinned. So a debugger can read and change them.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader import context, stepping
from ugpu.virtual.shader.threads import waves


def tables() -> list[str]:
    """Return the lines that locate the table and the debugger's function."""
    return stepping.found(context.STEPS, context.STEP)


def look(e: Registers, pc: int) -> None:
    """Halt before the instruction at byte offset `pc` if its byte in the table is set.

    The wave ends there if the debugger's function returns 0.
    """
    stepping.look(e, pc // 4, pc, waves.FINISHED)
    e.forget_mask()
