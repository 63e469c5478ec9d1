"""MODE.FP16_OVFL in translated code: too large results of f16 and of 8-bit floats are the largest
finite number, unless a source is infinite.

The bit comes from RSRC1 and from s_setreg, as Triton sets it in kernels that convert to 8-bit
floats (lib TritonAMDGPUToLLVM, adjustModeRegister). It is in the place of the null register, which
nothing else uses. Sources: LLVM AMDGPUUsage, FP16_OVFL; of infinite sources of 8-bit floats, a
kernel for gfx1201 by others, rdnacvt.ll: they stay NaNs. UNSURE: whether division by zero counts
as too large; here it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator.block_text import BlockText
from ugpu.virtual.shader.text import ELEMENT_BITS, Text, constant, integer_of

_INFINITY = {"half": 0x7C00, "float": 0x7F80_0000, "double": 0x7FF0 << 48}
_LARGEST_HALF = 0x7BFF


def flag(e: BlockText) -> str:
    """Return MODE.FP16_OVFL as i1. The caller has noted the use of its place."""
    word = e.value(f"load i32, ptr {e.scalar_at(layout.SGPR_NULL)}")
    return e.value(f"icmp ne i32 {word}, 0")


def set_flag(e: BlockText, value: int) -> None:
    """Write MODE.FP16_OVFL."""
    e.do(f"store i32 {value}, ptr {e.scalar_at(layout.SGPR_NULL)}")


def infinite(e: Text, kind: str, value: str) -> str:
    """Return whether floats are infinite, as lanes of i1."""
    integer = integer_of(kind)
    bits = e.convert("bitcast", kind, integer, value)
    ones = (1 << ELEMENT_BITS[kind] - 1) - 1
    size = e.binary("and", integer, bits, constant(integer, ones))
    return e.compare("eq", integer, size, constant(integer, _INFINITY[kind]))


def saturated(e: BlockText, value: str, sources: Sequence[tuple[str, str]]) -> str:
    """Limit halves. sources: kind and value of each float that they were computed from."""
    over = e.binary("and", "i1", infinite(e, "half", value), e.broadcast("i1", flag(e)))
    for kind, source in sources:
        finite = e.binary("xor", "i1", infinite(e, kind, source), constant("i1", 1))
        over = e.binary("and", "i1", over, finite)
    bits = e.convert("bitcast", "half", "i16", value)
    sign = e.binary("and", "i16", bits, constant("i16", 0x8000))
    limit = e.binary("or", "i16", sign, constant("i16", _LARGEST_HALF))
    return e.convert("bitcast", "i16", "half", e.select(over, "i16", limit, bits))
