"""Byte layouts that Python and the generated native code share: worker context and wave state.

These layouts are not the chip's: they are our own interface between launcher, runtime and kernels.
"""

from __future__ import annotations

from ugpu.virtual.shader import context

# Worker context: one per worker thread; it begins with `virtual.shader.context`.
SCRATCH = context.END  # GPU address of this worker's first wave slot of scratch
SCRATCH_WAVE = 72  # u64 bytes of one wave's scratch
WAVE_SCRATCH = 80  # GPU address of the running wave's scratch
SHARED_HIGH = 88  # u64 high half of the shared aperture's base
PRIVATE_HIGH = 216  # u64 high half of the private aperture's base
SGPR_TEMPLATE = 112  # address of 128 u32
VGPR_TEMPLATE = 120  # address of [waves][passes][32] u32, v0 of each wave
EXEC_TEMPLATE = 128  # address of [waves] u64
SLOT_X = 152  # u32 index of the scalar register of the workgroup's x (a dead slot if disabled)
SLOT_Y = 156
SLOT_Z = 160
SLOT_INFO = 164  # u32 index of the scalar register of the workgroup information
CODE_BASE = 168  # GPU address of byte offset 0 of the code
HALT_PC = 176  # u64 byte offset at which a wave halted
ACCESS_PC = 224  # u32 byte offset of the instruction that accesses memory by a runtime function
SLOT_WAVE = 228  # u32 index of the scalar register of the wave's number in its workgroup
FIRST_LANE = 232  # u64 first lane of the running pass
WAVE_SHIFT = 240  # u64 log2 of the lanes per wave
LOOK_PC = 248  # u32 byte offset of the backward branch at the running wave's last snapshot
LOOKS = 252  # u32 number of snapshots taken
RACES = context.STEP + 8  # address of the shadow of local memory, see runtime.races

# Wave state: saved at barriers, read at entry.
STATE_SGPR = 0  # 128 u32 (VCC 106, M0 125, EXEC 126)
STATE_DEAD_SLOT = 128  # index after the registers, for disabled workgroup ids
STATE_SCC = 528  # u32
STATE_RESUME = 532  # u32 resume point of the kernel
STATE_DONE = 536  # u32
STATE_VGPR = 640  # 32 u32 for each register; all registers of the first pass, then of the next
REGISTER = 128  # bytes of a register per pass

SGPR_VCC = 106
SGPR_TTMP = 108
# On gfx12 the workgroup is in trap handler temporaries: x in TTMP9, y and z in the halves of TTMP7
# (LLVM AMDGPUUsage). The model has z in TTMP10, which no program reads. TTMP8 has the wave's number
# in the workgroup in bits 29:25 (LLVM, S_WAVE_ID), and bit 30 if y and z are valid.
SGPR_GROUP_X, SGPR_GROUP_YZ, SGPR_GROUP_Z = 117, 115, 118
SGPR_WAVE = 116
WAVE_BIT, WAVE_YZ = 25, 1 << 30
SGPR_NULL = 124
SGPR_M0 = 125
SGPR_EXEC = 126

# Return values of a kernel's native function, in addition to those of
# `virtual.shader.threads.waves`.
HALTED = 2  # illegal instruction at HALT_PC
NO_CODE = 4  # instruction fetch at HALT_PC failed
UNKNOWN_CODE = 6  # indirect jump to code not yet translated, at HALT_PC
SET_HALT = 8  # s_sethalt at HALT_PC
FAR_CODE = 7  # indirect jump to HALT_PC, beyond the range of code offsets


def register_at(number: int, turn: int, count: int) -> int:
    """Return the offset in the wave state of one pass of a vector register; `count` registers."""
    return STATE_VGPR + REGISTER * (number + turn * count)
