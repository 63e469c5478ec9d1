"""MQD and HQD: a compute queue described in memory, and loaded into the hardware's registers.

Values follow what the kernel's compute driver uses for user queues (Linux 6.12
kfd_mqd_manager_v11.c, kfd_mqd_manager_v12.c, amdgpu_amdkfd_gfx_v11.c hqd_load and hqd_destroy).
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.am.regs import structs
from ugpu.hcq.registers.fields import RegisterMap
from ugpu.hcq.registers.layout import Struct

MQD_HEADER = 0xC0310800
# Dwords of the MQD that mirror the registers CP_MQD_BASE_ADDR to CP_HQD_PQ_WPTR_HI one to one.
FIRST_MIRRORED, LAST_MIRRORED = 128, 183
_ALL_CUS = 0xFFFF_FFFF
_PRELOAD_SIZE = 0x55
_PIPE_PRIORITY = 2  # high, as the recorded driver has it
_QUEUE_PRIORITY = 15
# Bits 14 (the CP keeps the dispatch pointer) and 29 (atomics acknowledged), unnamed in the table.
_HQ_STATUS0 = 1 << 14 | 1 << 29
_MISC_RESERVED = 7
_RPTR_BLOCK = 5  # log2 of dwords between reports of the read pointer, minus one


@dataclass(frozen=True)
class QueueMemory:
    """Addresses of a compute queue's memory. mqd: MC address; all others virtual. Sizes are bytes.

    doorbell: dword index in the doorbell BAR.
    """

    mqd: int
    ring: int
    ring_size: int
    read_pointer: int
    write_pointer: int
    eop: int
    eop_size: int
    doorbell: int
    vmid: int


def log2(value: int) -> int:
    """Return the exponent of a power of two."""
    assert value & (value - 1) == 0
    return value.bit_length() - 1


def build(memory: QueueMemory, gc: RegisterMap, *, version: str = "v11") -> Struct:
    """Return the MQD of an idle queue, encoded for the graphics core `gc`. cp_hqd_active is 0,
    because activation is the last register write. version: of the structure, in am/regs."""
    mqd: Struct = structs(f"{version}_structs")[f"{version}_compute_mqd"].new()
    mqd.header = MQD_HEADER
    mqd.compute_pipelinestat_enable = 1
    for engine in range(8):
        setattr(mqd, f"compute_static_thread_mgmt_se{engine}", _ALL_CUS)
    mqd.compute_misc_reserved = _MISC_RESERVED
    _set_pair(mqd, "cp_mqd_base_addr", memory.mqd)
    mqd.cp_mqd_control = gc.CP_MQD_CONTROL.encode(PRIV_STATE=1, VMID=0)
    mqd.cp_hqd_vmid = memory.vmid
    mqd.cp_hqd_persistent_state = gc.CP_HQD_PERSISTENT_STATE.encode(
        PRELOAD_REQ=1, PRELOAD_SIZE=_PRELOAD_SIZE
    )
    mqd.cp_hqd_pipe_priority = _PIPE_PRIORITY
    mqd.cp_hqd_queue_priority = _QUEUE_PRIORITY
    mqd.cp_hqd_quantum = gc.CP_HQD_QUANTUM.encode(QUANTUM_EN=1, QUANTUM_SCALE=1, QUANTUM_DURATION=1)
    _set_pair(mqd, "cp_hqd_pq_base", memory.ring >> 8)
    _set_pair(mqd, "cp_hqd_pq_rptr_report_addr", memory.read_pointer)
    _set_pair(mqd, "cp_hqd_pq_wptr_poll_addr", memory.write_pointer)
    mqd.cp_hqd_pq_doorbell_control = gc.CP_HQD_PQ_DOORBELL_CONTROL.encode(
        DOORBELL_OFFSET=memory.doorbell, DOORBELL_EN=1
    )
    mqd.cp_hqd_pq_control = gc.CP_HQD_PQ_CONTROL.encode(
        QUEUE_SIZE=log2(memory.ring_size // 4) - 1, RPTR_BLOCK_SIZE=_RPTR_BLOCK
    )
    mqd.cp_hqd_ib_control = gc.CP_HQD_IB_CONTROL.encode(MIN_IB_AVAIL_SIZE=3)
    mqd.cp_hqd_hq_status0 = _HQ_STATUS0
    _set_pair(mqd, "cp_hqd_eop_base_addr", memory.eop >> 8)
    mqd.cp_hqd_eop_control = gc.CP_HQD_EOP_CONTROL.encode(EOP_SIZE=log2(memory.eop_size // 4) - 1)
    return mqd


def mirrored(mqd: Struct) -> list[int]:
    """The dwords that go to the registers from CP_MQD_BASE_ADDR on."""
    raw = bytes(mqd)[FIRST_MIRRORED * 4 : (LAST_MIRRORED + 1) * 4]
    return [int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4)]


def _set_pair(mqd: Struct, stem: str, value: int) -> None:
    setattr(mqd, f"{stem}_lo", value & 0xFFFF_FFFF)
    setattr(mqd, f"{stem}_hi", value >> 32)
