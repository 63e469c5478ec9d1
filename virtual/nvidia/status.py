"""Status codes of the kernel driver.

Source: open-gpu-kernel-modules 580.142, kernel-open/common/inc/nvstatuscodes.h. Written by hand, so
that a misread table is detected.
"""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """NV_STATUS."""

    OK = 0x00
    BUSY_RETRY = 0x03
    ECC_ERROR = 0x0B
    GPU_IS_LOST = 0x0F
    ILLEGAL_ACTION = 0x16
    IN_USE = 0x17
    INSERT_DUPLICATE_NAME = 0x19
    INSUFFICIENT_RESOURCES = 0x1A
    INSUFFICIENT_PERMISSIONS = 0x1B
    INVALID_ADDRESS = 0x1E
    INVALID_ARGUMENT = 0x1F
    INVALID_BASE = 0x20
    INVALID_CHANNEL = 0x21
    INVALID_CLASS = 0x22
    INVALID_CLIENT = 0x23
    INVALID_COMMAND = 0x24
    INVALID_DEVICE = 0x26
    INVALID_FLAGS = 0x29
    INVALID_INDEX = 0x2C
    INVALID_LIMIT = 0x2E
    INVALID_OBJECT = 0x31
    INVALID_OBJECT_HANDLE = 0x33
    INVALID_OBJECT_PARENT = 0x36
    INVALID_OFFSET = 0x37
    INVALID_PARAM_STRUCT = 0x3A
    INVALID_PARAMETER = 0x3B
    INVALID_POINTER = 0x3D
    INVALID_STATE = 0x40
    NO_MEMORY = 0x51
    NOT_COMPATIBLE = 0x54
    NOT_READY = 0x55
    NOT_SUPPORTED = 0x56
    OBJECT_NOT_FOUND = 0x57
    OBJECT_TYPE_MISMATCH = 0x58
    OUT_OF_RANGE = 0x5B
    PAGE_TABLE_NOT_AVAIL = 0x5D
    RC_ERROR = 0x60
    RESET_REQUIRED = 0x62
    STATE_IN_USE = 0x63
    TIMEOUT = 0x65
    UVM_ADDRESS_IN_USE = 0x68
    LIB_RM_VERSION_MISMATCH = 0x6A
    GENERIC = 0xFFFF
    NOTHING_TO_DO = 0x0001_0006  # a warning


class RmError(Exception):
    """Ends a call of the resource manager or UVM with a status."""

    def __init__(self, status: Status, why: str = "") -> None:
        super().__init__(f"{status.name}: {why}" if why else status.name)
        self.status = status
        self.why = why


def require(condition: object, status: Status, why: str = "") -> None:
    """Raise RmError unless `condition` holds."""
    if not condition:
        raise RmError(status, why)
