"""The kernel with which chips of GFX 11.0 overwrite what kernels left in registers and LDS.

A group of 32 waves takes a whole compute unit: in CU mode the unit has two SIMDs of 16 wave slots
each (am/chips/gfx11.py), and 64 KiB of LDS. Each wave has a sixteenth of its SIMD's
vector registers, and 108 scalar registers. All waves reach the barrier before the first one ends,
so no wave gets the registers of another one. Linux's own shader for this purpose (Linux 6.13,
gfx_v11_0.c, cleaner shader) relies on the same shape.

Encodings: AMD, "RDNA3" Instruction Set Architecture, 2023, chapter 15; the descriptor's fields:
LLVM AMDGPUUsage. The model disassembles the same text (tests/am/test_am_cleaner.py).
"""

from __future__ import annotations

from ugpu.am.work.kernels import CleanerKernel

_WAVES_PER_SIMD = 16
_SCALARS = 108  # s0 to s105, and VCC
_LDS = 65536
_THREADS = 1024
_STORE = 16 * _THREADS  # bytes that one instruction of all waves stores


def kernel(vector_registers: int) -> CleanerKernel:
    """Return the kernel for SIMDs with `vector_registers` vector registers of 32 lanes."""
    count = vector_registers // _WAVES_PER_SIMD
    stores = (
        word
        for offset in range(0, _LDS, _STORE)
        for word in (0xDB7C_0000 | offset, 0x0000_0004)  # ds_store_b128 v4, v[0:3] offset:...
    )
    return CleanerKernel(
        words=(
            0x3008_0084,  # v_lshlrev_b32_e32 v4, 4, v0
            *(0x7E00_0280 | number << 17 for number in range(4)),  # v_mov_b32_e32 v..., 0
            *stores,
            0xBF89_FC07,  # s_waitcnt lgkmcnt(0)
            *(0x7E00_0280 | number << 17 for number in range(4, count)),
            *(0xBE80_0080 | number << 16 for number in range(_SCALARS)),  # s_mov_b32 s..., 0
            0xBFBD_0000,  # s_barrier
            0xBFB0_0000,  # s_endpgm
        ),
        threads=_THREADS,
        local_size=_LDS,
        rsrc1=0xC0AF_0000 | count // 8 - 1,  # as in the proof's kernel, in CU mode
        rsrc2=0,
        rsrc3=0,
        properties=0x400,  # wave32
    )
