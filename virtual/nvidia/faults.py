"""Faults that can be planted, and the Xids that report them.

`VirtualMachine.inject(kind)` plants a fault. It affects the next operation that it applies to, once
or `count` times. docs/virtual-nv.md describes what a driver observes for each. Xids: NVIDIA's "XID
Errors" (GPU deployment documents, r580) and open-gpu-kernel-modules 580.142
src/common/sdk/nvidia/inc/nverror.h.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ugpu.virtual.faults import Titled


class Fault(Titled):
    """Fault that can be planted. Value: the name in documents and tests, and its effect."""

    UNMAPPED = "unmapped address", "the next grid reads where nothing is mapped: Xid 31, PTE"
    READ_ONLY = (
        "write to a read-only page",
        "the next grid writes such a page: Xid 31, RO_VIOLATION",
    )
    BAD_KIND = "unsupported kind", "the next grid meets a page of another kind: Xid 31"
    POISON = "poisoned memory", "the next grid consumes poison: Xid 31, POISONED"
    COPY_FAULT = "copy engine fault", "the next copy's source is not mapped: Xid 31 of the engine"
    ILLEGAL_INSTRUCTION = "illegal instruction", "the next grid meets one: Xid 13, SM error state"
    MISALIGNED = "misaligned address", "the next grid accesses one: Xid 13, SM error state"
    OUT_OF_RANGE = "out of range address", "the next grid leaves shared memory: Xid 13"
    ASSERTION = "trap of a kernel", "the next grid executes a breakpoint: Xid 13"
    HANG = "hanging kernel", "the next grid runs until its channel is freed or reset"
    CONTEXT_SWITCH = "context switch timeout", "the next grid cannot be switched away: Xid 109"
    PUSHBUFFER = "damaged push buffer", "the next push buffer segment is damaged: Xid 32"
    CLASS_ERROR = "class error", "the next compute method is refused: Xid 69"
    LOST_DOORBELL = "lost doorbell", "the next doorbell never arrives; a second one is heard"
    LOST_RELEASE = "lost semaphore release", "the next release does not reach memory"
    PREEMPTED = "preemptive removal", "the next channel to work is removed: Xid 45"
    ECC_UNCORRECTED = "uncorrectable ECC error", "the next grid hits one: Xid 48, counted"
    ECC_CONTAINED = "contained ECC error", "the next grid hits one: Xid 94, others go on"
    ROW_REMAP = "row remapping", "Xid 63: a row is to be remapped at the next reset; work goes on"
    FIRMWARE_TIMEOUT = "GSP timeout", "the next control gets no answer: Xid 119, TIMEOUT"
    BUSY = "busy driver", "the next allocation or control answers BUSY_RETRY"
    FELL_OFF = "fallen off the bus", "Xid 79: the GPU is gone; at once"
    RESET_REQUIRED = "reset required", "objects can no longer be made: RESET_REQUIRED; at once"
    NO_VIDEO_MEMORY = "no video memory", "the next allocation of it fails: NO_MEMORY"
    NO_SYSTEM_MEMORY = "no system memory", "the next allocation of it fails: NO_MEMORY"
    NO_CHANNELS = "no channels", "the next channel cannot be had: INSUFFICIENT_RESOURCES"
    NO_PAGE_TABLES = "no page tables", "the next mapping finds no memory for tables: NO_MEMORY"
    VERSION_MISMATCH = "version mismatch", "the next version check is refused"
    OPEN_DENIED = "permission denied", "the next device file cannot be opened: EACCES"
    NO_UVM = "UVM not loaded", "/dev/nvidia-uvm is not there at the next open: ENOENT"
    UVM_REFUSED = "UVM registration refused", "the next registration with UVM: INVALID_DEVICE"
    MAPPING_REFUSED = "CPU mapping refused", "the next mmap fails: EAGAIN"
    INTERRUPTED = "interrupted call", "the next ioctl is interrupted by a signal: EINTR"


AT_ONCE = (Fault.FELL_OFF, Fault.RESET_REQUIRED, Fault.ROW_REMAP)


class Xid(enum.IntEnum):
    """Errors as the kernel log numbers them; error notifiers contain them in info32."""

    GR_EXCEPTION = 13
    MMU_FAULT = 31
    PBDMA_ERROR = 32
    CHANNEL_RESET = 43
    PREEMPTIVE_REMOVAL = 45
    ECC_UNCORRECTED = 48
    ROW_REMAP = 63
    CLASS_ERROR = 69
    FELL_OFF_BUS = 79
    ECC_CONTAINED = 94
    CONTEXT_SWITCH_TIMEOUT = 109
    GSP_TIMEOUT = 119


@dataclass(frozen=True)
class XidReport:
    """One line of the kernel log. gpu: its index. channel: its number; None if there is none."""

    gpu: int
    xid: int
    text: str
    channel: int | None = None

    def __str__(self) -> str:
        where = "" if self.channel is None else f", Ch {self.channel:08x}"
        return f"NVRM: Xid (GPU {self.gpu}): {self.xid}{where}, {self.text}"
