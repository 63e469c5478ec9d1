"""Block loads and stores of gfx12: up to 32 registers side by side, those whose bit M0 has.

LLVM spills saved registers so (feature block-vgpr-csr). Source: RDNA4 ISA document,
GLOBAL_LOAD_BLOCK and SCRATCH_LOAD_BLOCK: register i has the dword at the address + 4 i. Registers
beyond the allocation are left out.
"""

from __future__ import annotations

from dataclasses import replace

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator.access import memory, scratch
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers

_MOST = 32


def _block(name: str, single: Handler) -> Handler:
    """Create an emitter. single: moves one dword for each lane; it is called `name`."""

    def emit(e: Registers, i: Instruction) -> None:
        field = "data" if i.dst is None else "dst"
        operand = i.data if i.dst is None else i.dst
        assert operand is not None
        e.exec_mask()
        chosen = e.scalar_register(layout.SGPR_M0)
        for number in range(min(_MOST, e.vector_limit - operand.index)):
            register = replace(operand, index=operand.index + number, width=1)
            one = replace(i, name=name, offset=i.offset + 4 * number, **{field: register})
            move, after = e.new_label("move"), e.new_label("moved")
            bit = e.value(f"trunc i32 {e.value(f'lshr i32 {chosen}, {number}')} to i1")
            e.do(f"br i1 {bit}, label %{move}, label %{after}")
            e.begin(move)
            single(e, one)
            e.do(f"br label %{after}")
            e.begin(after)

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    singles = {**memory.handlers(), **scratch.handlers()}
    return {
        f"{space}_{verb}_block": _block(f"{space}_{verb}_b32", singles[f"{space}_{verb}_b32"])
        for space in ("global", "scratch")
        for verb in ("load", "store")
    }
