"""The context buffers of graphics channels.

Source: open-gpu-kernel-modules 580.142 src/nvidia/src/kernel/gpu/gr/kernel_graphics_context.c,
kgrctxGetCtxBuffers: the main image, the patch buffer, and the global buffers that
arch/maxwell/kgraphics_gm200.c and arch/turing/kgraphics_tu102.c allocate. Buffers for preemption
(GFXP_POOL and those of SET_CTXSW_PREEMPTION_MODE) are not included: no code creates the former, and
the latter belong to a context that requests them. Names: ctrl2080gpu.h,
NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ID_*. Sizes: ctrl2080gr.h,
NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE.
UNSURE: the sizes. Firmware reports them; no open header contains them. Boards from GA102 to GB202
run with the size that tinygrad 0.14 reserves for them, 64 MiB.
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
