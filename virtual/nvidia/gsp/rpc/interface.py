"""Numbers of the GSP's calls and events that all firmware versions share, written by hand; what
differs is in the version's tables (nv.abi.firmware).

Source: open-gpu-kernel-modules 535.113.01, 550.163.01 and 570.144, rpc_global_enums.h.
"""

from __future__ import annotations

import enum


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
    MMU_FAULT_QUEUED = 0x1005
    OS_ERROR_LOG = 0x1006
    UCODE_LIBOS_PRINT = 0x100C
