"""Reports of the GPU and its kernel driver."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ugpu.virtual.shader.memory import Access


class Cause(enum.Enum):
    """Why the kernel driver reset the GPU, as named in KGSL's log (adreno_dispatch.c,
    a6xx_err_callback in the Android msm kernel; Linux 6.12 a6xx_gpu.c a6xx_cp_hw_err_irq)."""

    OPCODE = "CP opcode error"
    PARITY = "CP header parity error"
    PROTECTED = "CP register protection violation"
    PAGE_FAULT = "SMMU page fault"
    HANG = "GPU hang"
    SHADER = "illegal instruction in a shader"
    NOT_MODELLED = "not modelled"


class GpuFault(Exception):
    """Ends a submission in the model. address: of the packet, instruction or access."""

    def __init__(self, cause: Cause, text: str, address: int = 0) -> None:
        super().__init__(text)
        self.cause = cause
        self.text = text
        self.address = address


class PageFault(GpuFault):
    """An access that the page tables do not permit."""

    def __init__(self, address: int, access: Access, kind: str, client: str) -> None:
        text = f"{kind} fault: {access.name.lower()} of {address:#x} by {client}"
        super().__init__(Cause.PAGE_FAULT, text, address)
        self.access = access
        self.kind = kind
        self.client = client


@dataclass(frozen=True)
class Report:
    """One entry of the kernel log. context, timestamp: of the submission at fault."""

    cause: Cause
    text: str
    context: int
    timestamp: int
    address: int
