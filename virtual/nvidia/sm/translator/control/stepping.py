"""Code that a debugger can halt: it checks a byte of a table at each instruction.

The registers are then in the warp's state instead of stack slots, so that a debugger can read and
change them. Registers that are the same in all lanes are stored as one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.sm.ptx.module import Instruction
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.shader import stepping
from ugpu.virtual.shader.text import ELEMENT_BITS

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.sm.translator.kernel import Kernel


Slot = tuple[str, str, int]  # name, LLVM type, offset in the warp's state


@dataclass(frozen=True)
class Placed:
    """A register in a warp's state. offset: in bytes. bits: of one lane. uniform: whether it is one
    number for all lanes. Lanes of one bit are packed into bits; other lanes are consecutive."""

    offset: int
    bits: int
    uniform: bool


@dataclass(frozen=True)
class StepPlaces:
    """Where a warp's state holds data for a debugger.

    active: offset of the running lanes, u32, followed by the index of the instruction that was
    checked last, u32. registers: by name. end: bytes of the state.
    """

    active: int
    registers: dict[str, Placed]
    slots: tuple[Slot, ...]
    end: int


def placed(k: Kernel) -> StepPlaces:
    """Lay out the registers of an emitted kernel in the warp's state."""
    active = k.held.end
    at = active + 64
    registers: dict[str, Placed] = {}
    slots = []
    for name, (slot, kind) in k.slots.items():
        if " " in name:  # a temporary
            continue
        element = kind.removeprefix("<32 x ").removesuffix(">")
        bits, uniform = ELEMENT_BITS[element], element == kind
        registers[name] = Placed(at, bits, uniform)
        slots.append((slot, kind, at))
        at += 64 if uniform else max(64, 4 * bits)
    for name in k.held.places:
        registers[name] = Placed(k.held.place(name), 32, False)
    return StepPlaces(active, registers, tuple(slots), at)


def look(k: Kernel, i: Instruction) -> None:
    """Emit a halt before an instruction whose byte in the table is set."""
    active = k.active()
    for name, value in (("active", active), ("index", str(i.index))):
        k.do(f"store i32 {value}, ptr %step.{name}")
    stepping.look(k, i.index, i.index, layout.FINISHED)


def entry(places: StepPlaces) -> list[str]:
    """Return the lines that load the table and the function."""
    return [
        "  %wave = getelementptr i8, ptr %warp, i64 0",
        f"  %step.active = getelementptr i8, ptr %warp, i64 {places.active}",
        f"  %step.index = getelementptr i8, ptr %warp, i64 {places.active + 4}",
        *stepping.found(layout.STEPS, layout.STEP),
    ]
