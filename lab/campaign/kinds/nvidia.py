"""Faults of the virtual NVIDIA machines: virtual.nvidia.faults.Fault, one kind each."""

from __future__ import annotations

from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from ugpu.hcq.errors import (
    AccessDenied,
    BadPacket,
    ChipError,
    DeviceHang,
    DeviceLost,
    DriverRefused,
    FirmwareSilent,
    IllegalInstruction,
    ModuleMissing,
    OutOfMemory,
    PageFault,
    TransportError,
    UgpuError,
)
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.gpu import CHIPS

_XID, _RM = "NVIDIA's Xid catalogue", "open-gpu-kernel-modules 580.142"
_HW, _MEM, _HOST, _FW = Layer.HARDWARE, Layer.MEMORY, Layer.HOST, Layer.FIRMWARE
_RESET, _GPU = "device.reset()", "nvidia-smi --gpu-reset"
_NO_MEMORY: dict[str, object] = {"status": "NV_ERR_NO_MEMORY"}


def fault(
    which: Fault, layer: Layer, stages: tuple[str, ...], error: type[UgpuError] | None,
    remedy: str = "", **fields: Any,
) -> Kind:  # fmt: skip
    made: dict[str, Any] = {
        "planted": f"`machine.inject(Fault.{which.name})`", "devices": CHIPS, "source": _XID,
        "plant": lambda stand: stand.machine.inject(which),
        "struck": lambda stand: which in stand.machine.faults.struck,
        "recovery": Recovery.RESET if error else Recovery.NONE,
    }  # fmt: skip
    return Kind(
        name=f"{which.title} (NVIDIA)", layer=layer, stages=stages, error=error, remedy=remedy,
        **(made | fields),
    )  # fmt: skip


def xid(number: int, **facts: object) -> dict[str, object]:
    return {"xid": number, **facts}


_F = Fault
_LAUNCH, _COPY, _OPEN, _USE = ("launch",), ("copy",), ("open",), ("idle",)
KINDS = [
    fault(_F.UNMAPPED, _HW, _LAUNCH, PageFault, _RESET, facts=xid(31, fault="PTE", access="read")),
    fault(_F.READ_ONLY, _HW, _LAUNCH, PageFault, _RESET, facts=xid(31, fault="RO_VIOLATION")),
    fault(_F.BAD_KIND, _HW, _LAUNCH, PageFault, _RESET, facts=xid(31, fault="UNSUPPORTED_KIND")),
    fault(_F.POISON, _MEM, _LAUNCH, PageFault, _RESET, facts=xid(31, fault="POISONED")),
    fault(_F.COPY_FAULT, _HW, _COPY, PageFault, _RESET, facts=xid(31, queue="copy 0")),
    fault(_F.ILLEGAL_INSTRUCTION, _HW, _LAUNCH, IllegalInstruction, _RESET,
          facts=xid(13, kind="ILLEGAL_INSTR_ENCODING")),
    fault(_F.MISALIGNED, _HW, _LAUNCH, PageFault, _RESET, facts=xid(13, kind="MISALIGNED_ADDR")),
    fault(_F.OUT_OF_RANGE, _HW, _LAUNCH, PageFault, _RESET, facts=xid(13, kind="OOR_ADDR")),
    fault(_F.ASSERTION, _HW, _LAUNCH, IllegalInstruction, _RESET, facts=xid(13)),
    fault(_F.HANG, _HW, _LAUNCH, DeviceHang, _RESET, facts={"kernel": "scale"}),
    fault(_F.CONTEXT_SWITCH, _HW, _LAUNCH, DeviceHang, _RESET, facts=xid(109)),
    fault(_F.PUSHBUFFER, _HW, ("launch", "copy"), BadPacket, _RESET, facts=xid(32)),
    fault(_F.CLASS_ERROR, _HW, _LAUNCH, BadPacket, _RESET, facts=xid(69)),
    fault(_F.LOST_DOORBELL, _HW, ("launch", "copy"), DeviceHang, _RESET),
    fault(_F.LOST_RELEASE, _HW, ("launch", "copy"), DeviceHang, _RESET),
    fault(_F.PREEMPTED, _HW, ("launch", "copy"), ChipError, _RESET, facts=xid(45)),
    fault(_F.ECC_UNCORRECTED, _MEM, _LAUNCH, ChipError, _GPU, facts=xid(48)),
    fault(_F.ECC_CONTAINED, _MEM, _LAUNCH, ChipError, _RESET, facts=xid(94)),
    fault(_F.ROW_REMAP, _MEM, ("idle", "launch", "copy"), None),
    fault(_F.FIRMWARE_TIMEOUT, _FW, ("open", "idle"), FirmwareSilent, _GPU, source=_RM,
          facts={"status": "NV_ERR_TIMEOUT"}, recovery=Recovery.GO_ON),
    fault(_F.BUSY, _FW, ("open", "idle"), None, source=_RM),
    fault(_F.FELL_OFF, Layer.LINK, ("idle", "launch", "copy", "reset", "close"), DeviceLost,
          "check power and seating", errors={"close": None}, recovery=Recovery.REOPEN,
          cure=lambda stand: stand.again()),
    fault(_F.RESET_REQUIRED, _HW, ("idle",), DriverRefused, _GPU, source=_RM,
          recovery=Recovery.REOPEN, cure=lambda stand: stand.again()),
    fault(_F.NO_VIDEO_MEMORY, _MEM, ("open", "idle"), OutOfMemory, "free memory", source=_RM,
          facts=_NO_MEMORY,
          recovery=Recovery.GO_ON),
    fault(_F.NO_SYSTEM_MEMORY, _HOST, ("open", "idle"), OutOfMemory, "free memory", source=_RM,
          facts=_NO_MEMORY, recovery=Recovery.GO_ON),
    fault(_F.NO_CHANNELS, _HW, _OPEN, OutOfMemory, "other programs", source=_RM),
    fault(_F.NO_PAGE_TABLES, _MEM, ("open", "idle"), OutOfMemory, source=_RM,
          facts={"request": "UVM_MAP_EXTERNAL_ALLOCATION"}, recovery=Recovery.GO_ON),
    fault(_F.OPEN_DENIED, _HOST, _OPEN, AccessDenied, "sudo", source=_RM),
    fault(_F.NO_UVM, _HOST, _OPEN, ModuleMissing, "modprobe", source=_RM),
    fault(_F.UVM_REFUSED, _HOST, _OPEN, DriverRefused, source=_RM),
    fault(_F.MAPPING_REFUSED, _HOST, ("open", "idle"), TransportError, source=_RM,
          recovery=Recovery.GO_ON),
    fault(_F.INTERRUPTED, _HOST, ("open", "idle"), None, source=_RM),
]  # fmt: skip
