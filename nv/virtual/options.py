"""Options of a virtual machine with NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nv.chips.facts import ChipFacts
from nv.virtual.sm_contract import Multiprocessors

DRIVERS = ("535.183.01", "550.163.01", "570.144", "580.142", "595.45.04")

GRAPHICS_COPY_ENGINES = 2
# NV_REG_STR_RM_CTXSW_TIMEOUT_DEFAULT in nvrm_registry.h, ticks of 1024 ns (580.142)
SWITCH_LIMIT_S = 0x3FFFFF * 1024e-9


@dataclass(frozen=True)
class MachineOptions:
    """A machine as built. Sizes are bytes.

    driver: version of the kernel driver, any that a branch's tables are there for. gpus: how many,
    all of one chip. memory: video memory of each; None for the chip's own. system_memory: pages
    that the kernel driver can still pin. channels: of each runlist. copy_engines: of each GPU; the
    first GRAPHICS_COPY_ENGINES share the runlist of the graphics engine, as on boards.
    overlap: in which order grids run that nothing orders; "reverse" shows a missing barrier.
    open_module: whether the open kernel modules are loaded, as /proc says.
    mig: of a divided GPU, its instances as (GPU instance, compute instance); None: not divided.
    coherence: whether missing barriers and invalidations of global data are violations; grids are
    slower, see nv.virtual.engines.coherence.
    poison: a 32-bit word that fills the video memory of new objects, such as a NaN, which shows in
    results that depend on unwritten memory; None: scrubbed, as by the kernel driver.
    doorbell_overtakes: whether a doorbell in BAR0 reaches the GPU before the last write of GP_PUT
    to video memory, unless the program read video memory by `read32` in between: loads through a
    view are not seen. On an H100 one in some hundreds does.
    switch_limit_s: context switch timeout: seconds for which a grid that is not preempted may keep
    the engine from other groups, before its own is stopped with Xid 109.
    multiprocessors: makes a GPU's SMs; None for those that execute PTX.
    """

    driver: str = "580.142"
    gpus: int = 1
    memory: int | None = None
    system_memory: int = 64 << 30
    channels: int = 512
    copy_engines: int = 4
    overlap: Literal["reverse", "order"] = "reverse"
    open_module: bool = True
    mig: tuple[tuple[int, int], ...] | None = None
    coherence: bool = False
    multiprocessors: Callable[[ChipFacts], Multiprocessors] | None = None
    poison: int | None = None
    doorbell_overtakes: bool = False
    switch_limit_s: float = SWITCH_LIMIT_S
