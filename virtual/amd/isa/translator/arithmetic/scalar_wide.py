"""64-bit scalar arithmetic of gfx12, and its scalar conversions that pack halves.

None of them writes SCC. Source: RDNA4 ISA document, chapters of the SOP1 and SOP2 opcodes.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers


def _wide(operation: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        a, b = e.scalar64(i.srcs[0]), e.scalar64(i.srcs[1])
        e.set_scalar64(i.dst, e.value(f"{operation} i64 {a}, {b}"))

    return emit


def _widened_high(e: Registers, i: Instruction) -> None:
    """Convert the upper half of the source."""
    assert i.dst is not None
    word = e.value(f"lshr i32 {e.scalar(i.srcs[0])}, 16")
    half = e.value(f"bitcast i16 {e.value(f'trunc i32 {word} to i16')} to half")
    wide = e.value(f"fpext half {half} to float")
    e.set_scalar(i.dst, e.value(f"bitcast float {wide} to i32"))


def handlers() -> dict[str, Handler]:
    """Return this module's handlers by instruction name."""
    return {
        "s_add_nc_u64": _wide("add"),
        "s_sub_nc_u64": _wide("sub"),
        "s_mul_u64": _wide("mul"),
        "s_cvt_hi_f32_f16": _widened_high,
    }
