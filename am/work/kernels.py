"""Kernels of the driver's own, which a generation provides as machine code: for proofs after a
reset, and for cleaning up. The driver does not depend on a compiler.

Encodings: AMD, "RDNA3" Instruction Set Architecture, 2023, chapter 15, and "RDNA4" Instruction Set
Architecture, 2025; the descriptor's fields: LLVM AMDGPUUsage. The model disassembles the same text
(tests/am/work/test_am_cleaner.py, test_am_proof.py).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.hcq.objects.code_object import Descriptor

PROOF_ARGUMENTS = struct.Struct("<QI")  # address of the results, seed


@dataclass(frozen=True)
class ProofKernel:
    """A kernel of one group of 32 threads; thread n stores 3 * n + seed in a u32.

    words: its machine code. rsrc1, rsrc2, rsrc3, properties: of its descriptor, as in LLVM's
    AMDGPUUsage. Its arguments are the address of the results, u64, and the seed, u32.
    """

    words: tuple[int, ...]
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int

    @property
    def descriptor(self) -> Descriptor:
        """The kernel's descriptor."""
        return Descriptor(0, 0, PROOF_ARGUMENTS.size, 0, self.rsrc3, self.rsrc1, self.rsrc2,
                          self.properties, 0)  # fmt: skip


@dataclass(frozen=True)
class CleanerKernel:
    """A kernel without arguments. One of its groups occupies a whole compute unit: all wave slots
    and vector registers, and `local_size` bytes of LDS.

    words: its machine code. rsrc1, rsrc2, rsrc3, properties: of its descriptor, as in LLVM's
    AMDGPUUsage.
    """

    words: tuple[int, ...]
    threads: int
    local_size: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int


_WAVES_PER_SIMD = 16
_SCALARS = 108  # s0 to s105, and VCC
_LDS = 65536
_THREADS = 1024
_STORE = 16 * _THREADS  # bytes that one instruction of all waves stores


def cleaner_of_32_waves(
    vector_registers: int, *, wait: int, barrier: tuple[int, ...], rsrc1: int
) -> CleanerKernel:
    """Return a kernel that overwrites what kernels left in registers and LDS.

    A group of 32 waves takes a whole compute unit: in CU mode the unit has two SIMDs of 16 wave
    slots each, and 64 KiB of LDS. Each wave has a sixteenth of its SIMD's vector registers, and 108
    scalar registers. All waves reach the barrier before the first one ends, so no wave gets the
    registers of another one. Linux's own shader for this purpose (Linux 6.13, gfx_v11_0.c, cleaner
    shader) relies on the same shape.

    vector_registers: of a SIMD, of 32 lanes. wait, barrier: the instructions that wait for LDS, and
    for all waves. rsrc1: without the number of vector registers. The other instructions are the
    same on gfx11 and gfx12.
    """
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
            wait,
            *(0x7E00_0280 | number << 17 for number in range(4, count)),
            *(0xBE80_0080 | number << 16 for number in range(_SCALARS)),  # s_mov_b32 s..., 0
            *barrier,
            0xBFB0_0000,  # s_endpgm
        ),
        threads=_THREADS,
        local_size=_LDS,
        rsrc1=rsrc1 | count // 8 - 1,
        rsrc2=0,
        rsrc3=0,
        properties=0x400,  # wave32
    )
