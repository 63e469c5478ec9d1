"""The kernel with which chips of GFX 11.0 prove that they work after a reset.

Encodings: AMD, "RDNA3" Instruction Set Architecture, 2023, chapter 15; the descriptor's fields:
LLVM AMDGPUUsage. The model disassembles the same text (tests/am/work/test_am_proof.py).
"""

from __future__ import annotations

from ugpu.am.work.kernels import ProofKernel

KERNEL = ProofKernel(
    words=(
        0xF400_0080, 0xF800_0008,  # s_load_b32 s2, s[0:1], 0x8
        0xF404_0000, 0xF800_0000,  # s_load_b64 s[0:1], s[0:1], 0x0
        0xBF89_FC07,  # s_waitcnt lgkmcnt(0)
        0xD60B_0001, 0x0009_0700,  # v_mad_u32_u24 v1, v0, 3, s2
        0x3000_0082,  # v_lshlrev_b32_e32 v0, 2, v0
        0xDC6A_0000, 0x0000_0100,  # global_store_b32 v0, v1, s[0:1]
        0xBFB0_0000,  # s_endpgm
    ),
    rsrc1=0xE0AF_0000,  # least VGPRs, denormals, DX10 clamp, IEEE, WGP mode, memory in order
    rsrc2=0x0000_039A,  # 13 user SGPRs, ids of the group
    rsrc3=0x10,  # fetches one line of instructions ahead
    properties=0x408,  # address of arguments in s[0:1], wave32
)  # fmt: skip
