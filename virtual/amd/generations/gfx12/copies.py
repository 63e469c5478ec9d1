"""Packets and queue descriptors of SDMA 7.0: those of SDMA 6.0, with compression.

Source: Linux 6.12 drivers/gpu/drm/amd/amdgpu/sdma_v7_0.c (which packets differ);
v12_structs.h (struct v12_sdma_mqd).
"""

from __future__ import annotations

from dataclasses import replace

from ugpu.virtual.amd.engines.sdma.packets import Operation, SdmaFormat, free
from ugpu.virtual.amd.generations.gfx11 import copies as gfx11

_COPY = gfx11.PACKETS.formats[Operation.COPY, 0]
# CPV in the header announces an eighth dword, which describes compression. The kernel always sets
# it; tinygrad's AM driver runs on boards with packets of seven dwords.
_CPV = 1 << 19

PACKETS = replace(
    gfx11.PACKETS,
    formats={
        **gfx11.PACKETS.formats,
        (Operation.COPY, 0): replace(
            _COPY, reserved=(free((19, 1)), *_COPY.reserved[1:]), extended=_CPV
        ),
        # Bit 16: the filled memory is compressed, which nothing here can see.
        (Operation.CONST_FILL, 0): SdmaFormat(
            "CONST_FILL", 5, (free((16, 1), (24, 3), (30, 2)), 0, 0xFFFF_0000, 0, 0xC000_0000)
        ),
        # The packet has SRBM_WRITE's number: a byte address, and no mask of bytes.
        (Operation.SRBM_WRITE, 0): SdmaFormat("REGISTER_WRITE", 3, (free(), 0xF000_0003, 0)),
    },
    descriptor={
        1: "RB_BASE", 2: "RB_BASE_HI", 3: "RB_RPTR", 4: "RB_RPTR_HI", 7: "RB_RPTR_ADDR_LO",
        8: "RB_RPTR_ADDR_HI", 9: "IB_CNTL", 15: "DOORBELL", 17: "DOORBELL_OFFSET",
    },
    register_bytes=True,
)  # fmt: skip
