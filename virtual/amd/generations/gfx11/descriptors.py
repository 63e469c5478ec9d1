"""Queue descriptors of the command processor.

Source: Linux 6.12 v11_structs.h (v11_compute_mqd, v11_gfx_mqd), gfx_v11_0.c (values of a compute
MQD), gc_11_0_0_default.h.
"""

from __future__ import annotations

from ugpu.virtual.amd.engines.cp.state import DescriptorLayout, GraphicsDescriptor

DESCRIPTORS = DescriptorLayout(
    header=0xC0310800,
    dwords=512,
    first_hqd=128,  # CP_MQD_BASE_ADDR
    last_hqd=183,  # CP_HQD_PQ_WPTR_HI
    rptr=138,
    wptr=182,
    compute={
        "COMPUTE_STATIC_THREAD_MGMT_SE0": 23,
        "COMPUTE_STATIC_THREAD_MGMT_SE1": 24,
        "COMPUTE_STATIC_THREAD_MGMT_SE2": 26,
        "COMPUTE_STATIC_THREAD_MGMT_SE3": 27,
        "COMPUTE_STATIC_THREAD_MGMT_SE4": 44,
        "COMPUTE_STATIC_THREAD_MGMT_SE5": 45,
        "COMPUTE_STATIC_THREAD_MGMT_SE6": 46,
        "COMPUTE_STATIC_THREAD_MGMT_SE7": 47,
        "COMPUTE_RESOURCE_LIMITS": 22,
        "COMPUTE_TMPRING_SIZE": 25,
    },
    power_on={
        "CP_HQD_PERSISTENT_STATE": 0x0BE05501,
        "CP_HQD_PQ_CONTROL": 0x00308509,
        "CP_HQD_IB_CONTROL": 0x00300000,
        "CP_HQD_HQ_STATUS0": 0x40000000,
        "CP_MQD_CONTROL": 0x00000100,
        "CP_HQD_EOP_CONTROL": 0x00000006,
        "CP_HQD_EOP_RPTR": 0x40000000,
        "CP_HQD_EOP_WPTR": 0x00008000,
    },
    graphics=GraphicsDescriptor(
        base=128,
        vmid=131,
        ring=136,
        rptr=138,
        rptr_address=139,
        doorbell=143,
        control=145,
        wptr=149,
    ),
)
