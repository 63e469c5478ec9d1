"""The kernel with which chips of GFX 12.0 overwrite what kernels left in registers and LDS."""

from __future__ import annotations

from ugpu.am.work.kernels import CleanerKernel, cleaner_of_32_waves


def kernel(vector_registers: int) -> CleanerKernel:
    """Return the kernel for SIMDs with `vector_registers` vector registers of 32 lanes."""
    return cleaner_of_32_waves(
        vector_registers,
        wait=0xBFC6_0000,  # s_wait_dscnt 0
        barrier=(0xBE80_4EC1, 0xBF94_FFFF),  # s_barrier_signal -1, s_barrier_wait -1
        rsrc1=0xC00F_0000,  # as in the proof's kernel, in CU mode
    )
