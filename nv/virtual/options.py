"""Options of a virtual machine with NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nv.chips.facts import ChipFacts
from nv.virtual.sm_contract import Multiprocessors

DRIVERS = ("535.183.01", "550.163.01", "570.144", "580.142", "595.45.04")

GRAPHICS_COPY_ENGINES = 2


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
