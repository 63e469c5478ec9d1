"""Registers that describe a failed gfx11 chip, by block; names may be patterns.

Reading must change nothing: reading an invalidation engine's _SEM takes the semaphore.

Source: Linux 6.12 gfx_v11_0.c (gc_reg_list_11_0, gc_cp_reg_list_11, wave_read_wave_data).
"""

from __future__ import annotations

from ugpu.am.chips.generations import Evidence

REGISTERS = {
    "nbio": (
        "RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE",
    ),
    "mp0": (
        "MP0_SMN_C2PMSG_*",
    ),
    "mp1": (
        "MP1_SMN_C2PMSG_*",
    ),
    "osssys": (
        "IH_RB_CNTL*", "IH_RB_RPTR*", "IH_RB_WPTR*", "IH_STATUS",
    ),
    "mmhub": (
        "MMVM_L2_PROTECTION_FAULT_*", "MMVM_L2_STATUS", "MMVM_L2_CNTL*",
        "MMVM_INVALIDATE_ENG17_REQ", "MMVM_INVALIDATE_ENG17_ACK", "MMVM_CONTEXT[08]_*",
        "MMMC_VM_FB_LOCATION_*",
    ),
    "gc": (
        "GRBM_STATUS*", "GRBM_READ_ERROR*", "CP_STALLED_STAT*", "CP_BUSY_STAT", "CP_STAT",
        "CP_CPF_STATUS", "CP_CPF_BUSY_STAT*", "CP_CPF_STALLED_STAT1", "CP_CPC_STATUS",
        "CP_CPC_BUSY_STAT*", "CP_CPC_STALLED_STAT1", "CP_ROQ_*_STAT", "CP_MEQ_STAT",
        "CP_HPD_STATUS0", "CP_INT_STATUS*", "CPC_INT_STATUS", "CP_MEC_CNTL", "CP_MEC_RS64_CNTL",
        "CP_MEC1_INSTR_PNTR", "CP_MEC2_INSTR_PNTR", "CP_PQ_STATUS", "CP_VMID_STATUS",
        "CPC_UTCL1_STATUS", "CPF_UTCL1_STATUS", "CP_HQD_ERROR", "GCVM_L2_PROTECTION_FAULT_*",
        "GCVM_L2_STATUS", "GCVM_L2_CNTL*", "GCVM_INVALIDATE_ENG17_REQ",
        "GCVM_INVALIDATE_ENG17_ACK", "GCVM_CONTEXT[08]_*", "GCMC_VM_FB_LOCATION_*", "RLC_STAT",
        "RLC_CNTL", "RLC_GPM_STAT", "RLC_SAFE_MODE", "RLC_RLCS_BOOTLOAD_STATUS", "RLC_SMU_COMMAND",
        "RLC_SMU_MESSAGE*", "RLC_SMU_ARGUMENT_*", "SDMA[01]_STATUS*_REG", "SDMA[01]_QUEUE0_RB_*",
        "SDMA[01]_QUEUE0_CONTEXT_STATUS", "SDMA[01]_F32_CNTL", "SDMA[01]_UTCL1_*STATUS",
        "SCRATCH_REG[67]",
    ),
}  # fmt: skip

#: of the compute queue that GRBM_GFX_CNTL selects
QUEUE_REGISTERS = (
    "CP_HQD_ACTIVE", "CP_HQD_VMID", "CP_HQD_PERSISTENT_STATE", "CP_HQD_PIPE_PRIORITY",
    "CP_HQD_QUEUE_PRIORITY", "CP_HQD_QUANTUM", "CP_HQD_PQ_BASE", "CP_HQD_PQ_BASE_HI",
    "CP_HQD_PQ_RPTR", "CP_HQD_PQ_WPTR_LO", "CP_HQD_PQ_WPTR_HI", "CP_HQD_PQ_DOORBELL_CONTROL",
    "CP_HQD_PQ_CONTROL", "CP_HQD_IB_BASE_ADDR", "CP_HQD_IB_BASE_ADDR_HI", "CP_HQD_IB_RPTR",
    "CP_HQD_IB_CONTROL", "CP_HQD_DEQUEUE_REQUEST", "CP_HQD_EOP_RPTR", "CP_HQD_EOP_WPTR",
    "CP_HQD_ERROR", "CP_HQD_HQ_STATUS0", "CP_HQD_HQ_STATUS1", "CP_HQD_CNTL_STACK_OFFSET",
)  # fmt: skip

#: SQ_WAVE_<name>
WAVE_REGISTERS = (
    "STATUS", "PC_LO", "PC_HI", "EXEC_LO", "EXEC_HI", "HW_ID1", "HW_ID2", "GPR_ALLOC", "LDS_ALLOC",
    "TRAPSTS", "IB_STS", "IB_STS2", "IB_DBG1", "M0", "MODE",
)  # fmt: skip

#: gfxhub_v3_0.c, mmhub_v3_0.c
GFX_CLIENTS = {
    0: "CB/DB", 2: "GE1", 3: "GE2", 4: "CPF", 5: "CPC", 6: "CPG", 7: "RLC", 8: "TCP",
    9: "SQC (inst)", 10: "SQC (data)", 11: "SQG", 13: "SDMA0", 14: "SDMA1", 15: "GCR",
    16: "SDMA2", 17: "SDMA3",
}  # fmt: skip
MEMORY_CLIENTS = {0: "VMC", 6: "MP0", 7: "MP1", 8: "MPIO", 15: "OSSSYS", 16: "HDP", 17: "LSDMA"}

EVIDENCE = Evidence(
    REGISTERS, QUEUE_REGISTERS, WAVE_REGISTERS, "TRAPSTS", GFX_CLIENTS, MEMORY_CLIENTS
)
