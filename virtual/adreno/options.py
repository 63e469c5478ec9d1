"""Options of a virtual machine with an Adreno GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ugpu.qcom.chips.facts import ChipFacts
from ugpu.virtual.adreno.shader import ShaderProcessors


@dataclass(frozen=True)
class MachineOptions:
    """A machine as built.

    caches: "strict": cached memory that is not I/O coherent reaches the GPU, and the GPU's writes
    reach the CPU, only through a cache operation of the kernel. "coherent": every CPU cache snoops;
    for programs that clean the cache by instructions, which the model cannot see.
    overlap: order of dispatches without a CP_WAIT_FOR_IDLE between them; "reverse" exposes a
    missing one. halt_on_page_fault: KGSL's policy bit KGSL_FT_PAGEFAULT_GPUHALT_ENABLE: a page
    fault ends the submission. Without it the fault is logged and the GPU reads zeros (Android 5.x
    default). hang_limit_s: how long a submission may wait or compute before the kernel driver
    resets the GPU. processors: creates the shader processors; None for those that execute ir3.
    """

    caches: Literal["strict", "coherent"] = "strict"
    overlap: Literal["reverse", "order"] = "reverse"
    halt_on_page_fault: bool = True
    hang_limit_s: float = 20.0
    processors: Callable[[ChipFacts], ShaderProcessors] | None = None
