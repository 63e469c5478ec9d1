"""Options of a virtual machine with NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.nvidia.sm_contract import Multiprocessors

DRIVERS = ("535.183.01", "550.163.01", "570.144", "580.142", "595.45.04", "610.43.03")

GRAPHICS_COPY_ENGINES = 2
# NV_REG_STR_RM_CTXSW_TIMEOUT_DEFAULT in nvrm_registry.h, ticks of 1024 ns (580.142)
SWITCH_LIMIT_S = 0x3FFFFF * 1024e-9


@dataclass(frozen=True)
class MachineOptions:
    """Configuration of a virtual machine. Sizes are bytes.

    driver: version of the kernel driver; the tables of its branch must exist. gpus: how many, all
    with the same chip. memory: video memory of each; None for the chip's own. system_memory: how
    much the kernel driver can pin. channels: in each runlist. copy_engines: in each GPU; the
    first GRAPHICS_COPY_ENGINES share the runlist of the graphics engine, as on boards.
    overlap: the order of grids that are not ordered; "reverse" reveals a missing barrier.
    open_module: whether the open kernel modules are loaded, as /proc reports.
    mig: the instances of a divided GPU as (GPU instance, compute instance); None: not divided.
    coherence: whether missing barriers and invalidations of global data are violations. This makes
    grids slower, see virtual.nvidia.engines.coherence.
    poison: a 32-bit word that fills the video memory of new objects, such as a NaN, to reveal
    results that depend on unwritten memory; None: zeroed, as by the kernel driver.
    doorbell_overtakes: whether a doorbell in BAR0 reaches the GPU before the last write of GP_PUT
    to video memory, unless the program read video memory by `read32` in between. Loads through a
    view are not detected. On an H100 one doorbell in some hundreds does.
    switch_limit_s: context switch timeout: how long a grid that is not preempted may keep the
    engine from other groups, in seconds, before its own group is stopped with Xid 109.
    shared_memory: whether other processes can map video memory.
    multiprocessors: creates a GPU's SMs; None for those that execute PTX.
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
    shared_memory: bool = False
