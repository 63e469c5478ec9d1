"""The GSP's interface of each firmware version: sizes and offsets, written by hand.

Sources: open-gpu-kernel-modules 535.113.01, 550.163.01 and 570.144 (gsp_static_config.h,
gsp_init_args.h, message_queue_priv.h, g_rpc-structures.h, rpc_global_enums.h, engine_idx.h), laid
out by a compiler; for 570.144 its gsp_abi_check.c.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ugpu.hcq.errors import NotSupported


class Function(enum.IntEnum):
    """Calls of the CPU, the same in every version."""

    SET_GUEST_SYSTEM_INFO = 1
    ALLOC_MEMORY = 4
    FREE = 10
    DUP_OBJECT = 21
    UNLOADING_GUEST_DRIVER = 47
    SET_PAGE_DIRECTORY = 54
    GET_GSP_STATIC_INFO = 65
    UPDATE_BAR_PDE = 70
    CONTINUATION_RECORD = 71
    GSP_SET_SYSTEM_INFO = 72
    SET_REGISTRY = 73
    GSP_RM_CONTROL = 76
    UNSET_PAGE_DIRECTORY = 79
    GSP_RM_ALLOC = 103


class Event(enum.IntEnum):
    """Events of the GSP that have one number in every version."""

    INIT_DONE = 0x1001
    RUN_CPU_SEQUENCER = 0x1002
    RC_TRIGGERED = 0x1004
    OS_ERROR_LOG = 0x1006
    UCODE_LIBOS_PRINT = 0x100C


@dataclass(frozen=True)
class StaticInfo:
    """GspStaticConfigInfo. engines: offset of the mask of engine types. memory: of its size.
    gpc_mask, tpc_masks: None where the CPU asks by controls."""

    size: int
    regions: int
    bar1_directory: int
    handles: int
    name: int
    engines: int
    memory: int
    gpc_mask: int | None = None
    tpc_masks: int | None = None
    layout: int | None = None  # fwWprLayoutOffset


@dataclass(frozen=True)
class Interface:
    """One version. arguments: bytes of GSP_ARGUMENTS_CACHED; system_info: of GspSystemInfo."""

    version: str
    arguments: int
    start_flags: int  # offset of srInit in the arguments
    system_info: int
    static: StaticInfo
    lockdown: int
    engine_gsp: int  # MC_ENGINE_IDX
    engine_gr0: int
    engine_ce0: int
    engine_fault: int  # replayable faults; then access counters, non-replayable faults


INTERFACES = {
    "535.113.01": Interface(
        "535.113.01", 0x50, 0x30, 0x298,
        StaticInfo(
            0x878, 0x348, 0x828, 0x868, 0x71C, 0x6A4, 0x6D8, gpc_mask=0x124, tpc_masks=0x128
        ),
        lockdown=0x101D, engine_gsp=49, engine_gr0=82, engine_ce0=15, engine_fault=58,
    ),
    "550.163.01": Interface(
        "550.163.01", 0x50, 0x30, 0x370,
        StaticInfo(
            0x888, 0x358, 0x838, 0x878, 0x72C, 0x6B4, 0x6E8, gpc_mask=0x124, tpc_masks=0x128
        ),
        lockdown=0x101C, engine_gsp=50, engine_gr0=84, engine_ce0=15, engine_fault=59,
    ),
    "570.144": Interface(
        "570.144", 0x48, 0x20, 0x3A0,
        StaticInfo(0x678, 0x158, 0x600, 0x640, 0x4EC, 0x4B4, 0x4C8, layout=0x668),
        lockdown=0x101C, engine_gsp=50, engine_gr0=84, engine_ce0=15, engine_fault=59,
    ),
}  # fmt: skip


def interface_of(version: str) -> Interface:
    """Return a version's interface; NotSupported for another one."""
    if version not in INTERFACES:
        raise NotSupported(f"GSP firmware versions: {', '.join(INTERFACES)}; not {version!r}")
    return INTERFACES[version]
