"""Context buffers of graphics channels: which there are.

Source: open-gpu-kernel-modules 580.142 src/nvidia/src/kernel/gpu/gr/kernel_graphics_context.c,
kgrctxGetCtxBuffers: the main image, the patch buffer, and the global buffers that
arch/maxwell/kgraphics_gm200.c and arch/turing/kgraphics_tu102.c allocate. Buffers for preemption
(GFXP_POOL and those of SET_CTXSW_PREEMPTION_MODE) are not among them: no code makes the former, and
the latter belong to a context that asks for them. Names: ctrl2080gpu.h,
NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ID_*; their size: ctrl2080gr.h,
NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE.
UNSURE: the sizes, which no open header has: firmware tells them. With what tinygrad 0.14 reserves
for them, 64 MiB, boards from GA102 to GB202 run.
"""

from __future__ import annotations

from dataclasses import dataclass

ALIGN = 64 << 10


@dataclass(frozen=True)
class Buffer:
    """One buffer of a context. size: bytes."""

    name: str
    size: int


BUFFERS = (
    Buffer("MAIN", 2 << 20), Buffer("PATCH", 64 << 10), Buffer("BUFFER_BUNDLE_CB", 1 << 20),
    Buffer("PAGEPOOL", 4 << 20), Buffer("ATTRIBUTE_CB", 12 << 20), Buffer("RTV_CB_GLOBAL", 1 << 20),
    Buffer("PRIV_ACCESS_MAP", 512 << 10), Buffer("UNRESTRICTED_PRIV_ACCESS_MAP", 512 << 10),
)  # fmt: skip
