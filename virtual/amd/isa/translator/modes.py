"""MODE in translated code: OMOD, IEEE, and denormals of f32 and f64 kept or flushed.

The host has one setting of denormals. It is that of f32, except while operations of f64 run in a
program whose f64 has another one ("apart"): the code then switches at the first of them, and back
at the next one of another type, or the block's end. f16 always keeps denormals.
Source: RDNA3 ISA document, "MODE register"; LLVM AMDGPUUsage, FLOAT_DENORM_MODE_32 and _16_64.
"""

from __future__ import annotations

import re

from ugpu.hcq.objects.jit import on_x86
from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.runtime import launch, layout
from ugpu.virtual.amd.isa.translator import saturation
from ugpu.virtual.amd.isa.translator.program import Program
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported

HWREG_MODE = 1  # the hardware register of s_getreg and s_setreg
_SWITCHES = ("s_denorm_mode", "s_setreg_b32", "s_setreg_imm32_b32")
_OTHER_FLOATS = re.compile(r"f16|f32")
_NARROW_FLOATS = re.compile(r"v_\w*(f16|fp8|bf8)")
_OVERFLOW = 1 << 23  # FP16_OVFL in MODE
_OMOD = launch.OMOD_F32 | launch.OMOD_OTHERS
_FIELDS = 3 << launch.SINGLES | 3 << launch.DOUBLES


def modes_of(program: Program, modes: int) -> int:
    """Return what the code of a program depends on of Launch.modes, and whether f64 is apart."""
    listed = [i for block in program.blocks.values() for i in block.instructions]
    names = [half.name for i in listed for half in (i.x or i, i.y or i)]
    used = _OMOD if any(i.omod for i in listed) else 0
    if any(part in name for name in names for part in ("min", "max", "med3")):
        used |= launch.IEEE | _FIELDS
    if any(_NARROW_FLOATS.match(name) for name in names):
        used |= launch.SATURATES
        modes |= launch.SATURATES * any(written_mode(i) & _OVERFLOW for i in listed)
    differ = modes >> launch.SINGLES & 3 != modes >> launch.DOUBLES & 3
    differ = differ or any(name in _SWITCHES for name in names)
    if differ and on_x86() and any(name.endswith("_f64") for name in names):
        return modes & (used | _FIELDS) | launch.APART
    return modes & used


def written_mode(i: Instruction) -> int:
    """Return the bits of MODE that s_setreg writes, 0 for other instructions."""
    if not i.name.startswith("s_setreg") or i.simm16 & 0x3F != HWREG_MODE:
        return 0
    return ((1 << (i.simm16 >> 11) + 1) - 1) << (i.simm16 >> 6 & 0x1F)


def enter(e: Registers, i: Instruction) -> None:
    """Set the host's denormals for an instruction."""
    if not e.apart:
        return
    name = i.name if i.x is None or i.y is None else f"{i.x.name} {i.y.name}"
    if name.startswith("v_") and name.endswith("_f64"):
        # A conversion to f32 has the sources of the one type and the results of the other.
        denormals = e.doubles & 1 | e.singles & 2 if name == "v_cvt_f32_f64" else e.doubles
        if e.of_doubles is None:
            e.call("void", "llvm.x86.sse.stmxcsr", ("ptr", "%mode.saved"))
        if e.of_doubles != denormals:
            e.of_doubles = denormals
            _load(e, launch.denormal_control(denormals))
    elif _OTHER_FLOATS.search(name) or name in _SWITCHES:
        leave(e)


def leave(e: Registers) -> None:
    """Return to the setting outside operations of f64."""
    if e.of_doubles is not None:
        e.of_doubles = None
        _barrier(e)
        e.call("void", "llvm.x86.sse.ldmxcsr", ("ptr", "%mode.saved"))
        _barrier(e)


def switch_overflow(e: Registers, written: int, value: int) -> None:
    """Write FP16_OVFL, where anything depends on it."""
    if e.saturates and written & _OVERFLOW:
        e.used_scalars.add(layout.SGPR_NULL)
        saturation.set_flag(e, int(bool(value & _OVERFLOW)))


def switch(e: Registers, written: int, value: int) -> None:
    """Write fields of MODE's denormals. written: which of the four bits; value: of all four."""
    if written & 3 == 3:
        if not on_x86():
            raise Unsupported("switching the denormal mode on this host")
        _load(e, launch.denormal_control(value & 3))
        e.singles = value & 3
    elif written & 3:
        raise Unsupported("half of the denormal mode")
    if written & 0xC:
        kept = e.doubles & ~(written >> 2) & 3
        e.doubles = kept | value >> 2 & 3
    if written & 3:
        e.limit_omod(value)


def _load(e: Registers, control: int) -> None:
    """Change the host's setting."""
    e.switches_mode = True
    _barrier(e)
    e.do(f"store i32 {control}, ptr %mode.slot")
    e.call("void", "llvm.x86.sse.ldmxcsr", ("ptr", "%mode.slot"))
    _barrier(e)


def _barrier(e: Registers) -> None:
    """Keep arithmetic from moving across a change: it is in a block that LLVM cannot join with the
    next one, since it does not know that the slot is never 0."""
    label = e.new_label("mode")
    control = e.value("load volatile i32, ptr %mode.slot")
    never = e.value(f"icmp eq i32 {control}, 0")
    e.do(f"br i1 {never}, label %save, label %{label}")
    e.begin(label)
