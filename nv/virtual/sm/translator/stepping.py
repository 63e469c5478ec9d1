"""Code that a debugger can halt: at each instruction it looks at a byte of a table.

The registers are then in the warp's state instead of stack slots, so that a debugger sees them and
may change them; those that are the same in all lanes as one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hcq.emu import stepping
from hcq.emu.text import ELEMENT_BITS
from nv.virtual.sm.ptx.module import Instruction
from nv.virtual.sm.runtime import layout

if TYPE_CHECKING:
    from nv.virtual.sm.translator.kernel import Kernel


@dataclass(frozen=True)
class Placed:
    """A register in a warp's state. offset: in bytes. bits: of one lane. uniform: it is one number
    for all lanes. A lane of one bit is one bit, others follow each other."""

    offset: int
    bits: int
    uniform: bool


@dataclass(frozen=True)
class StepPlaces:
    """Where a warp's state holds what a debugger sees.

    active: offset of the running lanes, u32, and of the index of the instruction that was looked at
    last, u32, behind it. registers: by name. end: bytes of the state.
    """

    active: int
    registers: dict[str, Placed]
    slots: tuple[tuple[str, str, int], ...]  # name, LLVM type and offset of those that are slots
    end: int


def placed(k: Kernel) -> StepPlaces:
    """Lay the registers of an emitted kernel out in the warp's state."""
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
    """Halt in front of an instruction where the table has its byte set."""
    active = k.active()
    for name, value in (("active", active), ("index", str(i.index))):
        k.do(f"store i32 {value}, ptr %step.{name}")
    stepping.look(k, i.index, i.index, layout.FINISHED)


def entry(places: StepPlaces) -> list[str]:
    """Return the lines that place the registers, and find the table and the function."""
    lines = [
        "  %wave = getelementptr i8, ptr %warp, i64 0",
        f"  %step.active = getelementptr i8, ptr %warp, i64 {places.active}",
        f"  %step.index = getelementptr i8, ptr %warp, i64 {places.active + 4}",
        *stepping.found(layout.STEPS, layout.STEP),
    ]
    for slot, _, at in places.slots:
        lines.append(f"  {slot} = getelementptr i8, ptr %warp, i64 {at}")
    return lines


def fresh(places: StepPlaces) -> list[str]:
    """Return the lines by which a warp begins with registers of 0."""
    return [f"  store {kind} zeroinitializer, ptr {slot}" for slot, kind, _ in places.slots]
