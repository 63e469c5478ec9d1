"""Context buffers of graphics channels: which there are.

Source: open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc/ctrl/ctrl2080/ctrl2080gpu.h,
NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ID_*; ctrl2080gr.h, NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE.
UNSURE: their sizes, which no open header has; what preemption saves follows from what an SM holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from nv.chips.facts import ChipFacts

_REGISTERS_OF_SM = 256 << 10
_MAIN, _PATCH = 1 << 20, 64 << 10
_CIRCULAR, _PAGE_POOL, _ATTRIBUTES, _ACCESS_MAP = 1 << 20, 4 << 20, 12 << 20, 512 << 10
ALIGN = 64 << 10


@dataclass(frozen=True)
class Buffer:
    """One buffer of a context. size: bytes. shared: all channels of a GPU use the same one."""

    name: str
    size: int
    shared: bool


def buffers_of(facts: ChipFacts) -> tuple[Buffer, ...]:
    """The buffers of a graphics channel."""
    preempted = facts.sm_count * (_REGISTERS_OF_SM + facts.shared_carveouts[-1])
    sizes = (
        ("MAIN", _MAIN, False), ("PATCH", _PATCH, False), ("GFXP_POOL", preempted, False),
        ("BUFFER_BUNDLE_CB", _CIRCULAR, True), ("PAGEPOOL", _PAGE_POOL, True),
        ("ATTRIBUTE_CB", _ATTRIBUTES, True), ("PRIV_ACCESS_MAP", _ACCESS_MAP, True),
    )  # fmt: skip
    return tuple(Buffer(name, -(-size // ALIGN) * ALIGN, shared) for name, size, shared in sizes)
