"""Packets and queue descriptors of SDMA 6.0.

Source: Linux 6.12 drivers/gpu/drm/amd/amdgpu/sdma_v6_0_0_pkt_open.h (layouts); v11_structs.h
(struct v11_sdma_mqd).
"""

from __future__ import annotations

from ugpu.virtual.amd.engines.sdma.packets import CopyPackets, Operation, SdmaFormat, free

_HI = 0xFFFF_0000  # 48-bit addresses
_COPY_PARAMETER = 0xFFFF_FFFF & ~(7 << 18 | 7 << 26)  # cache policies; byte swap not modelled

_FORMATS = {
    (Operation.COPY, 0): SdmaFormat(
        "COPY", 7, (free(), 0xC000_0000, _COPY_PARAMETER, 0, _HI, 0, _HI)
    ),
    (Operation.WRITE, 0): SdmaFormat(
        "WRITE", 4, (free(), 3, _HI, 0xFFFF_FFFF & ~(0xFFFFF | 7 << 26))
    ),
    (Operation.INDIRECT, 0): SdmaFormat(
        "INDIRECT", 6, (free((16, 4), (31, 1)), 0x1F, _HI, 0xFFF0_0000, 0, 0)
    ),
    (Operation.FENCE, 0): SdmaFormat(
        "FENCE", 4, (free((16, 3), (19, 2), (22, 2), (24, 3)), 3, _HI, 0)
    ),
    (Operation.TRAP, 0): SdmaFormat("TRAP", 2, (free(), 0xF000_0000)),
    (Operation.POLL_REGMEM, 0): SdmaFormat(
        "POLL_REGMEM",
        6,
        (free((20, 3), (26, 1), (28, 4)), 3, 0, 0, 0, 0xF000_0000),
    ),
    (Operation.COND_EXE, 0): SdmaFormat("COND_EXE", 5, (free((24, 3)), 3, _HI, 0, 0xFFFF_C000)),
    (Operation.ATOMIC, 0): SdmaFormat(
        "ATOMIC", 8, (free((16, 1), (20, 3), (25, 7)), 3, _HI, 0, 0, 0, 0, 0xFFFF_E000)
    ),
    (Operation.CONST_FILL, 0): SdmaFormat(
        "CONST_FILL", 5, (free((24, 3), (30, 2)), 0, _HI, 0, 0xC000_0000)
    ),
    (Operation.PTE_PDE, 0): SdmaFormat(
        "PTE_PDE", 10, (free(), 7, _HI, 0, 0, 0, 0, 0, 0, 0xFFFF_FFFF & ~0x7FFFF)
    ),
    (Operation.TIMESTAMP, 1): SdmaFormat("TIMESTAMP_GET", 3, (free((24, 3)), 7, _HI)),
    (Operation.TIMESTAMP, 2): SdmaFormat("TIMESTAMP_GET_GLOBAL", 3, (free((24, 3)), 7, _HI)),
    (Operation.SRBM_WRITE, 0): SdmaFormat("SRBM_WRITE", 3, (free((28, 4)), 0xFFFC_0000, 0)),
    (Operation.GCR_REQ, 0): SdmaFormat("GCR_REQ", 5, (free(), 0x7F, 0, 0x78, 0xF0FF_0000)),
}

PACKETS = CopyPackets(
    opcodes={
        Operation.NOP: 0, Operation.COPY: 1, Operation.WRITE: 2, Operation.INDIRECT: 4,
        Operation.FENCE: 5, Operation.TRAP: 6, Operation.POLL_REGMEM: 8, Operation.COND_EXE: 9,
        Operation.ATOMIC: 10, Operation.CONST_FILL: 11, Operation.PTE_PDE: 12,
        Operation.TIMESTAMP: 13, Operation.SRBM_WRITE: 14, Operation.GCR_REQ: 17,
    },
    formats=_FORMATS,
    descriptor={
        1: "RB_BASE", 2: "RB_BASE_HI", 3: "RB_RPTR", 4: "RB_RPTR_HI", 7: "RB_RPTR_ADDR_HI",
        8: "RB_RPTR_ADDR_LO", 9: "IB_CNTL", 17: "DOORBELL", 19: "DOORBELL_OFFSET",
    },
    descriptor_dwords=128,
)  # fmt: skip
