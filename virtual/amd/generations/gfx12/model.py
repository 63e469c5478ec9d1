"""The model's classes and formats for GFX 12.0 cards."""

from __future__ import annotations

import importlib
from dataclasses import replace

from ugpu.hcq.device import debugging
from ugpu.hcq.state.config import config
from ugpu.virtual.amd.engines.cp.mes_frames import (
    LAYOUT_12,
    FrameExecutor,
    OwnResources,
    Scheduler,
)
from ugpu.virtual.amd.engines.cp.state import Runner, RunningQueue
from ugpu.virtual.amd.firmware.images import MEC_START
from ugpu.virtual.amd.generations.gfx11 import model as gfx11
from ugpu.virtual.amd.generations.gfx12.blocks import Gfx12, Hub12, Nbif6, Psp14, Sdma7
from ugpu.virtual.amd.generations.gfx12.copies import PACKETS
from ugpu.virtual.amd.generations.gfx12.firmware import FIRMWARE, SCHEDULER
from ugpu.virtual.amd.memory.entries import EntryFormat
from ugpu.virtual.amd.shader import ShaderCore

_IS_PTE = 1 << 63
_ADDRESS = 0x0000_FFFF_FFFF_F000
_TABLE = 0x0000_FFFF_FFFF_FFC0
_TYPE = 3 << 54
# Source: Linux 6.12 amdgpu_vm.h, gmc_v12_0.c. UNSURE: whether the walker ignores bit 63 of the last
# level; here an entry without it is refused.
ENTRIES = EntryFormat(
    valid=1 << 0,
    system=1 << 1,
    executable=1 << 4,
    readable=1 << 5,
    writeable=1 << 6,
    leaf=_IS_PTE,
    leaf_at_last=True,
    address=_ADDRESS,
    table=_TABLE,
    fragment_shift=7,
    # Valid, system, snooped, TMZ, X, R, W, fragment, address, two bits of software, MTYPE [55:54],
    # PRT 56, G 57, DCC 58, P 63.
    entry_defined=0xFFF | _ADDRESS | 3 << 52 | _TYPE | 7 << 56 | _IS_PTE,
    # Valid, system, coherent, address [47:6], MTYPE [55:54], A 56, block fragment size [62:58].
    table_defined=0x7 | _TABLE | _TYPE | 1 << 56 | 0x1F << 58,
    physical_bits=44,
    table_bits=9,
    type_mask=_TYPE,
    # soc24_enum.h: 1 is reserved.
    types=frozenset({0, 2 << 54, 3 << 54}),
)


def _scheduler_frames(queue: RunningQueue, scheduler: Scheduler) -> Runner:
    return FrameExecutor(queue, scheduler, LAYOUT_12)


def _kernel_frames(queue: RunningQueue) -> Runner:
    """Pipe 1 takes frames too: with one image for both pipes there is no PM4 (mes_v12_0.c)."""
    return FrameExecutor(queue, OwnResources(), LAYOUT_12)


COMMANDS = replace(
    gfx11.COMMANDS,
    frames=_scheduler_frames,
    kernel=_kernel_frames,
    scheduler_versions=(SCHEDULER, SCHEDULER),
    scheduler_firmware=("MES", "MES"),
    program_start=MEC_START,
)
# UNSURE: their bases, see gfx11. Linux 6.12 (nbif_v6_3_1_program_aspm) finds link registers by the
# second base of PCIE, 70, whose bases are those of renoir_ip_offset.h.
NEIGHBOURS = (
    (12, 0, (5, 0, 0), (0x7800, 0x7E00, 0x2403000)),
    (46, 0, (4, 15, 0), (0x7000, 0x240B800, 0x7C0)),
    (70, 0, (6, 1, 0), (0x2411800, 0x4440000)),
    (91, 0, (7, 0, 0), (0x45000, 0x2441C00)),
    (150, 0, (8, 14, 0), (0x14000, 0x2425800)),
    (150, 2, (8, 14, 0), (0x54000, 0x2425C00)),
    (271, 0, (4, 1, 0), (0x12, 0xC0, 0x34C0, 0x9000)),
    (199, 7, (1, 2, 3), (0xABCDE,)),
)


def shader_core(check_waits: bool) -> ShaderCore:
    """Create the core that executes gfx12 machine code. Imported late, because it loads LLVM."""
    module = importlib.import_module("ugpu.virtual.amd.isa.core")
    targets = importlib.import_module("ugpu.virtual.amd.isa.targets.target")
    debugger = debugging.attached()
    core: ShaderCore = module.GfxCore(
        cache=config().cache_folder / "gfx1201",
        debugger=debugger,
        check_waits=check_waits or debugger is not None,
        target=targets.target("gfx12"),
    )
    return core


GENERATION = replace(
    gfx11.GENERATION,
    blocks=replace(
        gfx11.GENERATION.blocks,
        nbio=Nbif6,
        hub=Hub12,
        psp=Psp14,
        graphics=Gfx12,
        copy_engine=Sdma7,
    ),
    page_tables=ENTRIES,
    commands=COMMANDS,
    copy_packets=PACKETS,
    shader_core=shader_core,
    firmware=FIRMWARE,
    neighbours=NEIGHBOURS,
    register_bytes=512 << 10,
    audio_device=0xAB40,
)
