"""What a generation decides about the command processor: who executes the words of each queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ugpu.virtual.amd.engines.cp.dispatch import Launcher, ShRegisters
from ugpu.virtual.amd.engines.cp.mes_frames import Scheduler
from ugpu.virtual.amd.engines.cp.state import DescriptorLayout, Runner, RunningQueue


@dataclass(frozen=True)
class CommandSet:
    """Makers of executors, and the layout of queue descriptors.

    compute, graphics: PM4 of compute and graphics queues. kernel: PM4 of the kernel interface
    queue. frames: commands of the scheduler. launcher: builds launches from a queue's registers and
    the number of vector registers of a SIMD. scheduler_versions: CP_MES_GP3_LO of each pipe of the
    scheduler. scheduler_firmware: image that each of them needs. program_start: byte address at
    which the programs of MEC and MES begin.
    """

    compute: Callable[[RunningQueue], Runner]
    graphics: Callable[[RunningQueue], Runner]
    kernel: Callable[[RunningQueue], Runner]
    frames: Callable[[RunningQueue, Scheduler], Runner]
    launcher: Callable[[ShRegisters, int], Launcher]
    descriptors: DescriptorLayout
    scheduler_versions: tuple[int, int]
    scheduler_firmware: tuple[str, str]
    program_start: int
