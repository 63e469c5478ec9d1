"""The kernel with which chips of GFX 11.0 overwrite what kernels left in registers and LDS."""

from __future__ import annotations

from ugpu.am.work.kernels import CleanerKernel, cleaner_of_32_waves


def kernel(vector_registers: int) -> CleanerKernel:
    """Return the kernel for SIMDs with `vector_registers` vector registers of 32 lanes."""
    return cleaner_of_32_waves(
        vector_registers,
        wait=0xBF89_FC07,  # s_waitcnt lgkmcnt(0)
        barrier=(0xBFBD_0000,),  # s_barrier
        rsrc1=0xC0AF_0000,  # as in the proof's kernel, in CU mode
    )
