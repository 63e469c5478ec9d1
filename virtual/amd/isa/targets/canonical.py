"""Names of operations that later targets spell otherwise: LLVM's mnemonic to the shared name.

A name belongs here only if the operation is the same in every respect. Source: RDNA4 ISA document,
"Instruction name changes"; LLVM's aliases in SOPInstructions.td, VOP2Instructions.td and
DSInstructions.td.
"""

from __future__ import annotations

CANONICAL = {
    "s_add_co_u32": "s_add_u32",
    "s_sub_co_u32": "s_sub_u32",
    "s_add_co_i32": "s_add_i32",
    "s_sub_co_i32": "s_sub_i32",
    "s_add_co_ci_u32": "s_addc_u32",
    "s_sub_co_ci_u32": "s_subb_u32",
    "s_addk_co_i32": "s_addk_i32",
    "s_wait_alu": "s_waitcnt_depctr",
    "v_mad_co_u64_u32": "v_mad_u64_u32",
    "v_mad_co_i64_i32": "v_mad_i64_i32",
}
