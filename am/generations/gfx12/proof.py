"""The kernel with which chips of GFX 12.0 prove that they work after a reset.

Encodings: AMD, "RDNA4" Instruction Set Architecture, 2025; the descriptor's fields: LLVM
AMDGPUUsage. The model disassembles the same text (tests/am/work/test_am_proof.py).
"""

from __future__ import annotations

from ugpu.am.work.kernels import ProofKernel

KERNEL = ProofKernel(
    words=(
        0xF400_0080, 0xF800_0008,  # s_load_b32 s2, s[0:1], 0x8
        0xF400_2000, 0xF800_0000,  # s_load_b64 s[0:1], s[0:1], 0x0
        0xBFC7_0000,  # s_wait_kmcnt 0x0
        0xD60B_0001, 0x0009_0700,  # v_mad_u32_u24 v1, v0, 3, s2
        0x3000_0082,  # v_lshlrev_b32_e32 v0, 2, v0
        0xEE06_8000, 0x0080_0000, 0x0000_0000,  # global_store_b32 v0, v1, s[0:1]
        0xBFB0_0000,  # s_endpgm
    ),
    rsrc1=0xE00F_0000,  # least VGPRs, denormals, WGP mode, memory in order
    rsrc2=0x0000_0084,  # 2 user SGPRs, id of the group
    rsrc3=0x10,  # fetches one line of instructions ahead
    properties=0x408,  # address of arguments in s[0:1], wave32
)  # fmt: skip
