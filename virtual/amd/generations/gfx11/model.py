"""The model's classes and formats for GFX 11.0 cards."""

from __future__ import annotations

import importlib

from ugpu.hcq.device import debugging
from ugpu.hcq.state.config import config
from ugpu.virtual.amd.bus.ih import InterruptHandler
from ugpu.virtual.amd.bus.nbio import Nbio
from ugpu.virtual.amd.engines.cp.commands import CommandSet
from ugpu.virtual.amd.engines.cp.dispatch import Launcher
from ugpu.virtual.amd.engines.cp.mes_frames import FrameExecutor
from ugpu.virtual.amd.engines.cp.pm4.execute import Executor
from ugpu.virtual.amd.engines.cp.pm4.graphics import GraphicsExecutor
from ugpu.virtual.amd.engines.cp.pm4.kernel import KernelExecutor
from ugpu.virtual.amd.engines.gfx import Gfx
from ugpu.virtual.amd.engines.sdma.engine import Sdma
from ugpu.virtual.amd.firmware.images import FIRMWARE_TYPES, MEC_START, SCHEDULER, synthetic_set
from ugpu.virtual.amd.firmware.interface import FirmwareInterface, LoaderStep
from ugpu.virtual.amd.firmware.psp import Psp
from ugpu.virtual.amd.firmware.smu import Smu
from ugpu.virtual.amd.firmware.thermal import Thermal
from ugpu.virtual.amd.firmware.vbios import Rom
from ugpu.virtual.amd.generations.gfx11.copies import PACKETS
from ugpu.virtual.amd.generations.gfx11.descriptors import DESCRIPTORS
from ugpu.virtual.amd.generations.record import BlockClasses, Generation
from ugpu.virtual.amd.memory.entries import EntryFormat
from ugpu.virtual.amd.memory.gmc import Hub
from ugpu.virtual.amd.memory.hdp import Hdp
from ugpu.virtual.amd.shader import ShaderCore

_PDE_AS_PTE = 1 << 54
_ADDRESS = 0x0000_FFFF_FFFF_F000
_TABLE = 0x0000_FFFF_FFFF_FFC0
# Source: Linux 6.12 amdgpu_vm.h, gmc_v11_0.c.
ENTRIES = EntryFormat(
    valid=1 << 0,
    system=1 << 1,
    executable=1 << 4,
    readable=1 << 5,
    writeable=1 << 6,
    leaf=_PDE_AS_PTE,
    leaf_at_last=False,
    address=_ADDRESS,
    table=_TABLE,
    fragment_shift=7,
    # Valid, system, snooped, TMZ, X, R, W, fragment, address, MTYPE [50:48], PRT 51, PDE-as-PTE 54,
    # no-alloc 58.
    entry_defined=0xFFF | _ADDRESS | 7 << 48 | 1 << 51 | _PDE_AS_PTE | 1 << 58,
    # Valid, system, snooped, address [47:6], block fragment size [63:59].
    table_defined=0x7 | _TABLE | 0x1F << 59,
    physical_bits=44,
    table_bits=9,
)
COMMANDS = CommandSet(
    compute=Executor,
    graphics=GraphicsExecutor,
    kernel=KernelExecutor,
    frames=FrameExecutor,
    launcher=Launcher,
    descriptors=DESCRIPTORS,
    scheduler_versions=(SCHEDULER, SCHEDULER),
    scheduler_firmware=("MES", "MES_KIQ"),
    program_start=MEC_START,
)
FIRMWARE = FirmwareInterface(
    # psp_v13_0.c; it also passes the key database in the SPL step.
    loader=(
        LoaderStep(0x80000, ("KDB",)),
        LoaderStep(0x1000_0000, ("SPL", "KDB"), optional=True),
        LoaderStep(0x10000, ("SYS_DRV",)),
        # Not in the containers of MP0 13.0.0 and 13.0.7 (linux-firmware, September 2026).
        LoaderStep(0xB0000, ("SOC_DRV",), optional=True),
        LoaderStep(0xD0000, ("INTF_DRV",), optional=True),
        LoaderStep(0xC0000, ("DBG_DRV",), optional=True),
        LoaderStep(0xE0000, ("RAS_DRV",), optional=True),
        LoaderStep(0x20000, ("SOS",)),
    ),
    types=FIRMWARE_TYPES,
    # Before RLC reports BOOTLOAD_COMPLETE. RS64_MEC_STACK of pipe 0 at least.
    needed=frozenset({
        "SMU", "SDMA_TH0", "SDMA_TH1", "RS64_MEC", "RS64_MEC_STACK", "IMU_I", "IMU_D", "RLC_IRAM",
        "RLC_DRAM", "RLC_P", "RLC_G",
    }),
    again=frozenset({"IMU_I", "IMU_D"}),
    secure_os_version=0x0013_0042,
    files=synthetic_set,
)  # fmt: skip

# UNSURE: their bases; only tables of real boards would show them. A driver skips unknown ids: 199
# is unassigned; Linux rejects ids from HW_ID_MAX, 300, on with a message.
NEIGHBOURS = (
    (12, 0, (4, 0, 0), (0x7800, 0x7E00, 0x2403000)),
    (12, 1, (4, 0, 0), (0x7A00, 0x9000, 0x2403800)),
    (28, 0, (5, 0, 0), ()),
    (46, 0, (4, 3, 0), (0x7000, 0x240B800, 0x7C0)),
    (91, 0, (6, 0, 0), (0x45000, 0x2441C00)),
    (150, 0, (8, 10, 0), (0x14000, 0x2425800)),
    (150, 2, (8, 10, 0), (0x54000, 0x2425C00)),
    (271, 0, (3, 2, 0), (0x12, 0xC0, 0x34C0, 0x9000)),
    (199, 7, (1, 2, 3), (0xABCDE,)),
)


def shader_core(check_waits: bool) -> ShaderCore:
    """Create the core that executes gfx11 machine code. Imported late, because it loads LLVM.

    Under a debugger it always checks waits.
    """
    module = importlib.import_module("ugpu.virtual.amd.isa.core")
    debugger = debugging.attached()
    core: ShaderCore = module.GfxCore(
        cache=config().cache_folder / "gfx1100",
        debugger=debugger,
        check_waits=check_waits or debugger is not None,
    )
    return core


GENERATION = Generation(
    blocks=BlockClasses(
        nbio=Nbio,
        hdp=Hdp,
        hub=Hub,
        interrupt_handler=InterruptHandler,
        psp=Psp,
        smu=Smu,
        thermal=Thermal,
        rom=Rom,
        graphics=Gfx,
        copy_engine=Sdma,
    ),
    page_tables=ENTRIES,
    commands=COMMANDS,
    copy_packets=PACKETS,
    shader_core=shader_core,
    firmware=FIRMWARE,
    neighbours=NEIGHBOURS,
    register_bytes=1 << 20,
    audio_device=0xAB30,
)
